#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_progress
short_description: Say how far a starting engine has come
description:
  - Reads unit states, the end of a unit's log and, where asked, the Ray cluster's nodes and the
    API server's health.
  - An engine that is not there yet is a result, not a failure.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  units:
    description: Units to report; the last one's log is read.
    type: list
    elements: str
    required: true
  log_lines:
    description: How many lines of the log's end to return.
    type: int
    default: 1
  ray:
    description: Ask the Ray cluster for its nodes.
    type: dict
    suboptions:
      container:
        description: The head's container.
        type: str
        required: true
      address:
        description: Address and port of the cluster's control store.
        type: str
        required: true
      python:
        description: Python inside the image.
        type: str
        default: python3
      timeout:
        description: Limit in seconds.
        type: float
        default: 20.0
  health_url:
    description: Address of the health endpoint to ask.
    type: str
"""

EXAMPLES = r"""
- name: See how far the head's engine has come
  spark.appliance.engine_progress:
    units: [spark-engine.service]
    ray:
      container: spark-engine
      address: "{{ appliance_rank_address }}:6379"
"""

RETURN = r"""
units:
  description: State of each unit.
  type: dict
  returned: always
  sample: {spark-engine.service: {ActiveState: active, SubState: running, Result: success}}
log:
  description: The end of the last unit's log.
  type: list
  elements: str
  returned: always
  sample: ["Application startup complete."]
ray_nodes:
  description: Nodes of the Ray cluster.
  type: list
  elements: dict
  returned: always
  sample: [{address: 10.77.0.11, alive: true, gpus: 1.0}]
ray_error:
  description: Why there is no list of Ray nodes; empty where there is one or none was asked for.
  type: str
  returned: always
  sample: ""
health:
  description: HTTP status of the health endpoint, 0 where none was asked for or none came.
  type: int
  returned: always
  sample: 200
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._engine import (
    last_lines,
    ray_nodes,
    unit_states,
)
from ansible_collections.spark.appliance.plugins.module_utils._serving import http_transport

ARGUMENTS: dict[str, Any] = {
    "units": {"type": "list", "elements": "str", "required": True},
    "log_lines": {"type": "int", "default": 1},
    "ray": {
        "type": "dict",
        "options": {
            "container": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "python": {"type": "str", "default": "python3"},
            "timeout": {"type": "float", "default": 20.0},
        },
    },
    "health_url": {"type": "str"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    nodes: list[dict[str, Any]] = []
    error = ""
    health = 0
    try:
        units = unit_states(asked["units"])
    except RuntimeError as unreadable:
        module.fail_json(msg=str(unreadable))
    if asked["ray"]:
        ray = asked["ray"]
        nodes, error = ray_nodes(ray["container"], ray["address"], ray["python"], ray["timeout"])
    if asked["health_url"]:
        health = http_transport(asked["health_url"], "")("GET", "", None, 5.0).status
    module.exit_json(
        changed=False,
        units=units,
        log=last_lines(asked["units"][-1], asked["log_lines"]),
        ray_nodes=nodes,
        ray_error=error,
        health=health,
    )


if __name__ == "__main__":
    main()
