#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: supply_share
short_description: Hand verified files to other nodes for the time of a copy
description:
  - Starts or ends a server for a fixed list of verified files, bound to one address of the node and
    to a port that the kernel picks. A receiver must show the token of this run.
  - The server is a transient systemd unit. It ends with O(state=stopped), when nobody has asked for
    O(idle_limit) seconds, or after O(deadline) seconds, whichever comes first.
  - A copy leaves nothing behind, so neither state counts as a change of the node.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_job]
options:
  job:
    description: Name of the job; two jobs of one name exclude each other.
    type: str
    required: true
  state:
    description: Whether the server is there.
    type: str
    choices: [started, stopped]
    default: started
  folder:
    description: Where the files lie.
    type: path
  names:
    description: Files to hand out.
    type: list
    elements: str
    default: []
  address:
    description: Address of the node to bind to; never a wildcard.
    type: str
  token:
    description: What a receiver must show, at least 32 characters.
    type: str
  idle_limit:
    description: Seconds without a request after which the server ends.
    type: int
    default: 300
  deadline:
    description: Seconds after which the server ends in any case.
    type: int
    default: 21600
"""

EXAMPLES = r"""
- name: Hand the parts out on rail A
  spark.appliance.supply_share:
    job: image-share
    folder: /var/lib/spark-appliance/parts/r13-balanced-fast-c4
    names: [a.part-00.bin, a.part-01.bin]
    address: 198.51.100.11
    token: "{{ image_share_token }}"
  register: shared
"""

RETURN = r"""
url:
  description: Where the files are handed out.
  type: str
  returned: when O(state=started)
  sample: http://198.51.100.11:40123
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import SupplyError
from ansible_collections.spark.appliance.plugins.module_utils._supply.jobs import Job
from ansible_collections.spark.appliance.plugins.module_utils._supply.step import (
    STEP_ARGUMENTS,
    begin,
    shown,
)

ARGUMENTS: dict[str, Any] = {
    "job": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "folder": {"type": "path"},
    "names": {"type": "list", "elements": "str", "default": []},
    "address": {"type": "str"},
    "token": {"type": "str", "no_log": True},
    "idle_limit": {"type": "int", "default": 300},
    "deadline": {"type": "int", "default": 6 * 3600},
    **STEP_ARGUMENTS,
}


def url_of(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def run(module: AnsibleModule) -> dict[str, Any]:
    asked = module.params
    job = Job(asked["job"])
    if asked["state"] == "stopped":
        if not module.check_mode:
            job.stop()
        return {"state": "done", "data": {}}
    if module.check_mode:
        return {"state": "done", "data": {"url": url_of(asked["address"], 0)}}
    if asked["step"] == "begin":
        request = {
            "kind": "share",
            "folder": asked["folder"],
            "names": asked["names"],
            "address": asked["address"],
            "token": asked["token"],
            "idle_limit_s": asked["idle_limit"],
            "deadline_s": asked["deadline"],
        }
        return begin(job, request, asked["deadline"] + 60)
    look = job.look(asked["run"])
    if look.ready is not None and look.state == "running":
        return {"state": "done", "data": {"url": url_of(asked["address"], look.ready["port"])}}
    return shown(job, look)


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
        required_if=[("state", "started", ("folder", "address", "token"))],
    )
    try:
        module.exit_json(changed=False, **run(module))
    except SupplyError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
