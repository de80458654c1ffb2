# SPDX-License-Identifier: Apache-2.0
"""RDMA devices, their ports and GID tables, from sysfs."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Host, Unknown

_CLASS = "/sys/class/infiniband"
# PCI vendor of the ConnectX-7 (15b3) and its device id on a Spark (1021).
_VENDOR, _DEVICE = "0x15b3", "0x1021"
_ID = re.compile(r"0x[0-9a-f]{4}")
# What the kernel prints (drivers/infiniband/core/cache.c).
_GID_TYPES = frozenset({"IB/RoCE v1", "RoCE v2"})
_STATE = re.compile(r"^\d+: (\w+)$")


def parse_gid(text: str) -> str:
    """Return a GID as IPv4 where it maps one, else as IPv6 without a derived interface part.

    Raises:
        Unknown: not eight groups of four hexadecimal digits.
    """
    try:
        address = ipaddress.IPv6Address(text.strip())
    except ValueError as error:
        raise Unknown(f"{_CLASS}: not a GID: {text[:60]!r}") from error
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(address.packed[:8] + bytes(8)))


def _gids(host: Host, port: str) -> list[dict[str, Any]]:
    found = []
    indexes = [name for name in host.names(f"{port}/gid_attrs/types") or [] if name.isdigit()]
    for index in sorted(indexes, key=int):
        # The kernel answers EINVAL for an empty slot, which attribute() gives as None.
        kind = host.attribute(f"{port}/gid_attrs/types/{index}")
        gid = host.attribute(f"{port}/gids/{index}")
        if kind is None or gid is None:
            continue
        if kind not in _GID_TYPES:
            raise Unknown(f"{port}/gid_attrs/types/{index}: no type of a GID: {kind[:60]!r}")
        ndev = host.attribute(f"{port}/gid_attrs/ndevs/{index}")
        if ndev is not None and not re.fullmatch(r"\S{1,15}", ndev):
            raise Unknown(f"{port}/gid_attrs/ndevs/{index}: no netdev: {ndev[:60]!r}")
        found.append({"index": int(index), "gid": parse_gid(gid), "type": kind, "ndev": ndev})
    return found


def _port(host: Host, device: str, number: str) -> dict[str, Any]:
    folder = f"{_CLASS}/{device}/ports/{number}"
    state = _STATE.match(host.attribute(f"{folder}/state") or "")
    if state is None:
        raise Unknown(f"{folder}/state: not a port state")
    return {
        "port": int(number),
        "state": state.group(1),
        "rate": host.attribute(f"{folder}/rate"),
        "gids": _gids(host, folder),
    }


def _device(host: Host, name: str) -> dict[str, Any]:
    numbers = [number for number in host.names(f"{_CLASS}/{name}/ports") or [] if number.isdigit()]
    ports = [_port(host, name, number) for number in sorted(numbers, key=int)]
    netdevs = host.names(f"{_CLASS}/{name}/device/net") or []
    announced = [gid["ndev"] for port in ports for gid in port["gids"] if gid["ndev"]]
    netdev = next(iter([*netdevs, *announced]), None)
    return {
        "name": name,
        "netdev": netdev,
        "state": ports[0]["state"] if ports else "UNKNOWN",
        "rate": ports[0]["rate"] if ports else None,
        "firmware": host.attribute(f"{_CLASS}/{name}/fw_ver"),
        "ports": ports,
    }


def _pci(host: Host, address: str, part: str) -> str | None:
    path = f"/sys/bus/pci/devices/{address}/{part}"
    value = host.attribute(path)
    if value is not None and not _ID.fullmatch(value):
        raise Unknown(f"{path}: no PCI id: {value[:60]!r}")
    return value


def observe_rdma(host: Host) -> dict[str, Any]:
    """Return the ``rdma`` section.

    ``functions`` are the ConnectX-7 functions on PCI: none of them means that the card left the
    bus, which is another fault than ports that are down.
    """
    names = host.names(_CLASS)
    functions = [
        address
        for address in host.names("/sys/bus/pci/devices") or []
        if _pci(host, address, "vendor") == _VENDOR and _pci(host, address, "device") == _DEVICE
    ]
    return {
        "present": names is not None,
        "devices": [_device(host, name) for name in names or []],
        "functions": functions,
        "hotplug_power_saving": host.entry("/etc/nvidia/cx7-hotplug-enabled") is not None,
        "uverbs": [name for name in host.names("/dev/infiniband") or [] if "uverbs" in name],
    }
