# SPDX-License-Identifier: Apache-2.0
"""What would end processes when memory gets short."""

from __future__ import annotations

from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.processes import processes

# Names in the 15 bytes that the kernel keeps; their rules are not read, their presence is told.
OTHER_KILLERS = frozenset({"nohang", "nohang-desktop", "psi-monitor", "oomd", "prelockd"})

# systemd-oomd kills inside the cgroups that it watches; these contain a container of Docker.
WATCHED = ("-.slice", "system.slice", "docker.service", "spark-engine.service", "user.slice")

_PROPERTIES = "Id,ManagedOOMMemoryPressure,ManagedOOMSwap,ManagedOOMMemoryPressureLimit"
SHOW_MANAGED = Command(
    "systemctl-oomd", ("systemctl", "show", f"--property={_PROPERTIES}", "--", *WATCHED)
)


def parse_managed(text: str) -> dict[str, dict[str, str]]:
    """Return the oomd settings of units from ``systemctl show``: one block for each unit."""
    managed = {}
    for block in text.strip().split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in fields:
            managed[fields["Id"]] = {
                "memory_pressure": fields.get("ManagedOOMMemoryPressure", ""),
                "swap": fields.get("ManagedOOMSwap", ""),
                "limit": fields.get("ManagedOOMMemoryPressureLimit", ""),
            }
    return managed


def _arguments(host: Host, pid: int) -> list[str] | None:
    try:
        raw = host.read_bytes(f"/proc/{pid}/cmdline")
    except Unknown:
        return None
    if not raw:
        return None
    return [word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0")]


def observe_guards(host: Host) -> dict[str, Any]:
    """Return the ``guards`` section: earlyoom and its arguments, systemd-oomd and its cgroups.

    Raises:
        Unknown: systemd-oomd runs, but systemctl does not say what it watches.
    """
    running = {process.name: process.pid for process in processes(host)}
    earlyoom = running.get("earlyoom")
    # The kernel cuts the name at 15 bytes, which systemd-oomd (12) fits into.
    oomd = "systemd-oomd" in running
    managed = {}
    if oomd:
        managed = parse_managed(host.ask(SHOW_MANAGED))
        if not managed:
            raise Unknown("systemctl: did not say what systemd-oomd watches")
    return {
        "earlyoom": {
            "running": earlyoom is not None,
            "argv": _arguments(host, earlyoom) if earlyoom is not None else None,
        },
        "oomd": {"running": oomd, "managed": managed},
        "others": sorted(OTHER_KILLERS & set(running)),
    }
