"""The plan of a profile's memory, as an operator asks for it, on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPlaybook
from tests.playbooks.test_refusals import inventory

PAPER = {"total": "121.69 GiB", "available": "113 GiB"}


def asked(profile: str, **changed: Any) -> dict[str, Any]:
    return {"appliance_profile": profile, "plan_offline": PAPER | changed}


@pytest.mark.parametrize(
    ("profile", "verdict"),
    [("fast", "unmeasured"), ("r9-520k", "fits, measured"), ("r9-550k", "refused")],
)
def test_plan_on_paper_contacts_no_node_and_leaves_pictures(
    run_playbook: RunPlaybook, tmp_path: Path, profile: str, verdict: str
) -> None:
    variables = {"appliance_accept_unmeasured_floor": False}
    target = inventory(tmp_path, variables)
    receipts = tmp_path / "receipts"
    done = run_playbook(
        "playbooks/plan.yml",
        inventory=target,
        extra=asked(profile) | {"plan_receipts": str(receipts)},
    )
    assert done.code == 0, done.failures
    assert done.contacted == ()
    assert set(done.changed.values()) <= {0}
    said = json.loads((receipts / f"envelope-{profile}.json").read_text(encoding="utf-8"))
    assert said["verdict"] == verdict
    assert [node["node"] for node in said["nodes"]] == ["alpha", "bravo", "charlie", "delta"]
    for suffix in ("svg", "png"):
        assert (receipts / f"envelope-{profile}.{suffix}").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"total": "121.69"}, "bare number"),
        ({"total": "127600748 kB"}, "/proc/meminfo"),
        ({"available": "122 GiB"}, "impossible"),
    ],
)
def test_totals_without_a_clear_unit_are_refused(
    run_playbook: RunPlaybook, tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    target = inventory(tmp_path, {"appliance_accept_unmeasured_floor": False})
    done = run_playbook(
        "playbooks/plan.yml",
        inventory=target,
        extra=asked("fast", **changed) | {"plan_receipts": str(tmp_path / "receipts")},
    )
    assert done.code != 0
    assert said in "\n".join(done.failures)
    assert not (tmp_path / "receipts").exists()
