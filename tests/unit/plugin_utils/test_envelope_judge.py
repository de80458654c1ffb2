# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what was killed is refused, what was measured passes, what nobody measured asks."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import judge_envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import (
    KvGeometry,
    KvPool,
    KvPoolError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import offline_node
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.projection import (
    PoolDelta,
    affordable_blocks,
    project_floor,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    Verdict,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import total
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Memory,
    Role,
    RunNodeSpec,
    RunSpec,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, KIB, MIB
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugin_utils.envelope_cases import (
    GEOMETRY,
    TOTAL_BYTES,
    memory,
    r9,
    r13,
    sparks,
)


def checks(envelope: Envelope) -> set[str]:
    return {finding.check for finding in refusals(envelope.findings)}


def measured_run(
    *,
    before: int,
    least: int,
    worker_least: int | None = None,
    profile: str = "balanced",
    kv_cache_bytes: int | None = None,
) -> RunSpec:
    """A run of a profile of the recipe, as the ledger keeps it."""
    need = r13(profile)
    return RunSpec(
        name="ledger-1",
        context_tokens=need.context_tokens,
        kv_cache_bytes=kv_cache_bytes or need.kv_cache_bytes,
        dcp=need.dcp,
        max_seqs=need.max_seqs,
        shapes=need.shapes,
        outcome="served",
        nodes=tuple(
            RunNodeSpec.model_construct(
                name=node.node,
                role=node.role,
                available_before=before,
                min_available=least if node.role is Role.HEAD else worker_least or least,
                min_free=None,
                at_seconds=1.0,
                kv_blocks=None,
                graph_pool=None,
            )
            for node in sparks()
        ),
        source="measured here",
    )


def test_killed_profile_is_refused_with_the_reasoning_that_killed_it() -> None:
    envelope = judge_envelope(memory(), r9("r9-550k"), sparks())
    assert envelope.verdict is Verdict.REFUSED
    assert checks(envelope) == {"memory.killed_before", "memory.floor"}
    head, *workers = envelope.nodes
    assert [(term.name, term.size_bytes) for term in head.chain] == [
        ("least MemAvailable, r9-fixed-k5-550k", 631_836 * KIB),
        ("KV blocks", 0),
        ("CUDA graphs", -987_842_478),
    ]
    assert head.expected_bytes == -340_842_414
    assert all(worker.margin_bytes is not None and worker.margin_bytes > 0 for worker in workers)
    floor = next(f for f in envelope.findings if f.check == "memory.floor")
    assert floor.node == "alpha"
    assert "CUDA graphs -987,842,478 B" in floor.evidence


def test_the_smaller_profile_is_accepted_at_its_measured_floor() -> None:
    envelope = judge_envelope(memory(), r9("r9-520k"), sparks())
    assert envelope.verdict is Verdict.MEASURED
    assert not refusals(envelope.findings)
    head, *workers = envelope.nodes
    assert head.expected_bytes == 496_236 * KIB
    assert head.grade is Grade.MEASURED
    assert {worker.expected_bytes for worker in workers} == {2_413_428 * KIB}
    assert head.floor_bytes > workers[0].floor_bytes


def test_projection_between_profiles_of_one_size_uses_the_corrected_slope() -> None:
    need = replace(r9("r9-520k"), kv_cache_bytes=8_850_000_000, profile="r9-520k")
    envelope = judge_envelope(memory(), need, sparks())
    head = envelope.nodes[0]
    assert head.grade is Grade.PROJECTED
    assert head.expected_bytes is not None
    assert envelope.verdict is Verdict.REFUSED


@pytest.mark.parametrize("profile", ["balanced", "fast-319k"])
def test_every_profile_with_four_sequences_is_unmeasured(profile: str) -> None:
    envelope = judge_envelope(memory(), r13(profile), sparks())
    assert envelope.verdict is Verdict.UNMEASURED
    assert checks(envelope) == {"memory.floor_unmeasured"}
    assert all(node.expected_bytes is None for node in envelope.nodes)
    accepted = judge_envelope(memory(), r13(profile), sparks(), accept_unmeasured=True)
    assert accepted.verdict is Verdict.UNMEASURED
    assert not refusals(accepted.findings)


def test_accepting_does_not_accept_anything_else() -> None:
    envelope = judge_envelope(memory(), r13("fast"), sparks(), accept_unmeasured=True)
    assert envelope.verdict is Verdict.REFUSED
    assert checks(envelope) == {"memory.kv_pool_short"}
    (finding,) = refusals(envelope.findings)
    assert "32 short" in finding.found
    (fix,) = envelope.fixes
    assert (fix.kv_cache_bytes, fix.change_bytes) == (13_432_989_696, 444_696)


def test_admission_counts_what_is_free_before_the_start() -> None:
    need = r13("balanced")
    enough = judge_envelope(memory(), need, sparks(106 * GIB), accept_unmeasured=True)
    assert not refusals(enough.findings)
    short = judge_envelope(memory(), need, sparks(105 * GIB + 512 * MIB), accept_unmeasured=True)
    assert checks(short) == {"memory.admission"}
    assert {finding.node for finding in refusals(short.findings)} == {
        "alpha",
        "bravo",
        "charlie",
        "delta",
    }


def test_ledger_measures_a_profile_and_counts_from_what_is_there_now() -> None:
    run = measured_run(before=113 * GIB, least=600 * MIB, worker_least=3 * GIB)
    measured = judge_envelope(memory(), r13("balanced"), sparks(113 * GIB), ledger_runs=[run])
    assert measured.verdict is Verdict.MEASURED
    assert measured.nodes[0].expected_bytes == 600 * MIB

    less = judge_envelope(
        memory(), r13("balanced"), sparks(113 * GIB - 300 * MIB), ledger_runs=[run]
    )
    assert less.verdict is Verdict.REFUSED
    assert {finding.node for finding in refusals(less.findings)} == {"alpha"}
    head, worker = less.nodes[:2]
    assert head.expected_bytes == 300 * MIB
    assert worker.expected_bytes == 3 * GIB - 300 * MIB
    assert head.required_bytes == 113 * GIB - 600 * MIB + head.floor_bytes


def test_measured_profile_on_paper_is_a_projection() -> None:
    run = measured_run(before=113 * GIB, least=600 * MIB)
    paper = [
        offline_node(node.node, node.role, total_bytes=TOTAL_BYTES, available_bytes=113 * GIB)
        for node in sparks()
    ]
    envelope = judge_envelope(memory(), r13("balanced"), paper, ledger_runs=[run])
    assert envelope.verdict is Verdict.PROJECTED
    assert envelope.nodes[0].expected_bytes == 600 * MIB


def test_node_without_a_rank_has_no_pool_of_the_model() -> None:
    need = r13("balanced", rank_roles=(Role.HEAD,))
    run = measured_run(before=113 * GIB, least=3 * GIB)
    larger = replace(need, kv_cache_bytes=need.kv_cache_bytes + 500 * GEOMETRY.block_bytes)
    envelope = judge_envelope(memory(), larger, sparks(113 * GIB), ledger_runs=[run])
    head, worker = envelope.nodes[:2]
    assert head.expected_bytes == 3 * GIB - 500 * GEOMETRY.block_bytes
    assert worker.expected_bytes == 3 * GIB
    assert "KV blocks" not in {term.name for term in worker.stack}


def test_stack_fills_the_node_when_the_demand_was_measured() -> None:
    run = measured_run(before=113 * GIB, least=600 * MIB)
    envelope = judge_envelope(memory(), r13("balanced"), sparks(113 * GIB), ledger_runs=[run])
    head = envelope.nodes[0]
    assert head.expected_bytes is not None
    assert total(head.stack) + head.expected_bytes == head.memory.total_bytes


def test_small_node_and_impossible_floor() -> None:
    small = sparks(60 * GIB, 64 * GIB)
    assert "memory.total" in checks(judge_envelope(memory(), r9("r9-520k"), small))
    tiny = sparks(200 * MIB, 300 * MIB)
    assert "memory.floor_above_total" in checks(judge_envelope(memory(), r9("r9-520k"), tiny))


def test_profile_without_floors_is_refused() -> None:
    envelope = judge_envelope(memory(), replace(r13("balanced"), profile="slow"), sparks())
    assert "memory.no_floor" in checks(envelope)
    assert envelope.verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dcp": 3}, "possible: 1, 2, 4"),
        ({"dcp": 8}, "does not divide"),
        ({"dcp": 0}, "positive integer"),
        ({"kv_cache_bytes": 8.41e9}, "positive integer"),
        ({"kv_cache_bytes": -1}, "positive integer"),
        ({"context_tokens": True}, "positive integer"),
    ],
)
def test_impossible_pool(changed: dict[str, object], said: str) -> None:
    envelope = judge_envelope(memory(), r13("balanced", **changed), sparks())
    (finding,) = envelope.findings
    assert envelope.verdict is Verdict.REFUSED
    assert said in finding.found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("floors", "balanced", "head", "size"), 402653184, "bare number"),
        (("floors", "balanced", "head", "size"), "402653184", "bare number"),
        (("floors", "balanced", "head", "size"), "384 M", "may mean"),
        (("floors", "balanced", "head", "size"), "1 MiB", "head's floor is below"),
        (("floors", "balanced", "worker", "size"), "0 B", "guards nothing"),
        (("floors", "balanced", "head", "source"), " ", "where the number comes from"),
        (("min_total",), 110, "bare number"),
        (("swap",), "maybe", "'none' or 'keep'"),
        (("surprise",), 1, "Extra inputs"),
    ],
)
def test_bad_section(path: tuple[str, ...], value: object, said: str) -> None:
    section = memory().model_dump(mode="json")
    restore_units(section)
    *parents, last = path
    here = section
    for key in parents:
        here = here[key]
    here[last] = value
    with pytest.raises(ValueError, match=said):
        Memory.model_validate(section)


