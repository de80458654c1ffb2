# SPDX-License-Identifier: Apache-2.0
"""What the rails to all peers let through, probed from this node with unfragmented packets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Json,
    Unknown,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.network import ADDR
from ansible_collections.spark.appliance.plugins.module_utils._ping import (
    IPV4_ICMP_BYTES,
    TIMEOUT_S,
    Echo,
    Probe,
    answer,
    ping_argv,
    prove_all,
)


@dataclass(frozen=True, slots=True)
class WantedPath:
    """One path to prove.

    Parameters:
        node: this node.
        rail: ``a`` or ``b``.
        source: this node's own address on the rail; the netdev that holds it sends.
        peer: name of the peer.
        address: the peer's address on the rail.
    """

    node: str
    rail: str
    source: str
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class Reach:
    """What to prove.

    Parameters:
        mtu: Ethernet MTU of the rails in bytes.
        paths: from this node to every peer on every rail.
    """

    mtu: int
    paths: tuple[WantedPath, ...]

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Reach:
        """Return what the module was asked."""
        return cls(asked["mtu"], tuple(WantedPath(**path) for path in asked["paths"]))


def _holders(host: Host) -> dict[str, str]:
    items: Json = host.ask_json(ADDR)
    try:
        return {
            entry["local"]: item["ifname"]
            for item in items
            for entry in item.get("addr_info", ())
            if entry.get("family") == "inet"
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise Unknown(f"ip: an interface is not as expected: {error!r}") from error


def observe_reach(host: Host, reach: Reach) -> list[dict[str, Any]]:
    """Return for each path what it let through, as ``_ping`` tells it; all run at the same time.

    Raises:
        Unknown: the node's own addresses could not be read.
    """
    payload_bytes = reach.mtu - IPV4_ICMP_BYTES
    holders = _holders(host)

    def ping(interface: str, address: str, payload: int) -> str:
        argv = tuple(ping_argv(interface, address, payload))
        name = f"ping-{interface}-{address}-{payload}"
        try:
            said = host.run(Command(name, argv, timeout_s=TIMEOUT_S, empty_ok=True))
        except Unknown as reason:
            return str(reason)
        return said.stdout + said.stderr

    probes = [
        Probe(path.node, path.rail, holders.get(path.source, ""), path.peer, path.address)
        for path in reach.paths
    ]
    proven = iter(prove_all([p for p in probes if p.interface], payload_bytes, ping))
    return [
        next(proven)
        if probe.interface
        else answer(probe, payload_bytes, Echo(error=f"no netdev holds {path.source}"), None)
        for probe, path in zip(probes, reach.paths, strict=True)
    ]
