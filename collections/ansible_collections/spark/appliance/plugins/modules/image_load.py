#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: image_load
short_description: Load an image into Docker from the parts of its archive, proven on the way
description:
  - Joins the parts, unpacks them with zstd and passes the archive to C(docker load) in one pass,
    without a joined copy. The config's digest and the diff id of every layer are proven before
    Docker gets the documents that make an image of the layers.
  - An image that Docker has already, by its config's digest, is left alone, and protected from
    C(docker image prune --all) where it is not.
  - Works with Docker's classic store and with containerd's.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_job]
options:
  job:
    description: Name of the job; two jobs of one name exclude each other.
    type: str
    default: image-load
  folder:
    description: Where the parts lie.
    type: path
    required: true
  parts:
    description: Names of the parts in joining order.
    type: list
    elements: str
    required: true
  image:
    description: The image that the archive must hold.
    type: dict
    required: true
    suboptions:
      reference:
        description: The one C(name:tag) that it registers.
        type: str
        required: true
      config_digest:
        description: Digest of its config, C(sha256:…).
        type: str
        required: true
      architecture:
        description: Architecture as in the config.
        type: str
        required: true
      os:
        description: Operating system as in the config.
        type: str
        default: linux
      size_bytes:
        description: Unpacked size in bytes.
        type: int
        required: true
      archive_sha256:
        description: Digest of the joined archive in hexadecimal, where the release lists it.
        type: str
"""

EXAMPLES = r"""
- name: Load the image
  spark.appliance.image_load:
    folder: /var/lib/spark-appliance/parts/lab
    parts: [lab.oci.tar.zst.part-00.bin]
    image:
      reference: spark-lab:1
      config_digest: sha256:6d7b06b13f3839da8d9a447e560ba51a894385d52ca052a6f9af24d072d94e82
      architecture: arm64
      size_bytes: 20327717376
"""

RETURN = r"""
image_id:
  description: Docker's id of the image; the config's digest, or a manifest's in containerd's store.
  type: str
  returned: success, out of check mode
  sample: sha256:6d7b06b1…
layers:
  description: Diff ids of the layers.
  type: list
  elements: str
  returned: success, out of check mode
  sample: ["sha256:5f70bf18…"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    SupplyError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import Expected
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_load import (
    Docker,
    present_image,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.jobs import Job
from ansible_collections.spark.appliance.plugins.module_utils._supply.step import (
    STEP_ARGUMENTS,
    begin,
    shown,
)

ARGUMENTS: dict[str, Any] = {
    "job": {"type": "str", "default": "image-load"},
    "folder": {"type": "path", "required": True},
    "parts": {"type": "list", "elements": "str", "required": True},
    "image": {
        "type": "dict",
        "required": True,
        "options": {
            "reference": {"type": "str", "required": True},
            "config_digest": {"type": "str", "required": True},
            "architecture": {"type": "str", "required": True},
            "os": {"type": "str", "default": "linux"},
            "size_bytes": {"type": "int", "required": True},
            "archive_sha256": {"type": "str"},
        },
    },
    **STEP_ARGUMENTS,
}


def run(module: AnsibleModule) -> dict[str, Any]:
    asked = module.params
    job = Job(asked["job"])
    if asked["step"] == "look":
        return shown(job, job.look(asked["run"]))
    expected = Expected(**asked["image"])
    diff = {"before": "", "after": f"{expected.reference}: {expected.config_digest}\n"}
    docker = Docker()
    try:
        present = present_image(docker, expected, rename=False)
    except CutError:
        if not module.check_mode:
            raise
        # On a fresh node Docker may come later in the same run.
        present = None
    if present is not None and not present.changed:
        data = {"image_id": present.image_id, "layers": list(present.layers)}
        kept = docker.keeps(expected.config_digest)
        if not kept and not module.check_mode:
            docker.keep(expected.reference, expected.config_digest)
        return {"state": "done", "data": data, "changed": not kept}
    if module.check_mode:
        return {"state": "done", "data": {}, "changed": True, "diff": diff}
    request = {
        "kind": "load",
        "folder": asked["folder"],
        "parts": asked["parts"],
        "image": asked["image"],
    }
    return begin(job, request) | {"changed": True, "diff": diff}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        module.exit_json(**{"changed": False} | run(module))
    except SupplyError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
