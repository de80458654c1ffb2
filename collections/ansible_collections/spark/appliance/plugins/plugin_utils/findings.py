# SPDX-License-Identifier: Apache-2.0
"""What a judgement says about a node, the fleet, an inventory or a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How far a finding reaches: only ``ERROR`` refuses the next step."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# A node's strings reach terminals, XML and web pages: C0 and C1 controls (a terminal obeys them),
# line and paragraph separators, marks that turn the direction of text, halves of surrogate pairs.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ufffe\uffff\ud800-\udfff]"
)
# More than this of one string tells nobody more, and a node may send megabytes.
LONGEST = 2000


def printable(text: str, longest: int = LONGEST) -> str:
    """Return text as one harmless line of at most ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", re.sub(r"[\t\n\r]+", " ", cut))


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement that did not come out clean.

    Parameters:
        check: id of the check, ``area.rule``.
        node: inventory name, or empty for the fleet, the inventory or the recipe.
        severity: see :class:`Severity`.
        title: the rule in a few words.
        expected: what should hold, with units.
        found: what was observed, with units.
        remedy: what the operator does about it.
        variable: the inventory variable or recipe key to change, where there is one.
        evidence: the raw observation, free of secrets, serials and hardware addresses.
    """

    check: str
    node: str
    severity: Severity
    title: str
    expected: str
    found: str
    remedy: str
    variable: str = ""
    evidence: str = ""

    def message(self) -> str:
        """Return the one line an operator reads: where, what, expected, found, what to do.

        Whatever a node's tools printed, it is one line without control characters.
        """
        where = self.node or "all nodes"
        variable = f" [{self.variable}]" if self.variable else ""
        title, expected = printable(self.title), printable(self.expected)
        return (
            f"{printable(where)}: {title}{printable(variable)}: expected {expected}, "
            f"found {printable(self.found)}; {printable(self.remedy)} ({printable(self.check)})"
        )

    def as_dict(self) -> dict[str, str]:
        """Return the finding as plain printable strings, as receipts store it."""
        return {key: printable(str(value)) for key, value in asdict(self).items()}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the most severe first, then by node and check."""
    return sorted(findings, key=lambda f: (_ORDER[f.severity], f.node, f.check))


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that refuse the next step, in reading order."""
    return [finding for finding in ordered(findings) if finding.severity is Severity.ERROR]
