#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation only: the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: await_engine
short_description: Wait until an engine's ranks have joined or its API server is healthy
description:
  - Asks M(spark.appliance.engine_progress) on the node again and again and prints progress.
  - Ends at once, with the end of the unit's log, when a unit stops.
  - In check mode nothing was started, so nothing is waited for.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_action]
options:
  goal:
    description: What to wait for.
    type: str
    required: true
    choices: [ranks, health]
  units:
    description: Units that must stay up meanwhile; the last one's log is shown.
    type: list
    elements: str
    required: true
  addresses:
    description: Rank addresses that must have joined, for goal V(ranks).
    type: list
    elements: str
    default: []
  gpus:
    description: GPUs that the joined nodes must offer in all, for goal V(ranks).
    type: int
    default: 0
  ray:
    description: How to ask the cluster; see O(spark.appliance.engine_progress#module:ray).
    type: dict
  health_url:
    description: Address of the health endpoint, for goal V(health).
    type: str
  timeout:
    description: Limit of the whole wait in seconds.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Wait until the API server is healthy
  spark.appliance.await_engine:
    goal: health
    units: [spark-engine.service, spark-api.service]
    health_url: http://10.77.0.11:8000/health
    timeout: 900
"""

RETURN = r"""
elapsed_s:
  description: Seconds waited.
  type: float
  returned: success
  sample: 41.7
seen:
  description: The last answer of M(spark.appliance.engine_progress).
  type: dict
  returned: success
"""
