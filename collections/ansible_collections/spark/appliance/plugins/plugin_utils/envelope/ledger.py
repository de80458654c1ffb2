# SPDX-License-Identifier: Apache-2.0
"""The floors that were really reached on these nodes, kept from launch to launch.

An entry speaks for a profile only if recipe, image and nodes are the same as now, and only if its
watch lasted through a long prefill: the first activation transient of a long prompt sets the floor,
and a start followed by a short answer never shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Bytes,
    Count,
    Positive,
    Role,
    RunNodeSpec,
    RunSpec,
    Section,
)
from pydantic import AwareDatetime, Field, ValidationError

SCHEMA = 1

# The lowest point of the 500,000-token run came at 4.11 % of the KV pool: a prompt of a twentieth
# of the context has passed it.
LONG_PREFILL_SHARE = 1 / 20


class LedgerNode(Section):
    """What the watch of one node saw, from before the engine's start on."""

    name: str
    role: Role
    available_before: Bytes
    min_available: Bytes
    min_available_at_seconds: float
    min_available_kv_share: float | None
    min_free: Bytes
    min_free_at_seconds: float
    samples: Positive
    watched_seconds: float


class LedgerEntry(Section):
    """One launch: what was served where, and how low memory went."""

    launch: str
    recipe_digest: str
    image: str
    profile: str
    context_tokens: Positive
    kv_cache_bytes: Positive
    dcp: Positive
    max_seqs: Positive
    shapes: Count
    started: AwareDatetime
    peak_kv_share: Annotated[float, Field(ge=0, le=1)] | None
    usable_tokens: Count
    outcome: Literal["served", "killed"]
    nodes: Annotated[tuple[LedgerNode, ...], Field(min_length=1)]

    @property
    def saw_long_prefill(self) -> bool:
        """Whether a prompt long enough to pass the first transient was in the pool."""
        if self.peak_kv_share is None:
            return False
        tokens = self.peak_kv_share * self.usable_tokens
        return tokens >= LONG_PREFILL_SHARE * self.context_tokens

    def as_run(self) -> RunSpec:
        """Return the entry as a measured run."""
        return RunSpec(
            name=f"launch {self.launch}",
            context_tokens=self.context_tokens,
            kv_cache_bytes=self.kv_cache_bytes,
            dcp=self.dcp,
            max_seqs=self.max_seqs,
            shapes=self.shapes,
            outcome=self.outcome,
            nodes=tuple(
                RunNodeSpec(
                    name=node.name,
                    role=node.role,
                    min_available=f"{node.min_available} B",  # type: ignore[arg-type]  # text is what the field parses
                    min_free=f"{node.min_free} B",  # type: ignore[arg-type]  # as above
                    available_before=f"{node.available_before} B",  # type: ignore[arg-type]  # as above
                    at_seconds=node.min_available_at_seconds,
                )
                for node in self.nodes
            ),
            source=f"measured here at {self.started.isoformat(timespec='minutes')}",
        )


class Ledger(Section):
    """Every launch whose memory was watched, oldest first."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    entries: tuple[LedgerEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What an entry must share with the present to say something about it.

    Parameters:
        recipe_digest: digest of the parsed recipe.
        image: config digest of the image.
        nodes: inventory names in rank order.
    """

    recipe_digest: str
    image: str
    nodes: tuple[str, ...]


def parse_ledger(text: str, source: str) -> tuple[Ledger, tuple[Finding, ...]]:
    """Return the ledger in a text; an unreadable one is empty, and said.

    Parameters:
        text: content of the file, empty where there is none yet.
        source: its name, for the finding.
    """
    if not text.strip():
        return Ledger(), ()
    try:
        return Ledger.model_validate_json(text), ()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        return Ledger(), (
            Finding(
                "memory.ledger_unreadable",
                "",
                Severity.WARNING,
                "the floor ledger could not be read, so its measurements do not count",
                "the shape this version writes",
                f"{error.error_count()} faults, the first in {where}: {first['msg']}",
                "restore it, or move it away and measure again",
                evidence=source,
            ),
        )


def _foreign(entry: LedgerEntry, key: LedgerKey) -> str | None:
    if entry.recipe_digest != key.recipe_digest:
        return "another recipe digest"
    if entry.image != key.image:
        return "another image"
    if tuple(node.name for node in entry.nodes) != key.nodes:
        return "another set of nodes"
    if entry.outcome == "served" and not entry.saw_long_prefill:
        return "no long prefill was watched"
    return None


def select_runs(ledger: Ledger, key: LedgerKey) -> tuple[tuple[RunSpec, ...], tuple[Finding, ...]]:
    """Return the runs that speak for the present, and what was left aside and why."""
    reasons: Counter[str] = Counter()
    runs: list[RunSpec] = []
    for entry in ledger.entries:
        reason = _foreign(entry, key)
        if reason is None:
            runs.append(entry.as_run())
        else:
            reasons[reason] += 1
    if not reasons:
        return tuple(runs), ()
    said = ", ".join(f"{count} with {reason}" for reason, count in sorted(reasons.items()))
    finding = Finding(
        "memory.ledger_ignored",
        "",
        Severity.INFO,
        "entries of the floor ledger do not speak for this launch",
        "the same recipe digest, image and nodes, watched through a long prefill",
        f"{reasons.total()} of {len(ledger.entries)} ignored: {said}",
        "nothing, unless one of them should have counted",
    )
    return tuple(runs), (finding,)


def _as_text(entry: LedgerEntry) -> dict[str, object]:
    """Return an entry as JSON data whose sizes carry their unit, as the parser demands."""
    data = entry.model_dump(mode="json")
    sizes = ("available_before", "min_available", "min_free")
    data["nodes"] = [
        {key: f"{value} B" if key in sizes else value for key, value in node.items()}
        for node in data["nodes"]
    ]
    return data


def append(ledger: Ledger, entry: LedgerEntry) -> Ledger:
    """Return the ledger with one entry more; an entry of the same launch is replaced."""
    kept = tuple(known for known in ledger.entries if known.launch != entry.launch)
    return Ledger(entries=(*kept, entry))


def to_data(ledger: Ledger) -> dict[str, object]:
    """Return the ledger as JSON data."""
    return {"schema": SCHEMA, "entries": [_as_text(entry) for entry in ledger.entries]}


def merge(ledgers: Sequence[Ledger]) -> Ledger:
    """Return all entries of several ledgers, oldest first."""
    entries = [entry for ledger in ledgers for entry in ledger.entries]
    return Ledger(entries=tuple(sorted(entries, key=lambda entry: entry.started)))
