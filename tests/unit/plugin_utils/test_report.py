# SPDX-License-Identifier: Apache-2.0
"""Reports: compact for people, complete for machines, safe whatever a tool printed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

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

from tests.fixtures.nodes import edits as e
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


def test_one_of_a_kind_is_counted_in_the_singular() -> None:
    judged = replace(_judgement(), checks=select(Phase.VERIFY)[:1], nodes=NODES[:1])
    assert judged.summary.startswith("1 check on 1 node: ")


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
    assert "1500; 1600" in infos
    many = [_finding(Severity.INFO, text=f"row {number} → {number + 1}") for number in range(200)]
    table = to_table(_judgement(*many))
    assert "row 0 → 1; row 1 → 2" in " ".join(table.split())
    assert "more)" in table
    assert len(table.splitlines()) < 30


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


HOSTILE = {
    "escape-sequence": "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "c1-csi": "\x9b31mred",
    "script": "<script>alert(1)</script>",
    "attribute": "\" onload='alert(1)' x=\"",
    "line-feeds": "fine\nalpha: all good\r\nerror  all",
    "carriage-return": "bad\rgood",
    "separators": "a\u2028b\u2029c\x85d",
    "direction": "a\u202etxt.exe\u202c\u2066b\u2069",
    "surrogate": "a\ud800b",
    "not-utf8": b"caf\xe9 \xff\xfe".decode("utf-8", "replace"),
    "kept-bytes": b"caf\xe9".decode("utf-8", "surrogateescape"),
    "nul": "a\x00b",
    "end-of-cdata": "]]> <![CDATA[",
    "entity": "&amp; &#27; &lt;",
    "markup": "[bold]x[/bold] [link=x]",
    "braces": "{title} {0} {{ 1 + 1 }}",
    "very-long": "x" * 3_000_000,
    "long-with-escapes": "\x1b[31m" * 100_000,
    "nasty": NASTY,
}
FIELDS = ("node", "expected", "found", "remedy", "evidence", "variable", "title")


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= {key for key, _ in attrs}


def _structure(page: str) -> tuple[dict[str, int], set[str]]:
    seen = _Texts()
    seen.feed(page)
    return seen.tags, seen.attributes


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_string_of_a_node_is_harmless_in_every_form(
    text: str, field: str, severity: Severity
) -> None:
    calm = _judgement(replace(_finding(severity), evidence="e", variable="v"))
    changed: dict[str, Any] = {field: text}
    judgement = _judgement(replace(calm.findings[0], **changed))
    forms = render(judgement) | {"message": judgement.findings[0].message()}
    for form, body in forms.items():
        body.encode()
        assert len(body) < 100_000, form
        lines = body.split("\n")
        assert all(line.isprintable() for line in lines), form
    assert forms["message"].count("\n") == 0
    assert len(json.loads(forms["json"])["findings"]) == 1
    assert _structure(forms["html"]) == _structure(to_html(calm))
    suite = ET.fromstring(forms["xml"].encode())  # noqa: S314 -- our own output
    assert [element.tag for element in suite.iter()] == [
        element.tag
        for element in ET.fromstring(to_junit(calm).encode()).iter()  # noqa: S314 -- as above
    ]
    table = to_table(judgement)
    assert all(line.isprintable() and len(line) <= 120 for line in table.splitlines())
    table.encode()


def test_what_a_tool_printed_breaks_no_form() -> None:
    judgement = _judgement(_finding(text=NASTY))
    forms = render(judgement)
    assert "<script>" in json.loads(forms["json"])["findings"][0]["found"]
    assert "<script>" not in forms["html"]
    forms["html"].encode()
    ET.fromstring(forms["xml"].encode())  # noqa: S314 -- our own output
    table = to_table(judgement, width=400)
    assert "[bold]x[/bold]" in table
    assert "\x1b" not in table


def test_a_hostile_node_is_judged_and_told_harmlessly() -> None:
    evil = "\x1b[2J\x9b31m<script>alert(1)</script>\u202e" + "x" * 5000
    edits = [
        e.write("/proc/swaps", f"Filename Type Size Used Priority\n/{evil} file 9 0 -2\n"),
        e.write("/etc/fstab", f"/{evil} none swap sw 0 0\r\n"),
        e.second_container(evil),
        e.write("/etc/apt/sources.list.d/x.list", f"{evil}\n"),
        e.text("/etc/dgx-release", '"7.5.0"', f'"{evil}"'),
        e.container(HostConfig={"RestartPolicy": {"Name": evil}}),
        e.write(
            "/run/NetworkManager/system-connections/w.nmconnection",
            f"[connection]\nid={evil}\ntype=ethernet\ninterface-name=enp1s0f1np1\n",
        ),
        e.write("/_commands/timedatectl.txt", evil),
    ]
    findings = judge(context(edits={"bravo": edits}), Phase.VERIFY)
    judgement = _judgement(*findings)
    told = " ".join(finding.found for finding in findings)
    assert told.count("alert(1)") >= 5, "the node's strings do reach the findings"
    for form, body in (render(judgement) | {"table": to_table(judgement)}).items():
        assert all(line.isprintable() for line in body.split("\n")), form
        assert form in {"json", "table"} or "<script" not in body
    assert all(finding.message().isprintable() for finding in findings)
