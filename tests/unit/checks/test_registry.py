# SPDX-License-Identifier: Apache-2.0
"""Declarations: complete, unique, selected by phase, blind only with a finding."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (
    Check,
    Context,
    Phase,
    Problem,
    Scope,
    declared,
    judge,
    registry,
    select,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.nodes.compose import NODES, SERVING
from tests.fixtures.nodes.fleet import context, found, plain_facts

ROLES = {"harden", "fabric", "image", "weights", "cutover"}


@pytest.mark.parametrize("entry", declared(), ids=lambda entry: entry.id)
def test_every_declaration_is_complete(entry: Check) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z_0-9]+", entry.id)
    assert entry.title[0].islower() or entry.title.startswith(("GPU", "Ray"))
    assert not entry.title.endswith(".")
    assert entry.remedy
    assert entry.phases
    assert entry.repaired_by in ROLES | {""}
    paper = entry.scope in {Scope.INVENTORY, Scope.RECIPE}
    assert (Phase.INVENTORY in entry.phases) == paper


def test_ids_are_unique() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        registry.check(
            "memory.total", "twice", scope=Scope.NODE, phases=registry.HOST, remedy="none"
        )(lambda _node, _context: [])


def test_a_check_needs_a_docstring() -> None:
    with pytest.raises(ValueError, match="has no docstring"):
        registry.check("x.y", "t", scope=Scope.NODE, phases=registry.HOST, remedy="r")(
            lambda _node, _context: []
        )


def test_selection_is_by_phase() -> None:
    for phase in Phase:
        assert select(phase)
        assert all(phase in entry.phases for entry in select(phase))


def _blind(section: str, reason: str = "probe broke") -> Context:
    sections = plain_facts("bravo", SERVING)["sections"]
    broken = {**sections, section: {"ok": False, "reason": reason}}
    whole = context()
    facts = {**whole.facts, "bravo": NodeFacts("bravo", broken)}
    return replace(whole, facts=facts)


JUDGED_SECTIONS = sorted(
    set(plain_facts("bravo", SERVING)["sections"]) - {"holders", "guards", "files"}
)


@pytest.mark.parametrize("section", JUDGED_SECTIONS)
def test_an_unknown_section_is_one_finding_and_never_silence(section: str) -> None:
    judged = judge(_blind(section), Phase.VERIFY)
    observed = [finding for finding in judged if finding.check == f"observe.{section}"]
    if section in {"boot", "packages"} and not observed:
        pytest.fail(f"{section} is judged by nothing")
    assert len(observed) == 1
    assert observed[0].node == "bravo"
    assert observed[0].found == "probe broke"
    assert observed[0].evidence.startswith("not judged: ")


def test_an_unknown_section_is_as_severe_as_the_worst_that_it_hides() -> None:
    power = judge(_blind("power"), Phase.VERIFY)
    assert found(power) == {("observe.power", "bravo", Severity.WARNING)}
    docker = judge(_blind("docker"), Phase.VERIFY)
    assert found(docker) == {("observe.docker", "bravo", Severity.ERROR)}


def test_sections_in_another_shape_are_unknown() -> None:
    sections = plain_facts("bravo", SERVING)["sections"]
    broken = {**sections, "memory": {"ok": True, "data": {"meminfo": {"MemTotal": "a lot"}}}}
    whole = context()
    judged = judge(
        replace(whole, facts={**whole.facts, "bravo": NodeFacts("bravo", broken)}), Phase.VERIFY
    )
    assert found(judged) == {("observe.memory", "bravo", Severity.ERROR)}
    assert "MemTotal" in judged[0].found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(section=st.sampled_from(JUDGED_SECTIONS), value=VALUES)
@settings(max_examples=150, deadline=None)
def test_no_answer_of_a_node_breaks_the_judgement(section: str, value: Any) -> None:
    sections = plain_facts("bravo", SERVING)["sections"]
    whole = context()
    strange = {**sections, section: {"ok": True, "data": value}}
    facts = {**whole.facts, "bravo": NodeFacts("bravo", strange)}
    for finding in judge(replace(whole, facts=facts), Phase.VERIFY):
        assert finding.message()


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, (dict, list)) and inner:
            yield from _leaves(inner, (*path, key))
        else:
            yield (*path, key)


LEAVES = [
    (section, path)
    for section in JUDGED_SECTIONS
    for path in _leaves(plain_facts("bravo", SERVING)["sections"][section]["data"])
]


@given(leaf=st.sampled_from(LEAVES), value=VALUES)
@settings(max_examples=300, deadline=None)
def test_no_single_value_of_a_node_breaks_the_judgement(
    leaf: tuple[str, tuple[Any, ...]], value: Any
) -> None:
    section, path = leaf
    sections = copy.deepcopy(plain_facts("bravo", SERVING)["sections"])
    inner = sections[section]["data"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    whole = context()
    facts = {**whole.facts, "bravo": NodeFacts("bravo", sections)}
    for finding in judge(replace(whole, facts=facts), Phase.VERIFY):
        assert finding.message()


def test_an_address_that_is_none_refuses_and_hides_nothing() -> None:
    sections = copy.deepcopy(plain_facts("bravo", SERVING)["sections"])
    sections["listeners"]["data"][0]["address"] = "nowhere"
    whole = context()
    facts = {**whole.facts, "bravo": NodeFacts("bravo", sections)}
    judged = judge(replace(whole, facts=facts), Phase.VERIFY)
    assert found(judged) == {("security.ray_ports", "bravo", Severity.ERROR)}
    assert "nowhere" in judged[0].found


def test_what_was_found_before_a_section_is_unknown_still_counts() -> None:
    sections = copy.deepcopy(plain_facts("bravo", SERVING)["sections"])
    # The same check looks at the network only afterwards.
    kernel = sections["boot"]["data"]["kernels"][0]
    kernel["initrd"] = False
    sections["network"] = {"ok": False, "reason": "probe broke"}
    whole = context()
    facts = {**whole.facts, "bravo": NodeFacts("bravo", sections)}
    judged = judge(replace(whole, facts=facts), Phase.VERIFY)
    assert ("upgrade.next_boot", "bravo", Severity.ERROR) in found(judged)
    assert ("observe.network", "bravo", Severity.ERROR) in found(judged)


def test_a_clock_that_was_not_compared_is_a_finding() -> None:
    sections = copy.deepcopy(plain_facts("bravo", SERVING)["sections"])
    sections["time"]["data"]["skew_s"] = None
    whole = context()
    facts = {**whole.facts, "bravo": NodeFacts("bravo", sections)}
    judged = judge(replace(whole, facts=facts), Phase.VERIFY)
    assert found(judged) == {("time.skew", "bravo", Severity.ERROR)}


def test_a_pair_check_sees_every_pair_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def pairs(first: NodeFacts, second: NodeFacts, _: Context) -> Iterator[Problem]:
        """Record."""
        seen.append((first.name, second.name))
        yield from ()

    monkeypatch.setattr(registry, "_REGISTRY", {})
    registry.check("a.b", "t", scope=Scope.PAIR, phases=registry.HOST, remedy="r")(pairs)
    assert judge(context(), Phase.GATE) == []
    assert len(seen) == len(set(seen)) == len(NODES) * (len(NODES) - 1) // 2


def test_checks_of_the_kernel_are_not_made_on_containers() -> None:
    sections = plain_facts("bravo", SERVING)["sections"]
    identity = {**sections["identity"]["data"], "container": "docker"}
    inside = {
        **sections,
        "identity": {"ok": True, "data": identity},
        "kernel_log": {"ok": False, "reason": "a container has none"},
    }
    whole = context()
    judged = judge(
        replace(whole, facts={**whole.facts, "bravo": NodeFacts("bravo", inside)}), Phase.VERIFY
    )
    assert judged == []