def restore_units(section: object) -> None:
    """Give the sizes of a dumped section their unit back, so that it can be loaded again."""
    sizes = {"size", "min_total", "bound", "fold", "low", "high"}
    sizes |= {"min_available", "min_free", "available_before", "graph_pool"}
    if isinstance(section, dict):
        for key, value in section.items():
            if key in sizes and isinstance(value, int):
                section[key] = f"{value} B"
            else:
                restore_units(value)
    elif isinstance(section, list):
        for item in section:
            restore_units(item)


geometries = st.builds(
    KvGeometry,
    bytes_per_token=st.integers(1, 1 << 20),
    block_tokens=st.integers(1, 512),
    null_blocks=st.integers(0, 3),
)
dcps = st.sampled_from([1, 2, 4])
contexts = st.integers(1, 2_000_000)
depths = st.integers(0, 8)


@given(geometries, contexts, dcps, depths)
def test_least_budget_passes_and_one_byte_less_does_not(
    geometry: KvGeometry, context: int, dcp: int, depth: int
) -> None:
    least = geometry.bytes_for(context + depth, dcp)
    assert KvPool(geometry, least, context, dcp).spare_tokens(depth) >= 0
    if least > 1:
        assert KvPool(geometry, least - 1, context, dcp).spare_tokens(depth) < 0


