# SPDX-License-Identifier: Apache-2.0
"""Lines of this boot's kernel log that are known to go with faults."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
)

JOURNAL = Command(
    "journalctl-kernel",
    ("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-monotonic",
     "--lines=20000"),
    timeout_s=12.0,
    empty_ok=True,
)  # fmt: skip
MARKERS = {
    "gpu-no-memory": re.compile(r"NV_ERR_NO_MEMORY"),
    "gpu-xid": re.compile(r"NVRM: Xid .*?: (\d+)"),
    "oom-kill": re.compile(r"Out of memory: Killed process \d+ \(([^)]*)\)"),
    "cable-removed": re.compile(r"cx7-pcie-hotplug .*Cable removal"),
    "slot-power": re.compile(r"mlx5_core .*(?:insufficient power|27W)", re.IGNORECASE),
    "hung-task": re.compile(r"task (\S+?):\d+ blocked for more than \d+ seconds"),
}
_LINE = re.compile(r"^\[\s*(\d+\.\d+)\]\s+(.*)$")


def parse_markers(text: str) -> list[dict[str, Any]]:
    """Return each kind of marker with its count, last time in seconds after boot, and detail."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        for kind, pattern in MARKERS.items():
            if hit := pattern.search(match.group(2)):
                marker = found.setdefault(kind, {"kind": kind, "count": 0})
                marker["count"] += 1
                marker["last_s"] = float(match.group(1))
                marker["detail"] = hit.group(1) if hit.groups() else ""
    return list(found.values())


def observe_kernel_log(host: Host) -> dict[str, Any]:
    """Return the ``kernel_log`` section.

    Raises:
        Unknown: the log is empty, which no kernel's log is: a container, or no journal of it.
    """
    text = host.ask(JOURNAL)
    if not any(_LINE.match(line) for line in text.splitlines()):
        raise Unknown("journalctl: no kernel message of this boot (a container has none)")
    return {"markers": parse_markers(text), "lines": text.count("\n")}
