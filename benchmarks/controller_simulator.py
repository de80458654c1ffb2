"""Replay acceptance through depth policies, without a model.

    python -m benchmarks.controller_simulator                      # synthetic texts
    python -m benchmarks.controller_simulator --windows SERVER.LOG # rates out of MTP_WINDOW_JSON

A trace says, step by step and request by request, how many drafts in a row would be accepted if
they were offered. Every policy sees the same trace, so their figures differ by the policy alone. A
depth decided after step t is verified from t + 1 + lag on; asynchronous scheduling has a lag of 2.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from image.overlay.dynamic.decode_shapes import TUNED_LADDER
from image.overlay.dynamic.depth_policy import DepthController, PolicyOptions
from image.overlay.dynamic.draft_telemetry import MARKER

Trace = Sequence[Sequence[int]]
MAX_DEPTH = TUNED_LADDER[-1]

# Unconditional gain of each draft position over 2,162 drafts, published.
PUBLISHED = (0.895, 0.747, 0.483, 0.411, 0.335)
PROSE = (0.88, 0.66, 0.33, 0.20, 0.11)
CODE = (0.97, 0.93, 0.86, 0.78, 0.70)
EDGE = (0.98, 0.95, 0.90, 0.80, 0.10)

POLICIES: dict[str, PolicyOptions | None] = {
    "fixed 5": None,
    "ladder": PolicyOptions(),
    "ladder, barred 4": PolicyOptions(bar_windows=4),
    "ladder, settled 2": PolicyOptions(settle_steps=2),
    "ladder, from 5": PolicyOptions(start_depth=5),
    "ladder, all three": PolicyOptions(bar_windows=4, settle_steps=2, start_depth=5),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did with a trace; counts, and ratios of counts.

    Parameters:
        steps: verification steps, by depth asked for.
        drafts: request-drafts verified.
        drafted, accepted: draft tokens offered and accepted.
        changes: decisions that changed the depth, by reason.
    """

    steps: Counter[int]
    drafts: int
    drafted: int
    accepted: int
    changes: Counter[str]

    @property
    def depth_by_draft(self) -> float:
        """Mean depth, each draft counted once: drafted / drafts."""
        return self.drafted / self.drafts

    @property
    def depth_by_step(self) -> float:
        """Mean depth, each step counted once."""
        return sum(depth * steps for depth, steps in self.steps.items()) / self.steps.total()

    @property
    def tokens_per_draft(self) -> float:
        """Output tokens a request gets from a step: (accepted + drafts) / drafts."""
        return (self.accepted + self.drafts) / self.drafts

    @property
    def positions_per_token(self) -> float:
        """Verified positions an output token costs: (drafted + drafts) / (accepted + drafts)."""
        return (self.drafted + self.drafts) / (self.accepted + self.drafts)

    def avoided(self, comparator: float) -> float:
        """Return the share of draft positions not offered against a mean depth of a comparator.

        Parameters:
            comparator: draft tokens a draft of the comparator.
        """
        return 1 - self.drafted / (self.drafts * comparator)


def published_outcome() -> Outcome:
    """Return the counts published for 1,024 steps of the R9 image at 550K."""
    return Outcome(
        steps=Counter({2: 177, 4: 64, 5: 783}),
        drafts=2162,
        drafted=9202,
        accepted=6210,
        changes=Counter({"probe_k5": 3, "k5_p4_reject": 1}),
    )


def synthetic(
    gains: Sequence[float], steps: int, *, requests: int = 4, seed: int = 6
) -> list[list[int]]:
    """Return a trace whose drafts have given unconditional gains.

    Parameters:
        gains: share of drafts accepted at least up to each position; not increasing.
        steps: scheduler steps.
        requests: requests in every step.
        seed: of the generator.
    """
    source = random.Random(seed)  # noqa: S311 - a trace, not a secret
    return [
        [sum(source_value < gain for gain in gains) for source_value in row]
        for row in ([source.random() for _ in range(requests)] for _ in range(steps))
    ]


def alternating(first: Sequence[float], second: Sequence[float], turn: int) -> list[list[int]]:
    """Return four turns of two kinds of text."""
    parts = [synthetic((first, second)[i % 2], turn, seed=i) for i in range(4)]
    return [step for part in parts for step in part]


