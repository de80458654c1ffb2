# SPDX-License-Identifier: Apache-2.0
"""Checks by declaration, and the one function that judges with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import (
    Context,
    NotGivenError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    ordered,
)


class Scope(StrEnum):
    """What one call of a check looks at."""

    NODE = "node"
    PAIR = "pair"
    FLEET = "fleet"
    INVENTORY = "inventory"
    RECIPE = "recipe"


class Phase(StrEnum):
    """When a judgement is made."""

    INVENTORY = "inventory"
    PREFLIGHT = "preflight"
    GATE = "gate"
    AFTER_STOP = "after_stop"
    AFTER_START = "after_start"
    VERIFY = "verify"


# A node's own state: before anything is done, before the cutover, and whenever it is asked for.
HOST = frozenset({Phase.PREFLIGHT, Phase.GATE, Phase.VERIFY})
# What must have been brought or staged: not there yet on a fresh node.
STAGED = frozenset({Phase.GATE, Phase.VERIFY})
# What only a started engine can show.
SERVING = frozenset({Phase.AFTER_START, Phase.VERIFY})
ON_PAPER = frozenset({Phase.INVENTORY, Phase.PREFLIGHT, Phase.GATE, Phase.VERIFY})


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check found wrong; the declaration adds its id, title and, where unset, remedy.

    Parameters:
        expected: what should hold, with units.
        found: what was observed, with units.
        node: the node that a check over several nodes means; empty means all of them.
        remedy: instead of the declared one.
        severity: instead of the declared one.
        variable: inventory variable or recipe key to change.
        evidence: raw observation.
    """

    expected: str
    found: str
    node: str = ""
    remedy: str = ""
    severity: Severity | None = None
    variable: str = ""
    evidence: str = ""


