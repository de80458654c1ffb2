# SPDX-License-Identifier: Apache-2.0
"""Facts of live nodes → the envelope of a profile with everything that speaks against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.holders import (
    ForeignFactsError,
    section_data,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import (
    judge_envelope,
    verdict_of,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.killers import (
    audit_killers,
    observed_killers,
    ray_monitor,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    Ledger,
    LedgerKey,
    select_runs,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import (
    NodeMemory,
    node_memory,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    NodeEnvelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Memory,
    Role,
    RunSpec,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import KIB


@dataclass(frozen=True, slots=True)
class RayMonitor:
    """Ray's memory monitor as the recipe sets it.

    Parameters:
        refresh_ms: period of its looks at memory, 0 for never.
        usage_threshold: share in use above which it ends a worker.
    """

    refresh_ms: int
    usage_threshold: Fraction


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a judgement on live nodes needs besides recipe, profile and facts.

    Parameters:
        service_containers: names of the containers that the running service owns.
        desktop_stops: whether the display stack is stopped before the engine starts.
        monitor: Ray's memory monitor, None where the engine has none.
        watched: whether the memory watch follows the launch.
        accept_unmeasured: the operator takes a profile whose floor nobody measured.
        ledger: floors reached in earlier launches.
        key: what an entry of the ledger must share with this launch; None ignores the ledger.
    """

    service_containers: Collection[str]
    desktop_stops: bool = True
    monitor: RayMonitor | None = None
    watched: bool = True
    accept_unmeasured: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    key: LedgerKey | None = None


def observe_nodes(
    roles: Mapping[str, Role],
    facts: Mapping[str, Mapping[str, Any]],
    circumstances: Circumstances,
) -> tuple[dict[str, NodeMemory], tuple[Finding, ...]]:
    """Return the memory of each node that could be judged, and a refusal for each that could not.

    Parameters:
        roles: role of every node, in rank order.
        facts: what ``node_facts`` returned, by node.
        circumstances: see :class:`Circumstances`.
    """
    nodes: dict[str, NodeMemory] = {}
    findings: list[Finding] = []
    for name, role in roles.items():
        try:
            nodes[name] = node_memory(
                name,
                role,
                facts.get(name, {}),
                service_containers=circumstances.service_containers,
                desktop_stops=circumstances.desktop_stops,
            )
        except ForeignFactsError as error:
            findings.append(_unreadable(name, str(error)))
    return nodes, tuple(findings)


def assess(
    memory: Memory,
    need: Need,
    roles: Mapping[str, Role],
    facts: Mapping[str, Mapping[str, Any]],
    circumstances: Circumstances,
) -> Envelope:
    """Return the envelope of a profile on live nodes: floors, admission, killers, ledger.

    Parameters:
        memory: the recipe's memory section.
        need: the profile.
        roles: role of every node, in rank order.
        facts: what ``node_facts`` returned, by node.
        circumstances: see :class:`Circumstances`.

    Returns:
        The envelope. A node whose facts are missing or foreign refuses the profile.
    """
    nodes, findings = observe_nodes(roles, facts, circumstances)
    said: tuple[Finding, ...] = ()
    runs: tuple[RunSpec, ...] = ()
    if circumstances.key is not None:
        runs, said = select_runs(circumstances.ledger, circumstances.key)
    envelope = judge_envelope(
        memory,
        need,
        list(nodes.values()),
        ledger_runs=runs,
        accept_unmeasured=circumstances.accept_unmeasured,
    )
    audits = [
        finding
        for node in envelope.nodes
        for finding in _audit(node, facts[node.memory.node], circumstances)
    ]
    everything = (*findings, *envelope.findings, *audits, *said)
    return replace(envelope, findings=everything, verdict=verdict_of(everything, envelope.nodes))


def _audit(
    node: NodeEnvelope, facts: Mapping[str, Any], circumstances: Circumstances
) -> tuple[Finding, ...]:
    memory = node.memory
    try:
        killers = observed_killers(
            facts, total_bytes=memory.total_bytes, swap_bytes=memory.swap_bytes
        )
        sysctl = section_data(facts, "memory").get("sysctl", {})
        reserve_kib = sysctl.get("vm.min_free_kbytes")
        if not isinstance(reserve_kib, int):
            raise ForeignFactsError(f"vm.min_free_kbytes is {reserve_kib!r}, not a number")
    except ForeignFactsError as error:
        return (_unreadable(memory.node, str(error)),)
    monitor = circumstances.monitor
    if monitor is not None:
        of_ray = ray_monitor(monitor.refresh_ms, monitor.usage_threshold, memory.total_bytes)
        if of_ray is not None:
            killers.append(of_ray)
    return tuple(
        audit_killers(
            memory.node,
            killers,
            floor_bytes=node.floor_bytes,
            reserve_bytes=reserve_kib * KIB,
            headroom_bytes=None if node.counts_from_now else node.margin_bytes,
            watched=circumstances.watched,
        )
    )


def _unreadable(node: str, reason: str) -> Finding:
    return Finding(
        "memory.facts_unreadable",
        node,
        Severity.ERROR,
        "the memory of this node cannot be judged",
        "MemTotal, MemAvailable, MemFree, who holds memory, and what ends processes",
        reason,
        "repair what is named, or run again; nothing was touched",
    )
