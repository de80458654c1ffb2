# SPDX-License-Identifier: Apache-2.0
"""RDMA devices, their ports and GID tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a GID table; ``gid`` as IPv4 where it maps one."""

    index: int
    gid: str
    type: str
    ndev: str | None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device."""

    port: int
    state: str
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device; ``state`` is its first port's."""

    name: str
    netdev: str | None
    state: str
    rate: str | None
    ports: tuple[RdmaPort, ...]
    firmware: str | None = None


@dataclass(frozen=True, slots=True)
class Rdma:
    """RDMA devices, and the card's functions on PCI, none of them where it left the bus."""

    present: bool
    devices: tuple[RdmaDevice, ...]
    functions: tuple[str, ...]
    hotplug_power_saving: bool
    uverbs: tuple[str, ...]

    def by_netdev(self, netdev: str) -> RdmaDevice | None:
        """The RDMA device of a netdev."""
        return next((device for device in self.devices if device.netdev == netdev), None)
