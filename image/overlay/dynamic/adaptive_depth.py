# SPDX-License-Identifier: Apache-2.0
"""What the scheduler holds: the controller, its telemetry, and the depth of the next step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from .depth_ladder import SpeculativeSettings, adaptive_ladder, policy_options
from .depth_policy import Decision, DepthController
from .draft_telemetry import DraftTelemetry, telemetry_window


class AdaptiveDepth:
    """Follows the drafts of a scheduler.

    Parameters:
        controller: chooses the depth; None with a fixed one.
        telemetry: writes records; None when they are off.
        max_depth: configured speculative tokens.
        max_seqs: sequences scheduled at once.
        log: takes a line for each change of depth.
    """

    def __init__(
        self,
        controller: DepthController | None,
        telemetry: DraftTelemetry | None,
        *,
        max_depth: int,
        max_seqs: int,
        log: Callable[[str], None],
    ) -> None:
        self.controller = controller
        self.telemetry = telemetry
        self._max_depth = max_depth
        self._log = log
        # The scheduler looks the depth up by batch size; ours is the same for every size.
        self.lookup = None if controller is None else [controller.depth] * (max_seqs + 1)

    @classmethod
    def create(
        cls,
        settings: SpeculativeSettings | None,
        *,
        max_seqs: int,
        log: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
    ) -> AdaptiveDepth | None:
        """Return what a configuration asks for, or None when it asks for nothing.

        Parameters:
            settings: the speculative configuration, if any.
            max_seqs: sequences scheduled at once.
            log: takes lines.
            environment: the process's variables.

        Raises:
            ValueError: the ladder, the window, an option or the telemetry's window is not valid.
        """
        if settings is None:
            return None
        ladder = adaptive_ladder(settings)
        steps = telemetry_window(environment)
        window = settings.adaptive_speculative_tokens_window
        controller = None
        if ladder is not None and window is not None:
            controller = DepthController(ladder, window, policy_options(settings))
        elif steps is None:
            return None
        telemetry = None
        if steps is not None:
            telemetry = DraftTelemetry(
                max_depth=settings.num_speculative_tokens, ladder=ladder, window=steps, write=log
            )
        return cls(
            controller,
            telemetry,
            max_depth=settings.num_speculative_tokens,
            max_seqs=max_seqs,
            log=log,
        )

    def observe(self, drafted: int, accepted: int, context_tokens: int) -> None:
        """Count one request's verified draft.

        Parameters:
            drafted, accepted: draft tokens offered and accepted.
            context_tokens: tokens of the request that are computed.

        Raises:
            ValueError: the counts contradict each other.
        """
        if self.controller is not None:
            self.controller.observe(drafted, accepted)
        if self.telemetry is not None:
            self.telemetry.observe(drafted, accepted, context_tokens)

    def end_step(self, asked_depth: int) -> None:
        """Close the running step; a decision takes effect in the next one to be scheduled.

        Parameters:
            asked_depth: draft tokens that the step asked for; 0 when it was made up.
        """
        decision = None if self.controller is None else self.controller.end_step()
        if self.telemetry is not None:
            self.telemetry.end_step(asked_depth or self._max_depth, decision)
        if decision is not None and decision.next_depth != decision.previous_depth:
            self._change(decision)

    def _change(self, decision: Decision) -> None:
        if self.lookup is not None:
            self.lookup[:] = [decision.next_depth] * len(self.lookup)
        rates = ", ".join(f"{rate:.3f}" for rate in decision.conditional_acceptance)
        self._log(
            f"draft depth {decision.previous_depth} -> {decision.next_depth}: {decision.reason},"
            f" tail gain {decision.tail_gain:.3f}, position 4 gain {decision.last_gain:.3f}"
            f" over {decision.drafts} drafts of {decision.window} steps,"
            f" conditional acceptance {rates}"
        )
