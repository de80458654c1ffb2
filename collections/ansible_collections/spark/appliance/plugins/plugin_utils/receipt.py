# SPDX-License-Identifier: Apache-2.0
"""What was observed, judged and measured in one run, as a record that outlives it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, refusals

SCHEMA = 1


class Grade(StrEnum):
    """How a number came to be."""

    MEASURED = "measured"
    COMPUTED = "computed"
    PROJECTED = "projected"


@dataclass(frozen=True, slots=True)
class Number:
    """A figure that says what it counts.

    Parameters:
        name: what it is.
        value: the figure in ``unit``.
        unit: its unit.
        denominator: what it is per or out of, such as "of MemTotal 127600748 kB" or "n = 1".
        grade: measured, computed or projected.
        source: where or by which formula it was obtained.
    """

    name: str
    value: float
    unit: str
    denominator: str
    grade: Grade
    source: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """One run's record; ``good`` holds when nothing in it refuses."""

    kind: str
    time: datetime
    recipe: str
    recipe_digest: str
    profile: str
    launch: str
    nodes: Mapping[str, Mapping[str, Any]]
    serving: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    numbers: tuple[Number, ...] = ()

    @property
    def good(self) -> bool:
        """Whether no finding refuses."""
        return not refusals(self.findings)

    def file_name(self) -> str:
        """Return a name that sorts by time: ``20260731T120000Z-verify.json``."""
        return f"{self.time.astimezone(UTC):%Y%m%dT%H%M%SZ}-{self.kind}.json"

    def to_json(self) -> str:
        """Return the receipt as JSON text with sorted keys."""
        record = {
            "schema": SCHEMA,
            "kind": self.kind,
            "time": self.time.astimezone(UTC).isoformat(timespec="seconds"),
            "good": self.good,
            "recipe": {"name": self.recipe, "digest": self.recipe_digest},
            "profile": self.profile,
            "launch": self.launch,
            "nodes": self.nodes,
            "serving": self.serving,
            "findings": [finding.as_dict() for finding in self.findings],
            "numbers": [asdict(number) for number in self.numbers],
        }
        return json.dumps(record, indent=2, sort_keys=True) + "\n"


def last_good(texts: Iterable[str]) -> dict[str, Any] | None:
    """Return the newest good receipt.

    Parameters:
        texts: contents of receipt files, in any order; what is no receipt of this schema is
            passed over, since the folder also holds other reports.

    Returns:
        The parsed receipt with the latest time, or None.
    """
    good: list[dict[str, Any]] = []
    for text in texts:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            continue
        if record.get("good") is True and isinstance(record.get("nodes"), dict):
            good.append(record)
    return max(good, key=lambda record: str(record.get("time", "")), default=None)
