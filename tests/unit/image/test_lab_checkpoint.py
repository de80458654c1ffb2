"""The checkpoint's tensors realise the automaton, token by token, and are the same each time."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from image.lab import cache, environment
from image.lab.automaton import FIRST_WORD, VOCABULARY, build_automaton

pytestmark = pytest.mark.vllm

REPOSITORY = Path(__file__).parents[3]


def run(module: str, *arguments: str) -> str:
    """Run a module with the vLLM environment's Python and return what it prints."""
    python = environment.environment_path() / "bin" / "python"
    if not cache.is_complete(environment.environment_path()):
        pytest.fail(f"{python} is missing: run make vllm-env")
    done = subprocess.run(
        [str(python), "-m", module, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a freshly written checkpoint."""
    directory = tmp_path_factory.mktemp("checkpoint")
    run("image.lab.checkpoint", str(directory))
    return directory


@pytest.fixture(scope="module")
def computed(checkpoint: Path) -> dict[str, Any]:
    """Return what the tensors compute for every token."""
    report: dict[str, Any] = json.loads(
        run("tests.unit.image.acceptance_probe", str(checkpoint)).splitlines()[-1]
    )
    return report


def test_the_model_continues_every_token_as_the_automaton_does(computed: dict[str, Any]) -> None:
    assert computed["model"]["token"] == list(build_automaton().successor)
    # bfloat16 keeps eight bits: a lead of a tenth is far from any rounding.
    assert min(computed["model"]["lead"]) > 0.1


def test_the_draft_head_is_wrong_after_flagged_tokens_and_right_after_all_others(
    computed: dict[str, Any],
) -> None:
    automaton = build_automaton()
    assert computed["draft"]["token"] == [automaton.draft(token) for token in range(VOCABULARY)]
    assert min(computed["draft"]["lead"]) > 0.1


def test_nothing_but_the_last_token_counts(computed: dict[str, Any]) -> None:
    assert computed["silent"] == 0.0
    assert computed["history"] == 0.0


def test_the_tokenizer_keeps_text_and_knows_each_word_as_one_token(
    computed: dict[str, Any],
) -> None:
    assert computed["round_trip"] is True
    assert computed["word"] == [FIRST_WORD + build_automaton().texts.index("/two000")]
    assert computed["vocabulary"] == VOCABULARY


def test_the_same_bytes_each_time_and_a_sum_for_every_file(
    checkpoint: Path, tmp_path: Path
) -> None:
    run("image.lab.checkpoint", str(tmp_path))
    sums = (checkpoint / "SHA256SUMS").read_text()
    assert (tmp_path / "SHA256SUMS").read_text() == sums
    listed = {line[66:]: line[:64] for line in sums.splitlines()}
    files = {path.name for path in checkpoint.iterdir()}
    assert set(listed) == files - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == digest
        assert (checkpoint / name).stat().st_mode & 0o044 == 0o044
