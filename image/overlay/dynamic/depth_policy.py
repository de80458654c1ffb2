# SPDX-License-Identifier: Apache-2.0
"""The draft depth of the next step, from how many tokens of recent drafts were accepted.

One controller serves the whole batch. It looks at a window of scheduler steps at its present depth,
decides by one row of :data:`TRANSITIONS`, and starts the next window from nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .decode_shapes import TUNED_LADDER
from .draft_tally import DraftTally, ratio


@dataclass(frozen=True, slots=True)
class Gate:
    """A least share, as a fraction, so that the boundary itself is exact.

    Parameters:
        numerator, denominator: the share; both positive.
    """

    numerator: int
    denominator: int

    def met(self, part: int, whole: int) -> bool:
        """Return whether part / whole reaches the share; nothing of nothing does not."""
        return whole > 0 and part * self.denominator >= self.numerator * whole


HEAD = Gate(17, 20)
"""0.85 of the tokens drafted at the floor were accepted."""
TAIL_GAIN = Gate(7, 10)
"""0.70 tokens a draft were gained by positions 2 and 3."""
TAIL_KEEP = Gate(7, 20)
"""0.35 tokens a draft were gained by positions 2 and 3."""
LAST = Gate(3, 20)
"""0.15 tokens a draft were gained by position 4."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a window has counted.

    Parameters:
        drafts: drafts verified.
        drafted, accepted: tokens of these drafts.
        tail: tokens accepted at positions 2 and 3 together.
        last: tokens accepted at position 4.
    """

    drafts: int
    drafted: int
    accepted: int
    tail: int
    last: int


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the policy: at a depth, the first row whose test holds decides."""

    depth: int
    test: Callable[[Evidence], bool]
    next_depth: int
    reason: str
    probe: bool = False


def _otherwise(_evidence: Evidence) -> bool:
    return True


TRANSITIONS: tuple[Transition, ...] = (
    Transition(2, lambda e: HEAD.met(e.accepted, e.drafted), 4, "probe_k4", probe=True),
    Transition(2, _otherwise, 2, "k2_baseline"),
    Transition(4, lambda e: TAIL_GAIN.met(e.tail, e.drafts), 5, "probe_k5", probe=True),
    Transition(4, lambda e: TAIL_KEEP.met(e.tail, e.drafts), 4, "k4_hold"),
    Transition(4, _otherwise, 2, "k4_tail_reject"),
    Transition(5, lambda e: LAST.met(e.last, e.drafts), 5, "k5_hold"),
    Transition(5, lambda e: TAIL_KEEP.met(e.tail, e.drafts), 4, "k5_p4_reject"),
    Transition(5, _otherwise, 2, "k5_tail_reject"),
)

# Reason of a window that would have probed while an earlier failure of that probe still bars it.
BARRED = {2: "k2_barred", 4: "k4_barred"}

REJECTS = {"k4_tail_reject": 4, "k5_p4_reject": 5, "k5_tail_reject": 5}
"""Reason → the rung that it gave up."""

_BY_DEPTH = {
    depth: tuple(row for row in TRANSITIONS if row.depth == depth) for depth in TUNED_LADDER
}
MOST_BARRED_WINDOWS = 64


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Departures from the tuned policy; all off by default.

    Parameters:
        bar_windows: windows for which a probe stays barred after it failed; doubled with each
            further failure in a row up to 64, back to this after the probed rung held. 0: never.
        settle_steps: steps with drafts that are not counted after a change of depth. With
            asynchronous scheduling, two steps still verify drafts of the depth before.
        start_depth: rung to start from instead of the lowest.

    Raises:
        ValueError: a number is negative, or the start is no rung.
    """

    bar_windows: int = 0
    settle_steps: int = 0
    start_depth: int = TUNED_LADDER[0]

    def __post_init__(self) -> None:
        if self.bar_windows < 0 or self.settle_steps < 0:
            raise ValueError(
                f"bar_windows {self.bar_windows} and settle_steps {self.settle_steps}"
                " must not be negative"
            )
        if self.start_depth not in TUNED_LADDER:
            raise ValueError(f"start depth {self.start_depth} is no rung of {TUNED_LADDER}")


DEFAULT_OPTIONS = PolicyOptions()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a full window led to.

    Parameters:
        previous_depth, next_depth: draft tokens a request.
        reason: code of the table's row.
        probe: the depth was raised to see whether it pays.
        window: scheduler steps that were counted.
        drafts: drafts in the window, the denominator of both gains.
        mean_accepted, mean_drafted: tokens a draft.
        conditional_acceptance: per position, accepted / reached.
        tail_gain, last_gain: tokens a draft gained by positions 2 and 3, and by position 4.
    """

    previous_depth: int
    next_depth: int
    reason: str
    probe: bool
    window: int
    drafts: int
    mean_accepted: float
    mean_drafted: float
    conditional_acceptance: tuple[float, ...]
    tail_gain: float
    last_gain: float


