# SPDX-License-Identifier: Apache-2.0
"""Which node reaches which on which rail, and with how large a packet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from ipaddress import IPv4Interface
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    ordered,
)

RAILS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Path:
    """What ping saw from a rail of one node to the same rail of a peer.

    Parameters:
        node: the node that probed.
        rail: ``a`` or ``b``.
        interface: its netdev.
        peer: the node that was probed.
        address: the peer's address.
        payload_bytes: ICMP payload of the large probe, sent unfragmented.
        sent: large packets sent.
        received: large packets answered.
        local_mtu: MTU that the own interface refused the packet with, in bytes.
        path_mtu: MTU that a router on the way refused it with, in bytes.
        small_received: small packets answered, asked for only where large ones were lost.
        error: why the probe did not run, empty where it did.
    """

    node: str
    rail: str
    interface: str
    peer: str
    address: str
    payload_bytes: int
    sent: int
    received: int
    local_mtu: int | None = None
    path_mtu: int | None = None
    small_received: int | None = None
    error: str = ""

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Path:
        """Return a path from the module's answer."""
        return cls(**{entry.name: item[entry.name] for entry in fields(cls)})

    @property
    def reached(self) -> bool:
        """Whether any packet was answered."""
        return not self.error and (self.received > 0 or bool(self.small_received))


def reach_request(rails: Mapping[str, Sequence[str]], mtu: int) -> dict[str, dict[str, Any]]:
    """Return for each node the paths that it has to prove: option ``reach`` of ``node_facts``.

    Parameters:
        rails: rail addresses with prefix length by node, rail A first.
        mtu: Ethernet MTU of the rails in bytes.
    """
    hosts = {
        name: dict(zip(RAILS, (str(IPv4Interface(text).ip) for text in listed), strict=False))
        for name, listed in rails.items()
    }
    return {
        name: {
            "mtu": mtu,
            "paths": [
                {
                    "node": name,
                    "rail": rail,
                    "source": source,
                    "peer": peer,
                    "address": theirs[rail],
                }
                for peer, theirs in hosts.items()
                for rail, source in own.items()
                if peer != name and rail in theirs
            ],
        }
        for name, own in hosts.items()
    }


class Topology(StrEnum):
    """How the nodes of a rail are joined, as far as reachability tells."""

    PAIR = "pair"
    SWITCH = "switch"
    RING = "ring"
    PARTIAL = "partial"


def topology(paths: Iterable[Path], nodes: Sequence[str]) -> Topology:
    """Return the topology of one rail.

    A ring is one where every node reaches two neighbours and all of them form one circle.

    Parameters:
        paths: the rail's paths.
        nodes: all nodes.
    """
    reached = {(path.node, path.peer) for path in paths if path.reached}
    near = {
        name: [n for n in nodes if (name, n) in reached and (n, name) in reached] for name in nodes
    }
    if all(len(peers) == len(nodes) - 1 for peers in near.values()):
        return Topology.PAIR if len(nodes) == 2 else Topology.SWITCH
    if any(len(peers) != 2 for peers in near.values()):
        return Topology.PARTIAL
    circle, step = [nodes[0]], near[nodes[0]][0]
    while step != nodes[0]:
        circle.append(step)
        step = next(name for name in near[step] if name != circle[-2])
    return Topology.RING if len(circle) == len(nodes) else Topology.PARTIAL


def _finding(
    node: str,
    rule: str,
    title: str,
    *,
    expected: str,
    found: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
    variable: str = "",
) -> Finding:
    return Finding(f"fabric.{rule}", node, severity, title, expected, found, remedy, variable)


