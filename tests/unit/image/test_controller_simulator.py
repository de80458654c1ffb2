"""The simulator reproduces the published ratios, and shows what the options are for."""

from __future__ import annotations

import json

import pytest

from benchmarks import controller_simulator as simulator
from benchmarks.controller_cost import growth_bytes
from image.overlay.dynamic.depth_policy import PolicyOptions


def test_the_published_counts_give_the_published_ratios() -> None:
    """4.256 by draft, 4.419 by step; 14.9 % is against 5.000, 14.3 % against 4.965."""
    found = simulator.published_outcome()
    assert found.steps.total() == 1024
    assert f"{found.depth_by_draft:.3f}" == "4.256"
    assert f"{found.depth_by_step:.3f}" == "4.419"
    assert f"{found.avoided(5):.1%}" == "14.9%"
    assert f"{found.avoided(4.965):.1%}" == "14.3%"
    assert f"{found.accepted / found.drafted:.3f}" == "0.675"
    assert f"{found.accepted / found.drafts:.3f}" == "2.872"


def test_a_trace_has_the_gains_that_it_was_made_of() -> None:
    """Within three standard errors of 32,768 drafts."""
    rows = simulator.synthetic(simulator.PUBLISHED, 8192)
    drafts = [reachable for row in rows for reachable in row]
    for position, gain in enumerate(simulator.PUBLISHED):
        share = sum(reachable > position for reachable in drafts) / len(drafts)
        assert share == pytest.approx(gain, abs=3 * (gain * (1 - gain) / len(drafts)) ** 0.5)


def test_barring_a_failed_probe_damps_the_swing_between_4_and_5() -> None:
    """Text that accepts exactly four: a change every 16 steps without, a tenth of them with."""
    trace = [[4]] * 4096
    plain = simulator.replay(trace, PolicyOptions())
    barred = simulator.replay(trace, PolicyOptions(bar_windows=4))
    assert plain.changes.total() > 200
    assert barred.changes.total() < plain.changes.total() / 5
    assert barred.positions_per_token < plain.positions_per_token


def test_a_depth_is_verified_two_steps_late() -> None:
    """The first window of 32 at K2 and two steps more."""
    found = simulator.replay([[5]] * 40, PolicyOptions())
    assert found.steps == {2: 34, 4: 6}
    assert simulator.replay([[5]] * 40, PolicyOptions(), lag=0).steps == {2: 32, 4: 8}


def test_gains_are_read_from_records_of_full_depth_only() -> None:
    """A shallower draft says nothing about the positions that it did not reach."""
    full = {"draft_batches": 4, "drafts_attempted": 20, "position_unconditional_gain": [1.0] * 5}
    short = {**full, "drafts_attempted": 8}
    lines = ["INFO MTP_WINDOW_JSON " + json.dumps(record) for record in (full, short)]
    assert list(simulator.windows_of(["other", *lines])) == [(1.0,) * 5]


def test_a_million_steps_keep_no_memory() -> None:
    """A tenth of the benchmark's steps; a kept record of 100 bytes a decision would be 500 kB."""
    assert growth_bytes(100_000) < 4096
