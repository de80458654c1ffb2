"""One profile to another and back, and what is left when the new one dies on the way."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from testinfra.host import Host

from tests.conftest import Run, RunPlaybook

pytestmark = pytest.mark.lab

INVENTORY = "inventories/lab"
KILL = "docker exec spark-engine sh -c 'kill -KILL $(cat /run/spark-api.pid)'"


def launch(host: Host) -> dict[str, Any]:
    """Return the node's launch in force."""
    text = host.check_output("cat /etc/spark-appliance/current/launch.json")
    found: dict[str, Any] = json.loads(text)
    return found


def roll(run_playbook: RunPlaybook, profile: str) -> Run:
    return run_playbook("playbooks/roll.yml", inventory=INVENTORY, extra={"profile": profile})


def containers(host: Host) -> list[str]:
    """Return names and launches of the running containers."""
    shown = host.check_output(
        "docker ps --format '{{.Names}} {{.Label \"org.spark-appliance.launch\"}}'"
    )
    return str(shown).splitlines()


def test_a_roll_serves_the_other_profile_on_every_node(
    hosts: dict[str, Host], run_playbook: RunPlaybook
) -> None:
    done = roll(run_playbook, "fast")
    assert done.code == 0, done.failures
    for host in hosts.values():
        current = launch(host)
        assert current["profile"] == "fast"
        assert containers(host) == [f"spark-engine {current['id']}"]


def test_the_rolled_profile_stays_and_nothing_is_left_to_change(
    run_playbook: RunPlaybook,
) -> None:
    done = run_playbook("site.yml", inventory=INVENTORY)
    assert done.code == 0, done.failures
    assert not any(done.changed.values())


def kill_server_of(host: Host, profile: str, stop: threading.Event) -> None:
    """Kill the API server as soon as the profile's launch has one."""
    while not stop.wait(0.5):
        current = host.run("cat /etc/spark-appliance/current/launch.json").stdout
        if f'"profile": "{profile}"' in current and host.run(KILL).rc == 0:
            return


def test_a_server_that_dies_on_the_way_leaves_the_old_profile_serving(
    hosts: dict[str, Host], run_playbook: RunPlaybook
) -> None:
    before = launch(hosts["alpha"])
    stop = threading.Event()
    killer = threading.Thread(target=kill_server_of, args=(hosts["alpha"], "balanced", stop))
    killer.start()
    try:
        done = roll(run_playbook, "balanced")
    finally:
        stop.set()
        killer.join()
    assert done.code != 0
    assert any(f"launch {before['id']} serves again" in failure for failure in done.failures)
    assert {launch(host)["id"] for host in hosts.values()} == {before["id"]}
    verified = run_playbook("site.yml", inventory=INVENTORY, options="--tags verify")
    assert verified.code == 0, verified.failures


def test_and_back(hosts: dict[str, Host], run_playbook: RunPlaybook) -> None:
    done = roll(run_playbook, "balanced")
    assert done.code == 0, done.failures
    assert {launch(host)["profile"] for host in hosts.values()} == {"balanced"}
