#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation only: the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_ledger
short_description: Keep how low memory went in a launch, for the plans after it
description:
  - Takes what M(spark.appliance.memory_watch) saw on every node and adds one entry to the floor
    ledger on the control node; an entry of the same launch is replaced.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
attributes:
  action:
    description: Has an action plugin that does its work on the control node.
    support: full
  check_mode:
    description: Says whether the ledger would change, and writes nothing.
    support: full
  diff_mode:
    description: Shows the entry.
    support: full
  platform:
    description: A POSIX control node.
    support: full
    platforms: posix
options:
  recipe:
    description: Path of the recipe on the control node.
    type: path
    required: true
  releases:
    description: Folder with the descriptions of released images.
    type: path
    required: true
  receipts:
    description: Folder on the control node that holds the ledger.
    type: path
    required: true
  profile:
    description: Profile that was served.
    type: str
    required: true
  launch:
    description: Id of the launch.
    type: str
    required: true
  outcome:
    description: Whether it served until the watch was read, or ran out of memory.
    type: str
    choices: [served, killed]
    default: served
  head:
    description: Inventory names of the head, one.
    type: list
    elements: str
    required: true
  workers:
    description: Inventory names of the workers in rank order.
    type: list
    elements: str
    required: true
  watched:
    description: Variable in which every node registered M(spark.appliance.memory_watch).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read how low memory went
  spark.appliance.memory_watch:
  register: memory_watched

- name: Keep it
  spark.appliance.memory_ledger:
    recipe: recipes/glm52-r13.yml
    releases: image/releases
    receipts: receipts
    profile: balanced
    launch: 3f0c9a
    head: [alpha]
    workers: [bravo, charlie, delta]
    watched: memory_watched
  run_once: true
"""

RETURN = r"""
path:
  description: The ledger.
  type: str
  returned: success
  sample: receipts/ledger.json
counts:
  description: Whether the entry speaks for later plans; it does not without a long prefill.
  type: bool
  returned: success
  sample: true
"""
