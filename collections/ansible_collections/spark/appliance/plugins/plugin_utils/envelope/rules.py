# SPDX-License-Identifier: Apache-2.0
"""Rules of the memory envelope: what each demands, and what would fix it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.admission import (
    largest_utilization,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.floors import killed_runs
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.projection import (
    affordable_blocks,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Fix,
    NodeEnvelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term, total
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import FloorSpec, Memory
from ansible_collections.spark.appliance.plugins.plugin_utils.units import format_bytes

ACCEPT_VARIABLE = "accept_unmeasured_floor"


def no_floor(need: Need, node: NodeMemory) -> Finding:
    """Return that the recipe has no floor for a profile: nothing can be judged."""
    return Finding(
        "memory.no_floor",
        node.node,
        Severity.ERROR,
        f"the recipe has no floor for {need.profile}",
        "a floor in bytes with a unit for the head and for the workers",
        "none",
        "add it to the recipe",
        f"memory.floors.{need.profile}",
    )


def judge_pool(need: Need, pool: KvPool) -> Iterator[tuple[Finding, Fix]]:
    """Yield what is wrong with the KV pool itself: it must hold the context and its drafts."""
    spare = pool.spare_tokens(need.max_depth)
    if spare >= 0:
        return
    least = pool.least_budget_bytes(need.max_depth)
    short = need.context_tokens - pool.usable_tokens
    found = f"{pool.usable_tokens:,} usable of {pool.advertised_tokens:,} advertised"
    if short > 0:
        found += f", {short:,} short of the context"
    yield (
        Finding(
            "memory.kv_pool_short",
            "",
            Severity.ERROR,
            f"KV pool of {need.profile} cannot hold its own context",
            f"{need.context_tokens:,} tokens and {need.max_depth} drafts",
            found,
            f"raise kv_cache_bytes to {least:,} or lower the context to "
            f"{pool.largest_context(need.max_depth):,}",
            f"profiles.{need.profile}.kv_cache_bytes",
            f"{pool.blocks:,} blocks, {pool.geometry.null_blocks} of them never used",
        ),
        Fix(
            "raise the KV budget of each rank",
            least - need.kv_cache_bytes,
            kv_cache_bytes=least,
            context_tokens=need.context_tokens,
        ),
    )


def judge_totals(
    memory: Memory, need: Need, node: NodeMemory, floor: FloorSpec
) -> Iterator[Finding]:
    """Yield what is wrong with a node before any profile: size, floor, tenants, swap."""
    if node.total_bytes < memory.min_total:
        yield Finding(
            "memory.total",
            node.node,
            Severity.ERROR,
            "less memory than the recipe was made for",
            f"at least {format_bytes(memory.min_total)}",
            format_bytes(node.total_bytes),
            "use a node of the size the recipe names, or another recipe",
            "memory.min_total",
        )
    if floor.size >= node.total_bytes:
        yield Finding(
            "memory.floor_above_total",
            node.node,
            Severity.ERROR,
            f"the {node.role}'s floor is more than this node has",
            f"a floor below {format_bytes(node.total_bytes)}",
            format_bytes(floor.size),
            "correct the floor and its unit in the recipe",
            f"memory.floors.{need.profile}.{node.role}",
        )
    for holder in node.unknown:
        yield Finding(
            "memory.holder_unreadable",
            node.node,
            Severity.ERROR,
            "memory that decides the judgement could not be read",
            "the bytes of every process that stops before the start, and of every GPU tenant",
            holder,
            "end that process, or stop the service first",
        )
    for tenant in node.tenants:
        yield Finding(
            "memory.tenant",
            node.node,
            Severity.WARNING,
            "somebody else holds memory on this node",
            "the appliance alone",
            f"{tenant.name}: {format_bytes(tenant.size_bytes)}, {tenant.source}",
            "end it, or keep it and live with the smaller margin",
        )
    if memory.swap == "none" and node.swap_bytes:
        yield Finding(
            "memory.swap",
            node.node,
            Severity.WARNING,
            "the floors were measured without swap",
            "SwapTotal 0",
            format_bytes(node.swap_bytes),
            "run playbooks/harden.yml",
        )


def judge_admission(need: Need, envelope: NodeEnvelope) -> Iterator[tuple[Finding, Fix]]:
    """Yield that the engine's own check at start would fail on a node."""
    node = envelope.memory
    required = envelope.admission_bytes
    if required is None or node.before_start_bytes >= required:
        return
    missing = required - node.before_start_bytes
    most = largest_utilization(node.before_start_bytes, node.total_bytes)
    yield (
        Finding(
            "memory.admission",
            node.node,
            Severity.ERROR,
            "the engine would refuse to start: too little is free",
            f"utilization {need.utilization} of MemTotal = {format_bytes(required)}",
            f"{format_bytes(node.before_start_bytes)} before start, {missing:,} B short",
            f"free {format_bytes(missing)} on this node, or use a profile with a utilization of "
            f"at most {most}",
            f"profiles.{need.profile}.utilization",
        ),
        Fix(f"free memory on {node.node} for the admission check", missing),
    )


