#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: memory_wait
short_description: Wait until a stopped service's memory has come back
description:
  - Looks at MemAvailable until there is enough of it, or until the time is over.
  - Memory that does not come back in time is a failure that names who holds most of it. When no
    process does, the driver has kept it, and only a reboot gives it back.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
extends_documentation_fragment: [spark.appliance.attributes_info]
options:
  available_bytes:
    description: MemAvailable that must be there, in bytes.
    type: int
    required: true
  timeout:
    description: Seconds to wait. An engine's memory takes up to a minute to come back.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Wait for the old service's memory
  spark.appliance.memory_wait:
    available_bytes: 121106333696
"""

RETURN = r"""
available_bytes:
  description: MemAvailable at the end.
  type: int
  returned: always
  sample: 121411960832
waited_s:
  description: Seconds waited.
  type: float
  returned: always
  sample: 31.5
holders:
  description: Who holds most memory, largest first; empty when there was enough.
  type: list
  elements: dict
  returned: always
  sample:
    - {pid: 4711, name: python3, container: null, unit: ssh.service, memory_bytes: 3221225472}
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.spark.appliance.plugins.module_utils._facts.holders import (
    observe_holders,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Unknown,
    open_host,
)
from ansible_collections.spark.appliance.plugins.module_utils._memory_watch import parse_meminfo

MEMINFO = Path("/proc/meminfo")
POLL_S = 0.5
NAMED = 5


def largest(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the holders of most memory, largest first."""
    known = [process for process in processes if process["memory_bytes"] is not None]
    return sorted(known, key=lambda process: int(process["memory_bytes"]), reverse=True)[:NAMED]


def said(holders: list[dict[str, Any]]) -> str:
    """Return holders as one text."""
    return ", ".join(
        f"{holder['name']} (process {holder['pid']}, "
        f"{holder['container'] or holder['unit'] or 'no unit'}): "
        f"{holder['memory_bytes'] >> 20} MiB"
        for holder in holders
    )


def main() -> None:
    """Wait for memory."""
    module = AnsibleModule(
        argument_spec={
            "available_bytes": {"type": "int", "required": True},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    wanted, limit_s = module.params["available_bytes"], module.params["timeout"]
    began = time.monotonic()
    try:
        while True:
            available = parse_meminfo(MEMINFO.read_text(encoding="ascii")).available_bytes
            waited_s = time.monotonic() - began
            if available >= wanted or waited_s >= limit_s:
                break
            time.sleep(POLL_S)
        enough = available >= wanted
        holders = [] if enough else largest(observe_holders(open_host("/"))["processes"])
    except (OSError, ValueError, Unknown) as error:
        module.fail_json(msg=f"memory of this node cannot be read: {error}")
    seen = {"available_bytes": available, "waited_s": round(waited_s, 1), "holders": holders}
    if not enough:
        module.fail_json(
            msg=(
                f"expected MemAvailable of at least {wanted} B, found {available} B after "
                f"{limit_s} s; held by {said(holders) or 'no process'}. End what holds it; memory "
                "that no process holds is the driver's and needs a reboot."
            ),
            **seen,
        )
    module.exit_json(changed=False, **seen)


if __name__ == "__main__":
    main()
