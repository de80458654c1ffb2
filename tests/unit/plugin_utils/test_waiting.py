from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.waiting import Goal, assess

ADDRESSES = ["10.77.0.11", "10.77.0.12"]
ACTIVE = {"ActiveState": "active", "SubState": "running", "Result": "success"}


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "units": {"spark-engine.service": ACTIVE},
        "log": [],
        "ray_nodes": [],
        "ray_error": "",
        "health": 0,
    } | changes


def ranks(*addresses: str, gpus: float = 1.0, alive: bool = True) -> list[dict[str, Any]]:
    return [{"address": address, "alive": alive, "gpus": gpus} for address in addresses]


def look(goal: Goal, answer: dict[str, Any], elapsed_s: float = 1.0) -> tuple[bool, bool, str]:
    got = assess(goal, answer, addresses=ADDRESSES, gpus=2, elapsed_s=elapsed_s, timeout_s=60.0)
    return got.done, got.failed, got.line


def test_all_ranks_with_their_gpus_are_the_goal() -> None:
    done, failed, line = look(Goal.RANKS, seen(ray_nodes=ranks(*ADDRESSES)))
    assert (done, failed) == (True, False)
    assert "2 of 2 ranks joined" in line


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (ranks(ADDRESSES[0]), "missing 10.77.0.12"),
        (ranks(ADDRESSES[0]) + ranks(ADDRESSES[1], alive=False), "missing 10.77.0.12"),
        (ranks(*ADDRESSES, "198.51.100.40"), "not of this appliance: 198.51.100.40"),
        (ranks(*ADDRESSES, gpus=0.0), "expected 2 GPUs in all, found 0"),
    ],
    ids=["absent", "dead", "foreign", "no-gpu"],
)
def test_a_cluster_that_is_not_ours_and_whole_is_waited_for_then_refused(
    nodes: list[dict[str, Any]], said: str
) -> None:
    assert look(Goal.RANKS, seen(ray_nodes=nodes))[:2] == (False, False)
    done, failed, line = look(Goal.RANKS, seen(ray_nodes=nodes), elapsed_s=60.0)
    assert (done, failed) == (False, True)
    assert said in line


def test_no_address_to_wait_for_is_never_reached() -> None:
    got = assess(Goal.RANKS, seen(), addresses=[], gpus=0, elapsed_s=1.0, timeout_s=60.0)
    assert not got.done


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("state", ["failed", "inactive", "deactivating", None])
def test_a_stopped_unit_ends_the_wait_at_once(goal: Goal, state: str | None) -> None:
    units = {"spark-engine.service": ACTIVE, "spark-api.service": {"ActiveState": state}}
    done, failed, line = look(goal, seen(units=units, health=200, ray_nodes=ranks(*ADDRESSES)))
    assert (done, failed) == (False, True)
    assert "spark-api.service stopped" in line


def test_health_is_reached_only_by_200() -> None:
    assert look(Goal.HEALTH, seen(health=200))[0]
    assert not look(Goal.HEALTH, seen(health=503))[0]


def test_progress_carries_the_servers_last_word() -> None:
    assert "Loading weights" in look(Goal.HEALTH, seen(log=["Loading weights"]))[2]
