# SPDX-License-Identifier: Apache-2.0
"""Processes by name and resident size, straight from /proc."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Host, Unknown

# Names that hold the package database; apt runs dpkg, snapd seeding runs neither.
PACKAGE_MANAGERS = frozenset(
    {"apt", "apt-get", "dpkg", "unattended-upgr", "aptitude", "do-release-upg"}
)


@dataclass(frozen=True, slots=True)
class Process:
    """One process; ``name`` is what the kernel keeps, at most 15 bytes."""

    pid: int
    name: str
    rss_bytes: int


def processes(host: Host) -> list[Process]:
    """Return the node's processes; one that ends while being read is left out.

    Raises:
        Unknown: /proc lists no process at all, or the status of one cannot be read.
    """
    found = []
    for name in host.names("/proc") or []:
        if not name.isdigit():
            continue
        status = host.text(f"/proc/{name}/status")
        if status is None:
            continue
        title = re.search(r"^Name:\t(.*)$", status, re.MULTILINE)
        resident = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        # A process that nobody can name could be the very one that is looked for.
        if title is None:
            raise Unknown(f"/proc/{name}/status: no Name in it")
        size_bytes = int(resident.group(1)) * 1024 if resident else 0
        found.append(Process(int(name), title.group(1), size_bytes))
    if not found:
        raise Unknown("/proc: lists no process")
    return found
