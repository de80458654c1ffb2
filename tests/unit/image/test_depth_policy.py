"""The ladder's policy: every published vector, every row of its table, and what must never be."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.overlay.dynamic import depth_policy
from image.overlay.dynamic.depth_policy import (
    TRANSITIONS,
    Decision,
    DepthController,
    Gate,
    PolicyOptions,
)
from image.overlay.dynamic.draft_tally import DraftTally

LADDER = (2, 4, 5)


def window(controller: DepthController, drafts: list[tuple[int, int]]) -> Decision | None:
    """Feed one draft a step; return the last decision."""
    decision = None
    for drafted, accepted in drafts:
        controller.observe(drafted, accepted)
        decision = controller.end_step() or decision
    return decision


def at(depth: int) -> DepthController:
    """Return a controller that has just come to a depth."""
    controller = DepthController(options=PolicyOptions(start_depth=depth))
    assert controller.depth == depth
    return controller


def spread(depth: int, *counts: int) -> list[tuple[int, int]]:
    """Return drafts of a depth: ``counts[a]`` of them with exactly ``a`` accepted."""
    return [(depth, accepted) for accepted, times in enumerate(counts) for _ in range(times)]


@pytest.mark.parametrize(
    ("depth", "drafts", "next_depth", "reason", "probe"),
    [
        # 32 drafts of 2: 55 of 64 accepted probes, 54 of 64 stays.
        (2, spread(2, 0, 9, 23), 4, "probe_k4", True),
        (2, spread(2, 0, 10, 22), 2, "k2_baseline", False),
        # 16 drafts of 4: positions 2 and 3 gained 12, 11, 6, 5 tokens.
        (4, spread(4, 0, 0, 10, 0, 6), 5, "probe_k5", True),
        (4, spread(4, 0, 0, 10, 1, 5), 4, "k4_hold", False),
        (4, spread(4, 0, 0, 13, 0, 3), 4, "k4_hold", False),
        (4, spread(4, 0, 0, 13, 1, 2), 2, "k4_tail_reject", False),
        # 16 drafts of 5: position 4 gained 3, 2; then no tail either.
        (5, spread(5, 0, 0, 0, 0, 13, 3), 5, "k5_hold", False),
        (5, spread(5, 0, 0, 0, 0, 14, 2), 4, "k5_p4_reject", False),
        (5, spread(5, 0, 0, 13, 1, 2, 0), 2, "k5_tail_reject", False),
        (5, spread(5, 0, 0, 13, 0, 3, 0), 4, "k5_p4_reject", False),
    ],
)
def test_every_row_at_its_boundary(
    depth: int, drafts: list[tuple[int, int]], next_depth: int, reason: str, probe: bool
) -> None:
    """A step to either side of each gate decides otherwise."""
    decision = window(at(depth), drafts)
    assert decision is not None
    assert (decision.previous_depth, decision.next_depth) == (depth, next_depth)
    assert (decision.reason, decision.probe) == (reason, probe)
    assert decision.drafts == len(drafts) == decision.window


def test_four_of_five_swings_between_4_and_5_for_ever() -> None:
    """The published limit cycle: every draft accepts exactly 4."""
    controller = at(5)
    reasons = []
    for _ in range(6):
        decision = window(controller, [(controller.depth, 4)] * 16)
        assert decision is not None
        reasons.append((decision.reason, decision.tail_gain, decision.last_gain))
    assert reasons == [("k5_p4_reject", 2.0, 0.0), ("probe_k5", 2.0, 0.0)] * 3


def test_the_head_boundary_is_exact_where_two_means_are_not() -> None:
    """34 of 40 tokens in 28 drafts are 0.85, which a quotient of two means can miss."""
    assert (34 / 28) / (40 / 28) < 0.85
    controller = DepthController(window=28)
    decision = window(controller, [*[(2, 2)] * 12, *[(1, 1)] * 10, *[(1, 0)] * 6])
    assert decision is not None
    assert decision.reason == "probe_k4"


@pytest.mark.parametrize(("width", "at_floor", "above"), [(32, 32, 16), (33, 33, 16), (1, 1, 1)])
def test_the_window_is_halved_above_the_floor(width: int, at_floor: int, above: int) -> None:
    """Odd windows round down, and one step is the least."""
    assert DepthController(window=width).window_in_force == at_floor
    other = DepthController(window=width, options=PolicyOptions(start_depth=4))
    assert other.window_in_force == above


def test_a_window_counts_steps_not_drafts_and_ignores_steps_without() -> None:
    """Four requests a step fill nothing faster; steps without a draft do not count."""
    controller = DepthController()
    for step in range(31):
        for _ in range(4):
            controller.observe(2, 2)
        assert controller.end_step() is None, step
        assert controller.end_step() is None
        controller.observe(0, 0)
        assert controller.end_step() is None
    controller.observe(2, 2)
    decision = controller.end_step()
    assert decision is not None
    assert (decision.window, decision.drafts) == (32, 31 * 4 + 1)


def test_nothing_carries_over_into_the_next_window() -> None:
    """A decision is made of its own window only."""
    controller = DepthController()
    assert window(controller, [(2, 0)] * 32) is not None
    decision = window(controller, [(2, 2)] * 32)
    assert decision is not None
    assert decision.mean_accepted == 2.0


@pytest.mark.parametrize(
    "draft", [(-1, 0), (2, -1), (2, 3), (0, 1), (6, 1), (3, 4)], ids=lambda draft: f"{draft}"
)
def test_inconsistent_counts_are_refused(draft: tuple[int, int]) -> None:
    """Negative, contradictory or too long drafts never reach a counter."""
    controller = DepthController()
    with pytest.raises(ValueError, match="cannot be"):
        controller.observe(*draft)
    assert controller.end_step() is None


@pytest.mark.parametrize(
    "ladder", [(2, 4), (1, 2, 3, 4, 5), (2, 5), (2, 3), (2, 4, 5, 6), (), (5,)]
)
def test_ladders_without_tuned_thresholds_are_refused(ladder: tuple[int, ...]) -> None:
    """No other ladder silently runs under another policy."""
    with pytest.raises(ValueError, match="no tuned thresholds"):
        DepthController(ladder)


@pytest.mark.parametrize("width", [0, -1, True, 1.5, "32"])
def test_a_window_is_a_positive_whole_number(width: int) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="not a positive number of steps"):
        DepthController(window=width)


def test_the_table_has_no_way_to_another_depth() -> None:
    """Every row starts and ends on a rung; each rung's last row always holds; no 2 -> 5."""
    for depth in LADDER:
        rows = [row for row in TRANSITIONS if row.depth == depth]
        assert rows[-1].test(depth_policy.Evidence(1, 1, 0, 0, 0))
        assert {row.next_depth for row in rows} <= set(LADDER)
    edges = {(row.depth, row.next_depth) for row in TRANSITIONS}
    assert edges == {(2, 4), (2, 2), (4, 5), (4, 4), (4, 2), (5, 5), (5, 4), (5, 2)}
    assert all(row.probe == (row.next_depth > row.depth) for row in TRANSITIONS)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=400),
    st.integers(1, 40),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_depth_is_always_a_rung_and_every_change_a_row(
    drafts: list[tuple[int, int]], width: int, bar: int, settle: int
) -> None:
    """Whatever is accepted, with every option."""
    edges = {(row.depth, row.next_depth) for row in TRANSITIONS}
    options = PolicyOptions(bar_windows=bar, settle_steps=settle)
    controller = DepthController(window=width, options=options)
    before = controller.depth
    for drafted, accepted in drafts:
        controller.observe(drafted, min(drafted, accepted))
        decision = controller.end_step()
        assert controller.depth in LADDER
        if decision is None:
            assert controller.depth == before
        else:
            assert (decision.previous_depth, decision.next_depth) in edges
            assert (decision.previous_depth, decision.next_depth) == (before, controller.depth)
        before = controller.depth


