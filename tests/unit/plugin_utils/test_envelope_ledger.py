# SPDX-License-Identifier: Apache-2.0
"""The floor ledger speaks only for the same recipe, image and nodes, and says what it left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import judge_envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    Ledger,
    LedgerEntry,
    LedgerKey,
    append,
    merge,
    parse_ledger,
    select_runs,
    to_data,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import Verdict
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.watched import (
    WatchError,
    as_entry,
    as_watched,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, MIB

from tests.unit.plugin_utils.envelope_cases import GEOMETRY, memory, r13, sparks

NODES = ("alpha", "bravo", "charlie", "delta")
KEY = LedgerKey("d" * 64, "sha256:" + "1" * 64, NODES)


def entry(launch: str = "one", **changed: Any) -> LedgerEntry:
    need = r13("balanced")
    values: dict[str, Any] = {
        "launch": launch,
        "recipe_digest": KEY.recipe_digest,
        "image": KEY.image,
        "profile": need.profile,
        "context_tokens": need.context_tokens,
        "kv_cache_bytes": need.kv_cache_bytes,
        "dcp": need.dcp,
        "max_seqs": need.max_seqs,
        "shapes": need.shapes,
        "started": datetime(2026, 12, 1, 3, tzinfo=UTC),
        "peak_kv_share": 0.951,
        "usable_tokens": 525_824,
        "outcome": "served",
        "nodes": [
            {
                "name": name,
                "role": "head" if name == "alpha" else "worker",
                "available_before": f"{113 * GIB} B",
                "min_available": f"{700 * MIB} B",
                "min_available_at_seconds": 37.1,
                "min_available_kv_share": 0.0411,
                "min_free": f"{300 * MIB} B",
                "min_free_at_seconds": 37.1,
                "samples": 4_800,
                "watched_seconds": 972.4,
            }
            for name in changed.pop("names", NODES)
        ],
    }
    return LedgerEntry.model_validate(values | changed)


def test_round_trip() -> None:
    ledger = append(append(Ledger(), entry("one")), entry("two"))
    text = json.dumps(to_data(ledger))
    assert '"734003200 B"' in text
    again, findings = parse_ledger(text, "ledger.json")
    assert not findings
    assert again == ledger


def test_entry_of_the_same_launch_is_replaced() -> None:
    ledger = append(append(Ledger(), entry("one")), entry("one", peak_kv_share=0.5))
    assert [known.peak_kv_share for known in ledger.entries] == [0.5]


def test_measured_launch_answers_the_next_plan() -> None:
    runs, findings = select_runs(append(Ledger(), entry()), KEY)
    assert not findings
    envelope = judge_envelope(memory(), r13("balanced"), sparks(113 * GIB), ledger_runs=runs)
    assert envelope.verdict is Verdict.MEASURED
    assert envelope.nodes[0].expected_bytes == 700 * MIB


def test_killed_launch_refuses_the_profile() -> None:
    runs, _ = select_runs(append(Ledger(), entry(outcome="killed", peak_kv_share=None)), KEY)
    envelope = judge_envelope(memory(), r13("balanced"), sparks(113 * GIB), ledger_runs=runs)
    assert envelope.verdict is Verdict.REFUSED
    assert "memory.killed_before" in {finding.check for finding in envelope.findings}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"recipe_digest": "e" * 64}, "another recipe digest"),
        ({"image": "sha256:" + "2" * 64}, "another image"),
        ({"names": ("alpha", "bravo", "charlie", "echo")}, "another set of nodes"),
        ({"names": ("bravo", "alpha", "charlie", "delta")}, "another set of nodes"),
        ({"names": ("alpha", "bravo")}, "another set of nodes"),
        ({"peak_kv_share": 0.04}, "no long prefill"),
        ({"peak_kv_share": None}, "no long prefill"),
    ],
)
def test_foreign_entries_are_ignored_and_said(changed: dict[str, Any], reason: str) -> None:
    ledger = append(append(Ledger(), entry("one", **changed)), entry("two"))
    runs, (finding,) = select_runs(ledger, KEY)
    assert [run.name for run in runs] == ["launch two"]
    assert f"1 of 2 ignored: 1 with {reason}" in finding.found


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 2, "entries": []}',
        '{"schema": 1, "entries": [{"launch": "one"}]}',
        '{"schema": 1, "entries": [], "more": 1}',
    ],
)
def test_unreadable_ledger_counts_for_nothing_and_is_said(text: str) -> None:
    ledger, (finding,) = parse_ledger(text, "receipts/ledger.json")
    assert ledger == Ledger()
    assert finding.check == "memory.ledger_unreadable"
    assert finding.evidence == "receipts/ledger.json"


def test_bare_number_in_a_ledger_is_refused() -> None:
    text = json.dumps(to_data(append(Ledger(), entry()))).replace('"734003200 B"', "734003200")
    assert parse_ledger(text, "ledger.json")[1][0].check == "memory.ledger_unreadable"


def test_absent_ledger_is_empty() -> None:
    assert parse_ledger("", "ledger.json") == (Ledger(), ())


def test_ledgers_of_several_files_are_read_oldest_first() -> None:
    old = entry("old", started=datetime(2026, 11, 1, tzinfo=UTC))
    merged = merge([append(Ledger(), entry("new")), append(Ledger(), old)])
    assert [known.launch for known in merged.entries] == ["old", "new"]


ROLES = {name: Role.HEAD if name == "alpha" else Role.WORKER for name in NODES}


def watch(**changed: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "schema": 1,
        "launch": "3f0c9a",
        "samples": 4_800,
        "watched_s": 972.4,
        "before": {"total_bytes": 4 * GIB, "available_bytes": 3 * GIB, "free_bytes": 2 * GIB},
        "min_available": {"bytes": 700 * MIB, "at_s": 37.1, "kv_share": 0.0411},
        "min_free": {"bytes": 300 * MIB, "at_s": 40.0, "kv_share": 0.05},
        "peak_kv_share": None,
    }
    return {"active": True, "watch": seen | changed}


def test_watches_of_all_nodes_become_one_entry() -> None:
    results = {name: watch() for name in NODES} | {"alpha": watch(peak_kv_share=0.951)}
    need = r13("balanced")
    made = as_entry(
        need,
        need.pool(GEOMETRY),
        ROLES,
        results,
        launch="3f0c9a",
        recipe_digest=KEY.recipe_digest,
        image=KEY.image,
        now=datetime(2026, 12, 1, 4, tzinfo=UTC),
        outcome="served",
    )
    assert made.saw_long_prefill
    assert made.usable_tokens == 525_824
    assert made.started == datetime(2026, 12, 1, 3, 43, 47, 600_000, tzinfo=UTC)
    runs, findings = select_runs(append(Ledger(), made), KEY)
    assert not findings
    assert runs[0].nodes[0].available_before == 3 * GIB
    assert runs[0].nodes[0].min_available == 700 * MIB


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({}, "seen nothing"),
        ({"active": False, "watch": None}, "seen nothing"),
        (watch(samples=0), "seen nothing"),
        (watch(before=None), "seen nothing"),
        (watch(launch="other"), "of launch other, not 3f0c9a"),
    ],
)
def test_watch_that_saw_nothing_of_the_launch_is_refused(result: dict[str, Any], said: str) -> None:
    with pytest.raises(WatchError, match=said):
        as_watched("bravo", result, "3f0c9a")


def test_watch_for_the_gate_after_the_start() -> None:
    seen = as_watched("bravo", watch(), "3f0c9a")
    assert (seen.min_available_bytes, seen.samples, seen.active) == (700 * MIB, 4_800, True)
