#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: supply_fetch
short_description: Bring a set of verified files to a node
description:
  - Fetches the files of a folder behind HTTP, or of another folder of the node, and hashes each
    byte as it passes. What is verified is remembered beside the files and never fetched or read
    again while it is untouched; a partial file goes on where it stopped.
  - The list of files is either given with O(files), or read from the checksum file at the address.
  - The work is a transient systemd unit, which outlives the connection. Two runs at once are
    refused.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_job]
options:
  job:
    description: Name of the job; two jobs of one name exclude each other.
    type: str
    required: true
  url:
    description:
      - Folder behind C(http://), C(https://) or C(file://), the latter on the node.
      - C(control://) is a folder of the control node, whose files the action plugin hands over by
        ssh, which forwards a port of the node's loopback for the time of the copy.
    type: str
    required: true
  folder:
    description: Where the files go.
    type: path
    required: true
  checksums:
    description: Name of the checksum file in the folder, read when O(files) is empty.
    type: str
    default: SHA256SUMS
  parts:
    description: How the parts of an archive are named; without it the checksum file says all.
    type: dict
    suboptions:
      archive:
        description: Name of the joined archive.
        type: str
        required: true
      count:
        description: Number of parts.
        type: int
        required: true
      digits:
        description: Digits of a part's number.
        type: int
        default: 2
  files:
    description: Files with C(name), C(sha256) and, where known, C(size_bytes).
    type: list
    elements: dict
    default: []
  manifest_sha256:
    description:
      - Digest of the sorted list of digests and names that the checksum file must have; empty where
        none is pinned.
    type: str
    default: ""
  archive_sha256:
    description: Digest of the joined archive, handed on with O(files).
    type: str
  label:
    description:
      - Address to remember the files under, where O(url) lasts for one copy only.
      - Defaults to O(url).
    type: str
  token:
    description: Bearer token that the server demands.
    type: str
    default: ""
  direct:
    description: Never use a proxy, as between nodes.
    type: bool
    default: false
  tunnel:
    description:
      - Set by the action plugin for a folder of the control node; port of the node's loopback that
        leads there.
    type: int
    default: 0
  connections:
    description: Files in flight at once.
    type: int
    default: 4
  tools:
    description: Commands that a later step needs; without them nothing is fetched.
    type: list
    elements: str
    default: []
  reserve_bytes:
    description: Space that must stay free beyond the files, in bytes.
    type: int
    default: 2147483648
"""

EXAMPLES = r"""
- name: Fetch the parts of the release
  spark.appliance.supply_fetch:
    job: image-fetch
    url: https://releases.example.org/r13-balanced-fast-c4
    folder: /var/lib/spark-appliance/parts/r13-balanced-fast-c4
    parts:
      archive: glm52-r13-balanced-fast-c4.oci.tar.zst
      count: 4
  register: fetched
"""

RETURN = r"""
files:
  description: The verified set; empty in check mode while it is not known yet.
  type: list
  elements: dict
  returned: success
  sample: [{name: a.part-00.bin, sha256: 0f3c…, size_bytes: 1850000000}]
moved_bytes:
  description: Bytes that came from the address in this run.
  type: int
  returned: success
  sample: 0
manifest_sha256:
  description: Digest of the sorted list of names and digests.
  type: str
  returned: success
  sample: 6c1f64b5…
archive_sha256:
  description: Digest of the joined archive, where the checksum file lists it.
  type: str
  returned: success
  sample: f1c8a209…
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    RefusalError,
    SupplyError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.jobs import Job
from ansible_collections.spark.appliance.plugins.module_utils._supply.share import wide_listeners
from ansible_collections.spark.appliance.plugins.module_utils._supply.step import (
    STEP_ARGUMENTS,
    begin,
    shown,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.worker import remembered

ARGUMENTS: dict[str, Any] = {
    "job": {"type": "str", "required": True},
    "url": {"type": "str", "required": True},
    "folder": {"type": "path", "required": True},
    "checksums": {"type": "str", "default": "SHA256SUMS"},
    "parts": {
        "type": "dict",
        "options": {
            "archive": {"type": "str", "required": True},
            "count": {"type": "int", "required": True},
            "digits": {"type": "int", "default": 2},
        },
    },
    "files": {"type": "list", "elements": "dict", "default": []},
    "manifest_sha256": {"type": "str", "default": ""},
    "archive_sha256": {"type": "str"},
    "label": {"type": "str"},
    "token": {"type": "str", "default": "", "no_log": True},
    "direct": {"type": "bool", "default": False},
    "tunnel": {"type": "int", "default": 0},
    "connections": {"type": "int", "default": 4},
    "tools": {"type": "list", "elements": "str", "default": []},
    "reserve_bytes": {"type": "int", "default": 2 << 30},
    **STEP_ARGUMENTS,
}
_REQUEST = (
    "url",
    "folder",
    "checksums",
    "parts",
    "files",
    "manifest_sha256",
    "archive_sha256",
    "label",
    "token",
    "direct",
    "connections",
    "reserve_bytes",
)


def run(module: AnsibleModule) -> dict[str, Any]:
    asked = module.params
    request = {"kind": "fetch"} | {key: asked[key] for key in _REQUEST}
    job = Job(asked["job"])
    if asked["step"] == "look":
        return shown(job, job.look(asked["run"]))
    known = remembered(request)
    if known is not None:
        data = {
            "files": [asdict(file) for file in known.files],
            "moved_bytes": 0,
            "manifest_sha256": known.manifest_sha256,
            "archive_sha256": known.archive_sha256 or asked["archive_sha256"],
        }
        return {"state": "done", "data": data, "changed": False}
    # Where the files come from at first, not the port of one copy.
    origin = (asked["label"] or asked["url"]).partition("#")[0]
    diff = {
        "before": "",
        "after": f"{asked['folder']}: verified files of {origin}\n",
    }
    if module.check_mode:
        data = {
            "files": asked["files"],
            "moved_bytes": 0,
            "manifest_sha256": "",
            "archive_sha256": asked["archive_sha256"],
        }
        return {"state": "done", "data": data, "changed": True, "diff": diff}
    missing = [tool for tool in ("curl", *asked["tools"]) if shutil.which(tool) is None]
    if missing:
        raise RefusalError(
            f"expected the commands {', '.join(missing)}, found none; install their packages"
        )
    if asked["url"].startswith("control://"):
        # The action plugin opens the way and asks again.
        return {"state": "closed", "changed": True, "diff": diff}
    if asked["tunnel"]:
        demand_loopback(asked["tunnel"])
    return begin(job, request) | {"changed": True, "diff": diff}


def demand_loopback(port: int) -> None:
    """Refuse a way in that others than this node itself could take."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    wide = wide_listeners(port, [table.read_text() for table in tables if table.exists()])
    if wide:
        raise RefusalError(
            f"expected sshd to forward port {port} on loopback alone, found it on "
            f"{', '.join(wide)}; set GatewayPorts no in the node's sshd"
        )


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        module.exit_json(**{"changed": False} | run(module))
    except SupplyError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
