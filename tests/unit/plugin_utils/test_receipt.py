from __future__ import annotations

import json
from datetime import UTC, datetime

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import (
    Grade,
    Number,
    Receipt,
    last_good,
)


def finding(severity: Severity) -> Finding:
    return Finding("memory.swap", "alpha", severity, "swap is off", "0 B", "16 GiB", "swapoff")


def receipt(hour: int = 12, severity: Severity | None = None) -> Receipt:
    return Receipt(
        kind="verify",
        time=datetime(2026, 7, 31, hour, tzinfo=UTC),
        recipe="lab",
        recipe_digest="sha256:0",
        profile="balanced",
        launch="0123",
        nodes={"alpha": {"memory": {"ok": True}}},
        serving={"health": 200},
        findings=() if severity is None else (finding(severity),),
        numbers=(Number("floor", 484.6, "MiB", "head, n = 1", Grade.MEASURED, "watcher"),),
    )


def test_a_receipt_sorts_by_time_and_says_whether_it_is_good() -> None:
    assert receipt().file_name() == "20260731T120000Z-verify.json"
    assert receipt(severity=Severity.WARNING).good
    assert not receipt(severity=Severity.ERROR).good
    record = json.loads(receipt(severity=Severity.ERROR).to_json())
    assert record["good"] is False
    assert record["findings"][0]["severity"] == "error"
    assert record["numbers"][0]["grade"] == "measured"


def test_the_last_good_one_is_the_newest_without_a_refusal() -> None:
    texts = [
        receipt(12).to_json(),
        receipt(9).to_json(),
        receipt(15, Severity.ERROR).to_json(),
        "<html>",
        '{"schema": 99, "good": true, "time": "2099"}',
        "[1]",
        '{"schema": 1, "good": true, "time": "2099", "nodes": []}',
        '{"schema": 1, "good": "yes", "time": "2099", "nodes": {}}',
        "[" * 100_000,
        "\ufffd\x00junk",
    ]
    found = last_good(texts)
    assert found is not None
    assert found["time"] == "2026-07-31T12:00:00+00:00"
    assert last_good([]) is None
