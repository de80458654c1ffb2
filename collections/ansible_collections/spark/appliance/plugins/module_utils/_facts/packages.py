# SPDX-License-Identifier: Apache-2.0
"""Installed versions that matter, holds, repositories and who holds the package database."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
    excerpt,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.identity import version_key
from ansible_collections.spark.appliance.plugins.module_utils._facts.processes import (
    PACKAGE_MANAGERS,
    processes,
)

DPKG = Command(
    "dpkg-query",
    ("dpkg-query", "--show", "--showformat=${Package}\\t${Version}\\t${db:Status-Abbrev}\\n"),
)
_OF_INTEREST = re.compile(
    r"^(nvidia-driver-|nvidia-dkms-|nvidia-fabricmanager|nvidia-container-toolkit$|nvidia-spark-|"
    r"nv-docker-|docker-ce$|docker\.io$|containerd(\.io)?$|dgx-|linux-image-|linux-nvidia|"
    r"linux-modules-nvidia-|network-manager$|netplan\.io$|avahi-daemon$|gdm3$|rdma-core$|"
    r"python3-psutil$|zram-tools$|systemd-zram-generator$)"
)
_DRIVER = re.compile(r"^nvidia-driver-(\d+)(-server)?(-open)?$")


def parse_dpkg(text: str) -> list[tuple[str, str, bool, bool]]:
    """Return (name, version, installed, held) for each package.

    Raises:
        Unknown: a row is not name, version and status.
    """
    rows = []
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 3 or len(fields[2].strip()) < 2:
            raise Unknown(f"dpkg-query: a row is not as expected: {excerpt(line)}")
        wanted, status = fields[2][0], fields[2][1]
        rows.append((fields[0], fields[1], status == "i", wanted == "h"))
    return rows


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def _sources(host: Host) -> dict[str, Any]:
    folder = "/etc/apt/sources.list.d"
    broken, cuda = [], False
    for name in host.names(folder) or []:
        if not name.endswith((".list", ".sources")):
            continue
        text = host.text(f"{folder}/{name}") or ""
        first = _first_line(text)
        field = re.match(r"(deb|deb-src)\s|[A-Z][A-Za-z-]*:", first)
        if first and field is None:
            broken.append({"path": f"{folder}/{name}", "first_line": excerpt(first, 60)})
        cuda = cuda or bool(re.search(r"^[^#\n]*compute/cuda/repos", text, re.MULTILINE))
    pins = [
        pin
        for name in host.names("/etc/apt/preferences.d") or []
        for pin in re.findall(
            r"^Package:\s*(.+)$", host.text(f"/etc/apt/preferences.d/{name}") or "", re.MULTILINE
        )
    ]
    return {"broken": broken, "cuda_repository": cuda, "pinned": sorted(pins)}


def _upstream(version: str) -> str:
    return re.sub(r"^\d+:", "", version).partition("-")[0]


def observe_packages(host: Host) -> dict[str, Any]:
    """Return the ``packages`` section."""
    rows = parse_dpkg(host.ask(DPKG))
    versions = {name: version for name, version, installed, _ in rows if installed}
    drivers = {name: versions[name] for name in versions if _DRIVER.match(name)}
    upstream = (_upstream(version) for version in drivers.values())
    newest = max(upstream, key=version_key, default=None)
    running = sorted({p.name for p in processes(host) if p.name in PACKAGE_MANAGERS})
    return {
        "held": sorted(name for name, _, _, held in rows if held),
        "driver_installed": newest,
        "driver_packages": sorted(drivers),
        "versions": {name: v for name, v in versions.items() if _OF_INTEREST.match(name)},
        "snap_docker": host.entry("/var/snap/docker") is not None,
        "sources": _sources(host),
        "manager_running": running,
    }