NodeRule = Callable[[NodeFacts, Context], Iterable[Problem]]
PairRule = Callable[[NodeFacts, NodeFacts, Context], Iterable[Problem]]
FleetRule = Callable[[Context], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Check:
    """A declared check.

    Parameters:
        id: ``area.rule``.
        title: the rule in a few words.
        severity: severity of its findings unless a problem says otherwise.
        scope: what one call looks at.
        phases: judgements that it takes part in.
        remedy: what the operator does.
        repaired_by: role that repairs it, so that before that role ran it only informs.
        own_kernel: only machines are judged, not containers whose kernel belongs to another.
        cases: field cases that it answers.
        doc: its docstring, for the documentation.
        rule: the function.
    """

    id: str
    title: str
    severity: Severity
    scope: Scope
    phases: frozenset[Phase]
    remedy: str
    repaired_by: str
    own_kernel: bool
    cases: tuple[str, ...]
    doc: str
    rule: Callable[..., Iterable[Problem]]


_REGISTRY: dict[str, Check] = {}


def check(
    check_id: str,
    title: str,
    *,
    scope: Scope,
    phases: frozenset[Phase],
    remedy: str,
    severity: Severity = Severity.ERROR,
    repaired_by: str = "",
    own_kernel: bool = False,
    cases: tuple[str, ...] = (),
) -> Callable[[Callable[..., Iterable[Problem]]], Callable[..., Iterable[Problem]]]:
    """Declare a check; see :class:`Check` for the parameters.

    Raises:
        ValueError: the id is taken, or the rule has no docstring.
    """

    def declare(rule: Callable[..., Iterable[Problem]]) -> Callable[..., Iterable[Problem]]:
        if check_id in _REGISTRY:
            raise ValueError(f"check {check_id} is declared twice")
        if not rule.__doc__:
            raise ValueError(f"check {check_id} has no docstring")
        doc = " ".join(rule.__doc__.split())
        _REGISTRY[check_id] = Check(
            check_id, title, severity, scope, phases, remedy, repaired_by, own_kernel, cases, doc,
            rule,
        )  # fmt: skip
        return rule

    return declare


def declared() -> tuple[Check, ...]:
    """Return every check, by id."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def select(phase: Phase) -> tuple[Check, ...]:
    """Return the checks that take part in a judgement, by id."""
    return tuple(entry for entry in declared() if phase in entry.phases)


class _Blind:
    """Sections that selected checks needed and that no one could read."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[str, list[Check]]] = {}

    def add(self, unknown: SectionUnknownError, entry: Check) -> None:
        key = (unknown.node, unknown.section)
        self._seen.setdefault(key, (unknown.reason, []))[1].append(entry)

    def findings(self) -> Iterator[Finding]:
        for (node, section), (reason, blinded) in self._seen.items():
            # What could not be looked at is as bad as the worst that it may hide.
            worst = min(blinded, key=lambda entry: list(reversed(Severity)).index(entry.severity))
            names = sorted({entry.id for entry in blinded})
            yield Finding(
                check=f"observe.{section}",
                node=node,
                severity=worst.severity,
                title=f"the node's {section} can be read",
                expected="an answer from the probe",
                found=reason,
                remedy="make the probe work on the node; nothing that depends on it was judged",
                evidence="not judged: " + ", ".join(names),
            )


def _finding(entry: Check, node: str, problem: Problem, phase: Phase) -> Finding:
    severity = problem.severity or entry.severity
    remedy = problem.remedy or entry.remedy
    if entry.repaired_by and phase is Phase.PREFLIGHT:
        severity = Severity.INFO
        remedy = f"role {entry.repaired_by} repairs it"
    return Finding(
        check=entry.id,
        node=problem.node or node,
        severity=severity,
        title=entry.title,
        expected=problem.expected,
        found=problem.found,
        remedy=remedy,
        variable=problem.variable,
        evidence=problem.evidence,
    )


def _calls(entry: Check, context: Context) -> Iterator[tuple[str, Iterable[Problem]]]:
    """Yield (node, problems) for every call that the check's scope asks for."""
    nodes = [context.facts[name] for name in context.site.nodes if name in context.facts]
    if entry.scope is Scope.NODE:
        for node in nodes:
            yield node.name, _rule_on(entry, context, node)
    elif entry.scope is Scope.PAIR:
        for position, first in enumerate(nodes):
            for second in nodes[position + 1 :]:
                yield "", _rule_on(entry, context, first, second)
    else:
        yield "", entry.rule(context)


def _rule_on(entry: Check, context: Context, *nodes: NodeFacts) -> Iterator[Problem]:
    if entry.own_kernel and any(node.identity.container for node in nodes):
        return
    yield from entry.rule(*nodes, context)


def _missing_nodes(context: Context) -> Iterator[Finding]:
    for name in context.site.nodes:
        if name not in context.facts:
            yield Finding(
                check="observe.node",
                node=name,
                severity=Severity.ERROR,
                title="the node answers",
                expected="facts of every node in the inventory",
                found="no facts",
                remedy="make the node reachable over ssh, or take it out of the inventory",
            )


def judge(context: Context, phase: Phase) -> list[Finding]:
    """Return what is wrong, the most severe first; an empty list means that all was judged good.

    A section that a check needed and that is unknown is itself a finding, as is context that was
    not given: a check never passes because its probe did not run.

    Parameters:
        context: everything that is known.
        phase: which checks take part.
    """
    found: list[Finding] = []
    blind = _Blind()
    if phase is not Phase.INVENTORY:
        found += _missing_nodes(context)
    for entry in select(phase):
        paper = entry.scope in {Scope.INVENTORY, Scope.RECIPE}
        if phase is Phase.INVENTORY and not paper:
            continue
        for node, problems in _calls(entry, context):
            try:
                # One by one: what was found before a section turns out to be unknown still counts.
                for problem in problems:
                    found.append(_finding(entry, node, problem, phase))
            except SectionUnknownError as unknown:
                blind.add(unknown, entry)
            except NotGivenError as missing:
                found.append(_not_given(entry, node, missing))
            # Values of the right type can still be nonsense, such as an address that is none; that
            # refuses, and hides no other check.
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
                found.append(_not_judged(entry, node, fault))
        # Over several nodes a check goes on without those it cannot read, and says so here.
        for unread in context.take_unknown():
            blind.add(unread, entry)
    found += blind.findings()
    return ordered(dict.fromkeys(found))


def _not_judged(entry: Check, node: str, fault: Exception) -> Finding:
    return Finding(
        check=entry.id,
        node=node,
        severity=Severity.ERROR,
        title=entry.title,
        expected="facts that can be judged",
        found=f"{type(fault).__name__}: {fault}",
        remedy="look at the node's facts; this check was not made",
    )


def _not_given(entry: Check, node: str, missing: NotGivenError) -> Finding:
    return Finding(
        check=f"context.{missing.name}",
        node="",
        severity=Severity.ERROR,
        title=f"{missing.name} is known to the judgement",
        expected=f"{missing.name}, which {entry.id} compares with",
        found="nothing" if not node else f"nothing for {node}",
        remedy="run the playbook that renders or records it first",
    )
