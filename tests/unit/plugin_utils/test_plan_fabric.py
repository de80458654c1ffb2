from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.fabric import (
    NETPLAN_PATH,
    WAY_BACK_TIMER,
    FabricPlan,
    FabricPolicy,
    Rail,
    plan_fabric,
    plan_fabrics,
    render_netplan,
)

from tests.fixtures.nodes.compose import FACTORY, HARDENED, NODES, Edit
from tests.fixtures.nodes.edits import (
    address,
    carrier,
    link,
    mode,
    remove,
    remove_links,
    status,
    unit,
    write,
)
from tests.unit.plugin_utils.plan_cases import node

ADDRESSES = ("10.77.0.11/24", "10.77.1.11/24")
RAIL_A, RAIL_B = "enp1s0f1np1", "enP2p1s0f1np1"
RAILS = (Rail("a", RAIL_A, ADDRESSES[0], 9000), Rail("b", RAIL_B, ADDRESSES[1], 9000))
POLICY = FabricPolicy()
GET = "/_commands/netplan-get.txt"


def plan(
    *edits: Edit,
    layers: tuple[str, ...] = HARDENED,
    addresses: tuple[str, ...] = ADDRESSES,
    policy: FabricPolicy = POLICY,
    serving: bool = False,
) -> FabricPlan:
    return plan_fabric(node(*edits, layers=layers), addresses, policy, serving=serving)


def refused(made: FabricPlan) -> str:
    """Return the check that refused, after seeing that nothing is planned with it."""
    (finding,) = made.findings
    assert made == FabricPlan(findings=made.findings)
    assert made.as_dict()["content"] == ""
    return finding.check.removeprefix("fabric.plan_")


def merged(**entries: dict[str, Any]) -> Edit:
    tree = {"network": {"version": 2, "renderer": "NetworkManager", "ethernets": entries}}
    return write(GET, yaml.safe_dump(tree))


def kept(text: str, **more: Any) -> dict[str, Any]:
    return {"addresses": [text], "dhcp4": False, "mtu": 9000, **more}


def test_a_factory_node_gets_its_file_and_its_live_rails() -> None:
    made = plan(layers=FACTORY)
    assert (made.write, made.apply, made.rails) == (True, True, RAILS)
    assert made.control_interface == "enP7s7"
    assert made.changes == (
        f"write {NETPLAN_PATH}",
        f"{RAIL_A}: address none → 10.77.0.11/24",
        f"{RAIL_A}: MTU 1500 → 9000",
        f"{RAIL_B}: address none → 10.77.1.11/24",
        f"{RAIL_B}: MTU 1500 → 9000",
    )
    assert made.findings == ()


def test_a_node_with_its_rails_kept_in_any_file_needs_nothing() -> None:
    made = plan()
    assert not made.needed
    assert made.changes == ()


def test_the_file_describes_the_rails_and_nothing_else_and_names_no_renderer() -> None:
    content = render_netplan(RAILS)
    assert content.startswith("#")
    tree = yaml.safe_load(content)["network"]
    assert set(tree) == {"version", "ethernets"}
    assert tree["ethernets"] == {
        name: {
            "optional": True,
            "dhcp4": False,
            "dhcp6": False,
            "link-local": [],
            "mtu": 9000,
            "addresses": [text],
        }
        for name, text in ((RAIL_A, ADDRESSES[0]), (RAIL_B, ADDRESSES[1]))
    }


def own_file(content: str) -> Edit:
    def edit(tree: Any) -> None:
        tree.write(NETPLAN_PATH, content)
        tree.modes[NETPLAN_PATH] = 0o600

    return edit


def test_its_own_file_in_force_needs_nothing() -> None:
    made = plan(own_file(render_netplan(RAILS)))
    assert not made.needed


@pytest.mark.parametrize(
    "edits",
    [
        (own_file("network: {}\n"),),
        (own_file(render_netplan(RAILS)), mode(NETPLAN_PATH, 0o644)),
    ],
    ids=["other content", "open to all"],
)
def test_net16_its_own_file_is_written_again_when_it_differs(edits: tuple[Edit, ...]) -> None:
    made = plan(*edits)
    assert (made.write, made.apply) == (True, False)


