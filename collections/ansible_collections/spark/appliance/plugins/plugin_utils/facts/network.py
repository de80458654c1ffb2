# SPDX-License-Identifier: Apache-2.0
"""Interfaces, their addresses and what keeps them over a boot."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Checks ask for the same few addresses and names over and over.
_ip_interface = lru_cache(4096)(ipaddress.ip_interface)


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface; ``family`` is inet or inet6."""

    address: str
    prefix: int
    family: str
    scope: str
    dynamic: bool

    @property
    def interface(self) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
        """The address with its prefix."""
        return _ip_interface(f"{self.address}/{self.prefix}")


# A ConnectX-7 netdev: the PCI domain (none is 0000) tells the rail, the function tells the cage.
_CX7_NETDEV = re.compile(r"^en(?:P(?P<domain>\d+))?p\d+s\d+f(?P<function>\d)np\d$")


@lru_cache(1024)
def _position(netdev: str) -> tuple[str, int | None]:
    match = _CX7_NETDEV.match(netdev)
    if match is None:
        return "", None
    return "b" if match.group("domain") else "a", int(match.group("function"))


@dataclass(frozen=True, slots=True)
class Interface:
    """One netdev; speed in Mb/s and MTU in bytes."""

    name: str
    mtu: int
    max_mtu: int | None
    operstate: str
    carrier: bool
    speed_mbps: int | None
    kind: str | None
    addresses: tuple[Address, ...]
    driver: str | None
    pci: str | None

    @property
    def rail(self) -> str:
        """``a`` for PCI domain 0000, ``b`` for another, empty where this is no ConnectX-7."""
        return _position(self.name)[0]

    @property
    def cage(self) -> int | None:
        """The cage that the netdev's function belongs to; None where this is no ConnectX-7."""
        return _position(self.name)[1]

    @property
    def ipv4(self) -> tuple[Address, ...]:
        """The interface's IPv4 addresses."""
        return tuple(entry for entry in self.addresses if entry.family == "inet")


@dataclass(frozen=True, slots=True)
class NetplanFile:
    """One netplan file with its mode in octal and its digest."""

    path: str
    mode: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What netplan keeps for one entry: addresses with prefix length, and the MTU if it has one."""

    addresses: tuple[str, ...] = ()
    mtu: int | None = None


def _kept(entry: object) -> Kept:
    if not isinstance(entry, dict):
        return Kept()
    listed = entry.get("addresses")
    # An address is a string, or a mapping of one address to its options.
    texts = [next(iter(item), "") if isinstance(item, dict) else item for item in listed or ()]
    mtu = entry.get("mtu")
    return Kept(tuple(map(str, texts)), mtu if isinstance(mtu, int) else None)


@dataclass(frozen=True, slots=True)
class Netplan:
    """What netplan holds; ``merged`` is None where it could not be told, for ``reason``."""

    present: bool
    files: tuple[NetplanFile, ...]
    merged: dict[str, Any] | None
    renderer: str | None
    reason: str = ""

    def entries(self) -> dict[str, Kept]:
        """What is kept by the name of each entry, which need not be that of a netdev."""
        merged = self.merged or {}
        return {
            str(name): _kept(entry)
            for kind in ("ethernets", "bonds", "bridges", "vlans")
            for name, entry in (merged.get(kind) or {}).items()
        }

    def entry(self, name: str) -> Kept:
        """What is kept under a name, nothing where there is no such entry."""
        return self.entries().get(name, Kept())


@dataclass(frozen=True, slots=True)
class Profile:
    """One wired NetworkManager profile; not ``persistent`` where it lives under /run."""

    id: str
    interface: str
    autoconnect: bool
    ipv4_method: str
    persistent: bool


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces, what keeps them over a boot, and which one carries the control session."""

    interfaces: tuple[Interface, ...]
    control_interface: str | None
    netplan: Netplan
    profiles: tuple[Profile, ...]
    routes: tuple[dict[str, str], ...]

    def rails(self) -> tuple[Interface, ...]:
        """Every ConnectX-7 netdev, by cage and rail."""
        found = (entry for entry in self.interfaces if entry.rail)
        return tuple(sorted(found, key=lambda entry: (entry.cage or 0, entry.rail)))

    def live_cage(self) -> int | None:
        """The one cage with carrier on a rail; None where no cage has it, or both have it."""
        cages = {entry.cage for entry in self.rails() if entry.carrier}
        return cages.pop() if len(cages) == 1 else None

    def holder(self, address: str) -> Interface | None:
        """The interface that holds an IPv4 or IPv6 address."""
        for interface in self.interfaces:
            if any(entry.address == address for entry in interface.addresses):
                return interface
        return None
