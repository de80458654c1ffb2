# SPDX-License-Identifier: Apache-2.0
"""The GPU, its driver and who uses it."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
    concurrently,
    excerpt,
)

GPU = Command(
    "nvidia-smi-gpu",
    (
        "nvidia-smi",
        "--query-gpu=name,driver_version,clocks.max.sm",
        "--format=csv,noheader,nounits",
    ),
    timeout_s=12.0,
)
TENANTS = Command(
    "nvidia-smi-apps",
    ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory",
     "--format=csv,noheader,nounits"),
    timeout_s=12.0,
    empty_ok=True,
)  # fmt: skip
CLOCKS = Command(
    "nvidia-smi-clocks",
    (
        "nvidia-smi",
        "--query-gpu=clocks.sm,clocks.max.sm,utilization.gpu",
        "--format=csv,noheader,nounits",
    ),
    timeout_s=12.0,
)
_VERSION = re.compile(r"\d+(\.\d+)+")
_MIB = 1 << 20
# Exit status 6, and 0 in some releases.
_NONE = "No devices were found"


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Return one entry a GPU: name, driver version, highest SM clock in MHz.

    Raises:
        Unknown: a row is not name, driver version and clock.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3 or not _VERSION.fullmatch(fields[1]):
            raise Unknown(f"nvidia-smi: {excerpt(line)}")
        clock = int(fields[2]) if fields[2].isdigit() else None
        found.append({"name": fields[0], "driver_version": fields[1], "max_sm_mhz": clock})
    if not found:
        raise Unknown("nvidia-smi: listed no GPU")
    return found


def parse_tenants(text: str) -> list[dict[str, Any]]:
    """Return the processes that hold GPU memory; ``used_bytes`` is None where the driver has none.

    Raises:
        Unknown: a row is not pid, name and MiB.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        # A program's path may hold commas, so the name is what lies between the outer two.
        pid, _, rest = line.partition(",")
        name, separator, used = rest.rpartition(",")
        if not separator or not pid.strip().isdigit():
            raise Unknown(f"nvidia-smi: {excerpt(line)}")
        size = used.strip()
        used_bytes = int(size) * _MIB if size.isdigit() else None
        found.append({"pid": int(pid), "name": name.strip(), "used_bytes": used_bytes})
    return found


def parse_clocks(text: str) -> dict[str, int]:
    """Return the SM clock of the first GPU now and at most, in MHz, and its load in percent.

    Raises:
        Unknown: the row is not three numbers.
    """
    row = next((line for line in text.splitlines() if line.strip()), "")
    fields = [field.strip() for field in row.split(",")]
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise Unknown(f"nvidia-smi: no clocks: {excerpt(row)}")
    sm_mhz, max_sm_mhz, load = map(int, fields)
    return {"sm_mhz": sm_mhz, "max_sm_mhz": max_sm_mhz, "utilization_percent": load}


def observe_clocks(host: Host) -> dict[str, int]:
    """Return the ``clocks`` section: what the GPU runs at now, which only means much under load."""
    return parse_clocks(host.ask(CLOCKS))


def _ask(host: Host, command: Command) -> str:
    """Return what nvidia-smi printed; that there is no GPU is an answer, whatever its status."""
    output = host.run(command)
    if output.stdout.strip() == _NONE:
        return ""
    return host.ask(command)


def _loaded_driver(host: Host) -> str | None:
    text = host.text("/proc/driver/nvidia/version")
    if text is None:
        return None
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    if match is None:
        raise Unknown(f"/proc/driver/nvidia/version: no version in it: {excerpt(text, 60)}")
    return match.group(1)


def observe_gpu(host: Host) -> dict[str, Any]:
    """Return the ``gpu`` section."""
    printed, tenants = concurrently([lambda: _ask(host, GPU), lambda: _ask(host, TENANTS)])
    for result in (printed, tenants):
        if isinstance(result, Unknown):
            raise result
    loaded = _loaded_driver(host)
    gpus = parse_gpus(printed) if printed else []
    first = gpus[0] if gpus else {"name": "", "driver_version": loaded or "", "max_sm_mhz": None}
    return {
        **first,
        "count": len(gpus),
        "loaded_driver_version": loaded,
        "tenants": parse_tenants(tenants),
    }
