from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.filter.rail_findings import rail_findings
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import (
    Path,
    Topology,
    judge_reach,
    reach_request,
    topology,
)

NODES = ("alpha", "bravo", "charlie", "delta")
RAILS = ("a", "b")
NETDEVS = {"a": "enp1s0f1np1", "b": "enP2p1s0f1np1"}


def fleet(nodes: tuple[str, ...] = NODES) -> list[Path]:
    return [
        Path(node, rail, NETDEVS[rail], peer, f"10.77.{position}.{11 + nodes.index(peer)}",
             8972, 3, 3)
        for node in nodes
        for peer in nodes
        for position, rail in enumerate(RAILS)
        if node != peer
    ]  # fmt: skip


def spoil(paths: list[Path], node: str, peer: str, rail: str, **changes: Any) -> list[Path]:
    return [
        replace(path, **changes)
        if (path.node, path.peer, path.rail) == (node, peer, rail)
        else path
        for path in paths
    ]


@pytest.mark.parametrize("nodes", [NODES[:1], NODES[:2], NODES[:3], NODES])
def test_a_fleet_whose_paths_carry_full_packets_has_no_finding(nodes: tuple[str, ...]) -> None:
    assert judge_reach(fleet(nodes), nodes, RAILS, 9000) == []


@pytest.mark.parametrize(
    ("changes", "check", "severity"),
    [
        ({"received": 0, "small_received": 3}, "reach_path_mtu", Severity.ERROR),
        ({"received": 0, "local_mtu": 1500}, "reach_host_mtu", Severity.ERROR),
        ({"received": 0, "small_received": 0}, "reach_peer", Severity.ERROR),
        ({"received": 2}, "reach_loss", Severity.WARNING),
        ({"sent": 0, "received": 0, "error": "ping: not installed"}, "reach_probe", Severity.ERROR),
    ],
    ids=["net10-path", "net08-host", "net25-peer", "loss", "no-ping"],
)
def test_each_fault_of_a_path_has_a_finding_of_its_own(
    changes: dict[str, Any], check: str, severity: Severity
) -> None:
    paths = spoil(fleet(), "alpha", "charlie", "b", **changes)
    (finding,) = judge_reach(paths, NODES, RAILS, 9000)
    assert (finding.check, finding.node) == (f"fabric.{check}", "alpha")
    assert finding.severity is severity


def test_net10_the_path_is_told_from_the_hosts_own_mtu() -> None:
    paths = spoil(fleet(), "alpha", "bravo", "a", received=0, small_received=3, path_mtu=1500)
    (finding,) = judge_reach(paths, NODES, RAILS, 9000)
    assert "8972 B" in finding.expected
    assert "a router allows 1500" in finding.found
    assert finding.variable == "appliance_fabric_mtu"


def test_a_hosts_own_mtu_is_told_once_and_not_for_every_peer() -> None:
    paths = fleet()
    for peer in NODES[1:]:
        paths = spoil(paths, "alpha", peer, "a", received=0, local_mtu=1500)
    assert len(judge_reach(paths, NODES, RAILS, 9000)) == 1


def test_a_path_that_nobody_probed_is_a_finding() -> None:
    paths = [path for path in fleet() if (path.node, path.peer) != ("delta", "alpha")]
    findings = judge_reach(paths, NODES, RAILS, 9000)
    assert {finding.expected for finding in findings} == {
        "a probe of delta → alpha on rail A",
        "a probe of delta → alpha on rail B",
    }
    assert all(finding.severity is Severity.ERROR for finding in findings)


def test_nothing_probed_at_all_is_no_pass() -> None:
    assert len(judge_reach([], NODES, RAILS, 9000)) == 4 * 2


def test_a_node_that_was_not_asked_is_left_to_who_says_so() -> None:
    paths = [path for path in fleet() if path.node != "delta"]
    assert judge_reach(paths, NODES, RAILS, 9000, unread={"delta"}) == []
    assert len(judge_reach(paths, NODES, RAILS, 9000, unread={"alpha"})) == 2


def test_a_dead_rail_is_one_finding_for_each_end_and_names_every_peer() -> None:
    paths = [
        replace(path, received=0, small_received=0)
        if path.rail == "a" and "bravo" in {path.node, path.peer}
        else path
        for path in fleet()
    ]
    findings = judge_reach(paths, NODES, RAILS, 9000)
    assert [finding.node for finding in findings] == ["alpha", "bravo", "charlie", "delta"]
    assert findings[1].expected == (
        "answers of 10.77.0.11, 10.77.0.13, 10.77.0.14 for "
        "bravo → alpha, charlie, delta on rail A (enp1s0f1np1)"
    )


def test_every_node_is_asked_for_every_peer_on_the_rails_that_both_have() -> None:
    asked = reach_request(
        {"alpha": ("10.0.0.1/24", "10.0.1.1/24"), "bravo": ("10.0.0.2/24",), "charlie": ()}, 1500
    )
    path = {"node": "alpha", "rail": "a", "source": "10.0.0.1", "peer": "bravo"}
    assert asked["alpha"] == {"mtu": 1500, "paths": [path | {"address": "10.0.0.2"}]}
    assert [path["address"] for path in asked["bravo"]["paths"]] == ["10.0.0.1"]
    assert asked["charlie"]["paths"] == []


def ring() -> list[Path]:
    paths = fleet()
    for node, peer in (("alpha", "charlie"), ("bravo", "delta")):
        for rail in RAILS:
            for pair in ((node, peer), (peer, node)):
                paths = spoil(paths, *pair, rail, received=0, small_received=0)
    return paths


def test_net18_a_ring_is_one_finding_a_rail_instead_of_four_dead_paths() -> None:
    findings = judge_reach(ring(), NODES, RAILS, 9000)
    assert [finding.check for finding in findings] == ["fabric.topology"] * 2


@pytest.mark.parametrize(
    ("paths", "nodes", "expected"),
    [
        (fleet(NODES[:2]), NODES[:2], Topology.PAIR),
        (fleet(NODES[:3]), NODES[:3], Topology.SWITCH),
        (fleet(), NODES, Topology.SWITCH),
        (ring(), NODES, Topology.RING),
        (
            spoil(fleet(), "alpha", "bravo", "a", received=0, small_received=0),
            NODES,
            Topology.PARTIAL,
        ),
        ([], NODES, Topology.PARTIAL),
    ],
)
def test_topology_follows_from_who_reaches_whom(
    paths: list[Path], nodes: tuple[str, ...], expected: Topology
) -> None:
    assert topology([path for path in paths if path.rail == "a"], nodes) is expected


def test_two_circles_are_no_ring() -> None:
    nodes = ("a1", "a2", "a3", "b1", "b2", "b3")
    paths = [
        replace(path, received=0, small_received=0) if path.node[0] != path.peer[0] else path
        for path in fleet(nodes)
        if path.rail == "a"
    ]
    assert topology(paths, nodes) is Topology.PARTIAL


def test_the_filter_returns_the_messages_that_refuse() -> None:
    good = [{"paths": [asdict(path) for path in fleet()]}]
    assert rail_findings(good, NODES, RAILS, 9000) == []
    lossy = [asdict(path) for path in spoil(fleet(), "alpha", "bravo", "a", received=2)]
    assert rail_findings([{"paths": lossy}], NODES, RAILS, 9000) == []
    assert len(rail_findings([{"skipped": True}], NODES, RAILS, 9000)) == 8
