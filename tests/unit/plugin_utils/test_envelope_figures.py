# SPDX-License-Identifier: Apache-2.0
"""Every memory figure published for GLM-5.2 on four Sparks follows from the formulas, exactly."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import NamedTuple

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.admission import (
    largest_utilization,
    required_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.projection import (
    PoolDelta,
    project_floor,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.workspace import (
    fold_scratch_bytes,
    graph_pool_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    parse_bytes,
)

from tests.unit.plugin_utils.envelope_cases import GEOMETRY, TOTAL_BYTES

M = 5
HEAD_FLOOR = 496_236 * KIB


def rounded(value: Fraction | int, places: str) -> Decimal:
    exact = Decimal(Fraction(value).numerator) / Decimal(Fraction(value).denominator)
    return exact.quantize(Decimal(places), ROUND_HALF_UP)


def test_geometry() -> None:
    assert GEOMETRY.bytes_per_token == 79 * 368 + 22 * 132 == 31_976
    assert GEOMETRY.block_bytes == 2_046_464
    assert [GEOMETRY.slope(dcp) for dcp in (1, 2, 4)] == [31_976, 15_988, 7_994]
    assert rounded(GEOMETRY.slope(1) / KIB, "0.01") == Decimal("31.23")
    assert rounded(GEOMETRY.slope(2) / KIB, "0.01") == Decimal("15.61")


class Row(NamedTuple):
    """A published pool: what was set, and what must follow."""

    budget_bytes: int
    context: int
    dcp: int
    blocks: int
    allocated_bytes: int
    gib: str
    per_request: int
    advertised: int
    concurrency: str
    usable: int
    over_context: int


POOLS = {
    "fast": Row(13_432_545_000, 420_000, 1, 6_563, 13_430_943_232, "12.509",
                6_563, 420_000, "1.0000", 419_968, -32),
    "fast-319k": Row(10_233_000_000, 319_000, 1, 5_000, 10_232_320_000, "9.530",
                     4_985, 319_959, "1.0030", 319_936, 936),
    "balanced": Row(8_410_000_000, 520_000, 2, 4_109, 8_408_920_576, "7.831",
                    4_063, 525_887, "1.0113", 525_824, 5_824),
    "r9-550k": Row(8_850_000_000, 550_000, 2, 4_324, 8_848_910_336, "8.241",
                   4_297, 553_455, "1.0063", 553_344, 3_344),
    "o14-fast": Row(7_995_534_848, 249_000, 1, 3_907, 7_995_534_848, "7.446",
                    3_891, 250_023, "1.0041", 249_984, 984),
    "o14-balanced": Row(8_000_000_000, 490_000, 2, 3_909, 7_999_627_776, "7.450",
                        3_829, 500_237, "1.0209", 500_224, 10_224),
}  # fmt: skip


@pytest.mark.parametrize("row", POOLS.values(), ids=POOLS)
def test_pool(row: Row) -> None:
    pool = KvPool(GEOMETRY, row.budget_bytes, row.context, row.dcp)
    assert pool.blocks == row.blocks
    assert pool.allocated_bytes == row.allocated_bytes
    assert rounded(Fraction(pool.allocated_bytes, GIB), "0.001") == Decimal(row.gib)
    assert pool.blocks_per_request == row.per_request
    assert pool.advertised_tokens == row.advertised
    assert rounded(pool.concurrency, "0.0001") == Decimal(row.concurrency)
    assert pool.usable_tokens == row.usable
    assert pool.usable_tokens - pool.context_tokens == row.over_context


def test_fast_is_one_block_short_and_what_fixes_it() -> None:
    pool = KvPool(GEOMETRY, 13_432_545_000, 420_000, 1)
    assert pool.spare_tokens(M) == -32 - M
    assert pool.least_budget_bytes(M) == 13_432_989_696
    assert pool.least_budget_bytes(M) - pool.budget_bytes == 444_696
    assert pool.largest_context(M) == 419_963
    assert KvPool(GEOMETRY, 13_432_989_696, 420_000, 1).spare_tokens(M) >= 0
    assert KvPool(GEOMETRY, 13_432_989_695, 420_000, 1).spare_tokens(M) < 0


def test_occupancy() -> None:
    pool = KvPool(GEOMETRY, 8_410_000_000, 520_000, 2)
    assert GEOMETRY.blocks_for(500_000, 2) - GEOMETRY.null_blocks == 3_907
    assert rounded(pool.occupancy(3_907) * 100, "0.001") == Decimal("95.107")
    assert rounded(pool.occupancy(169) * 100, "0.01") == Decimal("4.11")


@pytest.mark.parametrize(
    ("utilization", "gib"), [("0.87", "105.87"), ("0.88", "107.09"), ("0.90", "109.52")]
)
def test_admission(utilization: str, gib: str) -> None:
    required = required_bytes(Decimal(utilization), TOTAL_BYTES)
    assert rounded(Fraction(required, GIB), "0.01") == Decimal(gib)
    assert largest_utilization(required, TOTAL_BYTES) == Decimal(utilization)
    assert largest_utilization(required - 1, TOTAL_BYTES) < Decimal(utilization)


def test_headless_head_is_only_just_enough_for_the_fast_profile() -> None:
    available = parse_bytes("118 GB")
    assert rounded(Fraction(available, GIB), "0.1") == Decimal("109.9")
    assert 0 < available - required_bytes(Decimal("0.90"), TOTAL_BYTES) < GIB


def test_measured_floors() -> None:
    assert format_bytes(HEAD_FLOOR) == "508,145,664 B (484.6 MiB)"
    workers = [
        rounded(Fraction(kib * KIB, MIB), "0.1") for kib in (2_413_428, 2_852_360, 2_745_288)
    ]
    assert workers == [Decimal("2356.9"), Decimal("2785.5"), Decimal("2680.9")]


def test_bytes_given_back_by_the_smaller_profile() -> None:
    delta = PoolDelta(4_109 - 4_324, GEOMETRY.block_bytes)
    assert delta.kv_bytes == -439_989_760
    assert 8_410_000_000 - 8_850_000_000 == -440_000_000


@pytest.mark.parametrize(
    ("extra_tokens", "upstream_cost", "upstream_floor", "cost", "floor"),
    [
        (5_000, "78.0", "406.6", "76.2", "408.4"),
        (10_000, "156.1", "328.6", "152.5", "332.1"),
        (20_000, "312.1", "172.5", "304.9", "179.7"),
    ],
)
def test_slope_corrected_from_kilobytes_called_kibibytes(
    extra_tokens: int, upstream_cost: str, upstream_floor: str, cost: str, floor: str
) -> None:
    mislabelled = Fraction("15.98") * KIB * extra_tokens / MIB
    assert abs(rounded(mislabelled, "0.1") - Decimal(upstream_cost)) <= Decimal("0.1")
    left = Fraction(HEAD_FLOOR, MIB) - Fraction(upstream_cost)
    assert abs(rounded(left, "0.1") - Decimal(upstream_floor)) <= Decimal("0.1")
    exact = GEOMETRY.slope(2) * extra_tokens / MIB
    assert rounded(exact, "0.1") == Decimal(cost)
    assert rounded(Fraction(HEAD_FLOOR, MIB) - exact, "0.1") == Decimal(floor)


def test_profile_deltas() -> None:
    def delta(blocks: int, reference: int) -> Decimal:
        size = PoolDelta(blocks - reference, GEOMETRY.block_bytes).kv_bytes
        return rounded(Fraction(size, MIB), "0.1")

    assert delta(5_000, 4_109) == Decimal("1738.9")
    assert delta(6_563, 4_109) == Decimal("4789.4")
    assert delta(6_563, 5_000) == Decimal("3050.4")


@pytest.mark.parametrize(("freed", "floor"), [("4 GB", -490), ("5 GB", 464)])
def test_naive_projection_of_fast_from_the_predecessor(freed: str, floor: int) -> None:
    delta = PoolDelta(6_563 - 4_109, GEOMETRY.block_bytes)
    projected = project_floor(HEAD_FLOOR, delta, freed_bytes=parse_bytes(freed))
    assert round(projected / MIB) == floor


def test_killed_profile_from_the_state_before_it() -> None:
    graphs = parse_bytes("1.93 GiB") - parse_bytes("1.01 GiB")
    assert rounded(Fraction(graphs, GIB), "0.01") == Decimal("0.92")
    delta = PoolDelta(0, GEOMETRY.block_bytes, graphs)
    head = project_floor(631_836 * KIB, delta)
    worker = project_floor(parse_bytes("3100 MB"), delta)
    assert rounded(Fraction(head, MIB), "0.1") == Decimal("-325.1")
    assert worker > 2_000_000_000


def test_graph_pool_of_twelve_shapes_is_projected() -> None:
    head = {3: parse_bytes("1.01 GiB"), 9: parse_bytes("2.25 GiB")}
    size_bytes, measured = graph_pool_bytes(head, 12)
    assert not measured
    assert rounded(Fraction(size_bytes, GIB), "0.01") == Decimal("2.87")
    assert graph_pool_bytes(head, 9) == (head[9], True)
    with pytest.raises(ValueError, match="no graph pool known"):
        graph_pool_bytes({9: head[9]}, 12)
    with pytest.raises(ValueError, match="no graph pool known"):
        graph_pool_bytes(head, 2)


@pytest.mark.parametrize(
    ("context", "batch", "gib"),
    [
        (600_000, 2_048, "11.44"),
        (319_000, 1_024, "3.04"),
        (420_000, 1_024, "4.01"),
        (520_000, 1_024, "4.96"),
    ],
)
def test_fold_scratch(context: int, batch: int, gib: str) -> None:
    scratch = Fraction(fold_scratch_bytes(batch, context), GIB)
    assert rounded(scratch, "0.01") == Decimal(gib)


def test_fold_scratch_is_ten_bytes_a_pair_when_units_are_not_mixed() -> None:
    measured = parse_bytes("11.45 GiB")
    assert rounded(Fraction(measured, 600_000 * 2_048), "0.1") == Decimal("10.0")
    mixed = Fraction("11.45") * 1000**3 / (600_000 * 2_048)
    assert rounded(mixed, "0.01") == Decimal("9.32")
