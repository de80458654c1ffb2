"""Coverage as the real graph manager computes it, and each way in which it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.shapes import (
    TUNED_LADDER,
    GraphManager,
    capture_sizes,
    reachable,
    uncovered,
)

from tests.vllm.conftest import Overlaid

pytestmark = pytest.mark.vllm
C3 = [3, 5, 6, 9, 10, 12, 15, 18]
C4 = [3, 5, 6, 9, 10, 12, 15, 18, 20, 24]
COVERED = [
    {"seqs": 3, "sizes": C3},
    {"seqs": 4, "sizes": C4},
    {"seqs": 4, "sizes": C4, "mode": "FULL_DECODE_ONLY"},
    {"seqs": 4, "sizes": [1, 2, 4, *C4]},
    {"seqs": 4, "sizes": C4, "loras": [0, 1]},
]
REFUSED = [
    ({"seqs": 3, "sizes": [6, 12, 18]}, r"3x3 \(9 tokens\).*1x5 \(5 tokens\)"),
    ({"seqs": 4, "sizes": [6, 12, 18, 24]}, "sizes needed: .*9"),
    *[
        ({"seqs": 4, "sizes": [size for size in C4 if size != gone]}, "without a FULL graph")
        for gone in (3, 9, 24)
    ],
    ({"seqs": 5, "sizes": C4}, "5x5 .*5x6"),
    ({"seqs": 4, "sizes": C4, "mode": "NONE"}, "cudagraph mode NONE"),
    ({"seqs": 4, "sizes": C4, "mode": "PIECEWISE"}, "cudagraph mode PIECEWISE"),
    ({"seqs": 4, "sizes": C4, "mode": "FULL"}, "cudagraph mode FULL,"),
    ({"seqs": 4, "sizes": []}, r"capture sizes \[\]"),
    ({"seqs": 4, "sizes": C4, "query": 5}, "too short for draft depth 5"),
]
# The manager rounds a listed size up to the query length, so these gaps in the list are none in
# fact. The recipe and the engine's configuration refuse them all the same: the list says it all.
ROUNDED: list[dict[str, Any]] = [
    {"seqs": 4, "sizes": [size for size in C4 if size != gone]}
    for gone in (5, 6, 10, 12, 15, 18, 20)
]
UNTOUCHED: list[dict[str, Any]] = [
    {"seqs": 4, "sizes": [6, 12, 18, 24], "window": None},
    {"seqs": 4, "sizes": [], "window": None, "mode": "NONE"},
    {"seqs": 4, "sizes": C4, "query": 1, "mode": "FULL_DECODE_ONLY"},
]


@pytest.fixture(scope="module")
def answers(overlaid: Overlaid) -> dict[str, dict[str, Any]]:
    """What the real manager said to every case, all in one process."""
    cases = [*COVERED, *(case for case, _ in REFUSED), *ROUNDED, *UNTOUCHED]
    done = subprocess.run(
        [overlaid.python, Path(__file__).with_name("coverage_probe.py")],
        input=json.dumps(cases),
        env={"PYTHONPATH": str(overlaid.tree), "VLLM_NO_USAGE_STATS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS"))
    found = json.loads(line.removeprefix("ANSWERS"))
    return {json.dumps(case): answer for case, answer in zip(cases, found, strict=True)}


@pytest.mark.parametrize("case", COVERED, ids=str)
def test_every_reachable_shape_replays_its_own_graph(
    answers: dict[str, dict[str, Any]], case: dict[str, Any]
) -> None:
    """Exact in tokens, requests and query length; and as the recipe's function says."""
    answer = answers[json.dumps(case)]
    shapes = reachable(TUNED_LADDER, case["seqs"])
    assert len(shapes) == 3 * case["seqs"]
    assert answer["shapes"] == {
        f"{s.query_length}x{s.requests}": ["FULL", s.tokens, s.requests, s.query_length]
        for s in shapes
    }
    assert not uncovered(GraphManager.UPSTREAM, case["sizes"], TUNED_LADDER, case["seqs"])


def test_mixed_batches_stay_piecewise(answers: dict[str, dict[str, Any]]) -> None:
    """The graphs of the ladder stand before the others and hide none of them."""
    mixed = answers[json.dumps(COVERED[1])]["mixed"]
    assert {int(tokens): found for tokens, found in mixed.items()} == {
        4: ["PIECEWISE", 5],
        7: ["PIECEWISE", 9],
        11: ["PIECEWISE", 12],
        16: ["PIECEWISE", 18],
        23: ["PIECEWISE", 24],
    }


@pytest.mark.parametrize(("case", "text"), REFUSED, ids=str)
def test_a_gap_refuses(answers: dict[str, dict[str, Any]], case: dict[str, Any], text: str) -> None:
    """With the shapes, the mode and the sizes in the message."""
    refused = answers[json.dumps(case)].get("refused", "")
    assert refused.startswith("RuntimeError: ")
    assert re.search(text, refused)


@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_a_size_that_rounding_supplies_is_still_asked_for(
    answers: dict[str, dict[str, Any]], case: dict[str, Any]
) -> None:
    """The manager has every graph; the recipe's function is the stricter one."""
    shapes = answers[json.dumps(case)]["shapes"]
    assert all(mode == "FULL" for mode, *_ in shapes.values())
    assert uncovered(GraphManager.UPSTREAM, case["sizes"], TUNED_LADDER, case["seqs"])


@pytest.mark.parametrize("case", UNTOUCHED, ids=str)
def test_a_manager_without_an_adaptive_shape_is_left_alone(
    answers: dict[str, dict[str, Any]], case: dict[str, Any]
) -> None:
    """A fixed depth, and the draft layer's own decode steps."""
    assert "refused" not in answers[json.dumps(case)]


@pytest.mark.parametrize(("seqs", "sizes"), [(3, C3), (4, C4)])
def test_the_recipe_asks_for_the_sizes_that_the_manager_needs(seqs: int, sizes: list[int]) -> None:
    """One function for the recipe, the engine and the log."""
    assert list(capture_sizes(GraphManager.UPSTREAM, TUNED_LADDER, seqs)) == sizes
