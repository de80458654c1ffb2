# SPDX-License-Identifier: Apache-2.0
"""Memory models of other served systems, against the figures that their users published."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.models import (
    ELEMENT_BYTES,
    RequestCost,
    StateSlots,
    StaticSplit,
    bytes_per_token,
    pinned_tokens,
    retained_bytes,
    share_pool_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.workspace import (
    fold_bytes_per_pair,
    score_matrix_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, MIB, parse_bytes


@pytest.mark.parametrize(
    ("pool", "tokens", "per_token", "tolerance"),
    [
        ("11.22 GB", 2_851_328, 3_935, 1),
        ("11.28 GB", 1_751_552, 6_440, 1),
        ("11.3 GB", 925_504, 12_200, 12),
        ("1.58 GB", 137_408, 11_500, 10),
        ("8.18 GB", 715_136, 11_440, 10),
        ("32.02 GiB", 3_652_200, 9_418, 5),
        ("24 GiB", 3_834_498, 6_720, 2),
        ("18.08 GiB", 2_493_464, 7_785, 2),
        ("13.4 GB", 8_000_000, 1_675, 5),
        ("8 GB", 524_288, 15_259, 1),
        ("8410000000 B", 525_887, 15_992, 1),
    ],
    ids=["A-nvfp4", "A-fp8", "A-bf16", "A-0.70", "A-0.80", "A'-fp8", "E", "G", "I", "F", "Z"],
)
def test_bytes_per_token(pool: str, tokens: int, per_token: int, tolerance: int) -> None:
    exact = bytes_per_token(parse_bytes(pool), tokens)
    assert abs(exact - per_token) <= tolerance
    assert pinned_tokens(parse_bytes(pool), exact) == tokens


def test_pool_of_dcp4_is_a_quarter_of_its_token() -> None:
    assert abs(bytes_per_token(parse_bytes("8 GB"), 524_288) * 4 - 61_500) < 1_000


def test_ladder_between_16_gib_and_what_an_element_takes() -> None:
    assert Fraction(16 * GIB, 524_288) / 1024 == 32
    assert ELEMENT_BYTES["nvfp4"] == Fraction("0.5625")
    assert ELEMENT_BYTES["bf16"] / ELEMENT_BYTES["fp8"] == 2


@pytest.mark.parametrize(("ratio", "percent"), [("0.9", 47), ("0.3", 23)])
def test_static_share_split_by_a_state_ratio(ratio: str, percent: int) -> None:
    split = StaticSplit(14_590_000_000, Fraction(ratio))
    assert int(split.state_share * 100) == percent
    assert split.state_bytes + split.kv_bytes == split.pool_bytes


def test_context_that_the_ratio_buys() -> None:
    half = StaticSplit(14_590_000_000, Fraction("0.9"))
    third = StaticSplit(14_590_000_000, Fraction("0.3"))
    assert third.kv_bytes > half.kv_bytes
    assert third.state_bytes < half.state_bytes


@pytest.mark.parametrize(("slots", "requests"), [(73, 14), (141, 28), (143, 28), (28, 5)])
def test_slots_of_recurrent_state_cap_the_requests(slots: int, requests: int) -> None:
    pool = StateSlots(slots, slots_per_request=5)
    assert pool.requests == requests
    assert pool.slots_for(requests) <= slots < pool.slots_for(requests + 1)


@pytest.mark.parametrize(
    ("tokens", "published"),
    [(500_000, "10.98 GiB"), (850_000, "13.56 GiB"), (1_000_000, "14.52 GiB")],
)
def test_request_with_a_fixed_part(tokens: int, published: str) -> None:
    cost = RequestCost(parse_bytes("7.4 GiB"), parse_bytes("7.1 GiB"))
    assert abs(cost.bytes_at(tokens) - parse_bytes(published)) < parse_bytes("0.13 GiB")
    assert abs(cost.tokens_in(cost.bytes_at(tokens)) - tokens) <= 1
    assert cost.tokens_in(cost.fixed_bytes - 1) == 0


@pytest.mark.parametrize(
    ("chunk", "history", "pooling", "published"),
    [
        (4_096, 300_000, 1, "4.9 GB"),
        (1_024, 300_000, 1, "1.2 GB"),
        (1_024, 976_837, 1, "4.0 GB"),
        (512, 976_837, 1, "2.0 GB"),
        (4_096, 372_000, 4, "1.42 GiB"),
        (4_096, 800_000, 4, "3.05 GiB"),
        (8_192, 40_000, 4, "0.33 GB"),
        (8_192, 62_000, 4, "0.51 GB"),
        (8_192, 131_072, 4, "1.07 GB"),
        (2_048, 40_000, 4, "82 MB"),
        (2_048, 62_000, 4, "127 MB"),
        (2_048, 131_072, 4, "268 MB"),
    ],
)
def test_score_matrix(chunk: int, history: int, pooling: int, published: str) -> None:
    exact = score_matrix_bytes(chunk, history, pooling=pooling)
    assert abs(exact / parse_bytes(published) - 1) < 0.03
    assert score_matrix_bytes(chunk, history, pooling=pooling, buffers=2) == 2 * exact


def test_measured_multiples_of_a_pair() -> None:
    per_pair = fold_bytes_per_pair(parse_bytes("15 GB"), 1_024, 1_000_000)
    assert 14 < per_pair < 15
    assert fold_bytes_per_pair(parse_bytes("60 GB"), 4_096, 1_000_000) == per_pair


def test_allocator_that_keeps_every_size_it_served() -> None:
    sizes = [score_matrix_bytes(1_024, history) for history in range(100_000, 976_837, 100_000)]
    assert retained_bytes(sizes, every_size_kept=False) == max(sizes)
    assert retained_bytes(sizes, every_size_kept=True) > 4 * max(sizes)
    assert retained_bytes([], every_size_kept=False) == 0


def share(percent: str, weights: str = "0 B", overhead: str = "0 B") -> int:
    total = parse_bytes("121.69 GiB")
    return share_pool_bytes(total, Fraction(percent), parse_bytes(weights), parse_bytes(overhead))


def test_share_of_memory_less_what_is_not_cache() -> None:
    pool = share("0.835", "64.46 GiB", "5.13 GiB")
    assert abs(pool - parse_bytes("32.02 GiB")) < 20 * MIB
    assert abs(share("0.845") - share("0.835") - parse_bytes("1.2 GiB")) < 20 * MIB
    assert share("0.5", "121.69 GiB") < 0
