# SPDX-License-Identifier: Apache-2.0
"""A judgement for people and for machines: table, JSON, JUnit XML and one HTML page."""

from __future__ import annotations

import html
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Check
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    ordered,
    printable,
)
from rich.console import Console
from rich.table import Table
from rich.text import Text

SCHEMA = 1
# Characters of information of one check that a table shows.
_TOGETHER = 400
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a report is made of.

    Parameters:
        phase: which judgement it was.
        time: when it was made.
        nodes: inventory names, the head first.
        checks: the checks that took part.
        findings: what they found.
        facts: a few lines on what was judged, such as recipe, profile and launch.
    """

    phase: str
    time: datetime
    nodes: tuple[str, ...]
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    facts: Mapping[str, str]

    def count(self, severity: Severity) -> int:
        """How many findings have a severity."""
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 when nothing refuses, else 2, as Ansible ends when a host failed."""
        return 2 if self.count(Severity.ERROR) else 0

    @property
    def summary(self) -> str:
        """One line: checks, nodes and the number of findings by severity."""
        counts = ", ".join(f"{self.count(s)} {s.value}" for s in reversed(Severity))
        checks = _counted(len(self.checks), "check")
        return f"{checks} on {_counted(len(self.nodes), 'node')}: {counts}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds")


def _rows(judgement: Judgement) -> list[tuple[Severity, str, str, str, str, str]]:
    """Return the table's rows: equal findings of several nodes, and all information of one check.

    Information is not read one by one, so that of a check one row stands for all.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for entry in ordered(judgement.findings):
        key: tuple[str, ...] = (entry.severity.value, entry.check)
        if entry.severity is not Severity.INFO:
            key += (entry.expected, entry.found, entry.remedy)
        groups.setdefault(key, []).append(entry)
    rows = []
    for findings in groups.values():
        first = findings[0]
        nodes = list(dict.fromkeys(entry.node for entry in findings if entry.node))
        everywhere = not nodes or set(nodes) == set(judgement.nodes)
        where = "all" if everywhere else ", ".join(nodes)
        told = _together([entry.found for entry in findings])
        rows.append((first.severity, where, first.check, first.expected, told, first.remedy))
    return rows


def _together(found: Sequence[str]) -> str:
    """Return what was found as one text, as much of it as fits, and the number of the rest."""
    different = list(dict.fromkeys(found))
    shown = different[:1]
    for text in different[1:]:
        if len("; ".join([*shown, text])) <= _TOGETHER:
            shown.append(text)
    left = len(different) - len(shown)
    return "; ".join(shown) + (f" (and {left} more)" if left else "")


def to_table(judgement: Judgement, width: int = 120, *, colour: bool = False) -> str:
    """Return findings as a compact table and one line of summary.

    Parameters:
        judgement: what to show.
        width: columns of the terminal.
        colour: use terminal colours.
    """
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=colour, no_color=not colour, legacy_windows=False
    )
    rows = _rows(judgement)
    if rows:
        table = Table(pad_edge=False, box=None)
        for title in ("", "node", "check"):
            table.add_column(title, no_wrap=title != "node", overflow="fold")
        for title in ("expected", "found", "what to do"):
            table.add_column(title, ratio=1, overflow="fold")
        for severity, *cells in rows:
            # Text, not markup: tool output may hold brackets.
            table.add_row(
                Text(severity.value, style=_STYLES[severity]),
                *(Text(printable(cell)) for cell in cells),
            )
        console.print(table)
    console.print(Text(judgement.summary))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def to_json(judgement: Judgement) -> str:
    """Return the judgement as JSON text with sorted keys."""
    record = {
        "schema": SCHEMA,
        "phase": judgement.phase,
        "time": _stamp(judgement.time),
        "nodes": list(judgement.nodes),
        "checks": [check.id for check in judgement.checks],
        "facts": dict(judgement.facts),
        "counts": {severity.value: judgement.count(severity) for severity in Severity},
        "findings": [finding.as_dict() for finding in ordered(judgement.findings)],
    }
    return json.dumps(record, indent=2, sort_keys=True) + "\n"


def _cases(judgement: Judgement) -> dict[str, list[Finding]]:
    cases: dict[str, list[Finding]] = {check.id: [] for check in judgement.checks}
    for finding in judgement.findings:
        cases.setdefault(finding.check, []).append(finding)
    return cases


def to_junit(judgement: Judgement) -> str:
    """Return JUnit XML: one test case a check; only an error is a failure of it."""
    cases = _cases(judgement)
    failed = {
        name
        for name, findings in cases.items()
        if any(finding.severity is Severity.ERROR for finding in findings)
    }
    suite = ET.Element(
        "testsuite",
        name=f"spark-appliance {judgement.phase}",
        tests=str(len(cases)),
        failures=str(len(failed)),
        errors="0",
        skipped="0",
        timestamp=_stamp(judgement.time),
    )
    for name, findings in cases.items():
        area, _, rule = name.partition(".")
        case = ET.SubElement(suite, "testcase", classname=area, name=rule)
        lines = [finding.message() for finding in ordered(findings)]
        if name in failed:
            failure = ET.SubElement(case, "failure", message=lines[0])
            failure.text = "\n".join(lines)
        elif lines:
            ET.SubElement(case, "system-out").text = "\n".join(lines)
    ET.indent(suite)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }}
body {{ margin: 2rem auto; max-width: 75rem; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .6rem }}
tr {{ border-bottom: 1px solid #8884 }}
.error {{ color: #c0271d; font-weight: 600 }}
.warning {{ color: #a86400 }}
.info {{ color: #2b6f9e }}
code {{ overflow-wrap: anywhere }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem }} dd {{ margin: 0 }}
</style>
<h1>{title}</h1>
<p>{summary}</p>
<dl>{facts}</dl>
<h2>Findings</h2>
{findings}
<h2>Checks</h2>
<table><tr><th>check<th>rule<th>findings</tr>
{checks}
</table>
</html>
"""


