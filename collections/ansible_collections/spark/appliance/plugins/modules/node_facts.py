#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Read everything that a judgement needs from one node, in one round trip
description:
  - Reads identity, boot, memory, display, avahi, network, firewall, RDMA, GPU, clocks, Docker,
    units, files, disk, launch, weights, listeners, time, power, packages and the kernel log of a
    node.
  - Every section is independently known or unknown. A section that could not be read says
    C(ok=false) with a reason; it is never empty instead.
  - All sizes are bytes. Serial numbers, hardware addresses and keys never leave the node.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  root:
    description:
      - Directory that stands for the node's root; anything but V(/) is a recorded tree, in which
        command output is read from files under C(_commands).
    type: path
    default: /
  paths:
    description: Files to stat and hash, and directories to stat.
    type: list
    elements: str
    default: []
  units:
    description: Systemd units to show beyond those of the appliance and of the host.
    type: list
    elements: str
    default: []
  weights:
    description: Directories with model weights; shards are counted and compared with the index.
    type: list
    elements: str
    default: []
  reach:
    description: Paths over the rails to prove with unfragmented packets; without it none is.
    type: dict
    suboptions:
      mtu:
        description: Ethernet MTU of the rails in bytes, of which IPv4 and ICMP headers take 28.
        type: int
        required: true
      paths:
        description: The paths, from this node to the same rail of each peer.
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
          source:
            description: This node's own address on the rail; the netdev that holds it sends.
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
  reference_epoch_s:
    description: The control node's clock, in seconds since 1970; without it no skew is told.
    type: float
  deadline:
    description: Seconds after which a section that has not answered is unknown.
    type: float
    default: 30.0
"""

EXAMPLES = r"""
- name: Observe the node
  spark.appliance.node_facts:
    paths: [/etc/fstab]
    weights: [/var/lib/spark-appliance/weights/glm-5.2]
    reference_epoch_s: "{{ now(utc=true, fmt='%s.%f') }}"
  register: observed

- name: Read a recorded node
  spark.appliance.node_facts:
    root: tests/fixtures/nodes/recorded
  delegate_to: localhost
"""

RETURN = r"""
facts:
  description: The sections by name.
  type: dict
  returned: always
  contains:
    schema:
      description: Version of the shape.
      type: int
      sample: 1
    elapsed_s:
      description: Time that the reading took, in seconds.
      type: float
      sample: 0.21
    sections:
      description: For each section C(ok) true with C(data), or C(ok) false with C(reason).
      type: dict
      sample:
        gpu: {ok: false, reason: "nvidia-smi: not installed"}
        avahi: {ok: true, data: {deny_interfaces: [], allow_interfaces: [], host_name: alpha}}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._facts.gather import gather
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Unknown, open_host
from ansible_collections.spark.appliance.plugins.module_utils._facts.reach import Reach
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request

_TEXT = {"type": "str", "required": True}
ARGUMENTS: dict[str, Any] = {
    "root": {"type": "path", "default": "/"},
    "paths": {"type": "list", "elements": "str", "default": []},
    "units": {"type": "list", "elements": "str", "default": []},
    "weights": {"type": "list", "elements": "str", "default": []},
    "reach": {
        "type": "dict",
        "options": {
            "mtu": {"type": "int", "required": True},
            "paths": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "node": _TEXT,
                    "rail": _TEXT,
                    "source": _TEXT,
                    "peer": _TEXT,
                    "address": _TEXT,
                },
            },
        },
    },
    "reference_epoch_s": {"type": "float"},
    "deadline": {"type": "float", "default": 30.0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    request = Request(
        paths=tuple(asked["paths"]),
        units=tuple(asked["units"]),
        weights=tuple(asked["weights"]),
        reference_epoch_s=asked["reference_epoch_s"],
        reach=None if asked["reach"] is None else Reach.of(asked["reach"]),
    )
    try:
        host = open_host(asked["root"])
    except Unknown as reason:
        module.fail_json(msg=f"{reason}; root must be / or a recorded tree")
    module.exit_json(changed=False, facts=gather(host, request, asked["deadline"]))


if __name__ == "__main__":
    main()
