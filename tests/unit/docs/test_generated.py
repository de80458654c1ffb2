# SPDX-License-Identifier: Apache-2.0
"""Pages that follow from code are current, and every case has its answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import declared

from docs.generate import PAGES
from tests.unit.checks import test_cases, test_fleets
from tests.unit.checks.test_cases import CASES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("path", PAGES)
def test_the_page_is_current(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == PAGES[path](), f"{path} is stale: run python docs/generate.py"


def test_the_cases_that_checks_answer_are_tests() -> None:
    tested = {"-".join(case.id.split("-")[:2]) for case in CASES}
    for module in (test_cases, test_fleets):
        tested |= {
            f"{match[1].upper()}-{match[2]}"
            for name in vars(module)
            if (match := re.match(r"test_([a-z]+)_(\d\d)_", name))
        }
    answered = {case for check in declared() for case in check.cases}
    assert answered - tested == set()


def test_the_cases_that_are_tested_are_listed() -> None:
    listed = yaml.safe_load((ROOT / "docs/cases.yml").read_text(encoding="utf-8"))
    assert len(listed) == 129
    for case in CASES:
        name = "-".join(case.id.split("-")[:2])
        assert name in listed, case.id
