"""Decode shapes, the sizes that cover them, and ladders that are refused."""

from __future__ import annotations

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.shapes import (
    TUNED_LADDER,
    GraphManager,
    Shape,
    capture_sizes,
    parse_ladder,
    reachable,
    uncovered,
)
from hypothesis import given
from hypothesis import strategies as st

FORK, UPSTREAM, NONE = GraphManager.R13_FORK, GraphManager.UPSTREAM, GraphManager.NONE


def test_four_sequences_have_twelve_shapes() -> None:
    tokens = [shape.tokens for shape in reachable(TUNED_LADDER, 4)]
    assert tokens == [3, 6, 9, 12, 5, 10, 15, 20, 6, 12, 18, 24]


@pytest.mark.parametrize(
    ("manager", "max_seqs", "sizes"),
    [
        (FORK, 3, (6, 12, 18)),
        (FORK, 4, (6, 12, 18, 24)),
        (UPSTREAM, 3, (3, 5, 6, 9, 10, 12, 15, 18)),
        (UPSTREAM, 4, (3, 5, 6, 9, 10, 12, 15, 18, 20, 24)),
        (NONE, 4, ()),
    ],
)
def test_capture_sizes(manager: GraphManager, max_seqs: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(manager, TUNED_LADDER, max_seqs) == sizes


def test_the_forks_short_list_leaves_gaps_upstream() -> None:
    gaps = uncovered(UPSTREAM, (6, 12, 18), TUNED_LADDER, 3)
    assert gaps == (Shape(3, 1), Shape(3, 3), Shape(5, 1), Shape(5, 2), Shape(5, 3))
    assert uncovered(FORK, (6, 12, 18), TUNED_LADDER, 3) == ()


def test_captures_for_three_leave_the_fourth_lane_eager() -> None:
    assert uncovered(FORK, (6, 12, 18), TUNED_LADDER, 4) == (Shape(5, 4), Shape(6, 4))


@given(st.integers(min_value=1, max_value=64))
def test_what_is_computed_covers_everything(max_seqs: int) -> None:
    for manager in (FORK, UPSTREAM):
        sizes = capture_sizes(manager, TUNED_LADDER, max_seqs)
        assert uncovered(manager, sizes, TUNED_LADDER, max_seqs) == ()
        assert uncovered(manager, sizes[:-1], TUNED_LADDER, max_seqs) != ()
    assert len(reachable(TUNED_LADDER, max_seqs)) == 3 * max_seqs


@pytest.mark.parametrize("value", ["2,4,5", " 2, 4 ,5 ", [2, 4, 5], (2, 4, 5)])
def test_the_tuned_ladder_in_any_spelling(value: object) -> None:
    assert parse_ladder(value) == (2, 4, 5)


@pytest.mark.parametrize(
    "value",
    ["2,3,5", "2,4", "2,4,5,6", "5,4,2", "2,4,5,5", "", ",", "2,4,05", "2,4,x", "2;4;5",
     "2,4,5,", "-2,4,5", "²,4,5", [2, 4], ["2", "4", "5"], [2, 4, True], [2.0, 4, 5], 245, None,
     {2: 4}],
)  # fmt: skip
def test_any_other_ladder_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="ladder"):
        parse_ladder(value)
