"""Telemetry: 34 keys, their invariants, and no way to the device."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.overlay.dynamic import adaptive_depth, draft_tally, draft_telemetry
from image.overlay.dynamic.depth_policy import DepthController
from image.overlay.dynamic.draft_telemetry import DraftTelemetry, telemetry_window

KEYS = frozenset(
    [
        "schema",
        "window_index",
        "configured_max_k",
        "depth_ladder",
        "adaptive_enabled",
        "active_k",
        "active_k_at_window_start",
        "controller_previous_k",
        "controller_next_k",
        "decision_reason",
        "controller_window",
        "acceptance_ratchet",
        "verification_steps",
        "draft_batches",
        "drafts_attempted",
        "drafts_accepted",
        "acceptance_ratio",
        "acceptance_ratio_denominator",
        "mean_attempted_per_batch",
        "mean_accepted_per_batch",
        "position_eligible",
        "position_accepted",
        "position_conditional_acceptance",
        "position_unconditional_gain",
        "tail_gain_23",
        "position_4_gain",
        "controller_tail_gain_23",
        "controller_position_4_gain",
        "output_tokens_emitted",
        "window_elapsed_ms",
        "context_tokens_min",
        "context_tokens_max",
        "selected_k_window",
        "selected_k_run",
    ]
)


class Written:
    """Collects records; time advances by a millisecond at each look."""

    def __init__(self, *, ladder: tuple[int, ...] | None = (2, 4, 5), window: int = 4) -> None:
        self.lines: list[str] = []
        self._now = 0.0
        self.telemetry = DraftTelemetry(
            max_depth=5, ladder=ladder, window=window, write=self.lines.append, clock=self._clock
        )

    def _clock(self) -> float:
        self._now += 0.001
        return self._now

    def records(self) -> list[dict[str, Any]]:
        """Return the records, parsed from their lines."""
        assert all(line.startswith("MTP_WINDOW_JSON {") for line in self.lines)
        return [json.loads(line.split(" ", 1)[1]) for line in self.lines]


def test_a_record_has_the_34_keys_in_order_and_their_types() -> None:
    """Schema 2, sorted keys, one line."""
    written = Written()
    for step in range(4):
        written.telemetry.observe(4, step, 100 + step)
        written.telemetry.end_step(5 if step else 4, None)
    (record,) = written.records()
    assert len(KEYS) == 34
    assert set(record) == KEYS
    assert list(record) == sorted(record)
    assert record["schema"] == 2
    assert (record["active_k_at_window_start"], record["active_k"]) == (4, 5)
    assert (record["context_tokens_min"], record["context_tokens_max"]) == (100, 103)
    assert record["selected_k_window"] == {"4": 1, "5": 3}
    assert record["window_elapsed_ms"] == pytest.approx(1.0)
    assert record["decision_reason"] == "no_decision"
    assert record["position_unconditional_gain"] == [0.75, 0.5, 0.25, 0.0, 0.0]
    assert record["position_conditional_acceptance"] == pytest.approx([0.75, 2 / 3, 0.5, 0.0, 0.0])


def test_steps_without_drafts_count_and_an_empty_window_divides_by_nothing() -> None:
    """Unlike the controller's window."""
    written = Written(ladder=None)
    for _ in range(4):
        written.telemetry.end_step(5, None)
    (record,) = written.records()
    assert record["draft_batches"] == record["output_tokens_emitted"] == 0
    assert record["acceptance_ratio"] == record["window_elapsed_ms"] == 0.0
    assert record["context_tokens_min"] is None
    assert record["decision_reason"] == "fixed"
    assert record["depth_ladder"] == []


def test_a_decision_is_reported_on_the_very_step_that_closes_the_window() -> None:
    """A decision on another step is not."""
    written = Written(window=16)
    controller = DepthController(window=16)
    for _ in range(32):
        controller.observe(2, 2)
        written.telemetry.observe(2, 2, 7)
        written.telemetry.end_step(2, controller.end_step())
    first, second = written.records()
    assert (first["decision_reason"], first["controller_next_k"]) == ("probe_k4", 4)
    assert first["acceptance_ratchet"] is True
    assert first["controller_window"] == 16
    # Back at K2 eight steps before: a decision within the window, none on its last step.
    assert second["decision_reason"] == "no_decision"
    assert second["controller_next_k"] is None
    assert second["window_index"] == 1
    assert second["selected_k_run"] == {"2": 32}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4)
        ),
        max_size=60,
    )
)
def test_the_invariants_hold_for_any_trace(
    steps: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    """Counts, sums and eligibility agree in every record."""
    written = Written(window=5)
    for depth, drafts in steps:
        for drafted, accepted in drafts:
            written.telemetry.observe(drafted, min(drafted, accepted), 1)
        written.telemetry.end_step(depth, None)
    records = written.records()
    assert len(records) == len(steps) // 5
    for number, record in enumerate(records):
        accepted_at, eligible = record["position_accepted"], record["position_eligible"]
        assert record["window_index"] == number
        assert record["drafts_accepted"] == sum(accepted_at)
        assert record["drafts_attempted"] >= record["drafts_accepted"]
        assert (
            record["output_tokens_emitted"] == record["drafts_accepted"] + record["draft_batches"]
        )
        assert sum(record["selected_k_window"].values()) == record["verification_steps"] == 5
        assert sum(record["selected_k_run"].values()) == 5 * (number + 1)
        assert eligible[0] == record["draft_batches"]
        assert all(
            after <= before for before, after in zip(accepted_at, eligible[1:], strict=False)
        )


@pytest.mark.parametrize(
    ("environment", "window"),
    [
        ({}, None),
        *[({"VLLM_MTP_INSTRUMENT": off}, None) for off in ("", "0", " False", "no", "OFF ")],
        ({"VLLM_MTP_INSTRUMENT": "1"}, 32),
        ({"VLLM_MTP_INSTRUMENT": "yes", "VLLM_MTP_INSTRUMENT_WINDOW": " 7 "}, 7),
    ],
)
def test_telemetry_is_off_unless_asked_for(environment: dict[str, str], window: int | None) -> None:
    """The switch and its spellings."""
    assert telemetry_window(environment) == window


@pytest.mark.parametrize("text", ["0", "08", "-1", "", "x", "1.5", "²", "1e3"])
def test_a_bad_telemetry_window_is_refused(text: str) -> None:
    """With its text in the message."""
    with pytest.raises(ValueError, match="VLLM_MTP_INSTRUMENT_WINDOW"):
        telemetry_window({"VLLM_MTP_INSTRUMENT": "1", "VLLM_MTP_INSTRUMENT_WINDOW": text})


@pytest.mark.parametrize("module", [draft_telemetry, draft_tally, adaptive_depth])
def test_nothing_reads_or_waits_for_a_device(module: ModuleType) -> None:
    """On the syntax tree: only the standard library and siblings, no call that could block."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    siblings = {path.stem for path in Path(draft_tally.__file__).parent.glob("*.py")}
    standard = {"__future__", "collections", "itertools", "json", "os", "time", "typing"}
    forbidden = {"item", "cpu", "cuda", "numpy", "tolist", "synchronize", "sleep", "wait", "to"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= standard
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert (node.module.split(".")[0] in standard) or (
                node.level == 1 and node.module in siblings
            )
        if isinstance(node, ast.Attribute):
            assert node.attr not in forbidden
