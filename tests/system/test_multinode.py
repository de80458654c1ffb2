"""The engine without Ray: four ranks that split one model, as the other recipe of the lab."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testinfra.host import Host

from tests.conftest import RunPlaybook

pytestmark = pytest.mark.lab

INVENTORY = "inventories/lab"
RECIPE = {"appliance_recipe": "lab-tp4"}


@pytest.fixture
def back_to_ray(run_playbook: RunPlaybook) -> Iterator[None]:
    """The lab serves its own recipe again afterwards."""
    yield
    done = run_playbook("site.yml", inventory=INVENTORY)
    assert done.code == 0, done.failures


@pytest.mark.usefixtures("back_to_ray")
def test_four_ranks_serve_one_model_and_verify_agrees(
    hosts: dict[str, Host], run_playbook: RunPlaybook
) -> None:
    done = run_playbook("site.yml", inventory=INVENTORY, extra=RECIPE)
    assert done.code == 0, done.failures
    for rank, host in enumerate(hosts.values()):
        launch = json.loads(host.check_output("cat /etc/spark-appliance/current/launch.json"))
        assert launch["recipe"] == "lab-tp4"
        argv = host.check_output("docker exec spark-engine cat /proc/1/cmdline").split("\0")
        assert argv[argv.index("--node-rank") + 1] == str(rank)
        assert argv[argv.index("--tensor-parallel-size") + 1] == "4"
    verified = run_playbook("site.yml", inventory=INVENTORY, options="--tags verify", extra=RECIPE)
    assert verified.code == 0, verified.failures
    assert " 0 error, 0 warning" in verified.output
