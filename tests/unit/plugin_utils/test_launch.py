"""What holds of every rendered launch, whatever the profile."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding
from ansible_collections.spark.appliance.plugins.plugin_utils.launch import (
    NodeLaunch,
    NodeView,
    node_view,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_rules import REFERENCES

from tests.fixtures.nodes.compose import HARDENED
from tests.fixtures.nodes.fleet import plain_facts
from tests.unit.plugin_utils.launch_cases import (
    NODES,
    PROFILES,
    R13,
    SITE,
    VIEW,
    recipe,
    rendered,
)


def hardened(**network: Any) -> NodeFacts:
    """Return a hardened node's facts; ``network`` names the carrier of single interfaces."""
    facts = copy.deepcopy(plain_facts("alpha", HARDENED))
    for interface in facts["sections"]["network"]["data"]["interfaces"]:
        interface["carrier"] = network.get(interface["name"], interface["carrier"])
    return NodeFacts.of("alpha", facts)


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def words(launch: NodeLaunch) -> str:
    return "\n".join((*launch.container_argv, *launch.server_argv, *launch.stop_argv))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_rank_announces_its_own_address_to_one_head(profile: str) -> None:
    launches = rendered(profile)
    assert [launch.rank for launch in launches.values()] == [0, 1, 2, 3]
    hosts = [launch.env["VLLM_HOST_IP"] for launch in launches.values()]
    assert hosts == [f"10.77.0.{n}" for n in (11, 12, 13, 14)]
    for launch in launches.values():
        address = value_of(launch.container_argv, "--node-ip-address")
        assert address == launch.env["VLLM_HOST_IP"]
        assert launch.env["RAY_ADDRESS"] == "10.77.0.11:6379"
    assert "--head" in launches["alpha"].container_argv
    for node in NODES[1:]:
        assert value_of(launches[node].container_argv, "--address") == "10.77.0.11:6379"
        assert launches[node].server_argv == ()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_container_runs_in_the_foreground_and_never_by_itself(profile: str) -> None:
    for launch in rendered(profile).values():
        argv = launch.container_argv
        assert argv[:4] == ("docker", "run", "--name", "spark-engine")
        assert value_of(argv, "--restart") == "no"
        assert value_of(argv, "--pull") == "never"
        assert value_of(argv, "--device") == "/dev/infiniband"
        assert value_of(argv, "--ulimit") == "memlock=-1:-1"
        assert value_of(argv, "--cap-add") == "IPC_LOCK"
        assert argv[-1] == "--block"
        assert not {"-d", "--detach", "--privileged", "--rm", "sleep"} & set(argv)
        weights = [word for word in argv if "target=/models" in word]
        assert [word.endswith(",readonly") for word in weights] == [True]


@pytest.mark.parametrize("profile", PROFILES)
def test_dcp_flags_stand_only_above_dcp_1(profile: str) -> None:
    argv = rendered(profile)["alpha"].server_argv
    assert ("--dcp-comm-backend" in argv) == (R13.profile(profile).dcp > 1)
    assert ("--dcp-kv-cache-interleave-size" in argv) == (R13.profile(profile).dcp > 1)


def test_each_profile_compiles_into_a_cache_of_its_own() -> None:
    caches = {rendered(profile)["alpha"].cache for profile in PROFILES}
    assert len(caches) == len(PROFILES)
    for profile in PROFILES:
        launch = rendered(profile)["alpha"]
        assert f"source=/var/cache/{launch.cache},target=/cache" in words(launch)


def test_variables_that_are_not_set_are_left_out() -> None:
    views = dict.fromkeys(NODES, NodeView("enp1s0f1np1"))
    env = rendered("fast", views=views)["alpha"].env
    assert "NCCL_IB_HCA" not in env
    assert "NCCL_IB_GID_INDEX" not in env
    assert all(value != "" for value in env.values())


