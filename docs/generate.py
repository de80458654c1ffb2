#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the documentation that follows from code: docs/checks.md and docs/cases.md."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))

# The collection is found through the path above, which must be set first.
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (  # noqa: E402 -- see above
    Check,
    Phase,
    declared,
)

_AREAS = {
    "desktop": "Desktop",
    "disk": "Disk",
    "docker": "Container engine",
    "drift": "Drift",
    "fabric": "Fabric",
    "fleet": "Fleet",
    "identity": "Identity",
    "image": "Image",
    "launch": "Launch",
    "mdns": "Discovery",
    "memory": "Memory and swap",
    "power": "Power",
    "rdma": "RDMA",
    "security": "Security",
    "serving": "Serving",
    "time": "Time",
    "upgrade": "Upgrades",
    "weights": "Weights",
}

_CHECKS_HEAD = """# Checks

Written by `docs/generate.py` from the declarations in
`collections/ansible_collections/spark/appliance/plugins/plugin_utils/checks/`.

An *error* refuses the next step. A check with a role behind it only informs in `preflight`, since
that role runs next; from `gate` on it counts as declared. A section of the facts that could not be
read is a finding `observe.<section>` that names what was not judged, as severe as the worst check
that needed it. Checks marked *machines* are not made on nodes that are containers: kernel, swap and
kernel log then belong to another machine.
"""

_CASES_HEAD = """# Field cases

Written by `docs/generate.py` from `docs/cases.yml` and from the cases that each check names.

What goes wrong on real clusters, and what this toolkit does about it. *Refuse* stops before
anything is touched, *detect* reports, *repair* is done by a role, *ignore* means that it must not
raise an alarm. Cases of observing and judging are tests named by their id in
`tests/unit/checks/test_cases.py`.
"""


def _row(check: Check) -> str:
    phases = ", ".join(phase.value for phase in Phase if phase in check.phases)
    extra = f"; {check.repaired_by} repairs it" if check.repaired_by else ""
    machines = "; machines" if check.own_kernel else ""
    title = check.title[0].upper() + check.title[1:]
    return (
        f"### `{check.id}`\n\n"
        f"{title}. *{check.severity.value}, {check.scope.value}{machines}{extra}*\n\n"
        f"{check.doc}\n\n"
        f"- judged in: {phases}\n"
        f"- what to do: {check.remedy}\n"
        + (f"- cases: {', '.join(check.cases)}\n" if check.cases else "")
    )


def checks_page() -> str:
    """Return docs/checks.md."""
    parts = [_CHECKS_HEAD]
    for area, checks in groupby(declared(), key=lambda check: check.id.partition(".")[0]):
        parts.append(f"## {_AREAS[area]}\n")
        parts += [_row(check) for check in checks]
    return "\n".join(parts)


def cases_page() -> str:
    """Return docs/cases.md.

    Raises:
        ValueError: a check names a case that is not listed, or a case has neither check nor room.
    """
    cases = yaml.safe_load((ROOT / "docs/cases.yml").read_text(encoding="utf-8"))
    answered: dict[str, list[str]] = {}
    for check in declared():
        for case in check.cases:
            answered.setdefault(case, []).append(f"`{check.id}`")
    if unlisted := sorted(answered.keys() - cases.keys()):
        raise ValueError(f"checks name cases that docs/cases.yml lacks: {', '.join(unlisted)}")
    rows = ["| case | what happens | answer | where |", "|---|---|---|---|"]
    for name, case in cases.items():
        where = answered.get(name, [])
        if not where and "room" not in case:
            raise ValueError(f"case {name} is answered nowhere")
        listing = ", ".join(where) + ("; " if where and "room" in case else "")
        rows.append(
            f"| {name} | {case['what']} | {case['answer']} | {listing}{case.get('room', '')} |"
        )
    counted = sum(name in answered for name in cases)
    tail = f"\n{len(cases)} cases, {counted} of them answered by checks.\n"
    return f"{_CASES_HEAD}\n" + "\n".join(rows) + "\n" + tail


PAGES = {"docs/checks.md": checks_page, "docs/cases.md": cases_page}


def main() -> None:
    """Write every page."""
    for path, page in PAGES.items():
        (ROOT / path).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