def test_net08_a_live_mtu_that_fell_back_is_applied_and_not_written() -> None:
    made = plan(link(RAIL_B, mtu=1500))
    assert (made.write, made.apply) == (False, True)
    assert made.changes == (f"{RAIL_B}: MTU 1500 → 9000",)


def test_net13_rails_that_live_only_in_memory_are_written_and_not_applied() -> None:
    made = plan(merged())
    assert (made.write, made.apply) == (True, False)


def test_net13_the_same_holds_under_a_serving_engine() -> None:
    made = plan(merged(), serving=True)
    assert (made.write, made.apply) == (True, False)


def test_net07_rail_b_without_an_address_is_given_one() -> None:
    made = plan(address(RAIL_B), merged(**{RAIL_A: kept(ADDRESSES[0])}))
    assert made.changes[1:] == (f"{RAIL_B}: address none → 10.77.1.11/24",)


def test_net12_link_local_addresses_give_way() -> None:
    made = plan(
        address(RAIL_A, "169.254.28.198/16"),
        merged(**{RAIL_A: {"link-local": ["ipv4"]}, RAIL_B: kept(ADDRESSES[1])}),
    )
    assert (made.write, made.apply) == (True, True)


def test_net12_link_local_beside_the_static_address_is_not_kept() -> None:
    entry = kept(ADDRESSES[0], **{"link-local": ["ipv4"]})
    assert plan(merged(**{RAIL_A: entry, RAIL_B: kept(ADDRESSES[1])})).write


def test_net15_an_address_from_a_dhcp_server_is_replaced_by_the_same_one_for_good() -> None:
    leased = {"family": "inet", "local": "10.77.0.11", "prefixlen": 24, "scope": "global"}
    made = plan(link(RAIL_A, addr_info=[{**leased, "dynamic": True}]))
    assert made.apply
    assert "leased" in made.changes[0]


def test_net02_the_rails_are_those_of_the_cage_in_use() -> None:
    made = plan(
        carrier(RAIL_A, up=False),
        carrier(RAIL_B, up=False),
        carrier("enp1s0f0np0", up=True),
        carrier("enP2p1s0f0np0", up=True),
        layers=FACTORY,
    )
    assert [rail.interface for rail in made.rails] == ["enp1s0f0np0", "enP2p1s0f0np0"]


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ((carrier("enp1s0f0np0", up=True),), "cage"),
        ((carrier(RAIL_A, up=False), carrier(RAIL_B, up=False)), "cage"),
        ((remove_links(RAIL_A, RAIL_B, "enp1s0f0np0", "enP2p1s0f0np0"),), "cage"),
        ((carrier(RAIL_B, up=False),), "rail"),
        ((link(RAIL_A, max_mtu=4096),), "mtu"),
        ((address("docker0", "10.77.0.11/16"),), "taken"),
        ((status("netplan-get", "1"),), "netplan"),
        ((status("ip-addr", "1"),), "facts"),
        ((remove("/_commands/ip-addr.txt"),), "facts"),
        ((unit(WAY_BACK_TIMER, LoadState="loaded", ActiveState="active"),), "armed"),
    ],
    ids=[
        "net18-both-cages",
        "net19-all-down",
        "net19-card-gone",
        "net07-half-a-cage",
        "mtu-too-high",
        "address-elsewhere",
        "netplan-fails",
        "ip-fails",
        "ip-silent",
        "unconfirmed-change",
    ],
)
def test_what_cannot_be_done_safely_is_refused(edits: tuple[Edit, ...], rule: str) -> None:
    assert refused(plan(*edits, layers=FACTORY)) == rule


def test_a_way_back_that_nobody_asked_about_is_not_taken_for_absent() -> None:
    facts = node(layers=FACTORY, units=())
    made = plan_fabric(facts, ADDRESSES, POLICY, serving=False)
    assert refused(made) == "armed"
    assert "not observed" in made.findings[0].found


def test_netplan_that_is_not_installed_is_refused() -> None:
    made = plan(remove("/usr/sbin/netplan"), layers=FACTORY)
    assert refused(made) == "netplan"
    assert "not installed" in made.findings[0].found


