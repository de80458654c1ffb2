"""Verify on the served lab: silent while all is well, and by name when the server is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testinfra.host import Host

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = os.environ.get("LAB_INVENTORY", "inventories/lab")
HEALTHY_WITHIN_S = 600


def verify() -> subprocess.CompletedProcess[str]:
    """Run verify as a user does."""
    playbook = Path(sys.executable).with_name("ansible-playbook")
    return subprocess.run(
        [str(playbook), "-i", INVENTORY, "site.yml", "--tags", "verify"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def head(hosts: dict[str, Host]) -> Iterator[Host]:
    """The head of a serving lab, which serves again afterwards."""
    host = hosts["alpha"]
    if not host.service("spark-api.service").is_running:
        pytest.fail("the lab does not serve: run ansible-playbook -i inventories/lab site.yml")
    yield host
    if host.service("spark-api.service").is_running:
        return
    host.check_output("systemctl restart spark-api.service")
    deadline = time.monotonic() + HEALTHY_WITHIN_S
    while verify().returncode != 0:
        if time.monotonic() > deadline:
            pytest.fail("the lab did not serve again after the test")
        time.sleep(10)


def test_a_killed_server_fails_verify_by_node_and_finding(head: Host) -> None:
    assert verify().returncode == 0
    head.check_output("docker exec spark-engine sh -c 'kill -KILL $(cat /run/spark-api.pid)'")
    deadline = time.monotonic() + 30
    while head.service("spark-api.service").is_running and time.monotonic() < deadline:
        time.sleep(0.5)
    failed = verify()
    assert failed.returncode != 0
    assert "alpha: the service's units are active: expected spark-api.service" in failed.stdout
    assert "(serving.api)" in failed.stdout
    assert "bravo:" not in failed.stdout.partition("refused,")[2].partition("PLAY RECAP")[0]
