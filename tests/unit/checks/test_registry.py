# SPDX-License-Identifier: Apache-2.0
"""Declarations: complete, unique, selected by phase, blind only with a finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

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

from tests.fixtures.nodes.compose import NODES, SERVING
from tests.fixtures.nodes.fleet import context, found, plain_facts

ROLES = {"harden", "fabric", "image", "weights"}


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