@given(geometries, st.integers(1, 1 << 44), dcps, depths)
def test_largest_context_passes_and_one_token_more_does_not(
    geometry: KvGeometry, budget: int, dcp: int, depth: int
) -> None:
    largest = KvPool(geometry, budget, 1, dcp).largest_context(depth)
    if largest:
        assert KvPool(geometry, budget, largest, dcp).spare_tokens(depth) >= 0
    assert KvPool(geometry, budget, largest + 1, dcp).spare_tokens(depth) < 0


@given(geometries, st.integers(1, 1 << 44), st.integers(0, 1 << 34), contexts, dcps)
def test_pool_grows_with_its_budget(
    geometry: KvGeometry, budget: int, more: int, context: int, dcp: int
) -> None:
    small = KvPool(geometry, budget, context, dcp)
    large = KvPool(geometry, budget + more, context, dcp)
    assert small.usable_tokens <= large.usable_tokens
    assert small.advertised_tokens <= large.advertised_tokens
    assert small.allocated_bytes <= budget
    assert small.usable_tokens <= small.blocks * geometry.block_tokens * dcp


@given(
    st.integers(-(1 << 40), 1 << 40), st.integers(0, 1 << 36), st.integers(0, 1 << 36),
    st.integers(1, 1 << 26), st.integers(-10_000, 10_000),
)  # fmt: skip
def test_affordable_blocks_keep_the_floor_and_one_more_breaks_it(
    reference: int, floor: int, graphs: int, block_bytes: int, blocks: int
) -> None:
    expected = project_floor(reference, PoolDelta(blocks, block_bytes, graphs))
    spare = affordable_blocks(expected - floor, block_bytes)
    best = PoolDelta(blocks + spare, block_bytes, graphs)
    assert project_floor(reference, best) >= floor
    worse = PoolDelta(blocks + spare + 1, block_bytes, graphs)
    assert project_floor(reference, worse) < floor


@given(st.integers(500, 3_000), st.integers(-2_000, 2_000))
def test_the_pool_that_a_plan_proposes_passes_and_one_block_more_does_not(
    least_mib: int, extra_blocks: int
) -> None:
    need = r13("balanced")
    run = measured_run(before=113 * GIB, least=least_mib * MIB)
    wanted = need.kv_cache_bytes + extra_blocks * GEOMETRY.block_bytes
    asked = replace(need, kv_cache_bytes=wanted)
    envelope = judge_envelope(memory(), asked, sparks(113 * GIB), ledger_runs=[run])
    proposals = [fix for fix in envelope.fixes if fix.context_tokens and fix.change_bytes < 0]
    for fix in proposals:
        assert fix.kv_cache_bytes is not None
        assert fix.context_tokens is not None
        smaller = replace(
            asked, kv_cache_bytes=fix.kv_cache_bytes, context_tokens=fix.context_tokens
        )
        again = judge_envelope(memory(), smaller, sparks(113 * GIB), ledger_runs=[run])
        assert not refusals(again.findings)
        one_more = replace(smaller, kv_cache_bytes=fix.kv_cache_bytes + GEOMETRY.block_bytes)
        refused = judge_envelope(memory(), one_more, sparks(113 * GIB), ledger_runs=[run])
        assert "memory.floor" in checks(refused)
    if "memory.floor" in checks(envelope):
        assert proposals


def test_utilization_out_of_range() -> None:
    for utilization in ("0", "1.01", "-0.5"):
        with pytest.raises(ValueError, match="not above 0"):
            judge_envelope(memory(), r13("balanced", utilization=Decimal(utilization)), sparks())


def test_occupancy_of_more_blocks_than_there_are() -> None:
    with pytest.raises(KvPoolError, match="usable"):
        KvPool(GEOMETRY, 8_410_000_000, 520_000, 2).occupancy(4_109)
