#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: serving_probe
short_description: Ask the API server what it serves, and for one completion
description:
  - Reads C(/health) and C(/v1/models), and with O(smoke) also C(/tokenize) and one completion at
    temperature 0.
  - A server that does not answer is a result, not a failure of the module; the judge decides.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  address:
    description: Address that the API server is bound to.
    type: str
    required: true
  port:
    description: Port that the API server is bound to.
    type: int
    required: true
  api_key:
    description: Key that the server demands.
    type: str
    default: ""
  served_name:
    description: Name under which the model is served.
    type: str
    required: true
  smoke:
    description: The completion to ask for; without it none is asked for.
    type: dict
    suboptions:
      prompt:
        description: Text of the prompt.
        type: str
        required: true
      chat:
        description: Use the chat endpoint instead of the completions endpoint.
        type: bool
        default: true
      max_tokens:
        description: Output limit in tokens.
        type: int
        default: 32
      seed:
        description: Sampling seed.
        type: int
        default: 0
      extra:
        description: Further fields of the request.
        type: dict
        default: {}
  timeout:
    description: Limit of one exchange in seconds.
    type: float
    default: 10.0
"""

EXAMPLES = r"""
- name: Ask the head what it serves
  spark.appliance.serving_probe:
    address: "{{ appliance_api_bind }}"
    port: "{{ appliance_api_port | int }}"
    api_key: "{{ appliance_api_key }}"
    served_name: glm-5.2
  register: serving
"""

RETURN = r"""
serving:
  description: What the server said.
  type: dict
  returned: always
  sample:
    health: 200
    without_key: 401
    models: [{id: glm-5.2, max_model_len: 520000}]
    prompt_tokens: null
    completion: null
    error: ""
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._serving import (
    Smoke,
    http_transport,
    probe,
)

ARGUMENTS: dict[str, Any] = {
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "api_key": {"type": "str", "default": "", "no_log": True},
    "served_name": {"type": "str", "required": True},
    "smoke": {
        "type": "dict",
        "options": {
            "prompt": {"type": "str", "required": True},
            "chat": {"type": "bool", "default": True},
            "max_tokens": {"type": "int", "default": 32, "no_log": False},
            "seed": {"type": "int", "default": 0},
            "extra": {"type": "dict", "default": {}},
        },
    },
    "timeout": {"type": "float", "default": 10.0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    host = f"[{asked['address']}]" if ":" in asked["address"] else asked["address"]
    smoke = Smoke(**asked["smoke"]) if asked["smoke"] else None
    base_url = f"http://{host}:{asked['port']}"
    serving = probe(
        http_transport(base_url, asked["api_key"]),
        http_transport(base_url, ""),
        asked["served_name"],
        smoke,
        asked["timeout"],
    )
    module.exit_json(changed=False, serving=serving)


if __name__ == "__main__":
    main()
