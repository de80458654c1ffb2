from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from spark_lab import network
from spark_lab.network import make_switch, node_cables
from spark_lab.process import LabError
from spark_lab.spec import MANAGEMENT, NODES, UNPLUGGED, lab_from


def test_management_is_the_last_cable_as_a_node_boots_on_it() -> None:
    cables = node_cables("alpha")
    assert cables[-1].interface == MANAGEMENT
    assert [cable.interface for cable in cables if cable.bridge is None] == list(UNPLUGGED)


@pytest.mark.parametrize("node", [node.name for node in NODES])
def test_port_names_fit_the_kernel(node: str) -> None:
    assert all(len(cable.port) <= 15 for cable in node_cables(node))


@pytest.mark.parametrize("taken", ["10.76.0.0/24", "10.0.0.0/8", "10.76.0.9"])
def test_a_network_that_is_in_use_here_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: object) -> str:
        calls.append(argv)
        routes = [{"dst": "default", "dev": "eth0"}, {"dst": taken, "dev": "tun7"}]
        return json.dumps(routes)

    monkeypatch.setattr(network, "run", run)
    with pytest.raises(LabError, match=r"tun7; set LAB_BLOCK"):
        make_switch(lab_from({}))
    assert [argv[-1] for argv in calls] == ["show"]
