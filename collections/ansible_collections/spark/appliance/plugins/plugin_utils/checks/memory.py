# SPDX-License-Identifier: Apache-2.0
"""Memory and swap of a node."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    SERVING,
    Phase,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.units import (
    KIB,
    MIB,
    format_bytes,
    format_size,
)

# Below this a process on the GPU is part of the operating system, not a tenant.
TENANT_BYTES = 500 * MIB
# Units that a swap can come back from, apart from the ones generated from fstab.
_GONE = frozenset({"masked", "not-found"})
# zram-tools and zram-config call swapon themselves, without a swap unit.
_ZRAM_SERVICES = ("zramswap.service", "zram-config.service")
_ZRAM_DEVICE = "/dev/zram"


@check(
    "memory.total",
    "the node has the memory that the recipe needs",
    scope=Scope.NODE,
    phases=HOST,
    remedy="use a node with more memory, or undo a firmware or boot setting that takes it away",
    cases=("MEM-02", "MEM-09", "MEM-12"),
)
def total(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """MemTotal differs between vendors and firmware, so it has a minimum and no exact value."""
    have, least = node.memory.total_bytes, context.needs.min_total_bytes
    if have < least:
        yield Problem(
            expected=f"MemTotal of at least {format_bytes(least)}",
            found=f"{have // KIB} kB ({format_size(have)})",
            variable="memory.min_total",
        )


@check(
    "memory.swap_off",
    "no swap is in use",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml",
    own_kernel=True,
    cases=("SWAP-01", "SWAP-02", "SWAP-04", "SWAP-07"),
)
def swap_off(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Every row of /proc/swaps counts, whatever file, partition or zram device it is."""
    if context.needs.keep_swap:
        return
    for swap in node.memory.swaps:
        yield Problem(
            expected="no row in /proc/swaps",
            found=f"{swap.name} ({swap.type}), {format_size(swap.size_bytes)}, "
            f"{format_size(swap.used_bytes)} used",
            variable="memory.swap",
        )


