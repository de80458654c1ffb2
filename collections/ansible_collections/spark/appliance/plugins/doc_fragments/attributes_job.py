# SPDX-License-Identifier: Apache-2.0
"""Attributes and options of modules whose work is a job that an action plugin follows."""

from __future__ import annotations


class ModuleDocFragment:
    """Read by ansible-doc; see ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
attributes:
  action:
    description: Has an action plugin that follows the job and prints its progress.
    support: full
  check_mode:
    description: Says whether there is anything to do, from the status of files and images.
    support: full
  diff_mode:
    description: Shows what is there and what will be.
    support: full
  platform:
    description: Linux hosts with systemd and the system's Python 3.11 or later.
    support: full
    platforms: linux
options:
  step:
    description: Set by the action plugin, which begins the job, looks at it and ends it.
    type: str
    choices: [begin, look, end]
    default: begin
  run:
    description: Set by the action plugin; name of the run that follows the job.
    type: str
    default: ""
"""
