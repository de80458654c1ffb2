"""Hosts of the running lab, over the same ssh as Ansible's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import testinfra
from spark_lab.spec import NODES, REPOSITORY, Lab, Node, current_lab, lab_from
from testinfra.host import Host

LabCommand = Callable[[Lab, str], str]


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab that the environment names; a failure when a node of it does not answer."""
    found = current_lab()
    # Without the lab's interface the addresses below would be looked for outside this machine.
    if not Path("/sys/class/net", found.uplink).exists():
        pytest.fail(f"no lab {found.name} on this machine; run make lab first")
    for node in NODES:
        address = found.management(node.number)
        try:
            with socket.create_connection((address, 22), timeout=5) as connection:
                banner = connection.recv(4)
        except OSError as error:
            pytest.fail(f"no ssh on {node.name} ({address}): {error}; run make lab first")
        if banner != b"SSH-":
            pytest.fail(f"{node.name} ({address}) answers, but not as ssh; run make lab-up")
    return found


@pytest.fixture(scope="session")
def hosts(lab: Lab) -> dict[str, Host]:
    """Every node by name, as root through sudo."""
    return {node.name: connect(lab, node) for node in NODES}


@pytest.fixture(params=[node.name for node in NODES])
def node(request: pytest.FixtureRequest) -> Node:
    """Each node's specification in turn."""
    return next(node for node in NODES if node.name == request.param)


@pytest.fixture
def host(hosts: dict[str, Host], node: Node) -> Host:
    """Each node in turn."""
    return hosts[node.name]


@pytest.fixture(scope="session")
def lab_command() -> LabCommand:
    """A function that runs `up` or `down` for a lab and returns what it said."""

    def command(lab: Lab, verb: str) -> str:
        chosen = {"LAB_NAME": lab.name, "LAB_BLOCK": str(lab.block)}
        environment = os.environ | chosen | {"PYTHONPATH": str(REPOSITORY / "molecule")}
        argv = [sys.executable, "-m", "spark_lab", verb]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{lab.name} did not go {verb}:\n{done.stdout}{done.stderr}")
        return done.stdout

    return command


@pytest.fixture(scope="session")
def fresh_lab(lab_command: LabCommand) -> Iterator[Lab]:
    """A second lab beside the running one, as delivered; removed afterwards."""
    fresh = lab_from(os.environ | {"LAB_NAME": "fresh", "LAB_BLOCK": "236"})
    lab_command(fresh, "down")
    lab_command(fresh, "up")
    yield fresh
    lab_command(fresh, "down")


def connect(lab: Lab, node: Node) -> Host:
    """Return a node of a lab as a testinfra host."""
    known = f"-o UserKnownHostsFile={lab.state / 'known_hosts'} -o StrictHostKeyChecking=yes"
    return testinfra.get_host(
        f"ssh://ops@{lab.management(node.number)}",
        ssh_identity_file=str(lab.state / "id_ed25519"),
        ssh_extra_args=known,
        sudo=True,
    )