def windows_of(lines: Iterable[str]) -> Iterator[tuple[float, ...]]:
    """Return the unconditional gains of each telemetry record at full depth.

    Gains beyond the depth that was drafted are unknown, so records with shallower drafts, in which
    not every draft had all positions offered, are left out.
    """
    for line in lines:
        if MARKER in line:
            record = json.loads(line.split(MARKER, 1)[1])
            full = MAX_DEPTH * record["draft_batches"]
            if record["draft_batches"] and record["drafts_attempted"] == full:
                yield tuple(record["position_unconditional_gain"])


def replay(trace: Trace, options: PolicyOptions | None, *, lag: int = 2) -> Outcome:
    """Run a policy over a trace.

    Parameters:
        trace: per step, per request, drafts that would be accepted.
        options: of the ladder; None for a fixed depth of 5.
        lag: steps that still verify the depth before, after a decision.
    """
    controller = None if options is None else DepthController(options=options)
    asked = MAX_DEPTH if controller is None else controller.depth
    queue = [asked] * lag
    steps: Counter[int] = Counter()
    changes: Counter[str] = Counter()
    drafts = drafted = accepted = 0
    for row in trace:
        queue.append(asked)
        depth = queue.pop(0)
        steps[depth] += 1
        for reachable in row:
            taken = min(reachable, depth)
            drafts, drafted, accepted = drafts + 1, drafted + depth, accepted + taken
            if controller is not None:
                controller.observe(depth, taken)
        decision = None if controller is None else controller.end_step()
        if decision is not None:
            asked = decision.next_depth
            if decision.next_depth != decision.previous_depth:
                changes[decision.reason] += 1
    return Outcome(steps, drafts, drafted, accepted, changes)


def texts(steps: int) -> dict[str, Trace]:
    """Return the synthetic traces."""
    return {
        "published rates": synthetic(PUBLISHED, steps),
        "prose": synthetic(PROSE, steps),
        "code": synthetic(CODE, steps),
        "four of five": synthetic(EDGE, steps),
        "prose and code in turns": alternating(PROSE, CODE, steps // 4),
    }


def show(console: Console, name: str, trace: Trace) -> None:
    """Print one table: a row a policy."""
    table = Table(title=f"{name}: {len(trace)} steps", title_justify="left")
    for column in ("policy", "tokens / draft", "mean depth by draft", "by step",
                   "positions / token", "positions avoided against 5", "changes"):  # fmt: skip
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy, options in POLICIES.items():
        found = replay(trace, options)
        table.add_row(
            policy,
            f"{found.tokens_per_draft:.3f}",
            f"{found.drafted}/{found.drafts} = {found.depth_by_draft:.3f}",
            f"{found.depth_by_step:.3f}",
            f"{found.positions_per_token:.3f}",
            f"{found.avoided(MAX_DEPTH):.1%}",
            str(found.changes.total()),
        )
    console.print(table)


def main() -> None:
    """Print the published counts' ratios, then each trace under each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--windows", type=Path, help="log with MTP_WINDOW_JSON lines")
    parser.add_argument("--steps", type=int, default=8192)
    options = parser.parse_args()
    console = Console(width=120)
    found = published_outcome()
    console.print(
        f"published counts: mean depth {found.drafted}/{found.drafts} ="
        f" {found.depth_by_draft:.3f} by draft, {found.depth_by_step:.3f} by step;"
        f" {found.avoided(5):.1%} of positions avoided against 5.000,"
        f" {found.avoided(4.965):.1%} against 4.965"
    )
    if options.windows is None:
        for name, trace in texts(options.steps).items():
            show(console, name, trace)
        return
    gains = list(windows_of(options.windows.read_text(errors="replace").splitlines()))
    if not gains:
        parser.error(f"{options.windows} has no record whose drafts were all {MAX_DEPTH} long")
    turn = max(1, options.steps // len(gains))
    trace = [s for i, g in enumerate(gains) for s in synthetic(g, turn, seed=i)]
    show(console, f"{len(gains)} windows of {options.windows.name}", trace)


if __name__ == "__main__":
    main()