def _alike(paths: Iterable[Path]) -> Iterator[tuple[Path, str, str]]:
    """Yield the paths of a node that answered alike as one: it, its label and its addresses."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        groups.setdefault(replace(path, peer="", address=""), []).append(path)
    for path, group in groups.items():
        interface = f" ({path.interface})" if path.interface else ""
        peers = ", ".join(member.peer for member in group)
        label = f"{path.node} → {peers} on rail {path.rail.upper()}{interface}"
        yield path, label, ", ".join(member.address for member in group)


def _judge_alike(path: Path, label: str, addresses: str, mtu: int) -> Iterator[Finding]:
    if path.error:
        yield _finding(
            path.node,
            "reach_probe",
            "every path can be probed",
            expected=f"an answer of ping for {label}",
            found=path.error,
            remedy="see that the rail has its address and that ping works; the path was not judged",
        )
    elif path.received == path.sent:
        return
    elif path.local_mtu is not None:
        yield _finding(
            path.node,
            "reach_host_mtu",
            "the node's own rail lets full packets out",
            expected=f"MTU {mtu} on {path.interface}",
            found=f"MTU {path.local_mtu}",
            remedy="run playbooks/fabric.yml",
            variable="appliance_fabric_mtu",
        )
    elif path.received:
        yield _finding(
            path.node,
            "reach_loss",
            "no packet is lost on a rail",
            severity=Severity.WARNING,
            expected=f"{path.sent} of {path.sent} answers for {label}",
            found=f"{path.received} of {path.sent}",
            remedy="look at cable, transceiver and switch port",
        )
    elif path.small_received:
        limit = f"; a router allows {path.path_mtu}" if path.path_mtu else ""
        yield _finding(
            path.node,
            "reach_path_mtu",
            "the path carries what the rails are set to",
            expected=f"{path.payload_bytes} B of payload unfragmented for {label}",
            found=f"0 of {path.sent} answers, but {path.small_received} to small packets{limit}",
            remedy="raise the MTU of the switch ports, or lower it on all nodes",
            variable="appliance_fabric_mtu",
        )
    else:
        yield _finding(
            path.node,
            "reach_peer",
            "every node reaches every other on every rail",
            expected=f"answers of {addresses} for {label}",
            found=f"none to {path.sent} large nor to small packets",
            remedy="look at the peer's rail, the cable and the switch; a firewall may drop ICMP",
        )


def _missing(
    paths: Sequence[Path], nodes: Sequence[str], rails: Sequence[str], unread: Collection[str]
) -> Iterator[str]:
    seen = {(path.node, path.peer, path.rail) for path in paths}
    for rail in rails:
        for node in nodes:
            peers = [peer for peer in nodes if node != peer and (node, peer, rail) not in seen]
            if peers and node not in unread:
                yield f"{node} → {', '.join(peers)} on rail {rail.upper()}"


def judge_reach(
    paths: Sequence[Path],
    nodes: Sequence[str],
    rails: Sequence[str],
    mtu: int,
    unread: Collection[str] = (),
) -> list[Finding]:
    """Return what keeps full packets from passing both ways between all nodes on all rails.

    The MTU of a node's own rail and that of the path beyond it are separate findings, since the
    remedies differ. A path that nobody probed is a finding too.

    Parameters:
        paths: what all nodes saw.
        nodes: all nodes; one alone has no path to prove.
        rails: the rails to prove, ``a`` and ``b``.
        mtu: Ethernet MTU of the rails in bytes.
        unread: nodes that could not be asked, of which the caller has said so.
    """
    found: list[Finding] = []
    for rail in rails:
        on_rail = [path for path in paths if path.rail == rail]
        if topology(on_rail, nodes) is Topology.RING and len(nodes) > 3:
            found.append(
                _finding(
                    "",
                    "topology",
                    "every node reaches every other",
                    expected=f"a switch or a pair on rail {rail.upper()}",
                    found="a ring: each node reaches its two neighbours alone",
                    remedy="join the nodes by a switch; no recipe here is made for a ring",
                )
            )
            on_rail = [path for path in on_rail if path.reached or path.error]
        for path, label, addresses in _alike(on_rail):
            found += _judge_alike(path, label, addresses, mtu)
    for label in _missing(paths, nodes, rails, unread):
        found.append(
            _finding(
                "",
                "reach_probe",
                "every path can be probed",
                expected=f"a probe of {label}",
                found="none",
                remedy="run the proof on all nodes; the path was not judged",
            )
        )
    return ordered(dict.fromkeys(found))
