"""From facts of four recorded nodes and the real R13 recipe to findings and plans."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts.gather import gather
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import open_host
from ansible_collections.spark.appliance.plugins.module_utils._facts.reach import Reach
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Phase
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity, refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.judgement import (
    Judgement,
    Material,
    Policy,
    judge_nodes,
    no_plan,
    running_profile,
    serving_request,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan import (
    OBSERVED_UNITS,
    FabricPolicy,
    HardenPolicy,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import load_release

from tests.fixtures.nodes import edits as e
from tests.fixtures.nodes.compose import _MEMORY, EPOCH_S, FACTORY, HARDENED, Edit, tree
from tests.unit.plugin_utils.launch_cases import NODES, R13, ROOT, SITE, templates

A1, B1 = "enp1s0f1np1", "enP2p1s0f1np1"
RELEASE = load_release(
    (ROOT / "image/releases/r13-balanced-fast-c4.yml").read_text(encoding="utf-8"),
    "r13-balanced-fast-c4.yml",
)
POLICY = Policy(
    profile="",
    api_key="k" * 32,
    release_url="http://198.51.100.10/release",
    weights_url="http://198.51.100.10/weights",
    harden=HardenPolicy(),
    fabric=FabricPolicy(),
)


def observed(name: str, layers: Sequence[str], edits: Sequence[Edit] = ()) -> dict[str, Any]:
    composed = tree(name, layers)
    for unit in OBSERVED_UNITS:
        composed.unit(unit, LoadState="not-found", ActiveState="inactive", UnitFileState="")
    for edit in edits:
        edit(composed)
    request = Request(
        units=OBSERVED_UNITS,
        weights=(SITE.weights_dir,),
        reference_epoch_s=EPOCH_S,
        reach=Reach.of(composed.reach),
    )
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        return gather(open_host(str(composed.put(Path(folder)))), request)


@cache
def plain(name: str, layers: tuple[str, ...]) -> dict[str, Any]:
    return observed(name, layers)


def material(
    layers: tuple[str, ...] = HARDENED,
    edits: Mapping[str, Sequence[Edit]] | None = None,
    **changes: Any,
) -> Material:
    edits = edits or {}
    facts = {
        name: observed(name, layers, edits[name]) if name in edits else plain(name, layers)
        for name in NODES
    }
    whole = Material(
        site=SITE,
        policy=POLICY,
        recipe=R13,
        release=RELEASE,
        templates=templates(),
        facts=facts,
    )
    return replace(whole, **changes)


def ids(judgement: Judgement) -> set[str]:
    return {finding.check for finding in judgement.findings}


def test_an_observation_plans_for_every_node_and_selects_no_check() -> None:
    judged = judge_nodes(material(FACTORY), None)
    assert judged.phase is None
    assert set(judged.plan) == set(NODES)
    assert [judged.plan[name]["rank"] for name in NODES] == [0, 1, 2, 3]
    assert set(judged.plan["alpha"]) == set(no_plan())
    assert all(judged.plan[name]["harden"]["needed"] for name in NODES)
    assert all(judged.plan[name]["cutover"]["needed"] for name in NODES)
    assert judged.profile == R13.default_profile
    assert judged.launch == judged.plan["delta"]["launch"]["id"]


def test_the_same_facts_make_the_same_launch_and_another_key_another() -> None:
    whole = material()
    again = judge_nodes(whole, None).launch
    assert judge_nodes(whole, None).launch == again
    other = replace(whole, policy=replace(POLICY, api_key="x" * 32))
    assert judge_nodes(other, None).launch != again


def test_a_profile_that_is_asked_for_is_the_one_judged() -> None:
    asked = replace(POLICY, profile="fast")
    assert judge_nodes(material(policy=asked), None).profile == "fast"


def test_a_node_without_facts_is_named_and_nothing_is_planned() -> None:
    whole = material()
    facts = {name: raw for name, raw in whole.facts.items() if name != "delta"}
    judged = judge_nodes(replace(whole, facts=facts), Phase.VERIFY)
    assert judged.plan == {}
    named = {(finding.check, finding.node) for finding in judged.findings}
    assert ("observe.node", "delta") in named


@pytest.mark.parametrize("phase", [Phase.PREFLIGHT, Phase.GATE, Phase.VERIFY])
def test_a_rail_without_carrier_leaves_no_plan_and_hides_no_other_finding(phase: Phase) -> None:
    broken = {"bravo": [e.carrier(B1, up=False)], "delta": [e.link(A1, mtu=1500)]}
    judged = judge_nodes(material(edits=broken), phase)
    assert judged.phase is phase
    assert judged.plan == {}
    named = {(finding.check, finding.node) for finding in judged.findings}
    assert {("launch.node_view", "bravo"), ("fabric.rails", "bravo"), ("fabric.mtu", "delta")} <= (
        named
    )
    assert "context.launches" not in ids(judged)
    assert refusals(judged.findings)


def test_an_unreadable_section_leaves_no_plan_and_hides_no_other_finding() -> None:
    broken = {
        "bravo": [e.status("systemctl-show", "timeout")],
        "delta": [e.link(A1, mtu=1500)],
    }
    judged = judge_nodes(material(edits=broken), Phase.VERIFY)
    assert judged.plan == {}
    named = {(finding.check, finding.node) for finding in judged.findings}
    assert ("fabric.mtu", "delta") in named
    assert any(node == "bravo" and check.endswith(".units") for check, node in named)


def test_an_observation_that_cannot_plan_says_only_why() -> None:
    judged = judge_nodes(material(edits={"bravo": [e.carrier(B1, up=False)]}), None)
    assert ids(judged) == {"launch.node_view"}
    assert judged.phase is None


def test_the_gate_refuses_a_launch_that_is_not_staged_on_every_node() -> None:
    judged = judge_nodes(material(), Phase.GATE)
    staged = [finding for finding in judged.findings if finding.check == "launch.staged"]
    assert [finding.node for finding in staged] == list(NODES)
    assert all(finding.severity is Severity.ERROR for finding in staged)
    assert judged.launch in staged[0].expected


def test_the_gate_refuses_a_staged_launch_that_was_changed() -> None:
    folder = f"/etc/spark-appliance/launches/{judge_nodes(material(), None).launch}"
    edits = {name: [e.write(f"{folder}/engine.env", "OTHER=1\n")] for name in NODES}
    changed = judge_nodes(material(edits=edits), Phase.GATE)
    assert "launch.staged" not in ids(changed)
    assert [f.node for f in changed.findings if f.check == "launch.files"] == list(NODES)


def test_the_gate_judges_the_memory_of_a_cutover() -> None:
    judged = judge_nodes(material(), Phase.GATE)
    assert judged.envelope is not None
    # R13's floors are published for no profile, so that without consent it refuses.
    assert any(check.startswith("memory.") for check in ids(judged))
    assert all(
        isinstance(judged.plan[name]["cutover"]["memory_bytes"], int)
        and judged.plan[name]["cutover"]["memory_bytes"] > 0
        for name in NODES
    )


def test_check_mode_asks_the_gate_what_preflight_asks_and_lets_verify_wait() -> None:
    whole = material(FACTORY, predicting=True)
    gate = judge_nodes(whole, Phase.GATE)
    assert gate.phase is Phase.PREFLIGHT
    assert "launch.staged" not in ids(gate)
    assert judge_nodes(whole, Phase.VERIFY).phase is None


def test_verify_of_nodes_that_serve_nothing_is_no_pass() -> None:
    judged = judge_nodes(material(), Phase.VERIFY)
    assert judged.phase is Phase.VERIFY
    assert {"context.serving", "serving.units"} <= ids(judged)


def test_another_completion_than_the_expected_one_is_an_error_on_the_head() -> None:
    expect = R13.gates.smoke.expect
    for text, wrong in ((f"it is {expect}.", False), ("something else", True), (None, True)):
        serving = {"health": 200, "without_key": 401, "completion": {"text": text}}
        judged = judge_nodes(material(serving=serving), Phase.AFTER_START)
        assert ("serving.smoke" in ids(judged)) is wrong, text


def test_memory_that_nobody_watched_is_an_error() -> None:
    watched: dict[str, dict[str, Any]] = {name: {"watch": {}} for name in NODES}
    judged = judge_nodes(material(watched=watched), Phase.AFTER_START)
    assert "memory.watch" in ids(judged)


def test_the_serving_request_names_the_bound_address_and_no_key() -> None:
    asked = serving_request(R13, SITE)
    assert (asked["address"], asked["port"]) == (SITE.api_bind, SITE.api_port)
    assert POLICY.api_key not in str(asked)


def in_force(profile: str, launch: str = "fedcba9876543210") -> list[Edit]:
    """Give a node a launch of this recipe that is in force."""
    folder = "/etc/spark-appliance/launches"
    content = json.dumps({"recipe": R13.name, "profile": profile})
    return [
        e.write(f"{folder}/{launch}/launch.json", content),
        e.symlink("/etc/spark-appliance/current", f"launches/{launch}"),
    ]


def test_a_node_that_has_no_profile_takes_that_of_the_others() -> None:
    edits = {name: in_force("fast") for name in NODES[:3]}
    judged = judge_nodes(material(edits=edits), Phase.PREFLIGHT)
    assert judged.profile == "fast"
    assert not refusals(judged.findings)


def test_nodes_left_with_two_launches_of_a_profile_are_told_of_and_brought_together() -> None:
    edits = {name: in_force("fast") for name in NODES[:3]}
    edits["delta"] = in_force("fast", "0f0f0f0f0f0f0f0f")
    judged = judge_nodes(material(edits=edits), Phase.PREFLIGHT)
    assert "launch.same" in ids(judged)
    assert not refusals(judged.findings)
    assert all(judged.plan[name]["cutover"]["needed"] for name in NODES)


def test_nodes_left_with_two_profiles_are_refused_until_one_is_asked_for() -> None:
    edits = {name: in_force("fast") for name in NODES[:3]}
    edits["delta"] = in_force("balanced", "0f0f0f0f0f0f0f0f")
    mixed = material(edits=edits)
    for phase in (Phase.PREFLIGHT, Phase.VERIFY):
        (finding,) = (f for f in judge_nodes(mixed, phase).findings if f.check == "launch.profile")
        assert finding.severity is Severity.ERROR
        assert finding.found == "alpha fast, bravo fast, charlie fast, delta balanced"
    assert "launch.profile" not in ids(judge_nodes(mixed, None)), "a way back must not be refused"
    asked = replace(mixed, policy=replace(POLICY, profile="fast"))
    assert "launch.profile" not in ids(judge_nodes(asked, Phase.PREFLIGHT))


def test_no_profile_runs_on_nodes_that_were_never_switched() -> None:
    judged = judge_nodes(material(), None)
    assert judged.context is not None
    assert running_profile(R13, judged.context.facts) == ""


def test_what_the_inventory_keeps_is_no_finding() -> None:
    touched = ("desktop.", "memory.swap_")
    off = judge_nodes(material(FACTORY), Phase.GATE)
    assert {name for name in ids(off) if name.startswith(touched)} == {
        "desktop.units_off",
        "desktop.processes",
        "desktop.default_target",
        "memory.swap_off",
        "memory.swap_stays_off",
    }
    keep = replace(POLICY, harden=HardenPolicy(display="keep", swap="keep"))
    kept = judge_nodes(material(FACTORY, policy=keep), Phase.GATE)
    assert [name for name in ids(kept) if name.startswith(touched)] == []
