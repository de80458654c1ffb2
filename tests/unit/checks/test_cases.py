# SPDX-License-Identifier: Apache-2.0
"""Field cases: a healthy serving fleet, one difference, exactly these findings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (
    ExpectedImage,
    Phase,
    declared,
    judge,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

from tests.fixtures.nodes import edits as e
from tests.fixtures.nodes.compose import (
    EPOCH_S,
    FACTORY,
    NODES,
    SERVING,
    WEIGHTS,
    Edit,
    Tree,
    observe,
    tree,
)
from tests.fixtures.nodes.fleet import NEEDS, SERVED, SITE, context, found

A1, A0 = "enp1s0f1np1", "enp1s0f0np0"
B1, B0 = "enP2p1s0f1np1", "enP2p1s0f0np0"
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
GIB = 1024**3


@dataclass(frozen=True)
class Case:
    """One case: where it differs, and the (check, node) that it must lead to, by severity."""

    id: str
    edits: Mapping[str, Sequence[Edit]] = field(default_factory=dict)
    errors: tuple[tuple[str, str], ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    infos: tuple[tuple[str, str], ...] = ()
    phase: Phase = Phase.VERIFY
    layers: tuple[str, ...] = SERVING
    changes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def expected(self) -> set[tuple[str, str, Severity]]:
        """Findings as (check, node, severity)."""
        graded = ((ERROR, self.errors), (WARNING, self.warnings), (INFO, self.infos))
        return {(check, node, severity) for severity, pairs in graded for check, node in pairs}


def site(**changes: Any) -> dict[str, Any]:
    """Return a change of the context's site."""
    return {"site": replace(SITE, **changes)}


def rails(**by_node: tuple[str, ...]) -> dict[str, Any]:
    """Return a site in which some nodes have other rail addresses."""
    return site(rails={**SITE.rails, **by_node})


CAGE_0 = (
    e.carrier(A1, up=False),
    e.carrier(B1, up=False),
    e.carrier(A0, up=True),
    e.carrier(B0, up=True),
)
SWAPFILE = "/swapfile                               file\t\t33554428\t0\t\t-3\n"
SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
SWAP_IMG = "/swap.img                               file\t\t16777212\t0\t\t-2\n"
KERNEL_7 = (
    e.write("/proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n"),
    e.symlink("/boot/vmlinuz", "vmlinuz-7.0.0-1019-nvidia"),
    e.write("/boot/vmlinuz-7.0.0-1019-nvidia", ""),
    e.write("/boot/initrd.img-7.0.0-1019-nvidia", ""),
    e.write(
        "/lib/modules/7.0.0-1019-nvidia/modules.dep",
        "kernel/nvidia.ko:\nkernel/mlx5_core.ko:\n",
    ),
)
ONE_SUBNET = rails(
    **{
        name: (f"10.77.0.{11 + index}/16", f"10.77.1.{11 + index}/16")
        for index, name in enumerate(NODES)
    }
)
SHUTDOWN_RECORD = (
    "shutdown system down  6.17.0-1026-nvid Mon Sep 21 07:59:00 2026 - "
    "Mon Sep 21 08:00:00 2026  (00:01)\n"
)

