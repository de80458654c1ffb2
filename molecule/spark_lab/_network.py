"""Three bridges in a namespace of their own, and the cables from them to nodes.

The engine makes this machine drop what its own bridges would forward; a namespace is out of its
reach.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass

from spark_lab._run import LabError, answers, run
from spark_lab._spec import MANAGEMENT, RAIL_A, RAIL_B, RELEASE_NUMBER, UNPLUGGED, Lab, Node

# A frame of 9000 bytes must pass; a node starts at the factory's 1500.
SWITCH_MTU = 9000
FACTORY_MTU = 1500
BRIDGES = {"mgmt": MANAGEMENT, "rail-a": RAIL_A, "rail-b": RAIL_B}


@dataclass(frozen=True, slots=True)
class Cable:
    """One veth pair: a node's interface, its port in the switch and the bridge it is plugged into."""

    interface: str
    port: str
    bridge: str | None


def cables(node: str) -> tuple[Cable, ...]:
    """Return a node's interfaces; management is last, and its coming lets the node boot."""
    dark = [Cable(name, f"{node}-dark{n}", None) for n, name in enumerate(UNPLUGGED)]
    plugged = [
        Cable(BRIDGES[bridge], f"{node}-{bridge}", bridge) for bridge in ("rail-a", "rail-b", "mgmt")
    ]
    return (*dark, *plugged)


def make_switch(lab: Lab) -> None:
    """Make the bridges and this machine's own port on the management network.

    Raises:
        LabError: the network is somebody else's on this machine.
    """
    _refuse_foreign_block(lab)
    switch = ["ip", "-n", lab.switch]
    if not answers([*switch, "link", "show", "rail-b"]):
        remove_switch(lab)
        run(["ip", "netns", "add", lab.switch])
        for bridge in BRIDGES:
            run([*switch, "link", "add", bridge, "type", "bridge"])
            run([*switch, "link", "set", bridge, "mtu", str(SWITCH_MTU), "up"])
    if not answers(["ip", "link", "show", lab.uplink]):
        run(
            ["ip", "link", "add", lab.uplink, "type", "veth"]
            + ["peer", "name", "uplink", "netns", lab.switch]
        )
        run([*switch, "link", "set", "uplink", "master", "mgmt", "up"])
    address = f"{lab.management(1)}/24"
    run(["ip", "address", "replace", address, "dev", lab.uplink])
    run(["ip", "link", "set", lab.uplink, "up"])


def plug(lab: Lab, node: Node, pid: int) -> None:
    """Give the network namespace of process `pid` a node's interfaces, as far as they are missing."""
    inside = ["nsenter", "--net", "--target", str(pid)]
    for position, cable in enumerate(cables(node.name)):
        if answers([*inside, "ip", "link", "show", cable.interface]):
            continue
        # A port whose node is gone disappears a moment later by itself.
        answers(["ip", "-n", lab.switch, "link", "del", cable.port])
        run(
            ["ip", "link", "add", cable.interface, "netns", str(pid), "mtu", str(FACTORY_MTU)]
            + ["address", _mac(lab, node.number, position)]
            + ["type", "veth", "peer", "name", cable.port, "netns", lab.switch]
        )
        set_port = ["ip", "-n", lab.switch, "link", "set", cable.port, "mtu", str(SWITCH_MTU)]
        run(set_port)
        if cable.bridge:
            run([*set_port, "master", cable.bridge, "up"])
        if cable.interface != MANAGEMENT:
            run([*inside, "ip", "link", "set", cable.interface, "up"])


def plug_release(lab: Lab, pid: int, address: str) -> None:
    """Connect the release server to the management network under an address."""
    inside = ["nsenter", "--net", "--target", str(pid)]
    if answers([*inside, "ip", "link", "show", MANAGEMENT]):
        return
    answers(["ip", "-n", lab.switch, "link", "del", "release-mgmt"])
    run(
        ["ip", "link", "add", MANAGEMENT, "netns", str(pid)]
        + ["address", _mac(lab, RELEASE_NUMBER, 0)]
        + ["type", "veth", "peer", "name", "release-mgmt", "netns", lab.switch]
    )
    run(["ip", "-n", lab.switch, "link", "set", "release-mgmt", "master", "mgmt", "up"])
    run([*inside, "ip", "address", "add", f"{address}/24", "dev", MANAGEMENT])
    run([*inside, "ip", "link", "set", MANAGEMENT, "up"])


def remove_switch(lab: Lab) -> None:
    """Remove the bridges and this machine's port."""
    answers(["ip", "link", "del", lab.uplink])
    answers(["ip", "netns", "del", lab.switch])


def _refuse_foreign_block(lab: Lab) -> None:
    """Refuse a management network that another interface of this machine is in."""
    network = ipaddress.ip_network(f"{lab.management(0)}/24")
    for route in json.loads(run(["ip", "-4", "-j", "route", "show"])):
        if route["dst"] == "default" or route.get("dev") == lab.uplink:
            continue
        if network.overlaps(ipaddress.ip_network(route["dst"])):
            msg = (
                f"the lab's management network {network} overlaps {route['dst']} on"
                f" {route.get('dev')}; set LAB_BLOCK to the second octet of a free 10.x network"
            )
            raise LabError(msg)


def _mac(lab: Lab, number: int, position: int) -> str:
    """Return the same address for the same interface each time: peers remember it over a re-creation."""
    return f"02:00:{lab.block:02x}:00:{number:02x}:{position:02x}"
