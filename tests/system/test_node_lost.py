"""A node that is lost in the middle of a run: named, and what serves goes on serving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_lab.spec import Lab
from testinfra.host import Host

from tests.conftest import ROOT, RunPlaybook

pytestmark = pytest.mark.lab

STAGING = "PLAY [Render the launch and stage it on every node]"
STARTING = "TASK [cutover : Start | Wait for the head's rank]"
CURRENT = "readlink /etc/spark-appliance/current"
SINCE = "systemctl show --property=ActiveEnterTimestampMonotonic,MainPID spark-engine.service"


def cable(lab: Lab, state: str) -> None:
    """Set the port that delta is managed through."""
    switch = f"{lab.name}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", "delta-mgmt", state], check=True)


def roll_and_lose_delta(lab: Lab, lost_at: str) -> tuple[int, str]:
    """Roll to the other profile; return status and output of a run that lost delta at a line."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "inventories/lab"]
    with subprocess.Popen(
        [*command, "playbooks/roll.yml", "-e", "profile=fast"],
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        lines = []
        try:
            for line in run.stdout:
                lines.append(line)
                if lost_at in line:
                    cable(lab, "down")
        finally:
            cable(lab, "up")
    output = "".join(lines)
    assert lost_at in output
    return run.returncode, output


def test_a_node_lost_before_the_cutover_is_named_and_the_service_untouched(
    lab: Lab, hosts: dict[str, Host]
) -> None:
    before = hosts["alpha"].check_output(SINCE)
    code, output = roll_and_lose_delta(lab, STAGING)
    assert code != 0
    assert "delta: expected an ssh login at" in output, output[-3000:]
    assert "PLAY [Switch all nodes to the staged launch]" not in output
    assert hosts["alpha"].check_output(SINCE) == before


def test_a_node_lost_in_the_cutover_leaves_the_old_launch_in_force_and_site_yml_serves_it(
    lab: Lab, hosts: dict[str, Host], run_playbook: RunPlaybook
) -> None:
    before = hosts["alpha"].check_output(CURRENT)
    code, output = roll_and_lose_delta(lab, STARTING)
    assert code != 0
    told = " ".join(output.split())
    assert "; delta no longer answers, so nothing serves and the other nodes are stopped" in told
    for name in ("alpha", "bravo", "charlie"):
        assert hosts[name].check_output(CURRENT) == before
        assert not hosts[name].service("spark-engine.service").is_running
    # Delta has the new launch in force; a profile that nobody named is not guessed.
    refused = run_playbook("site.yml", inventory="inventories/lab")
    assert refused.code != 0
    assert any("(launch.profile)" in failure for failure in refused.failures)
    served = run_playbook("site.yml", inventory="inventories/lab", extra={"profile": "balanced"})
    assert served.code == 0, served.failures
    assert {host.check_output(CURRENT) for host in hosts.values()} == {before}
