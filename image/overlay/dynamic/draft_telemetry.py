# SPDX-License-Identifier: Apache-2.0
"""One log line a window of scheduler steps: what was drafted, accepted and decided (schema 2).

Only host integers that the scheduler holds anyway are read: nothing here waits for a device.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from .depth_policy import Decision
from .draft_tally import DraftTally, ratio

SCHEMA = 2
MARKER = "MTP_WINDOW_JSON"
ENABLE = "VLLM_MTP_INSTRUMENT"
WINDOW = "VLLM_MTP_INSTRUMENT_WINDOW"
DEFAULT_WINDOW = 32
_OFF = {"", "0", "false", "no", "off"}


def telemetry_window(environment: Mapping[str, str]) -> int | None:
    """Return the steps of a telemetry window, or None when telemetry is off.

    Parameters:
        environment: the process's variables.

    Raises:
        ValueError: the window is not a plain positive decimal number.
    """
    if environment.get(ENABLE, "").strip().lower() in _OFF:
        return None
    text = environment.get(WINDOW, str(DEFAULT_WINDOW)).strip()
    if not (text.isascii() and text.isdecimal()) or text.startswith("0"):
        raise ValueError(f"{WINDOW}={text!r} is not a positive whole number of steps")
    return int(text)


class DraftTelemetry:
    """Counts drafts and writes a record each time a window of scheduler steps is full.

    Parameters:
        max_depth: configured speculative tokens.
        ladder: effective ladder; None with a fixed depth.
        window: scheduler steps a record covers, those without drafts included.
        write: takes the finished line.
        clock: monotonic seconds.

    Raises:
        ValueError: ``max_depth`` or ``window`` is not positive.
    """

    def __init__(
        self,
        *,
        max_depth: int,
        ladder: tuple[int, ...] | None,
        window: int,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if window <= 0:
            raise ValueError(f"telemetry window {window} is not a positive number of steps")
        self._max_depth = max_depth
        self._ladder = ladder
        self._window = window
        self._write = write
        self._clock = clock
        self._tally = DraftTally(max_depth)
        self._index = 0
        self._steps_at_run: dict[int, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._tally.clear()
        self._steps = 0
        self._first_depth = 0
        self._steps_at: dict[int, int] = {}
        self._context: tuple[int, int] | None = None
        self._started: float | None = None

    def observe(self, drafted: int, accepted: int, context_tokens: int) -> None:
        """Count one request's draft of the running step; a draft of no tokens is not one.

        Parameters:
            drafted, accepted: draft tokens offered and accepted.
            context_tokens: tokens of the request that are computed.

        Raises:
            ValueError: see :meth:`DraftTally.add`.
        """
        self._tally.add(drafted, accepted)
        if drafted == 0:
            return
        if self._started is None:
            self._started = self._clock()
        low, high = self._context or (context_tokens, context_tokens)
        self._context = (min(low, context_tokens), max(high, context_tokens))

    def end_step(self, active_depth: int, decision: Decision | None) -> None:
        """Close the running step; write a record when the window is full.

        Parameters:
            active_depth: draft tokens that the step asked for.
            decision: what the controller decided on exactly this step.
        """
        if self._steps == 0:
            self._first_depth = active_depth
        self._steps += 1
        for steps in (self._steps_at, self._steps_at_run):
            steps[active_depth] = steps.get(active_depth, 0) + 1
        if self._steps < self._window:
            return
        record = self._record(active_depth, decision)
        self._write(f"{MARKER} {json.dumps(record, sort_keys=True)}")
        self._index += 1
        self._reset()

    def _record(self, active_depth: int, decision: Decision | None) -> dict[str, Any]:
        accepted_at, eligible_at = self._tally.accepted_at(), self._tally.eligible_at()
        drafts, drafted, accepted = self._tally.drafts, self._tally.drafted, sum(accepted_at)
        elapsed = 0.0 if self._started is None else (self._clock() - self._started) * 1e3
        context = self._context or (None, None)
        return {
            "schema": SCHEMA,
            "window_index": self._index,
            "configured_max_k": self._max_depth,
            "depth_ladder": list(self._ladder or ()),
            "adaptive_enabled": self._ladder is not None,
            "active_k": active_depth,
            "active_k_at_window_start": self._first_depth,
            **self._decided(decision),
            "verification_steps": self._steps,
            "draft_batches": drafts,
            "drafts_attempted": drafted,
            "drafts_accepted": accepted,
            "acceptance_ratio": ratio(accepted, drafted),
            "acceptance_ratio_denominator": "drafts_attempted",
            "mean_attempted_per_batch": ratio(drafted, drafts),
            "mean_accepted_per_batch": ratio(accepted, drafts),
            "position_eligible": eligible_at,
            "position_accepted": accepted_at,
            "position_conditional_acceptance": list(map(ratio, accepted_at, eligible_at)),
            "position_unconditional_gain": [ratio(tokens, drafts) for tokens in accepted_at],
            "tail_gain_23": ratio(sum(accepted_at[2:4]), drafts) if self._max_depth >= 4 else 0.0,
            "position_4_gain": ratio(accepted_at[4], drafts) if self._max_depth >= 5 else 0.0,
            "output_tokens_emitted": accepted + drafts,
            "window_elapsed_ms": elapsed,
            "context_tokens_min": context[0],
            "context_tokens_max": context[1],
            "selected_k_window": _by_text(self._steps_at),
            "selected_k_run": _by_text(self._steps_at_run),
        }

    def _decided(self, decision: Decision | None) -> dict[str, Any]:
        undecided = "fixed" if self._ladder is None else "no_decision"
        return {
            "controller_previous_k": decision and decision.previous_depth,
            "controller_next_k": decision and decision.next_depth,
            "decision_reason": decision.reason if decision else undecided,
            "controller_window": decision and decision.window,
            "acceptance_ratchet": decision and decision.probe,
            "controller_tail_gain_23": decision and decision.tail_gain,
            "controller_position_4_gain": decision and decision.last_gain,
        }


def _by_text(steps_at: dict[int, int]) -> dict[str, int]:
    return {str(depth): steps for depth, steps in sorted(steps_at.items())}
