# SPDX-License-Identifier: Apache-2.0
"""RDMA devices behind the rails."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    SERVING,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts, RdmaDevice
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

ROCE_V2 = "RoCE v2"


def _rail_devices(node: NodeFacts) -> Iterator[tuple[str, RdmaDevice | None]]:
    """Yield (netdev, device) for each rail of the cage in use."""
    cage = node.network.live_cage()
    for rail in node.network.rails():
        if rail.cage == cage and cage is not None:
            yield rail.name, node.rdma.by_netdev(rail.name)


@check(
    "rdma.devices",
    "every rail has an active RDMA device",
    scope=Scope.NODE,
    phases=HOST,
    remedy="see that mlx5_ib is loaded and the link is up; NCCL falls back to TCP without it",
    cases=("NET-04", "NET-07"),
)
def devices(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The device of each rail is derived from its netdev, so that no name is ever written down."""
    if not context.needs.rdma:
        return
    names = ", ".join(device.name for device in node.rdma.devices) or "none"
    for netdev, device in _rail_devices(node):
        if device is None:
            yield Problem(expected=f"an RDMA device of {netdev}", found=f"devices: {names}")
        elif device.state != "ACTIVE":
            yield Problem(expected=f"{device.name} ACTIVE", found=device.state)


@check(
    "rdma.gid",
    "every rail's device has a RoCE v2 entry for its address",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="give the rail its IPv4 address (fabric.addresses)",
    cases=("GID-01", "GID-04", "GID-06", "NET-07"),
)
def gid(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A device with fe80 entries only cannot reach its peers; the index itself is not pinned."""
    if not context.needs.rdma:
        return
    wanted = {str(interface.ip) for interface in context.site.rail_interfaces(node.name)}
    for _, device in _rail_devices(node):
        if device is None:
            continue
        found = [entry for port in device.ports for entry in port.gids]
        if not any(entry.type == ROCE_V2 and entry.gid in wanted for entry in found):
            listing = ", ".join(f"{entry.index} {entry.gid} {entry.type}" for entry in found)
            yield Problem(
                expected=f"a RoCE v2 GID of {' or '.join(sorted(wanted))} on {device.name}",
                found=listing or "no GID",
            )


@check(
    "rdma.container",
    "the container can reach the RDMA devices",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="start the launch that the recipe renders; without the device or with little locked "
    "memory NCCL silently takes TCP",
    cases=("RAY-07",),
)
def container(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """What the recipe asks for must be in force in the container that runs."""
    wanted = context.launch(node.name)
    running = node.docker.container(wanted.container)
    if running is None:
        return
    missing = sorted(set(wanted.devices) - set(running.devices))
    if missing:
        yield Problem(
            expected=f"device {', '.join(missing)} in {running.name}",
            found=", ".join(running.devices) or "no device",
        )
    if wanted.memlock_bytes is not None and running.memlock_bytes != wanted.memlock_bytes:
        held = running.memlock_bytes
        yield Problem(
            expected=f"memlock limit {wanted.memlock_bytes} (-1 is unlimited)",
            found="inherited" if held is None else str(held),
        )


@check(
    "rdma.power_saving",
    "hot-plug power saving is a known choice",
    severity=Severity.INFO,
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="know that a rebooting peer takes this node's card off the bus; reboot all nodes "
    "together",
    cases=("NET-19", "BOOT-06"),
)
def power_saving(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """It is reported only when the log shows that a removal happened in this boot."""
    del context
    marker = node.kernel_log.marker("cable-removed")
    if node.rdma.hotplug_power_saving and marker is not None:
        yield Problem(
            expected="no removal of the card in this boot",
            found=f"{marker.count}, the last at {marker.last_s:.0f} s",
        )
