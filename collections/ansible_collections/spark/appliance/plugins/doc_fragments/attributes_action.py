# SPDX-License-Identifier: Apache-2.0
"""Attributes of actions that run on the control node and change no node."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc; see ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
attributes:
  action:
    description: Has an action plugin that does its work on the control node.
    support: full
  check_mode:
    description: Changes no node, in check mode or out of it.
    support: full
  diff_mode:
    description: Nothing is changed, so there is nothing to show.
    support: none
  platform:
    description: A POSIX control node.
    support: full
    platforms: posix
"""
