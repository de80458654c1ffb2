#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation only: the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: observe
short_description: Gather a node's facts and, where asked, what it serves
description:
  - Runs M(spark.appliance.node_facts) and, with O(serving), M(spark.appliance.serving_probe).
  - A node that cannot be reached fails with one message that names its address and what to do.
  - The folder of the weights comes from the inventory's C(appliance_weights_dir).
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_action]
options:
  reach:
    description: Option O(spark.appliance.node_facts#module:reach); empty proves no path.
    type: dict
    default: {}
  serving:
    description: Options of M(spark.appliance.serving_probe) without its key; empty asks nothing.
    type: dict
    default: {}
  api_key:
    description: Key that the API server demands.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Observe the node
  spark.appliance.observe:
  register: observe_result
"""

RETURN = r"""
facts:
  description: See RV(spark.appliance.node_facts#module:facts).
  type: dict
  returned: always
serving:
  description: See RV(spark.appliance.serving_probe#module:serving).
  type: dict
  returned: when asked for
"""
