#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: rail_ping
short_description: Prove with unfragmented packets what the rails to all peers let through
description:
  - Sends large packets that must not be fragmented from each rail to the same rail of each peer,
    all paths at once, and small ones where no large one is answered.
  - A path that lets nothing through is a result, not a failure of the module; the judge decides.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  mtu:
    description: Ethernet MTU of the rails in bytes, of which IPv4 and ICMP headers take 28.
    type: int
    required: true
  probes:
    description: The paths to prove.
    type: list
    elements: dict
    required: true
    suboptions:
      node:
        description: This node.
        type: str
        required: true
      rail:
        description: V(a) or V(b).
        type: str
        required: true
      interface:
        description: The rail's netdev.
        type: str
        required: true
      peer:
        description: Name of the peer.
        type: str
        required: true
      address:
        description: The peer's address on the rail.
        type: str
        required: true
"""

EXAMPLES = r"""
- name: Prove the rails
  spark.appliance.rail_ping:
    mtu: 9000
    probes:
      - {node: alpha, rail: a, interface: enp1s0f1np1, peer: bravo, address: 198.51.100.12}
  register: rails
"""

RETURN = r"""
paths:
  description: What each path let through, in the order of O(probes).
  type: list
  elements: dict
  returned: always
  sample:
    - node: alpha
      rail: a
      interface: enp1s0f1np1
      peer: bravo
      address: 198.51.100.12
      payload_bytes: 8972
      sent: 3
      received: 3
      local_mtu: null
      path_mtu: null
      small_received: null
      error: ""
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._ping import (
    IPV4_ICMP_BYTES,
    Probe,
    prove_all,
)

_TEXT = {"type": "str", "required": True}
ARGUMENTS: dict[str, Any] = {
    "mtu": {"type": "int", "required": True},
    "probes": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "node": _TEXT,
            "rail": _TEXT,
            "interface": _TEXT,
            "peer": _TEXT,
            "address": _TEXT,
        },
    },
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    probes = [Probe(**item) for item in module.params["probes"]]
    paths = prove_all(probes, module.params["mtu"] - IPV4_ICMP_BYTES)
    module.exit_json(changed=False, paths=paths)


if __name__ == "__main__":
    main()