@pytest.mark.parametrize("text", ["10.77.0.061/24", "10.77.0.11/33", "", "alpha", "fd00::1/64"])
def test_net22_an_address_that_cannot_be_read_is_refused(text: str) -> None:
    made = plan(addresses=(text, ADDRESSES[1]))
    assert refused(made) == "address"
    assert made.findings[0].variable == "spark_rail_a"


@pytest.mark.parametrize(
    "session", ["198.51.100.5 50022 10.77.0.11 22", "198.51.100.5 1 1.1.1.1 22"]
)
def test_ans04_live_rails_do_not_change_under_the_session_that_changes_them(session: str) -> None:
    made = plan(write("/_commands/ssh-connection.txt", session), link(RAIL_B, mtu=1500))
    assert refused(made) == "control"
    assert made.findings[0].variable == "ansible_host"


def test_live_rails_do_not_change_under_a_serving_engine_unless_allowed() -> None:
    edit = link(RAIL_B, mtu=1500)
    made = plan(edit, serving=True)
    assert refused(made) == "serving"
    assert made.findings[0].variable == "fabric_allow_disruption"
    assert plan(edit, serving=True, policy=replace(POLICY, allow_disruption=True)).apply


def test_another_file_with_another_address_is_not_added_to() -> None:
    made = plan(merged(**{RAIL_A: kept("192.168.100.10/24")}), layers=FACTORY)
    assert refused(made) == "conflict"
    assert "192.168.100.10/24" in made.findings[0].found
    assert "01-network-manager-all.yaml" in made.findings[0].found


def test_another_file_that_overrides_ours_is_named_instead_of_written_against_for_ever() -> None:
    made = plan(
        own_file(render_netplan(RAILS)),
        merged(**{RAIL_A: kept(ADDRESSES[0], mtu=1500), RAIL_B: kept(ADDRESSES[1])}),
    )
    assert refused(made) == "conflict"


def test_stock_dhcp_in_an_earlier_file_gives_way_to_ours() -> None:
    assert plan(merged(**{RAIL_A: {"dhcp4": True}}), layers=FACTORY).write


def test_addresses_with_options_are_read_too() -> None:
    entry = {**kept(ADDRESSES[0]), "addresses": [{ADDRESSES[0]: {"lifetime": "0"}}]}
    assert not plan(merged(**{RAIL_A: entry, RAIL_B: kept(ADDRESSES[1])})).needed


def test_a_node_without_rails_in_the_inventory_is_left_alone() -> None:
    assert plan(addresses=(), layers=FACTORY) == FabricPlan()


def test_a_node_with_one_rail_has_one_described() -> None:
    made = plan(addresses=ADDRESSES[:1], layers=FACTORY)
    assert made.rails == RAILS[:1]


def fleet(*edits: Edit, layers: tuple[str, ...] = HARDENED) -> dict[str, FabricPlan]:
    addresses = {
        name: (f"10.77.0.{11 + i}/24", f"10.77.1.{11 + i}/24") for i, name in enumerate(NODES)
    }
    facts: dict[str, NodeFacts] = {
        name: node(*(edits if name == "bravo" else ()), name=name, layers=layers) for name in NODES
    }
    return plan_fabrics(facts, addresses, POLICY, serving=False)


def test_one_node_that_changes_has_all_nodes_prove_all_paths() -> None:
    plans = fleet(link(RAIL_B, mtu=1500))
    assert [name for name, made in plans.items() if made.needed] == ["bravo"]
    assert all(made.prove for made in plans.values())
    paths = {(p.node, p.peer, p.rail, p.address) for made in plans.values() for p in made.probes}
    assert len(paths) == 4 * 3 * 2
    assert ("alpha", "bravo", "b", "10.77.1.12") in paths


def test_a_fleet_that_is_right_proves_nothing_but_knows_its_paths() -> None:
    plans = fleet()
    assert not any(made.prove or made.needed for made in plans.values())
    assert all(len(made.probes) == 6 for made in plans.values())


def test_a_fleet_with_a_refusal_proves_nothing() -> None:
    plans = fleet(carrier(RAIL_B, up=False))
    assert not any(made.prove or made.probes for made in plans.values())


def test_a_plan_is_plain_data() -> None:
    shape = plan(layers=FACTORY).as_dict()
    assert json.loads(json.dumps(shape)) == shape
    assert yaml.safe_load(shape["content"])["network"]["version"] == 2
