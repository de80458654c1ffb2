"""The ladder in a real server: text of known acceptance moves it as the table says."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import Overlaid
from tests.vllm.servers import Launch, Server, serving

pytestmark = pytest.mark.vllm

SPECULATION = {"method": "mtp", "num_speculative_tokens": 5}
ADAPTIVE = {**SPECULATION, "adaptive_speculative_tokens_window": 32}
# A record for each step: the sums then hold every step of the run.
TELEMETRY = {"VLLM_MTP_INSTRUMENT": "1", "VLLM_MTP_INSTRUMENT_WINDOW": "1"}
PROMPTS = ("/five000", "/zero000", "/two000", "/four000")
TOKENS = 400


@pytest.fixture(scope="module")
def runs(
    overlaid: Overlaid, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[dict[str, list[int]], dict[str, float], list[dict[str, Any]], str]]:
    """Outputs, counters, records and log of a server without, with fixed and adaptive drafts."""
    arms = {"none": None, "fixed": SPECULATION, "ladder": ADAPTIVE}
    found = {}
    for arm, speculation in arms.items():
        log = tmp_path_factory.mktemp(arm) / "server.log"
        launch = Launch(overlaid.python, overlaid.tree, checkpoint, speculation, TELEMETRY)
        with serving(launch, log) as server:
            outputs = {prompt: server.complete(prompt, TOKENS) for prompt in PROMPTS}
            counters, records = _settled(server)
        found[arm] = (outputs, counters, records, log.read_text(errors="replace"))
    return found


def _settled(server: Server) -> tuple[dict[str, float], list[dict[str, Any]]]:
    return server.metrics(), server.windows()


Runs = dict[str, tuple[dict[str, list[int]], dict[str, float], list[dict[str, Any]], str]]


def test_outputs_are_the_same_without_drafts_with_five_and_with_the_ladder(runs: Runs) -> None:
    """Token by token, for every class of text."""
    assert all(len(ids) == TOKENS for ids in runs["none"][0].values())
    assert runs["ladder"][0] == runs["fixed"][0] == runs["none"][0]


def test_the_ladder_climbs_holds_and_retreats(runs: Runs) -> None:
    """Every reason that text of these classes can give, and nothing but rungs."""
    changes = re.findall(r"draft depth (\d) -> (\d): (\w+)", runs["ladder"][3])
    assert changes[:2] == [("2", "4", "probe_k4"), ("4", "5", "probe_k5")]
    assert {reason for _, _, reason in changes} >= {
        "probe_k4", "probe_k5", "k4_tail_reject", "k5_tail_reject", "k5_p4_reject",
    }  # fmt: skip
    for (_, reached, _), (left, _, _) in itertools.pairwise(changes):
        assert reached == left
    records = runs["ladder"][2]
    assert {record["active_k"] for record in records} == {2, 4, 5}
    assert {record["decision_reason"] for record in records} >= {"k2_baseline", "k5_hold"}


def test_telemetry_and_the_servers_own_counters_agree(runs: Runs) -> None:
    """Drafts, tokens offered, tokens accepted, and each position."""
    for arm in ("fixed", "ladder"):
        _, counters, records, _ = runs[arm]
        total = {
            key: sum(record[key] for record in records)
            for key in ("draft_batches", "drafts_attempted", "drafts_accepted")
        }
        assert total["draft_batches"] == counters["vllm:spec_decode_num_drafts_total"] > 0
        assert total["drafts_attempted"] == counters["vllm:spec_decode_num_draft_tokens_total"]
        assert total["drafts_accepted"] == counters["vllm:spec_decode_num_accepted_tokens_total"]
        for position in range(5):
            name = f"vllm:spec_decode_num_accepted_tokens_per_pos_total{position}"
            assert counters[name] == sum(r["position_accepted"][position] for r in records)


def test_the_ladder_offers_fewer_drafts_for_the_same_text(runs: Runs) -> None:
    """Most of all where no draft is ever right."""
    offered = "vllm:spec_decode_num_draft_tokens_total"
    assert runs["ladder"][1][offered] < 0.75 * runs["fixed"][1][offered]


def test_a_cpu_says_that_it_has_no_graphs(runs: Runs) -> None:
    """Established from the platform, not from a setting."""
    assert "draft depth follows [2, 4, 5] on a platform without CUDA graphs" in runs["ladder"][3]
    assert "coverage verified" not in runs["ladder"][3]


@pytest.mark.parametrize(
    "refused",
    [
        ({**ADAPTIVE, "adaptive_speculative_tokens_window": 0}, {}, "greater than 0"),
        ({**ADAPTIVE, "adaptive_speculative_tokens_window": "08"}, {}, "valid integer"),
        ({**ADAPTIVE, "num_speculative_tokens": 4}, {}, "top rung"),
        (ADAPTIVE, {"VLLM_ADAPTIVE_SPEC_DEPTHS": "2,4"}, "no tuned thresholds"),
        (ADAPTIVE, {"VLLM_ADAPTIVE_SPEC_DEPTHS": "two"}, "not a list of positive whole"),
        ({**SPECULATION, "adaptive_speculative_tokens_start": 4}, {}, "need adaptive_spec"),
    ],
)
def test_what_cannot_follow_the_ladder_does_not_start(
    overlaid: Overlaid,
    checkpoint: Path,
    tmp_path: Path,
    refused: tuple[dict[str, Any], dict[str, str], str],
) -> None:
    """One message, before a model is loaded."""
    speculation, env, text = refused
    launch = Launch(overlaid.python, overlaid.tree, checkpoint, speculation, env)
    with (
        pytest.raises(RuntimeError, match=text),
        serving(launch, tmp_path / "server.log"),
    ):
        pass
