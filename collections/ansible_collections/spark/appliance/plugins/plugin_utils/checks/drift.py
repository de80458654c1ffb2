# SPDX-License-Identifier: Apache-2.0
"""What changed on a node since the last good receipt, told as before → now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    Phase,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

RECORD = "state"
# Raised with every new row of a record, which a receipt from before cannot have.
SHAPE, SHAPE_KEY = 2, "shape of this record"
_UNITS = ("docker.service", "avahi-daemon.service", "nvidia-persistenced.service")

Rows = Iterator[tuple[str, Any]]


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _identity(node: NodeFacts) -> Rows:
    identity = node.identity
    yield "system update", identity.dgx.version or identity.os.get("version_id", "")
    yield "system", identity.os.get("pretty_name") or "none"
    yield "factory image", identity.fastos_version or "none"
    yield "kernel", identity.kernel.running
    yield "next kernel", identity.kernel.next or "none"
    yield "firmware", identity.dmi.get("bios") or "none"
    yield "processors", identity.cpu_count


def _next_boot(node: NodeFacts) -> Rows:
    boot = node.boot
    kernel = next((entry for entry in boot.kernels if entry.version == boot.next), None)
    yield "initrd of the next kernel", "there" if kernel and kernel.initrd else "missing"
    modules = kernel.modules if kernel else {}
    yield "modules of the next kernel", _listing(name for name, held in modules.items() if held)
    yield "reboot pending", "yes" if boot.reboot_required else "no"


def _memory(node: NodeFacts) -> Rows:
    memory = node.memory
    yield "MemTotal in kB", memory.total_bytes // 1024
    yield "swap in use", _listing(swap.name for swap in memory.swaps)
    yield "swap in fstab", _listing(line.spec for line in memory.fstab_swaps if line.active)
    for unit in memory.swap_units:
        yield f"{unit.name} at boot", unit.enabled or unit.load
    yield from memory.sysctl.items()


def _gpu(node: NodeFacts) -> Rows:
    yield "driver", node.gpu.driver_version
    yield "highest GPU clock in MHz", node.gpu.max_sm_mhz or "none"


def _docker(node: NodeFacts) -> Rows:
    docker = node.docker
    yield "Docker", docker.server_version
    yield "image store", docker.storage_driver
    yield "Docker's origin", docker.origin
    yield "container runtimes", _listing(docker.runtimes)
    yield "CDI devices", _listing(docker.cdi_devices)


def _packages(node: NodeFacts) -> Rows:
    yield "container toolkit", node.packages.versions.get("nvidia-container-toolkit", "none")
    yield "installed driver", node.packages.driver_installed or "none"
    yield "held packages", _listing(node.packages.held)


def _display(node: NodeFacts) -> Rows:
    yield "default target", node.display.default_target
    for unit in node.display.units.values():
        if unit.load != "not-found":
            yield f"{unit.id} at boot", unit.enabled or unit.load


def _network(node: NodeFacts) -> Rows:
    network = node.network
    yield "control interface", network.control_interface or "none"
    default = (route.get("dev", "") for route in network.routes if route.get("dst") == "default")
    yield "default route", _listing(default)
    yield "netplan renderer", network.netplan.renderer or "none"
    for rail in network.rails():
        yield f"MTU of {rail.name}", rail.mtu
        yield f"carrier of {rail.name}", "up" if rail.carrier else "down"
        yield f"addresses of {rail.name}", _listing(str(entry.interface) for entry in rail.ipv4)
        yield f"kernel driver of {rail.name}", rail.driver or "none"
        kept = network.netplan.entry(rail.name)
        yield f"addresses of {rail.name} in netplan", _listing(kept.addresses)
        yield f"MTU of {rail.name} in netplan", kept.mtu or "none"


def _rdma(node: NodeFacts) -> Rows:
    for device in node.rdma.devices:
        yield f"rate of {device.name}", device.rate or "none"
        yield f"firmware of {device.name}", device.firmware or "none"
    yield "RDMA verbs devices", len(node.rdma.uverbs)


def _units(node: NodeFacts) -> Rows:
    for name in _UNITS:
        if name in node.units:
            yield f"{name} at boot", node.units[name].enabled or "no state"


def _firewall(node: NodeFacts) -> Rows:
    state = node.firewall
    yield "firewall", f"on, default {state.input_policy}" if state.enabled else "off"


_SUBJECTS: tuple[Callable[[NodeFacts], Rows], ...] = (
    _identity, _next_boot, _memory, _gpu, _docker, _packages, _display, _network, _rdma, _units,
    _firewall,
)  # fmt: skip


def _record(node: NodeFacts) -> tuple[dict[str, Any], list[SectionUnknownError]]:
    """Return what can be told of a node, and the sections that could not be read."""
    record: dict[str, Any] = {}
    unknown = []
    for subject in _SUBJECTS:
        try:
            record.update(list(subject(node)))
        except SectionUnknownError as unread:
            unknown.append(unread)
    return record, unknown


def drift_record(node: NodeFacts) -> dict[str, Any]:
    """Return what a receipt keeps of a node, so that a later run can tell what changed.

    What could not be read is left out: a receipt is good only without errors, and of what an older
    receipt does not tell no change is told.
    """
    return {SHAPE_KEY: SHAPE, **_record(node)[0]}


@check(
    "drift.node",
    "the node is as it was at the last good receipt",
    severity=Severity.INFO,
    scope=Scope.NODE,
    phases=frozenset({Phase.VERIFY}),
    remedy="read docs/cases.md before serving on it; a new receipt makes it the reference",
    cases=("MEM-13", "UPG-11", "UPG-18", "GUI-07", "NET-08"),
)
def drift(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Told, not refused: what is wrong about a change is another check's to say."""
    receipt = context.receipt
    if receipt is None:
        return
    kept = receipt.get("nodes", {}).get(node.name)
    before = kept.get(RECORD) if isinstance(kept, dict) else None
    if not isinstance(before, dict):
        return
    now, unknown = _record(node)
    # What is gone is told only where all was read: it may be what could not be.
    gone = set() if unknown else before.keys() - now.keys() - {SHAPE_KEY}
    new = now.keys() - before.keys() if before.get(SHAPE_KEY) == SHAPE else set()
    for key in sorted(gone | new | (before.keys() & now.keys())):
        was, value = before.get(key, "none"), now.get(key, "none")
        if was != value:
            yield Problem(
                expected="no change since the last good receipt",
                found=f"{key}: {was} → {value}",
            )
    context.note(unknown)