def test_a_selector_keeps_its_equals_sign() -> None:
    # `=a,b` is NCCL's exact match; docker's env file takes all after the first sign as the value.
    views = dict.fromkeys(NODES, NodeView("enp1s0f1np1", ("=rocep1s0f1", "roceP2p1s0f1")))
    assert rendered("fast", views=views)["alpha"].env["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"


def test_each_node_has_its_own_interfaces() -> None:
    other = NodeView("enp1s0f0np0", ("rocep1s0f0", "roceP2p1s0f0"))
    launches = rendered("fast", views=dict.fromkeys(NODES, VIEW) | {"charlie": other})
    assert launches["charlie"].env["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert launches["charlie"].env["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert launches["bravo"].env["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1"


def test_the_key_is_in_no_command_line() -> None:
    for launch in rendered("fast").values():
        assert "VLLM_API_KEY" not in words(launch)
        assert "api-key" not in words(launch)
    assert "api.env" in words(rendered("fast")["alpha"])
    assert "api.env" not in words(rendered("fast")["bravo"])


@pytest.mark.parametrize(
    "change",
    [
        {"site": replace(SITE, api_port=8001)},
        {"site": replace(SITE, weights_dir="/srv/weights")},
        {"views": dict.fromkeys(NODES, VIEW) | {"delta": NodeView("enp1s0f0np0", VIEW.hcas)}},
        {"salt": "another template or key"},
    ],
)
def test_any_difference_on_any_node_makes_another_launch_everywhere(
    change: dict[str, Any],
) -> None:
    before, after = rendered("fast"), rendered("fast", **change)
    assert {launch.id for launch in before.values()} == {before["alpha"].id}
    assert {launch.id for launch in after.values()} == {after["alpha"].id}
    assert before["alpha"].id != after["alpha"].id


def test_the_same_is_rendered_twice() -> None:
    assert rendered("balanced") == rendered("balanced")
    assert rendered("balanced")["alpha"].id in words(rendered("balanced")["alpha"])


def test_a_multinode_engines_ranks_are_the_containers_themselves() -> None:
    views = dict.fromkeys(NODES, NodeView("enp1s0f1np1"))
    launches = rendered("fast", recipe("lab-tp4"), views=views)
    for rank, launch in enumerate(launches.values()):
        argv = launch.container_argv
        # --headless is read by `serve` alone; elsewhere a rank would start an engine of its own.
        assert value_of(argv, "vllm.entrypoints.cli.main") == "serve"
        assert value_of(argv, "--nnodes") == "4"
        assert value_of(argv, "--node-rank") == str(rank)
        assert value_of(argv, "--master-addr") == "10.77.0.11"
        assert value_of(argv, "--master-port") == "29501"
        assert ("--headless" in argv) == (rank > 0)
        assert ("api.env" in words(launch)) == (rank == 0)
        assert launch.server_argv == ()
        assert "RAY_ADDRESS" not in launch.env
        assert "ray" not in argv


def test_the_labs_ray_recipe_serves_beside_ray_on_one_rank() -> None:
    views = dict.fromkeys(NODES, NodeView("enp1s0f1np1"))
    head = rendered("balanced", recipe("lab"), views=views)["alpha"]
    assert value_of(head.server_argv, "--tensor-parallel-size") == "1"
    assert value_of(head.server_argv, "--distributed-executor-backend") == "uni"
    assert not {"--gpus", "--device", "--ulimit", "--cap-add"} & set(head.container_argv)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_every_reference_of_the_schema_has_a_value(name: str) -> None:
    server = R13.server.model_copy(update={"flags": {"flag": f"${name}"}})
    head = rendered("fast", R13.model_copy(update={"server": server}))["alpha"]
    assert value_of(head.server_argv, "--flag") != f"${name}"


class TestNodeView:
    """The rails' netdevs and RDMA devices, from facts."""

    def test_the_live_cages_rails_in_order(self) -> None:
        view = node_view(hardened(), R13)
        assert view == NodeView("enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1"))

    def test_without_rdma_no_device_is_asked_for(self) -> None:
        facts = hardened()
        bare = NodeFacts("alpha", {"network": facts.sections["network"]})
        assert node_view(bare, recipe("lab")) == NodeView("enp1s0f1np1")
        refused = node_view(bare, R13)
        assert isinstance(refused, Finding)
        assert "rdma" in refused.expected

    @pytest.mark.parametrize(
        "carrier",
        [
            {"enp1s0f1np1": False},
            {"enP2p1s0f1np1": False},
            {"enp1s0f1np1": False, "enP2p1s0f1np1": False},
            {"enp1s0f0np0": True},
            {"enp1s0f0np0": True, "enP2p1s0f0np0": True},
        ],
    )
    def test_half_a_cage_two_cages_or_none_are_refused(self, carrier: dict[str, bool]) -> None:
        refused = node_view(hardened(**carrier), R13)
        assert isinstance(refused, Finding)
        assert refused.node == "alpha"
        assert "exactly one cage" in refused.expected
