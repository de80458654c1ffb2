# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: rail_findings
short_description: Judge what the rails between all nodes let through
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
description:
  - Takes the results of M(spark.appliance.rail_ping) of all nodes and returns a message for every
    path that does not carry full packets, and for every path that nobody probed.
positional: nodes, rails, mtu
options:
  _input:
    description: Results of the module, one a node.
    type: list
    elements: dict
    required: true
  nodes:
    description: Names of all nodes.
    type: list
    elements: str
    required: true
  rails:
    description: The rails to prove, V(a) and V(b).
    type: list
    elements: str
    required: true
  mtu:
    description: Ethernet MTU of the rails in bytes.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Fail where a path does not carry full packets
  ansible.builtin.assert:
    that: (results | spark.appliance.rail_findings(nodes, ['a', 'b'], 9000)) == []
"""

RETURN = r"""
_value:
  description: One message a finding that refuses; empty where all is proven.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import Path, judge_reach


def rail_findings(
    results: Sequence[Mapping[str, Any]], nodes: Sequence[str], rails: Sequence[str], mtu: int
) -> list[str]:
    """Return a message for every finding that refuses."""
    paths = [Path.of(item) for result in results for item in result.get("paths", [])]
    return [finding.message() for finding in refusals(judge_reach(paths, nodes, rails, mtu))]


class FilterModule:
    """Read by Ansible."""

    def filters(self) -> dict[str, Any]:
        return {"rail_findings": rail_findings}
