# SPDX-License-Identifier: Apache-2.0
"""Memory and swap, in bytes."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Host,
    Unknown,
    excerpt,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import (
    Request,
    swap_units,
)

_MEMINFO_LINE = re.compile(r"^([A-Za-z0-9_()]+):\s+(\d+)(\s+kB)?\s*$")
_MOUNT_POINT = re.compile(r"/|(?:none|swap|auto|-)$")
_KERNEL_SETTINGS = ("min_free_kbytes", "swappiness", "overcommit_memory")


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo with sizes in bytes; the ``HugePages_*`` rows are counts of pages.

    Raises:
        Unknown: MemTotal, MemAvailable or SwapTotal is missing or no number.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        if match := _MEMINFO_LINE.match(line):
            values[match.group(1)] = int(match.group(2)) * (1024 if match.group(3) else 1)
    missing = [key for key in ("MemTotal", "MemAvailable", "SwapTotal") if key not in values]
    if missing:
        raise Unknown(f"/proc/meminfo: no {', '.join(missing)} in it")
    return values


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def parse_swaps(text: str) -> list[dict[str, Any]]:
    """Return the rows of /proc/swaps with sizes in bytes (the file counts in KiB).

    Raises:
        Unknown: the header or a row is not as the kernel writes it.
    """
    lines = text.splitlines()
    if not lines or lines[0].split()[:4] != ["Filename", "Type", "Size", "Used"]:
        raise Unknown("/proc/swaps: its header is missing")
    rows = []
    for line in lines[1:]:
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 5 or not fields[2].isdigit() or not fields[3].isdigit():
            raise Unknown(f"/proc/swaps: a row is not as expected: {line[:80]!r}")
        rows.append(
            {
                "name": _unescape(fields[0]),
                "type": fields[1],
                "size_bytes": int(fields[2]) * 1024,
                "used_bytes": int(fields[3]) * 1024,
            }
        )
    return rows


def parse_fstab_swaps(text: str) -> list[dict[str, Any]]:
    """Return the swap lines of fstab(5), with the commented ones marked inactive.

    ``number`` counts lines from 1; ``line`` is the line as it stands. The type alone makes a line
    a swap line, whatever its mount point says; in a comment both must look like one.

    Raises:
        Unknown: a line is neither a comment nor device, mount point and type.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        active = not line.lstrip().startswith("#")
        fields = line.lstrip("# \t").split()
        # What mount(8) could not read either may hide a swap line, so it is not passed over.
        swap = len(fields) >= 3 and fields[2] == "swap"
        named = len(fields) >= 3 and _MOUNT_POINT.match(fields[1])
        if active and fields and not (swap or named):
            raise Unknown(f"/etc/fstab: line {number} is none of fstab: {excerpt(line, 60)}")
        if swap and (active or fields[1] in {"none", "swap"}):
            rows.append(
                {
                    "line": line,
                    "number": number,
                    "spec": _unescape(fields[0]),
                    "active": active,
                }
            )
    return rows


def observe_memory(host: Host, request: Request) -> dict[str, Any]:
    """Return the ``memory`` section."""
    sysctl = {}
    for name in _KERNEL_SETTINGS:
        value = host.need(f"/proc/sys/vm/{name}").strip()
        if not value.isdigit():
            raise Unknown(f"/proc/sys/vm/{name}: not a number: {value[:40]!r}")
        sysctl[f"vm.{name}"] = int(value)
    return {
        "meminfo": parse_meminfo(host.need("/proc/meminfo")),
        "swaps": parse_swaps(host.need("/proc/swaps")),
        "fstab_swaps": parse_fstab_swaps(host.text("/etc/fstab") or ""),
        "swap_units": swap_units(host, request),
        "sysctl": sysctl,
    }
