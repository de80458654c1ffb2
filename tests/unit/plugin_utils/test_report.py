# SPDX-License-Identifier: Apache-2.0
"""Reports: compact for people, complete for machines, safe whatever a tool printed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Phase, judge, select
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.report import (
    Judgement,
    render,
    to_html,
    to_json,
    to_junit,
    to_table,
)

from tests.fixtures.nodes.compose import FACTORY, NODES
from tests.fixtures.nodes.fleet import context

NASTY = "a\x00b\x1b[31m <script>alert(1)</script> [bold]x[/bold] & \ud800 ]]>"


def _judgement(*findings: Finding, phase: Phase = Phase.VERIFY) -> Judgement:
    return Judgement(
        phase.value,
        datetime(2026, 9, 21, 8, tzinfo=UTC),
        NODES,
        select(phase),
        findings,
        {"recipe": "glm52-r13", "profile": "balanced"},
    )


def _finding(severity: Severity = Severity.ERROR, node: str = "bravo", text: str = "x") -> Finding:
    return Finding("fabric.mtu", node, severity, "the MTU", "MTU 9000", text, "run fabric.yml")


def test_a_clean_judgement_is_one_line() -> None:
    assert to_table(_judgement()) == (
        f"{len(select(Phase.VERIFY))} checks on 4 nodes: 0 error, 0 warning, 0 info\n"
    )


@pytest.mark.parametrize(
    ("severity", "code"), [(Severity.ERROR, 2), (Severity.WARNING, 0), (Severity.INFO, 0)]
)
def test_the_exit_code_follows_the_severity(severity: Severity, code: int) -> None:
    assert _judgement(_finding(severity)).exit_code == code


def test_equal_findings_of_nodes_share_a_row() -> None:
    table = to_table(_judgement(*(_finding(node=name) for name in NODES[:2])))
    assert table.count("fabric.mtu") == 1
    assert "alpha, bravo" in table
    everywhere = to_table(_judgement(*(_finding(node=name) for name in NODES)))
    assert "error  all" in everywhere


def test_different_errors_keep_their_rows_and_information_is_folded() -> None:
    errors = to_table(_judgement(_finding(text="1500"), _finding(node="delta", text="1600")))
    assert errors.count("fabric.mtu") == 2
    infos = to_table(
        _judgement(_finding(Severity.INFO, text="1500"), _finding(Severity.INFO, "delta", "1600"))
    )
    assert infos.count("fabric.mtu") == 1
    assert "and 1 more" in infos


def test_a_factory_fleet_fits_a_screen() -> None:
    findings = judge(context(FACTORY), Phase.PREFLIGHT)
    table = to_table(_judgement(*findings, phase=Phase.PREFLIGHT))
    assert len(table.splitlines()) < 40
    assert max(map(len, table.splitlines())) <= 120


def test_json_holds_every_finding() -> None:
    findings = judge(context(FACTORY), Phase.VERIFY)
    record = json.loads(to_json(_judgement(*findings)))
    assert len(record["findings"]) == len(findings)
    assert record["counts"]["error"] > 0
    assert record["checks"] == [entry.id for entry in select(Phase.VERIFY)]
    assert record["facts"] == {"recipe": "glm52-r13", "profile": "balanced"}


def test_junit_has_a_case_for_every_check_and_fails_on_errors_only() -> None:
    blind = Finding("observe.gpu", "bravo", Severity.ERROR, "t", "e", "f", "r")
    suite = ET.fromstring(  # noqa: S314 -- our own output
        to_junit(_judgement(_finding(), _finding(Severity.INFO, "delta"), blind))
    )
    cases = suite.findall("testcase")
    assert len(cases) == len(select(Phase.VERIFY)) + 1
    assert suite.attrib["failures"] == "2"
    failed = [case for case in cases if case.find("failure") is not None]
    assert {(case.attrib["classname"], case.attrib["name"]) for case in failed} == {
        ("fabric", "mtu"),
        ("observe", "gpu"),
    }


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for key, value in attrs if key in {"src", "href"}]


def test_the_page_needs_no_other_file() -> None:
    page = _Page()
    page.feed(to_html(_judgement(_finding())))
    assert page.links == []
    assert "script" not in page.tags


def test_what_a_tool_printed_breaks_no_form() -> None:
    judgement = _judgement(_finding(text=NASTY))
    forms = render(judgement)
    assert json.loads(forms["json"])["findings"][0]["found"] == NASTY
    assert "<script>" not in forms["html"]
    forms["html"].encode()
    ET.fromstring(forms["xml"].encode())  # noqa: S314 -- our own output
    table = to_table(judgement, width=400)
    assert "[bold]x[/bold]" in table
    assert "\x1b" not in table