def to_html(judgement: Judgement) -> str:
    """Return one page that needs no other file and no script."""

    def escape(text: str) -> str:
        return html.escape(printable(text))

    rows = [
        f'<tr><td class="{entry.severity.value}">{entry.severity.value}'
        f"<td>{escape(entry.node or 'all')}<td><code>{escape(entry.check)}</code>"
        f"<td>{escape(entry.expected)}<td>{escape(entry.found)}"
        f"<td>{escape(entry.remedy)}<td><code>{escape(entry.evidence)}</code></tr>"
        for entry in ordered(judgement.findings)
    ]
    head = "<tr><th><th>node<th>check<th>expected<th>found<th>what to do<th>evidence</tr>"
    counts = {name: len(findings) for name, findings in _cases(judgement).items()}
    checks = [
        f"<tr><td><code>{escape(check.id)}</code><td>{escape(check.title)}"
        f"<td>{counts[check.id] or ''}</tr>"
        for check in judgement.checks
    ]
    facts = {"judged at": _stamp(judgement.time), "nodes": ", ".join(judgement.nodes)}
    facts |= judgement.facts
    return _PAGE.format(
        title=escape(f"spark-appliance: {judgement.phase}"),
        summary=escape(judgement.summary),
        facts="".join(f"<dt>{escape(k)}<dd>{escape(v)}" for k, v in facts.items()),
        findings=f"<table>{head}\n{''.join(rows)}</table>" if rows else "<p>None.</p>",
        checks="\n".join(checks),
    )


def render(judgement: Judgement) -> dict[str, str]:
    """Return every file form by its suffix: ``json``, ``xml`` (JUnit) and ``html``."""
    forms: Sequence[tuple[str, str]] = (
        ("json", to_json(judgement)),
        ("xml", to_junit(judgement)),
        ("html", to_html(judgement)),
    )
    return dict(forms)