@given(st.integers(1, 200), st.integers(0, 400))
def test_a_gate_is_exact(whole: int, part: int) -> None:
    """Met exactly from the share on; nothing of nothing meets none."""
    for gate in (depth_policy.HEAD, depth_policy.TAIL_GAIN, depth_policy.TAIL_KEEP):
        share = Fraction(gate.numerator, gate.denominator)
        assert gate.met(part, whole) == (Fraction(part, whole) >= share)
        assert not gate.met(0, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=60))
def test_a_tally_agrees_with_counting_position_by_position(drafts: list[tuple[int, int]]) -> None:
    """Positions, eligibility and sums, against the definition."""
    tally = DraftTally(5)
    eligible, accepted_at = [0] * 5, [0] * 5
    for drafted, wanted in drafts:
        accepted = min(drafted, wanted)
        tally.add(drafted, accepted)
        for position in range(drafted):
            eligible[position] += accepted >= position
            accepted_at[position] += accepted > position
    assert tally.eligible_at() == eligible
    assert tally.accepted_at() == accepted_at
    assert tally.drafts == len(drafts)
    assert tally.drafted == sum(drafted for drafted, _ in drafts)
    assert tally.accepted == sum(accepted_at)


class TestOptions:
    """Departures from the tuned policy, none of which acts unless asked for."""

    def test_a_failed_probe_is_barred_longer_each_time(self) -> None:
        """Windows spent at K4 between two tries of K5: 2, then 4, then 8."""
        controller = DepthController(options=PolicyOptions(bar_windows=2, start_depth=5))
        reasons = []
        for _ in range(20):
            decision = window(controller, [(controller.depth, 4)] * 16)
            assert decision is not None
            reasons.append(decision.reason)
        text = " ".join(reason.replace("k4_barred", "b") for reason in reasons)
        waits = [gap.split().count("b") for gap in text.split("k5_p4_reject")[1:]]
        assert waits[:3] == [2, 4, 8]

    def test_a_probe_that_holds_is_forgiven(self) -> None:
        """After K5 held, the next failure bars as short as the first."""
        controller = DepthController(options=PolicyOptions(bar_windows=1, start_depth=5))
        window(controller, [(5, 4)] * 16)
        window(controller, [(4, 4)] * 16)
        assert window(controller, [(4, 4)] * 16) is not None
        assert controller.depth == 5
        held = window(controller, [(5, 5)] * 16)
        assert held is not None
        assert held.reason == "k5_hold"
        window(controller, [(5, 4)] * 16)
        reasons = [window(controller, [(4, 4)] * 16) for _ in range(2)]
        assert [r and r.reason for r in reasons] == ["k4_barred", "probe_k5"]

    def test_settling_keeps_old_drafts_out_of_the_window(self) -> None:
        """Two steps after a change are not counted: 18 steps, 16 of them in the decision."""
        controller = DepthController(options=PolicyOptions(settle_steps=2))
        window(controller, [(2, 2)] * 32)
        decision = window(controller, [*[(2, 2)] * 2, *[(4, 4)] * 16])
        assert decision is not None
        assert (decision.drafts, decision.mean_drafted) == (16, 4.0)

    @pytest.mark.parametrize(
        "options", [{"bar_windows": -1}, {"settle_steps": -1}, {"start_depth": 3}]
    )
    def test_options_outside_their_range_are_refused(self, options: dict[str, int]) -> None:
        """With the value in the message."""
        with pytest.raises(ValueError, match=str(next(iter(options.values())))):
            PolicyOptions(**options)


@pytest.mark.parametrize("name", ["HEAD", "TAIL_GAIN", "TAIL_KEEP", "LAST"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_threshold_moved_by_one_step_changes_a_published_vector(
    name: str, by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boundary vectors above pin each gate from both sides."""
    gate: Gate = getattr(depth_policy, name)
    unit = {"HEAD": 64, "TAIL_GAIN": 16, "TAIL_KEEP": 16, "LAST": 16}[name]
    least = -(-gate.numerator * unit // gate.denominator)
    monkeypatch.setattr(depth_policy, name, Gate(least + by, unit))
    cases = test_every_row_at_its_boundary.pytestmark[0].args[1]  # type: ignore[attr-defined]  # pytest sets it
    outcomes = []
    for depth, drafts, _next, reason, _probe in cases:
        decision = window(at(depth), drafts)
        outcomes.append(decision is not None and decision.reason == reason)
    assert not all(outcomes)


def test_the_pure_files_import_no_vllm() -> None:
    """They are tested here as they are shipped."""
    folder = Path(depth_policy.__file__).parent
    for file in folder.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (vllm|torch)", file.read_text(), re.MULTILINE)
