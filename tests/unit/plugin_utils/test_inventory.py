"""Inventories: each fault gets its own message, and all of them come at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding
from ansible_collections.spark.appliance.plugins.plugin_utils.inventory import (
    VARIABLES,
    Inventory,
    read_inventory,
)

from tests.unit.plugin_utils.launch_cases import R13, ROOT

KEY = "0123456789abcdef" * 4
NODES = ("alpha", "bravo", "charlie", "delta")
SHARED: dict[str, Any] = {
    "appliance_api_bind": "10.76.0.11",
    "appliance_api_key": KEY,
    "appliance_api_port": 8000,
    "appliance_fabric_mtu": 9000,
    "appliance_ray_port": 6379,
    "appliance_release_url": "http://10.76.0.10:8080/",
    "appliance_weights_dir": "/var/lib/spark-appliance/weights/glm-5.2",
    "appliance_weights_source": "file:///srv/weights",
}


def inventory(changes: dict[str, dict[str, Any]] | None = None) -> Inventory:
    """Return a sound inventory with differences by node; ``all`` changes every node."""
    changes = changes or {}
    hosts = {
        name: {
            "ansible_host": f"10.76.0.{11 + i}",
            "spark_rail_a": f"10.77.0.{11 + i}/24",
            "spark_rail_b": f"10.77.1.{11 + i}/24",
        }
        | SHARED
        | changes.get("all", {})
        | changes.get(name, {})
        for i, name in enumerate(NODES)
    }
    return Inventory(NODES[:1], NODES[1:], hosts, {name: tuple(hosts[name]) for name in NODES})


def judged(changed: Inventory) -> list[Finding]:
    site, findings = read_inventory(changed, R13.topology.nodes, R13.ports())
    assert (site is None) == bool(findings)
    return findings


@pytest.mark.parametrize(
    "source", [f"hub://owner/na.me@{'0a' * 20}", "control:///srv/weights", "https://10.0.0.1/w"]
)
def test_weights_come_from_a_hub_the_control_node_or_a_server(source: str) -> None:
    assert judged(inventory({"all": {"appliance_weights_source": source}})) == []


def test_a_sound_inventory_is_a_site() -> None:
    site, findings = read_inventory(inventory(), R13.topology.nodes, R13.ports())
    assert findings == []
    assert site is not None
    assert site.nodes == NODES
    assert site.rank_address("charlie") == "10.77.0.13"
    assert [site.role(node) for node in NODES] == ["head", "worker", "worker", "worker"]


@pytest.mark.parametrize(
    ("node", "variable", "value", "check", "said"),
    [
        # Not filled in.
        ("alpha", "ansible_host", "<address>", "fill_in", "<address>"),
        ("alpha", "ansible_host", None, "fill_in", "nothing"),
        ("alpha", "ansible_host", " ", "fill_in", "nothing"),
        ("alpha", "ansible_host", "198.51.100.11", "fill_in", "documentation"),
        ("bravo", "spark_rail_a", "203.0.113.12/24", "fill_in", "documentation"),
        ("all", "appliance_api_bind", "192.0.2.1", "fill_in", "documentation"),
        ("all", "appliance_api_bind", "2001:db8::1", "fill_in", "documentation"),
        ("all", "appliance_release_url", "<URL>", "fill_in", "<URL>"),
        ("all", "appliance_weights_dir", "", "fill_in", "nothing"),
        # Addresses.
        ("delta", "spark_rail_a", "10.77.0.014/24", "leading_zero", "octal"),
        ("delta", "ansible_host", "010.76.0.14", "leading_zero", "octal"),
        ("delta", "spark_rail_a", "10.77.0/24", "address", "10.77.0"),
        ("delta", "spark_rail_a", "10.77.0.14", "prefix", "prefix length"),
        ("delta", "spark_rail_a", "10.77.0.14/33", "prefix", "/30"),
        ("delta", "spark_rail_a", "10.77.0.14/32", "prefix", "/30"),
        ("delta", "spark_rail_a", "10.77.0.0/24", "rail", "host address"),
        ("delta", "spark_rail_a", "10.77.0.255/24", "rail", "host address"),
        ("delta", "spark_rail_a", "169.254.28.198/16", "rail", "link-local"),
        ("delta", "spark_rail_a", "8.8.8.8/24", "rail", "private"),
        ("delta", "spark_rail_a", "fd00::14/24", "rail", "IPv4"),
        ("delta", "ansible_host", "spark_4!", "address", "name"),
        # Between nodes.
        ("bravo", "spark_rail_a", "10.77.0.11/24", "duplicate", "alpha [spark_rail_a]"),
        ("bravo", "ansible_host", "10.76.0.11", "duplicate", "alpha [ansible_host]"),
        ("bravo", "spark_rail_a", "10.77.5.12/24", "one_prefix", "10.77.5.0/24"),
        ("bravo", "spark_rail_a", "10.77.0.12/16", "one_prefix", "10.77.0.0/16"),
        ("bravo", "ansible_host", "10.77.0.99", "management_apart", "10.77.0.99"),
        # The API's address.
        ("all", "appliance_api_bind", "0.0.0.0", "bind", "wildcard"),  # noqa: S104 -- refused
        ("all", "appliance_api_bind", "::", "bind", "wildcard"),
        ("all", "appliance_api_bind", "8.8.8.8", "bind", "private"),
        ("all", "appliance_api_bind", "169.254.1.1", "bind", "private"),
        ("all", "appliance_api_bind", "::ffff:8.8.8.8", "bind", "private"),
        ("all", "appliance_api_bind", "*", "address", "found *;"),
        ("all", "appliance_api_bind", "localhost", "address", "localhost"),
        # Ports.
        ("all", "appliance_api_port", "http", "port", "1024"),
        ("all", "appliance_api_port", 80, "port", "1024"),
        ("all", "appliance_api_port", 65536, "port", "65535"),
        ("all", "appliance_api_port", "08000", "port", "08000"),
        ("all", "appliance_api_port", True, "port", "True"),
        ("all", "appliance_api_port", 6379, "port", "another port"),
        ("all", "appliance_api_port", 20500, "port", "ray.min_worker_port"),
        ("all", "appliance_ray_port", 6380, "port", "ray.node_manager_port"),
        ("all", "appliance_ray_port", None, "port", "None"),
        # The key.
        ("all", "appliance_api_key", None, "key", "nothing"),
        ("all", "appliance_api_key", "<from your vault>", "key", "a placeholder"),
        ("all", "appliance_api_key", "secret", "key", "6 characters"),
        ("all", "appliance_api_key", KEY[:40] + " " + KEY, "key", "spaces"),
        ("all", "appliance_api_key", 12345678901234567890123456789012, "key", "nothing"),
        # The rails' MTU.
        ("all", "appliance_fabric_mtu", 4096, "mtu", "active_mtu"),
        ("all", "appliance_fabric_mtu", "09000", "mtu", "9000"),
        ("all", "appliance_fabric_mtu", 1400, "mtu", "1500"),
        ("all", "appliance_fabric_mtu", 9979, "mtu", "9978"),
        ("all", "appliance_fabric_mtu", True, "mtu", "True"),
        # Sources and paths.
        ("all", "appliance_release_url", "ftp://10.0.0.1/", "source", "https://"),
        ("all", "appliance_release_url", "http://10.0.0.1/a b", "source", "URL"),
        ("all", "appliance_weights_source", "http://ops:pw@10.0.0.1/", "source", "password"),
        ("all", "appliance_weights_source", "hub://owner/name@main", "source", "40 hexadecimal"),
        ("all", "appliance_weights_source", "control://srv/x", "source", "control:///"),
        ("all", "appliance_release_url", f"hub://owner/name@{'a' * 40}", "source", "https://"),
        ("all", "appliance_weights_dir", "weights", "path", "absolute"),
        ("all", "appliance_weights_dir", "/a,readonly=false", "path", "--mount"),
        ("all", "appliance_weights_dir", "/a/../etc", "path", "absolute"),
        # Names.
        ("alpha", "nccl_ib_hca", "mlx5_0", "derived", "derived from each node's facts"),
        ("all", "NCCL_IB_HCA", "enp1s0f0np0", "derived", "derived from each node's facts"),
        ("all", "roce_iface", "enp1s0f0np0", "derived", "derived from each node's facts"),
        ("all", "appliance_api_prot", 8000, "variable", "appliance_api_port"),
        ("alpha", "spark_rail_c", "10.77.2.11/24", "variable", "spark_rail_"),
    ],
)
def test_each_fault_has_its_own_message(
    node: str, variable: str, value: Any, check: str, said: str
) -> None:
    findings = judged(inventory({node: {variable: value}}))
    own = [finding for finding in findings if finding.check == f"inventory.{check}"]
    assert own, [finding.message() for finding in findings]
    assert said in own[0].message()
    assert variable in own[0].message() or check == "management_apart"
    # A host's own variable names the host; what all share names all.
    if node != "all" and check != "one_prefix":
        assert own[0].node == node


@pytest.mark.parametrize(
    "bind", ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "127.0.0.1", "::1"]
)
def test_what_may_be_bound(bind: str) -> None:
    assert judged(inventory({"all": {"appliance_api_bind": bind}})) == []


def test_rails_in_one_prefix_are_refused() -> None:
    rails = {name: {"spark_rail_b": f"10.77.0.{111 + i}/24"} for i, name in enumerate(NODES)}
    assert [finding.check for finding in judged(inventory(rails))] == ["inventory.rails_apart"]


def test_the_key_is_in_no_message() -> None:
    for key in ("short-secret-7391", KEY + "\nX"):
        for finding in judged(inventory({"all": {"appliance_api_key": key}})):
            assert key[:12] not in str(finding.as_dict())


@pytest.mark.parametrize(
    ("head", "workers", "check"),
    [
        ((), NODES, "head"),
        (NODES[:2], NODES[2:], "head"),
        (NODES[:1], NODES, "groups"),
        (NODES[:1], NODES[1:3], "nodes"),
        ((), (), "head"),
    ],
)
def test_groups_are_one_head_and_the_recipes_workers(
    head: tuple[str, ...], workers: tuple[str, ...], check: str
) -> None:
    changed = Inventory(head, workers, inventory().hosts)
    assert f"inventory.{check}" in {finding.check for finding in judged(changed)}


def test_all_faults_come_at_once() -> None:
    findings = judged(
        inventory(
            {
                "all": {"appliance_fabric_mtu": 4096, "appliance_api_bind": "::"},
                "bravo": {"spark_rail_a": "10.77.0.012/24"},
                "delta": {"ansible_host": "<x>"},
            }
        )
    )
    assert {finding.check for finding in findings} == {
        "inventory.mtu",
        "inventory.bind",
        "inventory.leading_zero",
        "inventory.fill_in",
    }


def test_a_fault_in_the_recipe_still_leaves_the_inventory_judged() -> None:
    _, findings = read_inventory(inventory({"all": {"appliance_fabric_mtu": 4096}}), None)
    assert [finding.check for finding in findings] == ["inventory.mtu"]


def test_every_variable_is_in_the_example_inventory() -> None:
    folder = ROOT / "inventories" / "example"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.yml"))
    assert [name for name in sorted(VARIABLES) if f"{name}:" not in text] == []
