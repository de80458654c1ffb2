# SPDX-License-Identifier: Apache-2.0
"""What listens where, and what the containers may do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    ON_PAPER,
    SERVING,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import FirewallRule, NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity

# Ray's dashboard, client server and job submission; each of them runs code for whoever asks.
RAY_CODE_PORTS = frozenset({8265, 10001, 52365})
# Control store, node manager and workers, which Ray names after their task.
RAY_SERVERS = ("gcs_server", "raylet", "ray::")


@check(
    "security.api_bind",
    "the API listens on its bind address only",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="start the launch that the recipe renders; host networking ignores Docker's port rules",
    cases=("SEC-01",),
)
def api_bind(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The socket is looked at, not the configuration that should have led to it."""
    site = context.site
    if node.name != site.head:
        return
    sockets = [entry for entry in node.listeners if entry.port == site.api_port]
    if not sockets:
        yield Problem(expected=f"a listener on {site.api_bind}:{site.api_port}", found="none")
    for entry in sockets:
        if entry.address != site.api_bind:
            yield Problem(
                expected=f"{site.api_bind}:{site.api_port} only",
                found=f"{entry.address}:{entry.port} ({entry.process or 'unknown process'})",
                variable="appliance_api_bind",
            )


@check(
    "security.bind_private",
    "the API's bind address is private",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="bind a private address of the head; a wildcard would answer on every network it is on",
    cases=("SEC-01",),
)
def bind_private(context: Context) -> Iterator[Problem]:
    """With host networking no port rule of Docker stands in front of the socket."""
    text = context.site.api_bind
    try:
        address = ipaddress.ip_address(text)
        fault = "a wildcard" if address.is_unspecified else ""
        fault = fault or ("" if address.is_private else "a public address")
    except ValueError as error:
        fault = str(error)
    if fault:
        yield Problem(
            node=context.site.head,
            expected="a private address",
            found=f"{text}: {fault}",
            variable="appliance_api_bind",
        )


@check(
    "security.api_key",
    "the API demands its key",
    scope=Scope.FLEET,
    phases=SERVING,
    remedy="set appliance_api_key and start the launch again",
    cases=("SEC-01",),
)
def api_key(context: Context) -> Iterator[Problem]:
    """The server is asked once without the key and must refuse."""
    serving = context.require(context.serving, "serving")
    status = serving.get("without_key")
    if serving.get("health") == 200 and status not in {401, 403}:
        yield Problem(
            node=context.site.head,
            expected="HTTP 401 without the key",
            found=f"HTTP {status}",
            variable="appliance_api_key",
        )


@check(
    "security.ray_ports",
    "Ray takes no orders from strangers",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="start the launch that the recipe renders: no dashboard and no client server, and "
    "RAY_AUTH_MODE=token with a secret RAY_AUTH_TOKEN on every node",
    cases=("SEC-01",),
)
def ray_ports(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Ray runs code for whoever reaches it, unless its token authentication is on.

    Its control store and raylets listen on every address whatever address they announce.
    """
    running = node.docker.container(context.launch(node.name).container)
    guarded = running is not None and running.ray_auth_mode == "token"
    unguarded = []
    for entry in node.listeners:
        exposed = entry.wildcard or _public(entry.address)
        owner = entry.process or "unknown process"
        if exposed and entry.port in RAY_CODE_PORTS:
            yield Problem(
                expected=f"port {entry.port} on loopback or a rail",
                found=f"{entry.address} ({owner})",
            )
        elif exposed and owner.startswith(RAY_SERVERS) and not guarded:
            unguarded.append(f"{owner} on {entry.address}:{entry.port}")
    if unguarded:
        yield Problem(
            expected="token authentication of Ray's open ports",
            found=f"none for {', '.join(unguarded)}",
            severity=Severity.WARNING,
        )


def _public(address: str) -> bool:
    return not ipaddress.ip_address(address).is_private


@check(
    "security.privileged",
    "no container is privileged",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=SERVING,
    remedy="start the launch that the recipe renders: devices and capabilities one by one",
    cases=("SEC-06",),
)
def privileged(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A privileged container is root on the node."""
    del context
    for entry in node.docker.containers:
        if entry.privileged and entry.state == "running":
            yield Problem(expected=f"{entry.name} without --privileged", found="privileged")


def _covers(network: str, addresses: list[ipaddress.IPv4Address]) -> list[bool]:
    try:
        parsed = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return [False] * len(addresses)
    return [address in parsed for address in addresses]


def _lets_through(
    rules: tuple[FirewallRule, ...],
    rail: str | None,
    own: ipaddress.IPv4Address,
    peers: list[ipaddress.IPv4Address],
) -> bool:
    """Whether the first rules that concern a rail allow every port to all peers.

    Parameters:
        rules: in the order in which ufw tries them.
        rail: netdev that holds ``own``; None where none does.
    """
    for rule in rules:
        elsewhere = rule.interface not in {"", rail} or not all(_covers(rule.destination, [own]))
        # ufw writes any where a rule is not for one protocol or port; ranks talk TCP.
        if elsewhere or rule.port != "any" or rule.protocol not in {"any", "tcp"}:
            continue
        covered = _covers(rule.source, peers)
        if rule.action == "allow" and all(covered):
            return True
        if rule.action in {"deny", "reject"} and any(covered):
            return False
    return False


@check(
    "security.firewall",
    "the firewall lets the fabric through",
    scope=Scope.NODE,
    phases=HOST,
    remedy="allow the rail prefixes on the rails (ufw allow in on RAIL from PREFIX), nothing wider",
    cases=("SEC-03",),
)
def firewall(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """NCCL and Ray use random ports between ranks, which a default-deny policy drops."""
    state = node.firewall
    if not state.enabled or state.input_policy not in {"drop", "reject"}:
        return
    for index, own in enumerate(context.site.rail_interfaces(node.name)):
        peers = [
            context.site.rail_interfaces(name)[index].ip
            for name in context.site.nodes
            if name != node.name and index < len(context.site.rail_interfaces(name))
        ]
        holder = node.network.holder(str(own.ip))
        rail = holder.name if holder else None
        if peers and not _lets_through(state.rules, rail, own.ip, peers):
            prefix = own.network
            yield Problem(
                expected=f"a rule that allows {prefix}",
                found=f"default {state.input_policy}, {len(state.rules)} rules, none for it",
            )
