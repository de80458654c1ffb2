#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation only: the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Say whether a profile's memory fits on the nodes
description:
  - Judges the memory envelope of a profile on facts of live nodes, or on given totals.
  - Prints a table and a bar for each role, the verdict, and what would help; writes the same as
    JSON, SVG and PNG on the control node.
  - A refused profile is a result, not a failure; the gates of a cutover are what stops it.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_action]
options:
  recipe:
    description: Path of the recipe on the control node.
    type: path
    required: true
  profile:
    description:
      - Name of a profile, or of a run in the recipe's C(memory.runs).
      - Empty means the profile that runs, or the recipe's default where none does.
    type: str
    default: ""
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
  observed:
    description: Variable in which every node registered M(spark.appliance.observe).
    type: str
  offline:
    description: Totals of every node, to judge on paper instead of on facts.
    type: dict
    suboptions:
      total:
        description: MemTotal with its unit.
        type: str
        required: true
      available:
        description: MemAvailable before the engine's start, with its unit.
        type: str
        required: true
  releases:
    description:
      - Folder with the descriptions of released images.
      - Its config digest is what entries of the ledger must share.
    type: path
    required: true
  accept_unmeasured:
    description: Take a profile whose floor nobody measured.
    type: bool
    default: false
  receipts:
    description: Folder on the control node that is written to and holds the ledger.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Say whether the profile fits, on paper
  spark.appliance.plan:
    recipe: recipes/glm52-r13.yml
    profile: fast
    head: [alpha]
    workers: [bravo, charlie, delta]
    offline: {total: 121.69 GiB, available: 113 GiB}
    releases: image/releases
    receipts: receipts
"""

RETURN = r"""
verdict:
  description: What the envelope says.
  type: str
  returned: success
  sample: fits, measured
envelope:
  description: The envelope as data; sizes in bytes.
  type: dict
  returned: success
  sample: {profile: fast, verdict: refused, nodes: [], fixes: [], findings: []}
files:
  description: Files written on the control node.
  type: list
  elements: str
  returned: success
  sample: [receipts/envelope-fast.json]
"""