CASES = [
    # A. fabric
    Case("NET-01", note="one cable in cage 1: the other cage's down ports are no finding"),
    Case(
        "NET-01-other-order",
        {
            name: [lambda tree: tree.edit_json(e.ADDR, lambda items: items.reverse())]
            for name in ("bravo", "delta")
        },
        note="the order in which a node lists its netdevs means nothing",
    ),
    Case(
        "NET-02",
        {
            "bravo": [
                *CAGE_0,
                e.link(A0, mtu=9000),
                e.link(B0, mtu=9000),
                e.address(A0, "10.77.0.12/24"),
                e.address(B0, "10.77.1.12/24"),
                e.address(A1),
                e.address(B1),
                e.text("/_commands/netplan-get.txt", A1, A0),
                e.text("/_commands/netplan-get.txt", B1, B0),
                *[
                    e.write(f"/sys/class/infiniband/{hca}/ports/1/{path}", text)
                    for hca, rail in (("rocep1s0f0", "00"), ("roceP2p1s0f0", "01"))
                    for path, text in (
                        ("gid_attrs/types/3", "RoCE v2\n"),
                        ("gids/3", f"0000:0000:0000:0000:0000:ffff:0a4d:{rail}0c\n"),
                    )
                ],
                e.write("/sys/class/net/enp1s0f0np0/speed", "200000\n"),
                e.write("/sys/class/net/enP2p1s0f0np0/speed", "200000\n"),
            ]
        },
        warnings=(("fabric.cage", ""),),
    ),
    Case(
        "NET-02-foreign-link",
        {"bravo": [e.carrier(A0, up=True)]},
        errors=(("fabric.rails", "bravo"),),
    ),
    Case(
        "NET-04",
        {"bravo": [e.remove("/sys/class/infiniband/rocep1s0f1")]},
        errors=(("rdma.devices", "bravo"),),
    ),
    Case(
        "NET-04-other-names",
        {
            "bravo": [
                e.rename_tree(f"/sys/class/infiniband/{hca}", f"/sys/class/infiniband/mlx5_{index}")
                for index, hca in enumerate(
                    ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")
                )
            ]
        },
        note="whatever the devices are called, they are found by their netdevs",
    ),
    Case(
        "NET-06",
        {"bravo": [e.address(B1, "10.77.0.112/24")]},
        errors=(
            ("fabric.reach", "bravo"),
            ("fabric.addresses", "bravo"),
        ),
        warnings=(("fabric.rails_apart", "bravo"),),
    ),
    Case(
        "NET-06-on-all-nodes",
        {
            name: [
                e.address(A1, f"10.77.0.{11 + index}/16"),
                e.address(B1, f"10.77.1.{11 + index}/16"),
                e.text("/_commands/netplan-get.txt", "/24", "/16"),
            ]
            for index, name in enumerate(NODES)
        },
        changes=ONE_SUBNET,
        warnings=tuple(("fabric.rails_apart", name) for name in NODES),
        note="inventory and nodes agree on one subnet for both rails, as an assistant wrote it",
    ),
    Case(
        "NET-07",
        {
            "bravo": [
                e.address(B1),
                e.remove("/sys/class/infiniband/roceP2p1s0f1/ports/1/gid_attrs/types/2"),
                e.remove("/sys/class/infiniband/roceP2p1s0f1/ports/1/gid_attrs/types/3"),
            ]
        },
        errors=(("fabric.reach", "bravo"), ("fabric.addresses", "bravo"), ("rdma.gid", "bravo")),
    ),
    Case(
        "NET-07-half-port",
        {"bravo": [e.carrier(B1, up=False)]},
        errors=(("fabric.rails", "bravo"), ("rdma.devices", "bravo")),
    ),
    Case("NET-08", {"bravo": [e.link(B1, mtu=1500)]}, errors=(("fabric.mtu", "bravo"),)),
    Case(
        "NET-08-before-fabric",
        {"bravo": [e.link(B1, mtu=1500)]},
        infos=(("fabric.mtu", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "NET-11-too-high",
        {"bravo": [e.link(A1, max_mtu=4096)]},
        errors=(("fabric.mtu_possible", "bravo"),),
    ),
    Case(
        "NET-11",
        changes=site(fabric_mtu=4096),
        errors=(("fabric.mtu_target", ""),),
        phase=Phase.INVENTORY,
    ),
    Case(
        "NET-12",
        {"bravo": [e.address(A1, "169.254.28.198/16")]},
        errors=(
            ("fabric.reach", "bravo"),
            ("fabric.addresses", "bravo"),
        ),
        warnings=(("fabric.link_local", "bravo"),),
    ),
    Case(
        "NET-12-inventory",
        changes=rails(bravo=("169.254.28.198/16", "10.77.1.12/24")),
        errors=(
            ("fabric.link_local_rank", "bravo"),
            ("fabric.prefix", ""),
        ),
        phase=Phase.INVENTORY,
    ),
    Case(
        "NET-13",
        {
            "bravo": [
                e.write("/_commands/netplan-get.txt", "network:\n  version: 2\n"),
                e.remove("/etc/netplan/60-spark-appliance-fabric.yaml"),
            ]
        },
        errors=(("fabric.persistent", "bravo"),),
    ),
    Case(
        "NET-13-of-another-cage",
        {
            "bravo": [
                e.text("/_commands/netplan-get.txt", A1, A0),
                e.text("/_commands/netplan-get.txt", B1, B0),
            ]
        },
        errors=(("fabric.persistent", "bravo"),),
        note="netplan has the addresses, and would give them to the cage without a cable",
    ),
    Case(
        "NET-13-matched",
        {"bravo": [e.text("/_commands/netplan-get.txt", A1, "rail-a")]},
        errors=(("fabric.persistent", "bravo"),),
        note="an entry of a name of its own may match the rail, but its MTU cannot be told",
    ),
    Case(
        "NET-13-before-fabric",
        {"bravo": [e.write("/_commands/netplan-get.txt", "network:\n  version: 2\n")]},
        infos=(("fabric.persistent", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "NET-15-before-fabric",
        {
            "bravo": [
                e.write(
                    "/run/NetworkManager/system-connections/Wired connection 1.nmconnection",
                    f"[connection]\nid=Wired connection 1\ntype=ethernet\ninterface-name={A0}\n"
                    "autoconnect-retries=-1\n[ipv4]\nmethod=auto\n",
                ),
            ]
        },
        infos=(("fabric.dhcp", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "NET-15",
        {
            "bravo": [
                e.write(
                    "/run/NetworkManager/system-connections/Wired connection 1.nmconnection",
                    f"[connection]\nid=Wired connection 1\ntype=ethernet\ninterface-name={A0}\n"
                    "[ipv4]\nmethod=auto\n",
                ),
                e.write("/proc/900/cmdline", b"avahi-daemon: running [bravo-30.local]\0"),
            ]
        },
        warnings=(("fabric.dhcp", "bravo"), ("mdns.name", "bravo")),
    ),
    Case(
        "NET-16",
        {"bravo": [e.mode("/etc/netplan/60-spark-appliance-fabric.yaml", 0o644)]},
        warnings=(("fabric.netplan_mode", "bravo"),),
    ),
    Case(
        "NET-16-hidden-error",
        {
            "bravo": [
                e.status("netplan-get", "1"),
                e.write("/_commands/netplan-get.err", "bad YAML"),
            ]
        },
        errors=(("fabric.persistent", "bravo"),),
    ),
    Case(
        "NET-17",
        {"bravo": [e.remove_links(A0, A1, B0, B1)]},
        errors=(("fabric.reach", "bravo"), ("fabric.card", "bravo"), ("fabric.rails", "bravo")),
    ),
    Case(
        "NET-18-both-cages",
        {name: [e.carrier(A0, up=True), e.carrier(B0, up=True)] for name in NODES},
        errors=tuple(("fabric.rails", name) for name in NODES),
        phase=Phase.GATE,
        note="a ring needs both cages of every node",
    ),
    Case(
        "NET-19",
        {
            "bravo": [
                e.remove_links(A0, A1, B0, B1),
                e.write("/etc/nvidia/cx7-hotplug-enabled", ""),
                e.kernel_line(700.0, "cx7-pcie-hotplug MTKP0001:00: Cable removal"),
            ]
        },
        errors=(("fabric.reach", "bravo"), ("fabric.card", "bravo"), ("fabric.rails", "bravo")),
        infos=(("rdma.power_saving", "bravo"),),
    ),
    Case(
        "NET-19-all-down",
        {"bravo": [e.carrier(A1, up=False), e.carrier(B1, up=False)]},
        errors=(("fabric.rails", "bravo"),),
    ),
    Case(
        "NET-21",
        {
            "bravo": [
                e.kernel_line(
                    4.0,
                    "mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).",
                )
            ]
        },
        note="the message alone is no finding",
    ),
    Case(
        "NET-21-slow",
        {"bravo": [e.write(f"/sys/class/net/{A1}/speed", "100000\n")]},
        warnings=(("fabric.speed", ""),),
    ),
    Case(
        "NET-22",
        changes=rails(bravo=("10.77.0.061/24", "10.77.1.12/24")),
        errors=(("fabric.address_valid", "bravo"),),
        phase=Phase.INVENTORY,
    ),
    Case("NET-23", note="docker0 has one address on all nodes and is no finding"),
    Case(
        "NET-25",
        changes=rails(
            **{
                name: (f"10.77.{5 * i}.1/32", f"10.77.1.{11 + i}/24")
                for i, name in enumerate(NODES)
            }
        ),
        errors=(("fabric.prefix", ""),),
        phase=Phase.INVENTORY,
    ),
    # B. GIDs
    Case(
        "GID-01",
        {
            "bravo": [
                e.remove("/sys/class/infiniband/rocep1s0f1/ports/1/gid_attrs/types/3"),
                e.remove("/sys/class/infiniband/rocep1s0f1/ports/1/gids/3"),
                e.write("/sys/class/infiniband/rocep1s0f1/ports/1/gid_attrs/types/5", "RoCE v2\n"),
                e.write(
                    "/sys/class/infiniband/rocep1s0f1/ports/1/gids/5",
                    "0000:0000:0000:0000:0000:ffff:0a4d:000c\n",
                ),
            ]
        },
        note="another index on one node is no finding, since no index is pinned",
    ),
    Case(
        "GID-04",
        {
            "bravo": [
                e.address(B1),
                *[
                    e.remove(f"/sys/class/infiniband/roceP2p1s0f1/ports/1/{part}/{index}")
                    for part in ("gid_attrs/types", "gids")
                    for index in (2, 3)
                ],
            ]
        },
        errors=(("fabric.reach", "bravo"), ("fabric.addresses", "bravo"), ("rdma.gid", "bravo")),
    ),
    Case(
        "GID-04-address-without-entry",
        {
            "bravo": [
                e.remove(f"/sys/class/infiniband/roceP2p1s0f1/ports/1/{part}/{index}")
                for part in ("gid_attrs/types", "gids")
                for index in (2, 3)
            ]
        },
        errors=(("rdma.gid", "bravo"),),
    ),
    Case("GID-06", note="as GID-01: the index is never compared"),
    # C. ranks
    Case(
        "RAY-01",
        {
            "bravo": [
                e.text("/_commands/ss-established.txt", "10.77.0.11:6379", "198.51.100.11:6379")
            ]
        },
        errors=(("serving.ranks", "bravo"),),
    ),
    Case(
        "RAY-02",
        changes=rails(bravo=("10.77.0.11/24", "10.77.1.12/24")),
        errors=(("fabric.address_unique", ""),),
        phase=Phase.INVENTORY,
    ),
    Case(
        "RAY-03",
        {"delta": [e.write("/_commands/ss-established.txt", "")]},
        errors=(("serving.ranks", "delta"),),
    ),
    Case(
        "RAY-03-three-nodes",
        changes=site(nodes=NODES[:3]),
        errors=(("fleet.size", ""),),
        phase=Phase.INVENTORY,
    ),
    Case(
        "RAY-05",
        changes={"needs": replace(NEEDS, floors_bytes={})},
        errors=(("context.floor of role head", ""), ("context.floor of role worker", "")),
    ),
    Case(
        "RAY-07",
        {"bravo": [e.container(HostConfig={"Devices": [], "Ulimits": []})]},
        errors=(("rdma.container", "bravo"),),
    ),
    Case(
        "RAY-10",
        {"alpha": [e.unit("spark-api.service", ActiveState="failed", Result="exit-code")]},
        changes={"serving": {**SERVED, "health": 0, "error": "/health: connection refused"}},
        errors=(("serving.units", "alpha"), ("serving.api", "alpha")),
    ),
    Case(
        "RAY-10-orphans",
        errors=tuple(("memory.returned", name) for name in NODES),
        phase=Phase.AFTER_STOP,
    ),
    Case(
        "RAY-10-orphan",
        {
            name: [e.second_container("spark-engine-old"), e.unit("spark-engine.service")]
            for name in ("bravo",)
        },
        warnings=(("serving.only_container", "bravo"),),
    ),
    Case(
        "RAY-11",
        {
            "bravo": [
                e.container(State={"Status": "exited", "ExitCode": 1}),
                e.unit("spark-engine.service", ActiveState="failed", Result="exit-code"),
            ]
        },
        errors=(("serving.container", "bravo"), ("serving.units", "bravo")),
    ),
    Case(
        "RAY-12",
        {
            "bravo": [
                e.symlink("/etc/spark-appliance/current", "launches/fedcba987654"),
                e.write("/etc/spark-appliance/launches/fedcba987654/launch.json", "{}"),
            ]
        },
        errors=(("launch.current", "bravo"), ("launch.same", "")),
    ),
    Case(
        "RAY-12-not-staged",
        {"bravo": [e.remove("/etc/spark-appliance")]},
        errors=(("launch.staged", "bravo"),),
        phase=Phase.GATE,
    ),
    Case(
        "VLLM-06",
        {"alpha": [e.unit("spark-api.service", ActiveState="activating", SubState="auto-restart")]},
        errors=(("serving.units", "alpha"),),
    ),
    Case(
        "VLLM-11",
        changes={"serving": {**SERVED, "models": [{"id": "glm-5.2", "max_model_len": 420000}]}},
        errors=(("serving.api", "alpha"),),
    ),
    # E. memory
    Case("MEM-01", note="the GPU reports no memory of its own, and none is asked for"),
    *(
        Case(f"MEM-02-{kb}", {"bravo": [e.meminfo(MemTotal=kb)]})
        for kb in (127600748, 127535084, 127535252, 125513944)
    ),
    Case(
        "MEM-02",
        {"bravo": [e.meminfo(MemTotal=65536000)]},
        errors=(("memory.total", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "MEM-04",
        {"alpha": [e.meminfo(MemAvailable=490000)]},
        errors=(("memory.floor", "alpha"),),
    ),
    Case(
        "MEM-04-worker",
        {"bravo": [e.meminfo(MemAvailable=490000)]},
        note="the head's floor is stricter than a worker's",
    ),
    Case(
        "MEM-04-killed",
        {
            "alpha": [
                e.kernel_line(950.0, "Out of memory: Killed process 5200 (python) total-vm:1kB")
            ]
        },
        errors=(("memory.oom_kill", "alpha"),),
    ),
    Case(
        "MEM-05",
        {"bravo": [e.kernel_line(900.0, "NVRM: nvAssertFailed: NV_ERR_NO_MEMORY")]},
        errors=(("memory.gpu_allocation", "bravo"),),
    ),
    Case(
        "MEM-05-before-launch",
        {"bravo": [e.kernel_line(300.0, "NVRM: nvAssertFailed: NV_ERR_NO_MEMORY")]},
        note="older than the engine: not this launch's",
    ),
    Case(
        "MEM-06",
        {name: [*KERNEL_7, e.meminfo(CmaTotal=0, CmaFree=220924)] for name in NODES},
        errors=tuple(("upgrade.kernel_held_off", name) for name in NODES),
        warnings=tuple(("memory.kernel_reservation", name) for name in NODES),
    ),
    Case(
        "MEM-06-another-kernel",
        {"bravo": [e.meminfo(CmaTotal=0, CmaFree=220924)]},
        warnings=(("memory.kernel_reservation", "bravo"),),
    ),
    Case(
        "MEM-07-process",
        {
            name: [
                e.no_container,
                e.write("/_commands/nvidia-smi-apps.txt", "5200, /usr/local/bin/python, 93000\n"),
            ]
            for name in ("bravo",)
        }
        | {
            name: [e.no_container, e.write("/_commands/nvidia-smi-apps.txt", "")]
            for name in ("alpha", "charlie", "delta")
        },
        errors=(("memory.returned", "bravo"),),
        phase=Phase.AFTER_STOP,
    ),
    Case(
        "MEM-08",
        {"bravo": [e.second_container("old-engine")]},
        warnings=(("serving.only_container", "bravo"),),
    ),
    Case(
        "MEM-08-after-the-stop",
        {
            "bravo": [
                e.second_container("old-engine"),
                lambda tree: tree.write(
                    "/_commands/docker-containers.json",
                    tree.files["/_commands/docker-containers.json"].replace(b"a" * 12, b"b" * 12),
                ),
            ],
            **{
                name: [e.no_container, e.write("/_commands/nvidia-smi-apps.txt", "")]
                for name in ("alpha", "charlie", "delta")
            },
        },
        errors=(("memory.returned", "bravo"),),
        phase=Phase.AFTER_STOP,
        note="whatever the container is called, its process is still on the GPU",
    ),
    Case(
        "MEM-09",
        {"bravo": [e.container(HostConfig={"Memory": 69 * GIB})]},
        note="a container's memory limit is not believed in and not asked for",
    ),
    Case(
        "MEM-12",
        changes={"needs": replace(NEEDS, min_total_bytes=118 * 10**9)},
        note="118 GB is 109.9 GiB and fits; 118 GiB would not",
    ),
    Case(
        "MEM-12-floor",
        changes={"needs": replace(NEEDS, floors_bytes={"head": 118 * GIB, "worker": 1})},
        errors=(("memory.floor", "alpha"),),
    ),
    Case(
        "MEM-12-gib",
        changes={"needs": replace(NEEDS, min_total_bytes=122 * GIB)},
        errors=tuple(("memory.total", name) for name in NODES),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "MEM-14",
        {
            "bravo": [
                e.kernel_line(950.0, "INFO: task python:5200 blocked for more than 120 seconds.")
            ]
        },
        warnings=(("memory.hung_task", "bravo"),),
        note="what is left of a wedge that the node survived",
    ),
    Case(
        "MEM-14-before-launch",
        {"bravo": [e.kernel_line(300.0, "INFO: task dpkg:900 blocked for more than 120 seconds.")]},
        note="older than the engine",
    ),
    Case(
        "MEM-14-after-the-power-cycle",
        {"bravo": [e.text("/_commands/last.txt", SHUTDOWN_RECORD, "")]},
        warnings=(("power.previous_run", "bravo"),),
        note="no OOM record, nothing in pstore, no shutdown before the boot",
    ),
    Case(
        "MEM-15",
        {
            "bravo": [
                e.unit("spark-engine.service", ActiveState="inactive"),
                e.write(
                    "/_commands/nvidia-smi-apps.txt", "114687, python, 19135\n2443, Xorg, 126\n"
                ),
            ]
        },
        warnings=(("memory.tenants", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    # F. swap
    Case(
        "SWAP-01",
        {
            "bravo": [
                e.write("/proc/swaps", SWAPS + SWAP_IMG),
                e.write("/etc/fstab", "/swap.img none swap sw 0 0\n"),
            ]
        },
        errors=(("memory.swap_off", "bravo"), ("memory.swap_stays_off", "bravo")),
    ),
    Case(
        "SWAP-01-before-harden",
        {"bravo": [e.write("/proc/swaps", SWAPS + SWAP_IMG)]},
        infos=(("memory.swap_off", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "SWAP-02",
        {"bravo": [e.write("/etc/fstab", "/swap.img\tnone\tswap\tsw\t0\t0\n")]},
        errors=(("memory.swap_stays_off", "bravo"),),
    ),
    Case(
        "SWAP-02-returned",
        {
            "bravo": [
                e.write("/proc/swaps", SWAPS + SWAP_IMG),
                e.write("/etc/fstab", "/swap.img\tnone\tswap\tsw\t0\t0\n"),
                e.unit("swap.img.swap", UnitFileState="generated", What="/swap.img"),
            ]
        },
        errors=(("memory.swap_off", "bravo"), ("memory.swap_stays_off", "bravo")),
    ),
    Case(
        "SWAP-02-before-harden",
        {"bravo": [e.write("/etc/fstab", "/swap.img\tnone\tswap\tsw\t0\t0\n")]},
        infos=(("memory.swap_stays_off", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "SWAP-04-before-harden",
        {"bravo": [e.write("/proc/swaps", SWAPS + SWAP_IMG + SWAPFILE)]},
        infos=(("memory.swap_off", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "SWAP-04",
        {
            "bravo": [
                e.write("/proc/swaps", SWAPS + SWAP_IMG + SWAPFILE),
                e.write(
                    "/etc/fstab", "UUID=00000000-0000-4000-8000-000000000002 none swap sw 0 0\n"
                ),
            ]
        },
        errors=(("memory.swap_off", "bravo"), ("memory.swap_stays_off", "bravo")),
    ),
    Case(
        "SWAP-04-zram",
        {"bravo": [e.write("/proc/swaps", SWAPS + "/dev/zram0 partition 8388604 0 100\n")]},
        errors=(("memory.swap_off", "bravo"),),
    ),
    Case(
        "SWAP-04-zram-generated",
        {"bravo": [e.unit("dev-zram0.swap", UnitFileState="generated", What="/dev/zram0")]},
        errors=(("memory.swap_stays_off", "bravo"),),
        note="swapoff by hand leaves the generator's unit for the next boot",
    ),
    Case(
        "SWAP-04-zram-masked",
        {"bravo": [e.unit("dev-zram0.swap", LoadState="masked", UnitFileState="masked")]},
    ),
    Case(
        "SWAP-04-zram-service",
        {"bravo": [e.unit("zramswap.service", LoadState="loaded", UnitFileState="enabled")]},
        errors=(("memory.swap_stays_off", "bravo"),),
    ),
    Case(
        "SWAP-07",
        {"bravo": [e.write("/proc/swaps", SWAPS + SWAP_IMG)]},
        changes={"needs": replace(NEEDS, keep_swap=True)},
        note="the recipe keeps swap",
    ),
    # G. desktop
    Case(
        "GUI-01",
        {
            "bravo": [
                e.unit("gdm3.service", LoadState="masked", UnitFileState="masked"),
                e.unit(
                    "gdm.service",
                    LoadState="loaded",
                    ActiveState="active",
                    UnitFileState="static",
                    Names="gdm.service display-manager.service",
                ),
                e.process(2786, "gnome-shell", 640000),
            ]
        },
        errors=(("desktop.units_off", "bravo"), ("desktop.processes", "bravo")),
    ),
    Case(
        "GUI-01-before-harden",
        {
            "bravo": [
                e.unit("gdm3.service", LoadState="masked", UnitFileState="masked"),
                e.unit(
                    "gdm.service",
                    LoadState="loaded",
                    ActiveState="active",
                    UnitFileState="static",
                ),
                e.process(2786, "gnome-shell", 640000),
                e.symlink(
                    "/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target"
                ),
            ]
        },
        infos=(
            ("desktop.units_off", "bravo"),
            ("desktop.processes", "bravo"),
            ("desktop.default_target", "bravo"),
        ),
        phase=Phase.PREFLIGHT,
    ),
    Case("GUI-02", note="units that do not exist are no finding"),
    Case(
        "GUI-03",
        {
            "bravo": [
                e.unit(
                    "avahi-daemon.service",
                    ActiveState="inactive",
                    MainPID="0",
                    LoadState="masked",
                    UnitFileState="masked",
                )
            ]
        },
        errors=(("mdns.active", "bravo"),),
    ),
    Case(
        "GUI-03-before-harden",
        {"bravo": [e.unit("avahi-daemon.service", ActiveState="inactive", MainPID="0")]},
        infos=(("mdns.active", "bravo"),),
        phase=Phase.PREFLIGHT,
        note="role harden starts it again",
    ),
    Case(
        "GUI-03-until-the-next-boot",
        {"bravo": [e.unit("avahi-daemon.service", UnitFileState="enabled-runtime")]},
        errors=(("mdns.active", "bravo"),),
    ),
    Case(
        "GUI-03-removed",
        {
            "bravo": [
                e.unit(
                    "avahi-daemon.service",
                    ActiveState="inactive",
                    MainPID="0",
                    LoadState="not-found",
                    UnitFileState="",
                )
            ]
        },
        errors=(("mdns.installed", "bravo"),),
        phase=Phase.PREFLIGHT,
        note="an autoremove took it, and no role installs packages",
    ),
    Case(
        "GUI-05",
        {
            name: [
                e.unit(unit, LoadState="not-found", UnitFileState="", ActiveState="inactive")
                for unit in ("gdm.service", "display-manager.service")
            ]
            for name in NODES
        },
        note="an image without a display manager is no finding",
    ),
    Case(
        "GUI-06",
        {
            "bravo": [
                e.unit(
                    "nvidia-persistenced.service", UnitFileState="disabled", ActiveState="inactive"
                )
            ]
        },
        warnings=(("desktop.collateral", "bravo"),),
    ),
    Case(
        "GUI-07",
        {
            "bravo": [
                e.symlink(
                    "/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target"
                )
            ]
        },
        errors=(("desktop.default_target", "bravo"),),
    ),
    Case(
        "GUI-07-everything",
        {
            "bravo": [
                e.unit(
                    "gdm.service",
                    LoadState="loaded",
                    ActiveState="active",
                    UnitFileState="static",
                    FragmentPath="/usr/lib/systemd/system/gdm.service",
                ),
                e.process(2786, "gnome-shell", 640000),
                e.symlink(
                    "/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target"
                ),
            ]
        },
        errors=(
            ("desktop.units_off", "bravo"),
            ("desktop.processes", "bravo"),
            ("desktop.default_target", "bravo"),
        ),
    ),
    # H. discovery
    Case(
        "MDNS-02",
        {"bravo": [e.write("/etc/avahi/avahi-daemon.conf", f"deny-interfaces={A1},{B1}\n")]},
        warnings=(("mdns.rails_visible", "bravo"),),
    ),
    Case(
        "MDNS-02-allow-list",
        {"bravo": [e.write("/etc/avahi/avahi-daemon.conf", "allow-interfaces=enP7s7\n")]},
        warnings=(("mdns.rails_visible", "bravo"),),
    ),
    # I. image
    Case("IMG-01", {"bravo": [e.containerd_store()]}, note="the manifest names the pinned config"),
    Case(
        "IMG-01-index",
        {"bravo": [e.containerd_store(index=True)]},
        note="an index leads to the manifest of this architecture",
    ),
    Case(
        "IMG-01-unreadable",
        {"bravo": [e.containerd_store(blob=False)]},
        errors=(("image.present", "bravo"), ("serving.container", "bravo")),
        note="a digest that cannot be told is not believed, even behind the right tag and layers",
    ),
    Case(
        "IMG-01-layers",
        changes={"image": ExpectedImage(e.DIGEST, "arm64", ("sha256:" + "11" * 32,))},
        errors=tuple(("image.layers", name) for name in NODES),
    ),
    Case(
        "IMG-06",
        {"bravo": [e.write("/_commands/docker-images.json", "[]")]},
        errors=(("image.present", "bravo"),),
    ),
    Case(
        "IMG-06-full-disk",
        {
            "bravo": [
                e.write("/_commands/docker-images.json", "[]"),
                e.write(
                    "/_commands/df.txt",
                    "Mounted on 1B-blocks Avail\n" + "/ 916000000000 40960\n" * 3,
                ),
            ]
        },
        errors=(("image.present", "bravo"), ("disk.space", "bravo")),
    ),
    Case(
        "IMG-07",
        {
            "bravo": [
                e.write(
                    "/_commands/df.txt",
                    "Mounted on 1B-blocks Avail\n" + "/ 916000000000 1000000000\n" * 3,
                )
            ]
        },
        errors=(("disk.space", "bravo"),),
    ),
    Case(
        "IMG-08",
        {"bravo": [e.text(e.IMAGE, '"Architecture":"arm64"', '"Architecture":"amd64"')]},
        errors=(("image.architecture", "bravo"),),
    ),
    Case(
        "IMG-09",
        {"bravo": [e.text(e.IMAGE, 'r9.1-scheduler-liveness-4lane"},', 'nine shapes"},')]},
        note="labels identify nothing",
    ),
    Case(
        "IMG-11",
        {"bravo": [e.other_image("sha256:" + "77" * 32)]},
        errors=(("image.present", "bravo"),),
        warnings=(("image.same_tag", ""),),
    ),
    Case(
        "IMG-11-running",
        {
            "bravo": [
                e.other_image("sha256:" + "77" * 32),
                e.container(Image="sha256:" + "77" * 32),
            ]
        },
        errors=(("image.present", "bravo"), ("serving.container", "bravo")),
        warnings=(("image.same_tag", ""),),
    ),
    Case(
        "IMG-11-unprotected",
        {"bravo": [e.no_keeper]},
        warnings=(("image.kept", "bravo"),),
        note="once pruned, the image would have to be pulled",
    ),
    Case(
        "IMG-12",
        {"bravo": [e.other_image("sha256:" + "77" * 32)]},
        warnings=(("image.same_tag", ""),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "IMG-12-layers",
        {
            "bravo": [
                e.text(e.IMAGE, "1" * 64, "9" * 64),
                e.containerd_store(blob=False),
            ]
        },
        errors=(("image.present", "bravo"),),
        warnings=(("image.same_tag", ""),),
        phase=Phase.GATE,
        note="a store that does not tell the config digest tells the layers",
    ),
    Case(
        "IMG-12-at-the-gate",
        {"bravo": [e.other_image("sha256:" + "77" * 32)]},
        errors=(("image.present", "bravo"),),
        warnings=(("image.same_tag", ""),),
        phase=Phase.GATE,
        note="the tag is there, the pinned image is not",
    ),
    Case(
        "IMG-13",
        {
            "bravo": [
                e.remove("/_commands/docker-info.json"),
                e.write(
                    "/_commands/journalctl-docker.txt",
                    "Starting up\nfailed to start daemon: error initializing buildkit: invalid "
                    "database\n",
                ),
            ]
        },
        errors=(("observe.docker", "bravo"),),
    ),
    # J. Docker
    Case("DKR-01", note="runtimes without nvidia are no finding"),
    Case(
        "DKR-02",
        {
            "bravo": [
                e.text(
                    "/_commands/docker-info.json",
                    "/var/lib/docker",
                    "/var/snap/docker/common/var-lib-docker",
                )
            ]
        },
        errors=(("docker.engine", "bravo"),),
    ),
    Case(
        "DKR-02-beside",
        {"bravo": [e.write("/var/snap/docker/current/version", "1")]},
        errors=(("docker.engine", "bravo"),),
    ),
    Case(
        "DKR-04",
        {"bravo": [e.text("/_commands/dpkg-query.txt", "1.19.1-1", "1.19.0-1")]},
        errors=(("upgrade.mixed", ""),),
    ),
    Case(
        "DKR-04-stale-cdi",
        {
            "bravo": [
                e.write(
                    "/etc/cdi/nvidia.yaml",
                    "- hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so.580.142\n",
                )
            ]
        },
        errors=(("docker.cdi", "bravo"),),
    ),
    Case(
        "DKR-05",
        {"bravo": [e.text("/_commands/dpkg-query.txt", "nv-docker-options\t25.05-1\tii \n", "")]},
        warnings=(("upgrade.options_package", "bravo"),),
    ),
    Case(
        "DKR-06",
        {"bravo": [e.remove("/_commands/docker-images.json")]},
        errors=(("observe.docker", "bravo"),),
    ),
    # K. upgrades
    Case(
        "UPG-01",
        {
            "bravo": [
                e.write("/_commands/nvidia-smi-gpu.txt", "No devices were found\n"),
                e.write("/_commands/nvidia-smi-apps.txt", "No devices were found\n"),
                e.status("nvidia-smi-gpu", "6"),
                e.status("nvidia-smi-apps", "6"),
                e.kernel_line(20.0, "NVRM: Xid (PCI:000f:01:00): 119, Timeout waiting for GSP"),
            ]
        },
        errors=(("upgrade.gpu", "bravo"), ("upgrade.gsp", "bravo")),
    ),
    Case(
        "UPG-01-exit-0",
        {"bravo": [e.write("/_commands/nvidia-smi-gpu.txt", "No devices were found\n")]},
        errors=(("upgrade.gpu", "bravo"),),
    ),
    Case(
        "UPG-01-no-answer",
        {
            "bravo": [
                e.write("/_commands/nvidia-smi-gpu.txt", "NVIDIA-SMI has failed because it could"),
                e.status("nvidia-smi-gpu", "9"),
            ]
        },
        errors=(("observe.gpu", "bravo"),),
    ),
    Case(
        "UPG-04",
        {
            "bravo": [
                e.text("/_commands/dpkg-query.txt", "580.159.03-0ubuntu", "580.178.04-0ubuntu"),
            ]
        },
        errors=(("upgrade.reboot_pending", "bravo"),),
    ),
    Case(
        "UPG-04-older-one-left",
        {
            "bravo": [
                e.append("/_commands/dpkg-query.txt", "nvidia-driver-580\t580.95.05-0ubuntu1\tii ")
            ]
        },
        note="580.95 is older than 580.159, which is loaded",
    ),
    Case(
        "UPG-05",
        dict.fromkeys(NODES, KERNEL_7),
        errors=tuple(("upgrade.kernel_held_off", name) for name in NODES),
    ),
    Case(
        "UPG-05-comes-next",
        {"bravo": KERNEL_7[1:]},
        errors=(("upgrade.kernel_held_off", "bravo"),),
        warnings=(("upgrade.reboot_pending", "bravo"),),
    ),
    Case(
        "UPG-05-prefix",
        {
            name: [
                e.write("/proc/sys/kernel/osrelease", "7.0.0-10190-nvidia\n"),
                e.symlink("/boot/vmlinuz", "vmlinuz-7.0.0-10190-nvidia"),
                e.write("/boot/vmlinuz-7.0.0-10190-nvidia", ""),
                e.write("/boot/initrd.img-7.0.0-10190-nvidia", ""),
                e.write(
                    "/lib/modules/7.0.0-10190-nvidia/modules.dep",
                    "kernel/nvidia.ko:\nkernel/mlx5_core.ko:\n",
                ),
            ]
            for name in NODES
        },
        note="10190 is not 1019",
    ),
    Case(
        "UPG-07",
        {
            "bravo": [
                e.write(
                    "/etc/apt/sources.list.d/cuda.list",
                    "deb https://example.invalid/compute/cuda/repos/ubuntu2404/sbsa/ /\n",
                ),
                e.append("/_commands/dpkg-query.txt", "nvidia-driver-595-open\t595.10\tii "),
            ]
        },
        errors=(("upgrade.reboot_pending", "bravo"),),
        warnings=(("upgrade.driver_branch", "bravo"),),
        infos=(("upgrade.driver_branch", "bravo"),),
    ),
    Case(
        "UPG-07-repository",
        {
            "bravo": [
                e.write(
                    "/etc/apt/sources.list.d/cuda.sources",
                    "Types: deb\nURIs: https://example.invalid/compute/cuda/repos/u/sbsa/\n",
                )
            ]
        },
        infos=(("upgrade.driver_branch", "bravo"),),
    ),
    Case(
        "UPG-07-pinned",
        {
            "bravo": [
                e.write(
                    "/etc/apt/sources.list.d/cuda.list",
                    "deb https://example.invalid/compute/cuda/repos/ubuntu2404/sbsa/ /\n",
                ),
                e.write(
                    "/etc/apt/preferences.d/driver", "Package: nvidia-driver-*\nPin-Priority: -1\n"
                ),
            ]
        },
        note="a pinned repository is no finding",
    ),
    Case(
        "UPG-09",
        {
            "bravo": [
                e.symlink("/boot/vmlinuz", "vmlinuz-6.17.0-1032-nvidia"),
                e.write("/boot/vmlinuz-6.17.0-1032-nvidia", ""),
                e.write(
                    "/lib/modules/6.17.0-1032-nvidia/modules.dep",
                    "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst:\n",
                ),
            ]
        },
        errors=(("upgrade.next_boot", "bravo"),),
        warnings=(("upgrade.reboot_pending", "bravo"),),
    ),
    Case(
        "UPG-11",
        {"bravo": [e.text("/_commands/dpkg-query.txt", "1026.26\tii ", "1026.26\thi ")]},
        note="holds are recorded and are no finding by themselves",
    ),
    Case(
        "UPG-12",
        {
            "bravo": [
                e.write(
                    "/etc/apt/sources.list.d/nvidia-container-toolkit.list",
                    "<!doctype html>\n<html><body>Not found</body></html>\n",
                )
            ]
        },
        errors=(("upgrade.sources", "bravo"),),
    ),
    Case(
        "UPG-13-no-release-file",
        {"bravo": [e.remove("/etc/dgx-release")]},
        errors=(("upgrade.mixed", ""),),
        warnings=(("identity.machine", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case("UPG-13", layers=(*SERVING, "hp-zgx-recorded"), note="a release file without quotes"),
    Case(
        "UPG-13-never-updated",
        {
            name: [
                e.write(
                    "/etc/dgx-release",
                    '\nDGX_NAME="DGX Spark"\n\nDGX_SWBUILD_VERSION="7.2.3"\n'
                    'DGX_SERIAL_NUMBER="0"\n',
                )
            ]
            for name in NODES
        },
        note="without an update the factory's version counts",
    ),
    Case(
        "UPG-14",
        {"bravo": [e.append("/_commands/dpkg-query.txt", "nvidia-fabricmanager-580\t580.1\tii ")]},
        warnings=(("upgrade.driver_branch", "bravo"),),
    ),
    Case(
        "UPG-14-dkms",
        {
            "bravo": [
                e.append("/_commands/dpkg-query.txt", "nvidia-dkms-580-open-server\t580.1\tii ")
            ]
        },
        warnings=(("upgrade.driver_branch", "bravo"),),
    ),
    Case(
        "UPG-15",
        {"bravo": [e.text("/etc/dgx-release", '"7.5.0"', '"7.4.0"')]},
        errors=(("upgrade.mixed", ""),),
    ),
    Case(
        "UPG-15-allowed",
        {"bravo": [e.text("/etc/dgx-release", '"7.5.0"', '"7.4.0"')]},
        changes=site(allow_mixed_stack=True),
    ),
    Case(
        "UPG-16",
        {
            "bravo": [
                e.add_link("wlP9s9", "198.51.100.112/24"),
                e.link("enP7s7", addr_info=[]),
                e.write("/_commands/ssh-connection.txt", "198.51.100.5 50022 198.51.100.112 22"),
                e.text(
                    "/lib/modules/6.17.0-1026-nvidia/modules.dep",
                    "kernel/drivers/net/wireless/mediatek/mt76/mt7925/mt7925e.ko.zst:\n",
                    "",
                ),
            ]
        },
        errors=(("upgrade.next_boot", "bravo"),),
    ),
    Case(
        "UPG-17",
        {"bravo": [e.process(7000, "dpkg")]},
        warnings=(("upgrade.package_manager", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    # L. weights
    Case(
        "WGT-01",
        {
            "bravo": [
                e.remove(f"{WEIGHTS}/model-00002-of-00002.safetensors"),
                e.write(f"{WEIGHTS}/blob.incomplete", "x"),
            ]
        },
        errors=(("weights.complete", "bravo"), ("weights.same", "")),
    ),
    Case(
        "WGT-01-no-index",
        {"bravo": [e.remove(f"{WEIGHTS}/model.safetensors.index.json")]},
        errors=(("weights.complete", "bravo"),),
        note="without the index nobody knows which shards are missing",
    ),
    Case(
        "WGT-01-first-of-many",
        {
            "bravo": [
                e.remove(f"{WEIGHTS}/model.safetensors.index.json"),
                e.remove(f"{WEIGHTS}/model-00002-of-00002.safetensors"),
            ]
        },
        errors=(("weights.complete", "bravo"), ("weights.same", "")),
    ),
    Case(
        "WGT-03-one-file",
        {
            name: [
                e.remove(WEIGHTS),
                e.write(f"{WEIGHTS}/config.json", "{}"),
                e.write(f"{WEIGHTS}/model.safetensors", "1234567890"),
            ]
            for name in NODES
        },
        note="a model in one file has no index",
    ),
    Case(
        "WGT-02",
        {"bravo": [e.remove(WEIGHTS)]},
        errors=(("weights.complete", "bravo"),),
    ),
    Case("WGT-03", note="complete weights are no finding, whatever the loader says"),
    Case(
        "WGT-05",
        {
            "bravo": [
                e.write(
                    "/_commands/df.txt",
                    "Mounted on 1B-blocks Avail\n" + "/ 983547510784 4000000000\n" * 3,
                )
            ]
        },
        errors=(("disk.space", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    # M. service
    Case(
        "BOOT-01",
        {
            "bravo": [
                e.unit("spark-engine.service", ActiveState="inactive", SubState="dead"),
                e.no_container,
                e.write("/_commands/nvidia-smi-apps.txt", ""),
            ]
        },
        errors=(("serving.units", "bravo"), ("serving.container", "bravo")),
    ),
    Case(
        "BOOT-03",
        {"bravo": [e.container(HostConfig={"RestartPolicy": {"Name": "always"}})]},
        warnings=(("serving.restart_policy", "bravo"),),
    ),
    Case(
        "BOOT-05",
        changes={"serving": {**SERVED, "completion": None}},
        errors=(("serving.completion", "alpha"),),
        phase=Phase.AFTER_START,
    ),
    Case(
        "BOOT-05-no-answer",
        changes={"serving": {**SERVED, "models": [], "error": "/v1/models: timed out"}},
        errors=(("serving.api", "alpha"),),
        note="health alone is good",
    ),
    Case(
        "BOOT-06",
        {
            "delta": [
                e.carrier(A1, up=False),
                e.carrier(B1, up=False),
                e.unit("spark-engine.service", ActiveState="inactive", SubState="dead"),
                e.no_container,
                e.write("/_commands/ss-established.txt", ""),
            ]
        },
        errors=tuple(
            (check, "delta")
            for check in ("fabric.rails", "serving.units", "serving.container", "serving.ranks")
        ),
    ),
    Case(
        "BOOT-06-peer",
        {
            "charlie": [
                e.write("/etc/nvidia/cx7-hotplug-enabled", ""),
                e.kernel_line(700.0, "cx7-pcie-hotplug MTKP0001:00: Cable removal"),
            ]
        },
        infos=(("rdma.power_saving", "charlie"),),
        note="the card came back, and why it went is told",
    ),
    # N. security
    Case(
        "SEC-01",
        {"alpha": [e.text("/_commands/ss-listen.txt", "198.51.100.11:8000", "0.0.0.0:8000")]},
        errors=(("security.api_bind", "alpha"),),
    ),
    Case(
        "SEC-01-inventory",
        changes=site(api_bind="0.0.0.0"),  # noqa: S104 -- the refused value itself
        errors=(("security.bind_private", "alpha"),),
        phase=Phase.INVENTORY,
    ),
    Case(
        "SEC-01-public",
        changes=site(api_bind="8.8.8.8"),
        errors=(("security.bind_private", "alpha"),),
        phase=Phase.INVENTORY,
    ),
    Case(
        "SEC-01-no-key",
        changes={"serving": {**SERVED, "without_key": 200}},
        errors=(("security.api_key", "alpha"),),
    ),
    Case(
        "SEC-01-ray",
        {"alpha": [e.text("/_commands/ss-listen.txt", "127.0.0.1:8265", "*:8265")]},
        errors=(("security.ray_ports", "alpha"),),
    ),
    Case(
        "SEC-01-ray-without-token",
        {"alpha": [e.text(e.CONTAINER, "RAY_AUTH_MODE=token", "RAY_LOG=1")]},
        warnings=(("security.ray_ports", "alpha"),),
    ),
    Case(
        "RAY-03-multinode",
        {"delta": [e.text("/_commands/ss-established.txt", "10.77.0.11:6379", "10.77.0.11:29501")]},
        changes={"needs": replace(NEEDS, rank_port=29501)},
        errors=(("serving.ranks", "bravo"), ("serving.ranks", "charlie")),
    ),
    Case(
        "SEC-03",
        {"bravo": [e.ufw("### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in\n")]},
        errors=(("security.firewall", "bravo"),),
    ),
    Case(
        "SEC-03-allowed",
        {
            "bravo": [
                e.ufw(
                    f"### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in_{A1}\n"
                    f"### tuple ### allow any any 0.0.0.0/0 any 10.77.1.0/24 in_{B1}\n"
                )
            ]
        },
    ),
    *(
        Case(
            f"SEC-03-{what}",
            {
                "bravo": [
                    e.ufw(
                        f"{rule}\n### tuple ### allow any any 0.0.0.0/0 any 10.77.1.0/24 in_{B1}\n"
                    )
                ]
            },
            errors=(("security.firewall", "bravo"),),
        )
        for what, rule in {
            "on-another-rail": f"### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in_{B1}",
            "for-another-address": "### tuple ### allow any any 10.77.0.99 any 10.77.0.0/24 in",
            "udp-only": "### tuple ### allow udp any 0.0.0.0/0 any 10.77.0.0/24 in",
            "denied-first": "### tuple ### deny any any 0.0.0.0/0 any 10.77.0.11 in\n"
            "### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in",
        }.items()
    ),
    Case("SEC-03-inactive", {"bravo": [e.ufw(enabled=False)]}),
    Case(
        "SEC-06",
        {"bravo": [e.container(HostConfig={"Privileged": True})]},
        warnings=(("security.privileged", "bravo"),),
    ),
    # O. power and time
    Case(
        "PWR-02",
        {"bravo": [e.text("/_commands/last.txt", SHUTDOWN_RECORD, "")]},
        warnings=(("power.previous_run", "bravo"),),
    ),
    Case(
        "PWR-02-no-record",
        {
            "bravo": [
                e.write(
                    "/_commands/last.txt",
                    "reboot   system boot  6.17.0-1026-nvid Mon Sep 21 08:00:00 2026   "
                    "still running\n\nwtmp begins Mon Sep 21 08:00:00 2026\n",
                )
            ]
        },
        infos=(("power.previous_run", "bravo"),),
        note="a record that was rotated says nothing, and that is told",
    ),
    Case(
        "PWR-03",
        {"bravo": [e.text("/_commands/nvidia-smi-gpu.txt", "3003", "2200")]},
        warnings=(("power.clock_cap", ""),),
    ),
    Case(
        "PWR-03-crawling",
        {"bravo": [e.write("/_commands/nvidia-smi-clocks.txt", "507, 3003, 96\n")]},
        warnings=(("power.clock_under_load", "bravo"),),
    ),
    Case(
        "PWR-03-capped-under-load",
        {"bravo": [e.write("/_commands/nvidia-smi-clocks.txt", "2200, 3003, 96\n")]},
        note="a deliberate cap is no crawling",
    ),
    Case(
        "PWR-03-idle",
        {"bravo": [e.write("/_commands/nvidia-smi-clocks.txt", "208, 3003, 3\n")]},
        note="an idle GPU is slow",
    ),
    Case(
        "TIME-01",
        {"bravo": [e.write("/_commands/epoch.txt", str(EPOCH_S - 230400))]},
        errors=(("time.skew", "bravo"),),
        phase=Phase.PREFLIGHT,
    ),
    Case(
        "TIME-01-unsynchronized",
        {"bravo": [e.write("/_commands/timedatectl.txt", "NTP=no\nNTPSynchronized=no\n")]},
        warnings=(("time.synchronized", "bravo"),),
    ),
    Case(
        "ANS-04",
        {"bravo": [e.write("/_commands/ssh-connection.txt", "10.77.0.5 50022 10.77.0.12 22")]},
        warnings=(("fabric.control_apart", "bravo"),),
    ),
    Case(
        "ANS-05",
        {
            "delta": [
                e.symlink("/etc/spark-appliance/current", "launches/fedcba987654"),
                e.write("/etc/spark-appliance/launches/fedcba987654/launch.json", "{}"),
            ]
        },
        infos=(("launch.same", ""),),
        phase=Phase.PREFLIGHT,
        note="a node that a broken run left behind is found by comparing all of them",
    ),
    Case(
        "ANS-10",
        {"delta": [e.write("/_commands/docker-images.json", "[]")]},
        errors=(("image.present", "delta"),),
        phase=Phase.GATE,
        note="a load that reported success and left nothing",
    ),
    Case(
        "ANS-12",
        {"bravo": [e.remove("/etc/spark-appliance/current")]},
        errors=(("launch.current", "bravo"), ("launch.same", "")),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    judged = judge(context(case.layers, case.edits, **case.changes), case.phase)
    assert found(judged) == case.expected, [finding.message() for finding in judged]


def _of(case_id: str) -> list[Case]:
    return [case for case in CASES if case.id == case_id or case.id.startswith(f"{case_id}-")]


def _answers() -> dict[str, str]:
    folder = Path(__file__).parents[3] / "docs"
    listed = yaml.safe_load((folder / "cases.yml").read_text(encoding="utf-8"))
    return {name: entry["answer"] for name, entry in listed.items()}


ANSWERS = _answers()
CLAIMS = [(entry.id, case) for entry in declared() for case in entry.cases]
# Asked for by name below and in test_fleets.py, where a fleet, a receipt or a loss is needed.
BY_NAME = {
    ("drift.node", "GUI-07"),
    ("drift.node", "MEM-13"),
    ("drift.node", "NET-08"),
    ("drift.node", "UPG-11"),
    ("drift.node", "UPG-18"),
    ("fabric.reach", "NET-10"),
    ("fabric.reach", "NET-18"),
}


def test_all_129_cases_are_listed() -> None:
    assert len(ANSWERS) == 129
    assert {case.id.partition("-")[0] for case in CASES} <= {n.partition("-")[0] for n in ANSWERS}
    strays = [case.id for case in CASES if "-".join(case.id.split("-")[:2]) not in ANSWERS]
    assert strays == []


@pytest.mark.parametrize(("check", "case_id"), CLAIMS, ids=map("-".join, CLAIMS))
def test_a_check_that_names_a_case_is_seen_to_answer_it(check: str, case_id: str) -> None:
    if (check, case_id) in BY_NAME:
        return
    mine = _of(case_id)
    assert mine, f"no test is named {case_id}"
    if ANSWERS[case_id] == "ignore":
        assert any(not case.expected for case in mine), "nothing shows that it raises no alarm"
        return
    told = {found_by for case in mine for found_by, _, _ in case.expected}
    # What could not be looked at is told under the section's name, or under the context's.
    blind = {name for name in told if name.startswith(("observe.", "context."))}
    assert check in told or blind, f"{check} says nothing in {[case.id for case in mine]}"


@pytest.mark.parametrize("case_id", sorted({case for _, case in CLAIMS}))
def test_the_outcome_of_a_case_is_its_answer(case_id: str) -> None:
    if any(named == case_id for _, named in BY_NAME) and not _of(case_id):
        return
    severities = {severity for case in _of(case_id) for _, _, severity in case.expected}
    silent = any(not case.expected for case in _of(case_id))
    match ANSWERS[case_id]:
        case "ignore":
            assert silent
        case "refuse":
            assert ERROR in severities or case_id in REFUSED_BY_A_ROLE
        case "detect":
            assert severities
        case "repair":
            before = [case for case in _of(case_id) if case.phase is Phase.PREFLIGHT]
            assert any(severity is INFO for case in before for _, _, severity in case.expected)
            assert severities & {ERROR, WARNING}, "it counts once the role has run"


# The check warns; the role does not touch what would cut the session.
REFUSED_BY_A_ROLE = {"ANS-04"}


def test_every_check_has_a_case_that_it_fails() -> None:
    failed = {check for case in CASES for check, _, _ in case.expected}
    # It has tests of its own in test_fleets.py.
    assert {entry.id for entry in declared()} - failed == {"drift.node"}


def test_every_finding_of_the_cases_says_what_to_do() -> None:
    judged = judge(context(FACTORY), Phase.VERIFY)
    assert judged
    for finding in judged:
        assert all((finding.title, finding.expected, finding.found, finding.remedy)), finding


def test_net_21_slot_power_is_told_beside_a_slow_rail_only() -> None:
    message = e.kernel_line(
        4.0, "mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W)."
    )
    slow = e.write(f"/sys/class/net/{A1}/speed", "13000\n")
    for edits, evidence in (([slow], ""), ([slow, message], "bravo logged too little slot power")):
        (finding,) = judge(context(edits={"bravo": edits}), Phase.VERIFY)
        assert (finding.check, finding.evidence) == ("fabric.speed", evidence)


def test_net_13_says_where_the_address_lives() -> None:
    (case,) = [case for case in CASES if case.id == "NET-13"]
    judged = judge(context(case.layers, case.edits), Phase.VERIFY)
    told = {finding.evidence for finding in judged if finding.check == "fabric.persistent"}
    assert f"profile 'netplan-{A1}' in memory only" in told


def test_net_10_path_mtu_is_told_apart_from_host_mtu() -> None:
    judged = judge(context(edits={"alpha": [e.lose(A1, "bravo", small=3)]}), Phase.GATE)
    assert found(judged) == {("fabric.reach", "alpha", ERROR)}
    assert {finding.evidence for finding in judged} == {"fabric.reach_path_mtu"}


def test_net_18_a_ring_is_refused() -> None:
    opposite = dict(zip(NODES, (*NODES[2:], *NODES[:2]), strict=True))
    edits = {
        name: [e.lose(rail, peer, small=0) for rail in (A1, B1)] for name, peer in opposite.items()
    }
    judged = judge(context(edits=edits), Phase.GATE)
    assert found(judged) == {("fabric.reach", "", ERROR)}
    assert {finding.evidence for finding in judged} == {"fabric.topology"}
    assert len(judged) == 2, "one for each rail"


@pytest.mark.parametrize("phase", [Phase.GATE, Phase.VERIFY])
def test_a_node_that_proved_no_path_is_a_finding(phase: Phase) -> None:
    whole = context()
    sections = {
        key: value for key, value in whole.facts["bravo"].sections.items() if key != "reach"
    }
    facts = {**whole.facts, "bravo": NodeFacts("bravo", sections)}
    judged = judge(replace(whole, facts=facts), phase)
    assert found(judged) == {("observe.reach", "bravo", ERROR)}


def test_a_path_that_a_node_left_out_is_a_finding() -> None:
    def forget(tree: Tree) -> None:
        tree.reach["paths"].pop()

    judged = judge(context(edits={"bravo": [forget]}), Phase.VERIFY)
    assert found(judged) == {("fabric.reach", "", ERROR)}
    assert judged[0].expected == "a probe of bravo → delta on rail B"


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (e.remove(f"/_commands/ping-{A1}-10.77.0.13-8972.txt"), "ping: not installed"),
        (e.write(f"/_commands/ping-{A1}-10.77.0.13-8972.txt", "\x00\x01"), "binary"),
        (e.write(f"/_commands/ping-{A1}-10.77.0.13-8972.txt", "3 Pakete\n"), "3 Pakete"),
        (e.status(f"ping-{A1}-10.77.0.13-8972", "timeout"), "not finished"),
    ],
)
def test_a_ping_that_did_not_run_is_a_finding(said: Edit, part: str) -> None:
    judged = judge(context(edits={"bravo": [said]}), Phase.VERIFY)
    assert found(judged) == {("fabric.reach", "bravo", ERROR)}
    assert part in judged[0].found


def test_mem_14_a_node_that_is_lost_is_named_and_the_others_are_judged() -> None:
    whole = context()
    left = {name: facts for name, facts in whole.facts.items() if name != "bravo"}
    judged = judge(replace(whole, facts=left), Phase.VERIFY)
    assert found(judged) == {("observe.node", "bravo", ERROR)}


def test_img_13_the_reason_is_what_the_engine_s_log_says() -> None:
    (case,) = _of("IMG-13")
    (finding,) = judge(context(case.layers, case.edits), case.phase)
    assert "invalid database" in finding.found
    assert "moving /var/lib/docker/buildkit aside" in finding.found


def test_ans_01_interface_names_are_values_and_keep_their_case() -> None:
    network = context().facts["bravo"].network
    assert {rail.name for rail in network.rails()} == {A0, A1, B0, B1}


def test_ans_14_text_in_another_language_is_unknown_and_not_misread() -> None:
    chinese = "              总计         已用        空闲\n内存:  127600748     4617684\n"
    said = [e.write("/proc/meminfo", chinese), e.write("/_commands/timedatectl.txt", "NTP=да\n")]
    judged = judge(context(edits={"bravo": said}), Phase.VERIFY)
    assert found(judged) == {
        ("observe.memory", "bravo", ERROR),
        ("observe.time", "bravo", ERROR),
    }


def test_upg_10_a_tool_that_hangs_is_unknown_and_bounded() -> None:
    judged = judge(context(edits={"bravo": [e.status("timedatectl", "timeout")]}), Phase.VERIFY)
    assert found(judged) == {("observe.time", "bravo", ERROR)}
    assert "not finished after" in judged[0].found


def test_sec_05_no_secret_serial_or_hardware_address_leaves_the_node() -> None:
    leaky = [
        e.write(
            "/etc/NetworkManager/system-connections/home.nmconnection",
            "[connection]\nid=home\ntype=wifi\n[wifi-security]\npsk=not-for-anyone\n",
        ),
        e.add_link("enx020000000099", "192.168.7.2/24"),
    ]
    told = json.dumps(observe(tree("alpha", SERVING, leaky))).lower()
    assert "not-for-anyone" not in told
    assert "1700000000042" not in told
    assert "02:00:00" not in told
    assert "020000000099" not in told
    assert "00ff:fe00" not in told
