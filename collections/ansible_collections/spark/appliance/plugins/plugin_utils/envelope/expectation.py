# SPDX-License-Identifier: Apache-2.0
"""What a profile takes on a node, and the least that is expected to remain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.admission import (
    required_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.floors import (
    FloorEstimate,
    estimate_floors,
    graph_pool,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import NodeEnvelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term, total
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.workspace import (
    fold_scratch_bytes,
    score_matrix_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    FloorSpec,
    IndexerSpec,
    Memory,
    Role,
)


def _expectation(
    estimates: Sequence[FloorEstimate], node: NodeMemory
) -> tuple[tuple[Term, ...], int | None]:
    """Return the chain to the lowest expected minimum, and the demand it contains if known.

    Runs that tell what the engine took are preferred: they count from what this node has now.
    """
    knowing = [estimate for estimate in estimates if estimate.demand_bytes is not None]
    if knowing:
        worst = max(knowing, key=lambda e: (e.demand_bytes or 0) - total(e.deltas))
        demand_bytes = worst.demand_bytes or 0
        chain = (
            Term("MemAvailable now", node.available_bytes, node.grade, node.source),
            *node.returns,
            Term("engine", -demand_bytes, Grade.MEASURED, f"{worst.run}: before start - least"),
            *worst.deltas,
        )
        return chain, demand_bytes - total(worst.deltas)
    if not estimates:
        return (), None
    lowest = estimates[0]
    tenants = tuple(
        Term(f"held by {term.name}", -term.size_bytes, term.grade, term.source)
        for term in node.tenants
    )
    return (lowest.reference, *lowest.deltas, *tenants), None


def _indexer_terms(indexer: IndexerSpec, context_tokens: int) -> Iterator[Term]:
    pairs = f"{indexer.chunk_tokens:,} query rows against {context_tokens:,} tokens"
    scores = score_matrix_bytes(indexer.chunk_tokens, context_tokens)
    if indexer.bound is not None and scores > indexer.bound:
        yield Term(
            "indexer scores", indexer.bound, Grade.COMPUTED, f"bounded by the engine; {pairs}"
        )
    else:
        yield Term("indexer scores", scores, Grade.COMPUTED, f"4 B for each pair of {pairs}")
    if indexer.fold is not None:
        yield Term(
            "indexer fold scratch",
            fold_scratch_bytes(indexer.chunk_tokens, context_tokens, bytes_per_pair=indexer.fold),
            Grade.PROJECTED,
            indexer.source,
        )


def engine_terms(memory: Memory, need: Need, pool: KvPool, role: Role) -> tuple[Term, ...]:
    """Return what a rank is known to take, each term at the upper end of what is known of it."""
    terms = [
        Term(spec.name, spec.high, spec.grade, spec.source)
        for spec in memory.terms
        if role in spec.roles
    ]
    if role not in need.rank_roles:
        return tuple(terms)
    blocks = f"{pool.blocks:,} blocks of {pool.geometry.block_bytes:,} B"
    terms.insert(0, Term("KV blocks", pool.allocated_bytes, Grade.COMPUTED, blocks))
    graphs = graph_pool(need, role, memory.runs)
    if graphs is not None:
        terms.append(graphs)
    if memory.indexer is not None:
        terms += _indexer_terms(memory.indexer, need.context_tokens)
    return tuple(terms)


def least_bytes(memory: Memory, need: Need, pool: KvPool, role: Role) -> int:
    """Return what a node certainly gives up: its terms at their lower ends, KV, measured graphs.

    Transients are left out, so nothing that fits is refused by this; what breaks it cannot run.
    """
    least = sum(spec.low for spec in memory.terms if role in spec.roles)
    if role not in need.rank_roles:
        return least
    graphs = graph_pool(need, role, memory.runs)
    measured = graphs is not None and graphs.grade is Grade.MEASURED
    return least + pool.allocated_bytes + (graphs.size_bytes if graphs and measured else 0)


def _filled(engine: tuple[Term, ...], taken_bytes: int) -> tuple[Term, ...]:
    """Return the engine's terms with the rest of a measured demand, so that they sum up to it.

    Projected terms that together exceed what was measured are wrong and give way to the rest.
    """
    known = tuple(term for term in engine if term.grade is not Grade.PROJECTED)
    itemised = engine if total(engine) <= taken_bytes else known
    rest = taken_bytes - total(itemised)
    source = "measured demand - the other terms of the engine"
    return (*itemised, Term("engine, not itemised", rest, Grade.COMPUTED, source))


def _stack(node: NodeMemory, engine: tuple[Term, ...], taken_bytes: int | None) -> tuple[Term, ...]:
    in_use = node.total_bytes - node.before_start_bytes
    named = (*node.desktop, *node.tenants)
    pages = node.huge_pages_bytes
    # Processes may hold shared memory that is counted in Shmem as well: it must not count twice.
    shared = max(min(node.shmem_bytes, in_use - total(named) - pages), 0)
    system = max(in_use - total(named) - pages - shared, 0)
    host = (
        Term("operating system", system, node.grade, "MemTotal - MemAvailable before start"),
        *named,
        Term("shared memory and tmpfs", shared, node.grade, "Shmem"),
        Term("huge pages", pages, node.grade, "HugePages_Total"),
    )
    if taken_bytes is not None:
        engine = _filled(engine, taken_bytes)
    return tuple(term for term in (*host, *engine) if term.size_bytes)


def node_envelope(
    memory: Memory, need: Need, pool: KvPool, node: NodeMemory, floor: FloorSpec
) -> NodeEnvelope:
    """Return the envelope of one node; ``memory`` already has the runs of the ledger."""
    estimates = estimate_floors(need, node.role, pool.geometry, memory.runs)
    chain, taken_bytes = _expectation(estimates, node)
    admission_bytes = None
    if memory.admission == "available" and need.utilization is not None:
        admission_bytes = required_bytes(need.utilization, node.total_bytes)
    if taken_bytes is None:
        for_floor = least_bytes(memory, need, pool, node.role) + floor.size
    else:
        for_floor = taken_bytes + floor.size
    return NodeEnvelope(
        memory=node,
        floor_bytes=floor.size,
        floor_source=floor.source,
        stack=_stack(node, engine_terms(memory, need, pool, node.role), taken_bytes),
        chain=chain,
        admission_bytes=admission_bytes,
        required_bytes=max(for_floor, admission_bytes or 0),
        counts_from_now=taken_bytes is not None,
    )