@check(
    "memory.swap_stays_off",
    "no swap comes back at the next boot",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml; a swapoff by hand lasts until the next boot only",
    cases=("SWAP-01", "SWAP-02", "SWAP-04"),
)
def swap_stays_off(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A swap line in fstab, an enabled swap unit or a zram service turns swap on again."""
    if context.needs.keep_swap:
        return
    for line in node.memory.fstab_swaps:
        if line.active:
            yield Problem(
                expected="no active swap line in /etc/fstab",
                found=f"line {line.number}: {line.spec}",
                evidence=line.line,
            )
    for unit in node.memory.swap_units:
        # What is generated from fstab is told by its line above; zram has a generator of its own.
        compressed = unit.enabled == "generated" and unit.what.startswith(_ZRAM_DEVICE)
        if unit.load not in _GONE and (unit.enabled in {"enabled", "static"} or compressed):
            yield Problem(expected="no enabled swap unit", found=f"{unit.name} is {unit.enabled}")
    for name in _ZRAM_SERVICES:
        service = node.units.get(name)
        if service is not None and service.enabled == "enabled" and service.load not in _GONE:
            yield Problem(expected=f"{name} disabled", found="enabled")


@check(
    "memory.floor",
    "the role's memory floor holds",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="stop what else runs on the node, or roll to a profile that needs less",
    cases=("MEM-01", "MEM-04", "MEM-12", "RAY-05"),
)
def floor(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The floor is compared with MemAvailable; the GPU reports no memory of its own on GB10."""
    role = context.site.role(node.name)
    least = context.require(context.needs.floors_bytes.get(role), f"floor of role {role}")
    have = node.memory.available_bytes
    if have < least:
        yield Problem(
            expected=f"MemAvailable of at least {format_bytes(least)} on a {role}",
            found=f"{have // KIB} kB ({format_size(have)})",
            variable="memory.floors",
        )


@check(
    "memory.kernel_reservation",
    "the kernel counts the memory that it reserves",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="boot a kernel that is not on the hold-off list",
    cases=("MEM-06",),
)
def kernel_reservation(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """CmaTotal of 0 with CmaFree above 0 goes with a kernel that keeps memory it does not count."""
    del context
    counted = node.memory.meminfo.get("CmaTotal")
    free = node.memory.meminfo.get("CmaFree", 0)
    if counted == 0 and free > 0:
        yield Problem(
            expected="CmaTotal not below CmaFree",
            found=f"CmaTotal 0 kB, CmaFree {free // KIB} kB",
            evidence=f"kernel {node.identity.kernel.running}",
        )


@check(
    "memory.gpu_allocation",
    "the driver found the memory that it was asked for",
    scope=Scope.NODE,
    phases=SERVING,
    own_kernel=True,
    remedy="restart the engine after dropping caches and compacting memory; see docs/cases.md",
    cases=("MEM-05",),
)
def gpu_allocation(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The driver can run out of contiguous memory while MemAvailable is high."""
    del context
    marker = node.kernel_log.marker("gpu-no-memory")
    engine = node.units.get("spark-engine.service")
    since_s = engine.active_since_boot_us / 1e6 if engine else 0.0
    if marker is not None and marker.last_s >= since_s:
        yield Problem(
            expected="no NV_ERR_NO_MEMORY in the kernel log since the engine started",
            found=f"{marker.count} in this boot, the last at {marker.last_s:.0f} s",
            evidence=f"MemAvailable {format_bytes(node.memory.available_bytes)}",
        )


@check(
    "memory.oom_kill",
    "the kernel killed nothing for want of memory",
    scope=Scope.NODE,
    phases=SERVING,
    own_kernel=True,
    remedy="roll to a profile that needs less memory, or free the node of other users",
    cases=("MEM-04",),
)
def oom_kill(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """An OOM kill after the engine's start means that the profile does not fit this node."""
    del context
    marker = node.kernel_log.marker("oom-kill")
    engine = node.units.get("spark-engine.service")
    since_s = engine.active_since_boot_us / 1e6 if engine else 0.0
    if marker is not None and marker.last_s >= since_s:
        yield Problem(
            expected="no OOM kill since the engine started",
            found=f"{marker.count} in this boot, the last of {marker.detail!r} "
            f"at {marker.last_s:.0f} s",
        )


@check(
    "memory.hung_task",
    "nothing hangs in the kernel",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=SERVING,
    own_kernel=True,
    remedy="keep the node's console at hand: it may answer ping and nothing else; reboot all nodes "
    "together if it does",
    cases=("MEM-14",),
)
def hung_task(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A task that the kernel waits for can be the last line before a node wedges."""
    del context
    marker = node.kernel_log.marker("hung-task")
    engine = node.units.get("spark-engine.service")
    since_s = engine.active_since_boot_us / 1e6 if engine else 0.0
    if marker is not None and marker.last_s >= since_s:
        yield Problem(
            expected="no task blocked for minutes since the engine started",
            found=f"{marker.count} in this boot, the last of {marker.detail!r} "
            f"at {marker.last_s:.0f} s",
        )


@check(
    "memory.tenants",
    "nothing else uses the GPU",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=frozenset({Phase.PREFLIGHT, Phase.GATE}),
    remedy="stop it, or count its memory: the floor is judged with it running",
    cases=("MEM-15",),
)
def tenants(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A process with more than 500 MiB on the GPU takes it from the same unified memory."""
    del context
    if _engine_runs(node):
        return
    for tenant in node.gpu.tenants:
        if tenant.used_bytes is None or tenant.used_bytes > TENANT_BYTES:
            size = (
                "an unknown amount" if tenant.used_bytes is None else format_size(tenant.used_bytes)
            )
            yield Problem(
                expected="no process with more than 500 MiB on the GPU",
                found=f"pid {tenant.pid} ({tenant.name}) holds {size}",
            )


def _engine_runs(node: NodeFacts) -> bool:
    engine = node.units.get("spark-engine.service")
    return engine is not None and engine.active == "active"


@check(
    "memory.returned",
    "the stopped engine gave everything back",
    scope=Scope.NODE,
    phases=frozenset({Phase.AFTER_STOP}),
    remedy="wait for the process to end; if it is gone and memory is not back, reboot all nodes",
    cases=("MEM-07", "MEM-08", "RAY-10"),
)
def returned(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """After the stop neither the container nor a process on the GPU may be left."""
    name = context.launch(node.name).container
    container = node.docker.container(name)
    if container is not None and container.state in {"running", "paused", "restarting"}:
        yield Problem(expected=f"no container {name}", found=f"it is {container.state}")
    for tenant in node.gpu.tenants:
        if tenant.used_bytes is None or tenant.used_bytes > TENANT_BYTES:
            yield Problem(
                expected="no process on the GPU", found=f"pid {tenant.pid} ({tenant.name})"
            )
