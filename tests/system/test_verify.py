"""Verify on the served lab: silent while all is well, and by name when the server is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_lab.spec import Lab
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


@pytest.fixture
def narrow_port(lab: Lab, head: Host) -> Iterator[None]:
    """The switch carries small packets alone on one port, whatever both ends are set to."""
    del head

    def set_mtu(mtu: int) -> None:
        port = ("ip", "-n", lab.switch, "link", "set", "bravo-rail-b", "mtu", str(mtu))
        subprocess.run(port, check=True)

    set_mtu(1500)
    yield
    set_mtu(9000)


@pytest.mark.usefixtures("narrow_port")
def test_net_10_a_switch_port_that_drops_full_packets_fails_verify_for_both_ends() -> None:
    failed = verify()
    assert failed.returncode != 0
    refused = failed.stdout.partition("refused,")[2].partition("PLAY RECAP")[0]
    assert "unfragmented for bravo → alpha, charlie, delta on rail B" in refused
    assert "unfragmented for delta → bravo on rail B" in refused
    assert "0 of 3 answers, but 3 to small packets" in refused
    assert "rail A" not in refused


@pytest.fixture
def pulled_cable(lab: Lab, head: Host) -> Iterator[None]:
    """One of a node's two rails has no carrier."""
    del head

    def port(state: str) -> None:
        subprocess.run(("ip", "-n", lab.switch, "link", "set", "bravo-rail-b", state), check=True)

    port("down")
    yield
    port("up")
    deadline = time.monotonic() + 60
    while verify().returncode != 0:
        if time.monotonic() > deadline:
            pytest.fail("the rail did not come back after the test")
        time.sleep(2)


@pytest.mark.usefixtures("pulled_cable")
def test_a_pulled_cable_hides_no_other_check_although_no_launch_can_be_rendered() -> None:
    failed = verify()
    assert failed.returncode != 0
    for finding in ("(fabric.rails)", "(fabric.reach)", "(launch.node_view)"):
        assert finding in failed.stdout
    assert "drift.node" in failed.stdout
