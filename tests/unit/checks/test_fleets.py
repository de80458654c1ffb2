# SPDX-License-Identifier: Apache-2.0
"""Whole fleets: healthy ones are silent, half-done ones say exactly what is left, drift is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (
    Phase,
    drift_record,
    judge,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

from tests.fixtures.nodes import edits as e
from tests.fixtures.nodes.compose import FACTORY, HARDENED, NODES, SERVING, Edit
from tests.fixtures.nodes.fleet import context, edited_facts, found

ERROR, INFO = Severity.ERROR, Severity.INFO
VENDORS = {
    "founders-edition": (),
    "asus-gx10": ("asus-gx10-recorded",),
    "dell-promax": ("dell-promax-recorded",),
    "hp-zgx": ("hp-zgx-recorded",),
    "after-ota": ("after-ota-constructed",),
}
READY = (Phase.PREFLIGHT, Phase.GATE)
SERVED = (*READY, Phase.AFTER_START, Phase.VERIFY)


@pytest.mark.parametrize("phase", SERVED)
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_healthy_serving_fleet_is_silent(vendor: str, phase: Phase) -> None:
    judged = judge(context((*SERVING, *VENDORS[vendor])), phase)
    assert judged == [], [finding.message() for finding in judged]


@pytest.mark.parametrize("phase", READY)
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_hardened_fleet_is_ready(vendor: str, phase: Phase) -> None:
    judged = judge(context((*HARDENED, *VENDORS[vendor])), phase)
    assert judged == [], [finding.message() for finding in judged]


def test_a_fleet_of_four_vendors_is_silent() -> None:
    vendors = ("asus-gx10-recorded", "dell-promax-recorded", "hp-zgx-recorded")
    edits: dict[str, list[Edit]] = {
        name: [e.layer(layer), e.meminfo(MemTotal=127535084)]
        for name, layer in zip(NODES[1:], vendors, strict=True)
    }
    assert judge(context(edits=edits), Phase.VERIFY) == []


def test_a_stopped_fleet_has_given_everything_back() -> None:
    assert judge(context(HARDENED), Phase.AFTER_STOP) == []


def test_nothing_on_a_factory_fleet_refuses_the_preflight() -> None:
    judged = judge(context(FACTORY), Phase.PREFLIGHT)
    assert judged
    assert {finding.severity for finding in judged} == {INFO}
    assert {finding.remedy for finding in judged} == {
        "role harden repairs it",
        "role fabric repairs it",
    }


def test_a_half_hardened_node_says_what_is_left() -> None:
    half: Sequence[Edit] = [
        e.write("/etc/fstab", "/swap.img none swap sw 0 0\n"),
        e.symlink("/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target"),
        e.link("enP2p1s0f1np1", mtu=1500),
        e.text("/_commands/netplan-get.txt", "mtu: 9000", "mtu: 1500"),
    ]
    judged = judge(context(edits={"charlie": half}), Phase.VERIFY)
    assert found(judged) == {
        (check, "charlie", ERROR)
        for check in (
            "memory.swap_stays_off",
            "desktop.default_target",
            "fabric.mtu",
            "fabric.persistent",
        )
    }


def test_a_node_without_facts_is_an_error_and_the_others_are_judged() -> None:
    whole = context()
    lost = replace(whole, facts={name: whole.facts[name] for name in NODES[:3]})
    assert found(judge(lost, Phase.VERIFY)) == {("observe.node", "delta", ERROR)}


def test_facts_of_another_schema_are_unknown_section_by_section() -> None:
    foreign = NodeFacts.of("delta", {"schema": 2, "sections": {"memory": {"ok": True}}})
    judged = judge(replace(context(), facts={**context().facts, "delta": foreign}), Phase.VERIFY)
    assert {finding.node for finding in judged} == {"delta"}
    assert {finding.check.partition(".")[0] for finding in judged} == {"observe"}


@pytest.mark.parametrize("missing", ["image", "launches", "serving"])
@pytest.mark.parametrize("phase", [Phase.VERIFY, Phase.AFTER_START])
def test_context_that_was_not_given_is_an_error(missing: str, phase: Phase) -> None:
    nothing: dict[str, Any] = {missing: None}
    judged = judge(context(**nothing), phase)
    assert (f"context.{missing}", "", ERROR) in found(judged)


def _receipt() -> dict[str, Any]:
    facts = context().facts
    return {"nodes": {name: {"state": drift_record(facts[name])} for name in NODES}}


def test_no_drift_without_a_change() -> None:
    assert judge(context(receipt=_receipt()), Phase.VERIFY) == []


def test_mem_13_memory_taken_by_firmware_is_told_as_before_and_now() -> None:
    smaller = {"bravo": [e.meminfo(MemTotal=127600748 - 2 * 1024 * 1024)]}
    judged = judge(context(edits=smaller, receipt=_receipt()), Phase.VERIFY)
    assert found(judged) == {("drift.node", "bravo", INFO)}
    assert judged[0].found == "MemTotal in kB: 127600748 → 125503596"


def test_upg_18_an_update_of_all_nodes_is_drift_and_no_error() -> None:
    judged = judge(context((*SERVING, "after-ota-constructed"), receipt=_receipt()), Phase.VERIFY)
    assert {finding.severity for finding in judged} == {INFO}
    told = {finding.found for finding in judged if finding.node == "alpha"}
    assert told == {
        "system update: 7.5.0 → 7.6.0",
        "kernel: 6.17.0-1026-nvidia → 6.17.0-1032-nvidia",
        "next kernel: 6.17.0-1026-nvidia → 6.17.0-1032-nvidia",
        "driver: 580.159.03 → 580.178.04",
        "installed driver: 580.159.03 → 580.178.04",
        "container toolkit: 1.19.1-1 → 1.20.1-1",
        "held packages: none → linux-image-6.17.0-1032-nvidia",
    }


def test_net_08_an_mtu_that_fell_back_is_told_as_before_and_now() -> None:
    fallen = {"bravo": [e.link("enP2p1s0f1np1", mtu=1500)]}
    judged = judge(context(edits=fallen, receipt=_receipt()), Phase.VERIFY)
    assert found(judged) == {("fabric.mtu", "bravo", ERROR), ("drift.node", "bravo", INFO)}
    assert judged[1].found == "MTU of enP2p1s0f1np1: 9000 → 1500"


def test_gui_07_a_desktop_that_came_back_is_told_as_before_and_now() -> None:
    back = [e.unit("gdm.service", LoadState="loaded", UnitFileState="static")]
    judged = judge(context(edits={"bravo": back}, receipt=_receipt()), Phase.VERIFY)
    assert found(judged) == {("desktop.units_off", "bravo", ERROR), ("drift.node", "bravo", INFO)}
    assert judged[1].found == "gdm.service at boot: masked → static"


def test_upg_11_a_hold_is_told_as_before_and_now() -> None:
    held = [e.text("/_commands/dpkg-query.txt", "1026.26\tii ", "1026.26\thi ")]
    judged = judge(context(edits={"bravo": held}, receipt=_receipt()), Phase.VERIFY)
    assert found(judged) == {("drift.node", "bravo", INFO)}
    assert judged[0].found == "held packages: none → linux-image-6.17.0-1026-nvidia"


@pytest.mark.parametrize("nodes", [{}, {"bravo": 3}, {"bravo": {"state": []}}, {"bravo": None}])
def test_a_receipt_that_tells_nothing_of_a_node_tells_no_drift(nodes: dict[str, Any]) -> None:
    assert judge(context(receipt={"nodes": nodes}), Phase.VERIFY) == []


def test_after_an_upgrade_what_only_bites_at_the_next_boot_is_an_error() -> None:
    hazards = [
        e.write("/etc/fstab", "/swap.img none swap sw 0 0\n"),
        e.symlink("/boot/vmlinuz", "vmlinuz-6.17.0-1032-nvidia"),
        e.write("/boot/vmlinuz-6.17.0-1032-nvidia", ""),
        e.write("/_commands/netplan-get.txt", "network: {version: 2}\n"),
        e.unit("gdm.service", LoadState="loaded", UnitFileState="static"),
    ]
    judged = judge(context(edits={"bravo": hazards}), Phase.VERIFY)
    assert {finding.check for finding in judged if finding.severity is ERROR} == {
        "memory.swap_stays_off",
        "upgrade.next_boot",
        "fabric.persistent",
        "desktop.units_off",
    }


def test_what_only_bites_at_the_next_boot_is_told_as_before_and_now() -> None:
    hazards = [
        e.write("/etc/fstab", "/swap.img none swap sw 0 0\n"),
        e.unit("swap.img.swap", UnitFileState="generated", What="/swap.img"),
        e.symlink("/boot/vmlinuz", "vmlinuz-6.17.0-1032-nvidia"),
        e.write("/boot/vmlinuz-6.17.0-1032-nvidia", ""),
        e.write(
            "/lib/modules/6.17.0-1032-nvidia/modules.dep",
            "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst:\n",
        ),
        e.write("/_commands/netplan-get.txt", "network: {version: 2, renderer: networkd}\n"),
        e.unit("gdm.service", LoadState="loaded", UnitFileState="static"),
        e.unit("nvidia-persistenced.service", UnitFileState="disabled"),
        e.symlink("/etc/systemd/system/default.target", "/lib/systemd/system/graphical.target"),
    ]
    judged = judge(context(edits={"bravo": hazards}, receipt=_receipt()), Phase.VERIFY)
    assert {finding.found for finding in judged if finding.check == "drift.node"} == {
        "next kernel: 6.17.0-1026-nvidia → 6.17.0-1032-nvidia",
        "initrd of the next kernel: there → missing",
        "modules of the next kernel: mlx5_core, mt7925e, nvidia, r8127 → mlx5_core",
        "swap in fstab: none → /swap.img",
        "swap.img.swap at boot: none → generated",
        "addresses of enp1s0f1np1 in netplan: 10.77.0.12/24 → none",
        "addresses of enP2p1s0f1np1 in netplan: 10.77.1.12/24 → none",
        "MTU of enp1s0f1np1 in netplan: 9000 → none",
        "MTU of enP2p1s0f1np1 in netplan: 9000 → none",
        "netplan renderer: NetworkManager → networkd",
        "gdm.service at boot: masked → static",
        "nvidia-persistenced.service at boot: enabled → disabled",
        "default target: multi-user.target → graphical.target",
    }


def test_a_section_that_cannot_be_read_hides_no_other_drift() -> None:
    changed = [
        e.write("/etc/fstab", "/swap.img none swap sw 0 0\n"),
        e.status("dpkg-query", "2"),
    ]
    judged = judge(context(edits={"bravo": changed}, receipt=_receipt()), Phase.VERIFY)
    told = [finding.found for finding in judged if finding.check == "drift.node"]
    assert told == ["swap in fstab: none → /swap.img"]
    (blind,) = [finding for finding in judged if finding.check == "observe.packages"]
    assert "drift.node" in blind.evidence


def test_a_receipt_of_an_older_shape_is_compared_where_it_tells() -> None:
    older = {"nodes": {"bravo": {"state": {"kernel": "6.11.0-1016-nvidia", "gone": 1}}}}
    judged = judge(context(receipt=older), Phase.VERIFY)
    assert {finding.found for finding in judged} == {
        "kernel: 6.11.0-1016-nvidia → 6.17.0-1026-nvidia",
        "gone: 1 → none",
    }


def test_killing_the_server_process_names_node_and_finding() -> None:
    killed = [
        e.unit(
            "spark-api.service",
            ActiveState="failed",
            SubState="failed",
            Result="signal",
            ExecMainStatus="9",
            MainPID="0",
        ),
        e.text("/_commands/ss-listen.txt",
               "LISTEN 0 2048 198.51.100.11:8000 0.0.0.0:* "
               'users:(("python",pid=5300,fd=30))\n', ""),
    ]  # fmt: skip
    refused = {"health": 0, "error": "/health: connection refused", "models": []}
    judged = judge(context(edits={"alpha": killed}, serving=refused), Phase.VERIFY)
    assert found(judged) == {
        (check, "alpha", ERROR) for check in ("serving.units", "serving.api", "security.api_bind")
    }
    unit = next(finding for finding in judged if finding.check == "serving.units")
    assert "spark-api.service" in unit.expected
    assert "result signal, exit status 9" in unit.evidence


def test_facts_are_judged_the_same_after_a_trip_through_json() -> None:
    raw = edited_facts("bravo", SERVING, [e.link("enP2p1s0f1np1", mtu=1500)])
    whole = context()
    judged = judge(
        replace(whole, facts={**whole.facts, "bravo": NodeFacts.of("bravo", raw)}), Phase.VERIFY
    )
    assert found(judged) == {("fabric.mtu", "bravo", ERROR)}