class DepthController:
    """Chooses one draft depth for all requests.

    Attributes:
        depth: draft tokens that the next step should ask for.
        window_in_force: steps with drafts that a decision at this depth needs.
        observe: counts one request's draft of the running step: :meth:`DraftTally.add`.

    Parameters:
        ladder: the rungs; only the tuned 2, 4, 5 has a policy.
        window: scheduler steps with drafts before a decision at the lowest rung; above it, half
            as many, rounded down, at least one.
        options: see :class:`PolicyOptions`.

    Raises:
        ValueError: another ladder, or a window that is not positive.
    """

    __slots__ = ("_barred", "_drafts_before", "_options", "_penalty", "_settling", "_steps",
                 "_tally", "depth", "ladder", "observe", "window", "window_in_force")  # fmt: skip

    def __init__(
        self,
        ladder: tuple[int, ...] = TUNED_LADDER,
        window: int = 32,
        options: PolicyOptions = DEFAULT_OPTIONS,
    ) -> None:
        if ladder != TUNED_LADDER:
            raise ValueError(f"ladder {ladder} has no tuned thresholds; only {TUNED_LADDER} has")
        if type(window) is not int or window <= 0:
            raise ValueError(f"window {window!r} is not a positive number of steps")
        self.ladder = ladder
        self.window = window
        self.depth = options.start_depth
        self.window_in_force = self._window_at(self.depth)
        self._options = options
        self._tally = DraftTally(ladder[-1])
        self.observe = self._tally.add
        self._steps = 0
        self._drafts_before = 0
        self._settling = 0
        self._barred = dict.fromkeys(ladder, 0)
        self._penalty = dict.fromkeys(ladder, options.bar_windows)

    def _window_at(self, depth: int) -> int:
        return self.window if depth == self.ladder[0] else max(1, self.window // 2)

    def end_step(self) -> Decision | None:
        """Close the running step and decide once the window is full.

        Returns:
            The decision; nothing when the step had no draft or the window is not full.
        """
        drafts = self._tally.drafts
        if drafts == self._drafts_before:
            return None
        if self._settling:
            self._settling -= 1
            self._tally.clear()
            return None
        self._drafts_before = drafts
        self._steps += 1
        if self._steps < self.window_in_force:
            return None
        decision = self._decide()
        self._follow(decision)
        return decision

    def _decide(self) -> Decision:
        tally = self._tally
        accepted_at, eligible_at = tally.accepted_at(), tally.eligible_at()
        evidence = Evidence(
            drafts=tally.drafts,
            drafted=tally.drafted,
            accepted=sum(accepted_at),
            tail=accepted_at[2] + accepted_at[3],
            last=accepted_at[4],
        )
        row = next(row for row in _BY_DEPTH[self.depth] if row.test(evidence))
        barred = row.probe and self._barred[row.next_depth] > 0
        return Decision(
            previous_depth=self.depth,
            next_depth=self.depth if barred else row.next_depth,
            reason=BARRED[self.depth] if barred else row.reason,
            probe=row.probe and not barred,
            window=self._steps,
            drafts=evidence.drafts,
            mean_accepted=evidence.accepted / evidence.drafts,
            mean_drafted=evidence.drafted / evidence.drafts,
            conditional_acceptance=tuple(map(ratio, accepted_at, eligible_at)),
            tail_gain=evidence.tail / evidence.drafts,
            last_gain=evidence.last / evidence.drafts,
        )

    def _follow(self, decision: Decision) -> None:
        for rung, windows in self._barred.items():
            self._barred[rung] = max(0, windows - 1)
        rejected = REJECTS.get(decision.reason)
        if rejected is not None:
            self._barred[rejected] = self._penalty[rejected]
            self._penalty[rejected] = min(2 * self._penalty[rejected], MOST_BARRED_WINDOWS)
        elif decision.next_depth == decision.previous_depth:
            self._penalty[decision.previous_depth] = self._options.bar_windows
        if decision.next_depth != decision.previous_depth:
            self._settling = self._options.settle_steps
        self.depth = decision.next_depth
        self.window_in_force = self._window_at(self.depth)
        self._steps = 0
        self._drafts_before = 0
        self._tally.clear()
