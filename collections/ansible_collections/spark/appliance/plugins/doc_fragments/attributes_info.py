# SPDX-License-Identifier: Apache-2.0
"""Attributes of modules that only read."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc; see ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Runs the same reads in check mode.
    support: full
  diff_mode:
    description: Nothing is changed, so there is nothing to show.
    support: none
  platform:
    description: Linux hosts with the system's Python 3.11 or later.
    support: full
    platforms: linux
"""