def _explain(chain: Sequence[Term]) -> str:
    return "; ".join(f"{term.name} {term.size_bytes:+,} B" for term in chain)


def judge_floor(need: Need, envelope: NodeEnvelope) -> Iterator[tuple[Finding, Fix]]:
    """Yield that the expected least ``MemAvailable`` lies below the role's floor."""
    node, margin = envelope.memory, envelope.margin_bytes
    if margin is None or margin >= 0 or envelope.expected_bytes is None:
        return
    yield (
        Finding(
            "memory.floor",
            node.node,
            Severity.ERROR,
            f"{need.profile} would break the floor of the {node.role}",
            f"least MemAvailable of at least {format_bytes(envelope.floor_bytes)}",
            f"{format_bytes(envelope.expected_bytes)} {envelope.grade}",
            f"free {format_bytes(-margin)} on this node, or use a smaller KV budget",
            f"memory.floors.{need.profile}.{node.role}",
            _explain(envelope.chain),
        ),
        Fix(f"free memory on {node.node} for the floor", -margin),
    )


def judge_least(need: Need, envelope: NodeEnvelope) -> Iterator[tuple[Finding, Fix]]:
    """Yield that not even what is certain of a profile fits, where no run tells its demand."""
    node = envelope.memory
    missing = envelope.required_bytes - node.before_start_bytes
    if envelope.counts_from_now or missing <= 0:
        return
    if envelope.admission_bytes is not None and envelope.required_bytes == envelope.admission_bytes:
        return
    yield (
        Finding(
            "memory.least_does_not_fit",
            node.node,
            Severity.ERROR,
            f"not even the certain part of {need.profile} fits above the floor of the {node.role}",
            f"MemAvailable of at least {format_bytes(envelope.required_bytes)} before the start",
            f"{format_bytes(node.before_start_bytes)}, {missing:,} B short",
            f"free {format_bytes(missing)} on this node",
            f"memory.floors.{need.profile}.{node.role}",
        ),
        Fix(f"free memory on {node.node} for the certain part", missing),
    )


def judge_terms(need: Need, envelope: NodeEnvelope) -> Iterator[Finding]:
    """Yield that the known terms alone exceed a node, where no run says better."""
    node = envelope.memory
    over = total(envelope.stack) - node.total_bytes
    if envelope.expected_bytes is None and over > 0:
        yield Finding(
            "memory.terms_exceed_node",
            node.node,
            Severity.WARNING,
            f"what is known of {need.profile} sums up to more than the {node.role} has",
            format_bytes(node.total_bytes),
            f"{format_bytes(over)} more, projected",
            "expect an out-of-memory kill, or measure terms that are only projected",
            evidence=_explain(envelope.stack),
        )


def judge_measured(
    memory: Memory, need: Need, envelopes: Sequence[NodeEnvelope], accepted: bool
) -> Iterator[Finding]:
    """Yield that a profile was killed before, or that nobody measured it."""
    for run in killed_runs(need, memory.runs):
        yield Finding(
            "memory.killed_before",
            "",
            Severity.ERROR,
            f"{need.profile} is a profile that ran out of memory",
            "a profile that was served",
            f"{run.name}: {run.source}",
            "use a profile with a smaller KV budget",
            f"profiles.{need.profile}.kv_cache_bytes",
        )
    unmeasured = sorted({str(e.memory.role) for e in envelopes if e.expected_bytes is None})
    if unmeasured:
        yield Finding(
            "memory.floor_unmeasured",
            "",
            Severity.WARNING if accepted else Severity.ERROR,
            f"no run tells what {need.profile} leaves on the {' and '.join(unmeasured)}",
            f"a measured run with dcp {need.dcp} and {need.max_seqs} sequences",
            f"unmeasured{', accepted' if accepted else ''}",
            f"set {ACCEPT_VARIABLE}: true to start it watched and to measure it",
            ACCEPT_VARIABLE,
        )


def smaller_pool(need: Need, pool: KvPool, envelopes: Sequence[NodeEnvelope]) -> Iterator[Fix]:
    """Yield the largest pool that every floor affords, when this one is too large for one."""
    margins = [e.margin_bytes for e in envelopes if e.margin_bytes is not None]
    if not margins or min(margins) >= 0:
        return
    geometry = pool.geometry
    blocks = pool.blocks + affordable_blocks(min(margins), geometry.block_bytes)
    if blocks <= geometry.null_blocks:
        return
    smaller = need.with_blocks(blocks, geometry)
    if smaller.context_tokens < 1:
        return
    yield Fix(
        "lower the KV budget of each rank and the context with it",
        smaller.kv_cache_bytes - need.kv_cache_bytes,
        kv_cache_bytes=smaller.kv_cache_bytes,
        context_tokens=smaller.context_tokens,
    )
