"""Hosts of the running lab, over the same ssh as Ansible's."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import testinfra
from spark_lab.spec import NODES, Lab, Node, current_lab
from testinfra.host import Host


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


def connect(lab: Lab, node: Node) -> Host:
    """Return a node of a lab as a testinfra host."""
    known = f"-o UserKnownHostsFile={lab.state / 'known_hosts'} -o StrictHostKeyChecking=yes"
    return testinfra.get_host(
        f"ssh://ops@{lab.management(node.number)}",
        ssh_identity_file=str(lab.state / "id_ed25519"),
        ssh_extra_args=known,
        sudo=True,
    )
