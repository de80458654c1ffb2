# SPDX-License-Identifier: Apache-2.0
"""Which process holds how much memory, and which container or unit it belongs to."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Host, Unknown
from ansible_collections.spark.appliance.plugins.module_utils._facts.processes import processes

# Smaller processes outside containers neither give anything back nor count as tenants.
LEAST_BYTES = 16 << 20

_CONTAINER = re.compile(r"(?:^|[/:-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)")
_HIERARCHY = re.compile(r"^\d+:[^:]*:/")
_UNIT = re.compile(r"(?P<unit>[^/]+\.(?:service|scope))(?:/|$)")
_SHARE = re.compile(r"^(Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.MULTILINE)
_RESIDENT = re.compile(r"^(RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)


def parse_cgroup(text: str, prefix: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the container id and the unit of a process from its ``/proc/<pid>/cgroup``.

    Parameters:
        text: the file, of cgroup version 1, 2 or both.
        prefix: path of the node itself for each hierarchy, which is not part of the answer: a node
            may live in a container, too.

    Returns:
        The innermost container, by its 64 hexadecimal digits, or else the outermost unit.
    """
    container = unit = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        own = path.removeprefix(prefix.get(number, ""))
        if found := list(_CONTAINER.finditer(own)):
            container = container or found[-1]["id"]
        elif named := _UNIT.search(own):
            unit = unit or named["unit"]
    return container, unit


def node_prefix(text: str) -> dict[str, str]:
    """Return the path of the node in each hierarchy, from the cgroups of its first process.

    Raises:
        Unknown: a line is not as the kernel writes it, or there is none.
    """
    prefix = {}
    lines = text.splitlines()
    if not lines or not all(_HIERARCHY.match(line) for line in lines):
        raise Unknown("/proc/1/cgroup: a line is not as expected")
    for line in lines:
        number, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        prefix[number] = path.removesuffix("/init.scope").rstrip("/")
    return prefix


def parse_held(smaps_rollup: str | None, status: str) -> tuple[int | None, str]:
    """Return the bytes that would be free without a process, and how they were read.

    Proportional shares divide shared pages among their users. Without them, resident shared pages
    count in full for each user. Pages of files are cache and count as available already.
    """
    for text, pattern, source in (
        (smaps_rollup or "", _SHARE, "anonymous and shared pages (Pss)"),
        (status, _RESIDENT, "anonymous and shared pages (Rss)"),
    ):
        found = dict(pattern.findall(text))
        if len(found) == 2:
            return sum(map(int, found.values())) * 1024, source
    return None, "unreadable"


def _rollup(host: Host, pid: int) -> str | None:
    # Older kernels and kernel threads have none, and some hardened ones refuse it even to root.
    try:
        return host.text(f"/proc/{pid}/smaps_rollup")
    except Unknown:
        return None


def observe_holders(host: Host) -> dict[str, Any]:
    """Return the ``holders`` section: every process in a container, and every large one elsewhere.

    A process that ends while it is read is left out.

    Raises:
        Unknown: the cgroup or the status of a process cannot be read.
    """
    prefix = node_prefix(host.need("/proc/1/cgroup"))
    rows = []
    for process in processes(host):
        cgroup = host.text(f"/proc/{process.pid}/cgroup")
        if cgroup is None:
            continue
        container, unit = parse_cgroup(cgroup, prefix)
        if container is None and process.rss_bytes < LEAST_BYTES:
            continue
        status = host.text(f"/proc/{process.pid}/status")
        if status is None:
            continue
        rollup = _rollup(host, process.pid)
        held_bytes, source = parse_held(rollup, status)
        rows.append(
            {
                "pid": process.pid,
                "name": process.name,
                "container": container,
                "unit": unit,
                "memory_bytes": held_bytes,
                "source": source,
            }
        )
    return {"processes": rows}
