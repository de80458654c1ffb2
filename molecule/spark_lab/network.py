"""Three bridges in a namespace of their own, and the cables from them to nodes.

The engine makes this machine drop what its own bridges would forward; a namespace is out of its
reach.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass

from spark_lab.process import LabError, answers, run
from spark_lab.spec import MANAGEMENT, RAIL_A, RAIL_B, UNPLUGGED, Lab

# A frame of 9000 bytes must pass; a node starts at the factory's 1500.
SWITCH_MTU = 9000
FACTORY_MTU = 1500
BRIDGES = ("rail-a", "rail-b", "mgmt")


@dataclass(frozen=True, slots=True)
class Cable:
    """One veth pair.

    Args:
        interface: its end in a container.
        port: its end in the switch.
        bridge: what the port is plugged into; None leaves the interface without carrier.
    """

    interface: str
    port: str
    bridge: str | None


def node_cables(node: str) -> tuple[Cable, ...]:
    """Return a node's cables; management is last, and its coming lets the node boot."""
    dark = [Cable(interface, f"{node}-dark{n}", None) for n, interface in enumerate(UNPLUGGED)]
    plugged = [
        Cable(interface, f"{node}-{bridge}", bridge)
        for interface, bridge in zip((RAIL_A, RAIL_B, MANAGEMENT), BRIDGES, strict=True)
    ]
    return (*dark, *plugged)


def make_switch(lab: Lab) -> None:
    """Make the bridges and this machine's own port on the management network.

    Raises:
        LabError: the network is somebody else's on this machine.
    """
    _refuse_foreign_block(lab)
    switch = ["ip", "-n", lab.switch]
    if not answers([*switch, "link", "show", BRIDGES[-1]]):
        remove_switch(lab)
        run(["ip", "netns", "add", lab.switch])
        for bridge in BRIDGES:
            run([*switch, "link", "add", bridge, "type", "bridge"])
            run([*switch, "link", "set", bridge, "mtu", str(SWITCH_MTU), "up"])
    if not answers(["ip", "link", "show", lab.uplink]):
        peer = ["type", "veth", "peer", "name", "uplink", "netns", lab.switch]
        run(["ip", "link", "add", lab.uplink, *peer])
        run([*switch, "link", "set", "uplink", "master", "mgmt", "up"])
    run(["ip", "address", "replace", f"{lab.management(1)}/24", "dev", lab.uplink])
    run(["ip", "link", "set", lab.uplink, "up"])


def plug(lab: Lab, pid: int, number: int, cables: tuple[Cable, ...]) -> None:
    """Lay those cables that are missing into the network namespace of a process.

    Args:
        lab: whose switch they lead to.
        pid: the first process of a container.
        number: the last octet of the container's addresses, which names it.
        cables: its cables, always in the same order.
    """
    inside = ["nsenter", "--net", "--target", str(pid), "ip", "link"]
    switch = ["ip", "-n", lab.switch, "link"]
    for position, cable in enumerate(cables):
        if answers([*inside, "show", cable.interface]):
            continue
        # The port of a container that is gone may outlive it by a moment.
        answers([*switch, "del", cable.port])
        # The same address each time: peers remember it when a node is made anew.
        address = f"02:00:{lab.block:02x}:00:{number:02x}:{position:02x}"
        own = [cable.interface, "netns", str(pid), "mtu", str(FACTORY_MTU), "address", address]
        peer = ["type", "veth", "peer", "name", cable.port, "netns", lab.switch]
        run(["ip", "link", "add", *own, *peer])
        run([*switch, "set", cable.port, "mtu", str(SWITCH_MTU)])
        if cable.bridge:
            run([*switch, "set", cable.port, "master", cable.bridge, "up"])
        run([*inside, "set", cable.interface, "up"])


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
