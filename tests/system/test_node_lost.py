"""A node that is lost in the middle of a run: named, and what serves goes on serving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_lab.spec import Lab
from testinfra.host import Host

from tests.conftest import ROOT

pytestmark = pytest.mark.lab

LOST_AT = "PLAY [Render the launch and stage it on every node]"
SINCE = "systemctl show --property=ActiveEnterTimestampMonotonic,MainPID spark-engine.service"


def cable(lab: Lab, state: str) -> None:
    """Set the port that delta is managed through."""
    switch = f"{lab.name}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", "delta-mgmt", state], check=True)


def test_a_node_lost_in_the_middle_is_named_and_the_service_untouched(
    lab: Lab, hosts: dict[str, Host]
) -> None:
    before = hosts["alpha"].check_output(SINCE)
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
                if LOST_AT in line:
                    cable(lab, "down")
        finally:
            cable(lab, "up")
    output = "".join(lines)
    assert LOST_AT in output
    assert run.returncode != 0
    assert "delta: expected an ssh login at" in output, output[-3000:]
    assert "PLAY [Switch all nodes to the staged launch]" not in output
    assert hosts["alpha"].check_output(SINCE) == before
