# SPDX-License-Identifier: Apache-2.0
"""Memory gates around a cutover: before the stop, after it, after the cache drop, after the start.

Each takes what was observed at that moment and returns findings; one of severity error means that
nothing after the gate may be touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    NodeEnvelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.units import format_bytes


class Gate(StrEnum):
    """When a gate is asked."""

    PREDICTED = "predicted"
    AFTER_STOP = "after_stop"
    AFTER_DROP_CACHES = "after_drop_caches"
    AFTER_START = "after_start"


@dataclass(frozen=True, slots=True)
class Watched:
    """What the watch of a node has seen since before the engine's start.

    Parameters:
        min_available_bytes: least ``MemAvailable``.
        min_free_bytes: least ``MemFree``.
        samples: looks at memory.
        active: whether the watch still runs; one that died has not seen everything.
    """

    min_available_bytes: int
    min_free_bytes: int
    samples: int
    active: bool


def gate(
    kind: Gate,
    envelope: Envelope,
    *,
    now: Mapping[str, NodeMemory] | None = None,
    watched: Mapping[str, Watched] | None = None,
) -> tuple[Finding, ...]:
    """Return what a gate finds; no finding of severity error means that it is open.

    Parameters:
        kind: the gate.
        envelope: the envelope judged on live facts before the stop.
        now: the nodes as observed at this gate, for the gates after the stop and the cache drop.
        watched: what each node's watch has seen, for the gate after the start.
    """
    if kind is Gate.PREDICTED:
        return envelope.findings
    found: list[Finding] = []
    for node in envelope.nodes:
        name = node.memory.node
        if kind is Gate.AFTER_START:
            found += _after_start(node, (watched or {}).get(name))
        elif (memory := (now or {}).get(name)) is None:
            found.append(_unseen(node, "facts of this node from after the stop"))
        elif kind is Gate.AFTER_STOP:
            found += _after_stop(node, memory)
        else:
            found += _after_drop_caches(node, memory)
    return tuple(found)


def must_come_back_bytes(node: NodeEnvelope) -> int:
    """Return the ``MemAvailable`` that shows that the old service's memory came back.

    It is what the new engine needs before its start. Where no run says what that is, it is also
    not less than was predicted, save a hundredth of the node for what the system takes meanwhile.
    """
    if node.counts_from_now:
        return node.required_bytes
    predicted = node.memory.before_start_bytes - node.memory.total_bytes // 100
    return max(node.required_bytes, predicted)


def _unseen(node: NodeEnvelope, what: str) -> Finding:
    return Finding(
        "memory.unseen",
        node.memory.node,
        Severity.ERROR,
        "memory was not observed at this gate",
        what,
        "nothing",
        "run again; nothing further was touched",
    )


def _after_stop(node: NodeEnvelope, now: NodeMemory) -> Iterator[Finding]:
    wanted = must_come_back_bytes(node)
    if now.available_bytes >= wanted:
        return
    holders = [f"{term.name}: {format_bytes(term.size_bytes)}" for term in now.returns]
    holders += [f"{term.name}: {format_bytes(term.size_bytes)}" for term in now.tenants]
    yield Finding(
        "memory.not_returned",
        now.node,
        Severity.ERROR,
        f"memory of the old service has not come back to the {now.role}",
        f"MemAvailable of at least {format_bytes(wanted)}",
        f"{format_bytes(now.available_bytes)}; held by {', '.join(holders) or 'no process'}",
        "end what holds it; memory that no process holds is the driver's, and needs a reboot",
    )


def _after_drop_caches(node: NodeEnvelope, now: NodeMemory) -> Iterator[Finding]:
    admission = node.admission_bytes
    if admission is not None and now.free_bytes < admission:
        yield Finding(
            "memory.cache_not_dropped",
            now.node,
            Severity.ERROR,
            "too little is free without counting page cache",
            f"MemFree of at least {format_bytes(admission)}",
            f"{format_bytes(now.free_bytes)} free, {format_bytes(now.cache_bytes)} page cache",
            "drop the page cache again, and end what fills it",
        )
    if now.available_bytes < node.required_bytes:
        yield Finding(
            "memory.floor_before_start",
            now.node,
            Severity.ERROR,
            f"the {now.role} has too little left for its floor",
            f"MemAvailable of at least {format_bytes(node.required_bytes)} before the start",
            format_bytes(now.available_bytes),
            "end what took the memory since the prediction",
        )


def _after_start(node: NodeEnvelope, seen: Watched | None) -> Iterator[Finding]:
    if seen is None or not seen.samples or not seen.active:
        yield _unseen(node, "the memory watch of this node since before the start")
    elif seen.min_available_bytes < node.floor_bytes:
        yield Finding(
            "memory.floor_broken",
            node.memory.node,
            Severity.ERROR,
            f"the {node.memory.role} went below its floor",
            f"least MemAvailable of at least {format_bytes(node.floor_bytes)}",
            f"{format_bytes(seen.min_available_bytes)} measured in {seen.samples:,} samples",
            "roll back, and use a profile with a smaller KV budget",
        )


def worst(nodes: Sequence[NodeEnvelope]) -> NodeEnvelope:
    """Return the node that binds: the one with the least margin, or the least memory before start.

    Parameters:
        nodes: at least one node envelope, of one role.
    """
    return min(
        nodes,
        key=lambda node: (
            node.margin_bytes if node.margin_bytes is not None else node.memory.before_start_bytes
        ),
    )
