#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: image_probe
short_description: Look inside an image with a throw-away container
description:
  - Hashes files, looks for files by name, tells whether paths exist and reads small files, all in
    one container without network, GPU, capabilities or a writable root.
  - Fails when the container or any probe did not run to its end; nothing seen is then reported.
  - On the control node the action plugin judges what was seen by the release's description.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  reference:
    description: Name of the image; it is never pulled.
    type: str
    required: true
  base:
    description: Folder that the paths of O(sealed) are relative to.
    type: str
    default: /
  sealed:
    description: Files to hash.
    type: list
    elements: str
    default: []
  patterns:
    description: Names of files to look for.
    type: list
    elements: str
    default: []
  absent:
    description: Paths whose existence to tell.
    type: list
    elements: str
    default: []
  read:
    description: Files to read, at most 64 KiB of each.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Look for weights inside the image
  spark.appliance.image_probe:
    reference: spark-lab:1
    patterns: ["*.safetensors"]
    absent: [/models]
  register: seen
"""

RETURN = r"""
sealed:
  description: Digest of each file, null where it is not there.
  type: dict
  returned: success
  sample: {vllm/config/vllm.py: 9d90933e…}
matches:
  description: Files that have one of the names.
  type: list
  elements: str
  returned: success
  sample: []
existing:
  description: Those of the paths that exist.
  type: list
  elements: str
  returned: success
  sample: []
content:
  description: Text of each file, null where it is not there.
  type: dict
  returned: success
  sample: {/opt/r9/BUILD_PROVENANCE: "source_commit=bae57bd8…"}
labels:
  description: The image's labels.
  type: dict
  returned: success
  sample: {org.glm52.exp1.revision: r9.1-scheduler-liveness-4lane}
"""

import secrets
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._image_probe import (
    Probes,
    look_inside,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import SupplyError

ARGUMENTS: dict[str, Any] = {
    "reference": {"type": "str", "required": True},
    "base": {"type": "str", "default": "/"},
    "sealed": {"type": "list", "elements": "str", "default": []},
    "patterns": {"type": "list", "elements": "str", "default": []},
    "absent": {"type": "list", "elements": "str", "default": []},
    "read": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    probes = Probes(
        base=asked["base"],
        sealed=tuple(asked["sealed"]),
        patterns=tuple(asked["patterns"]),
        absent=tuple(asked["absent"]),
        read=tuple(asked["read"]),
    )
    try:
        seen = look_inside(asked["reference"], probes, secrets.token_hex(12))
    except SupplyError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **asdict(seen))


if __name__ == "__main__":
    main()
