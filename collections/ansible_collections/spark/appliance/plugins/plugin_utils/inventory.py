# SPDX-License-Identifier: Apache-2.0
"""What the inventory says, judged before any connection: a finding for each fault, all at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Site
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity

# ipaddress counts documentation ranges as private, so what may be bound is listed here.
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
_LOOPBACK = tuple(ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128"))
# RFC 5737 and RFC 3849: what examples are written with.
_DOCUMENTATION = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)
_LINK_LOCAL = tuple(ipaddress.ip_network(text) for text in ("169.254.0.0/16", "fe80::/10"))
_PLACEHOLDER = re.compile(r"<[^<>]*>")
_LEADING_ZERO = re.compile(r"(^|\.)0[0-9]")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
# 256 random bits as hexadecimal are 64 characters; 32 characters are the least that is accepted.
KEY_LENGTH = 32
# Ethernet MTU that the ConnectX-7 links run with; 4096 is an InfiniBand payload size, not an MTU.
MTU_RANGE = (1500, 9978)
INFINIBAND_MTU = 4096

# Every variable that the appliance reads; one beside them with its prefix is a typing error.
VARIABLES = frozenset(
    {"spark_rail_a", "spark_rail_b", "appliance_accept_unmeasured_floor", "appliance_api_bind",
     "appliance_api_key", "appliance_api_port", "appliance_fabric_mtu", "appliance_profile",
     "appliance_ray_port", "appliance_recipe", "appliance_release_url", "appliance_root",
     "appliance_weights_dir", "appliance_weights_source"}
)  # fmt: skip
_OWN = re.compile(r"(appliance|spark)_")
# What other tool kits ask for by hand and this one derives from each node's facts.
_DERIVED = re.compile(r"(?i)(nccl|gloo|ucx)_|(.*_)?(ib_hca|hca|hcas|gid_index|roce_iface|roce_if)$")
_PATH = re.compile(r"/[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_SCHEMES = ("http://", "https://", "file:///", "control:///")
# OWNER/NAME@REVISION of a model hub, by a revision that cannot change.
_HUB = re.compile(r"hub://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory as Ansible sees it, plain values only.

    Parameters:
        head: names in group ``head``.
        workers: names in group ``workers``, in inventory order.
        hosts: variables by host.
        names: names of all variables that a host has, by host; their values are not needed.
    """

    head: tuple[str, ...]
    workers: tuple[str, ...]
    hosts: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names by rank, the head first."""
        return (*self.head, *self.workers)

    def of_head(self, variable: str) -> Any:  # noqa: ANN401 -- whatever the inventory holds
        """Return a variable as the head sees it, None where it has none."""
        return self.hosts[self.head[0]].get(variable) if self.head else None


def _fault(  # noqa: PLR0917 -- rules read best as a table, one call a line
    rule: str, title: str, variable: str, expected: str, found: object, remedy: str, node: str = ""
) -> Finding:
    return Finding(
        check=f"inventory.{rule}",
        node=node,
        severity=Severity.ERROR,
        title=title,
        expected=expected,
        found=str(found),
        remedy=remedy,
        variable=variable,
    )


def _within(address: Address, networks: Sequence[Any]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _unset(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _fill_in(node: str, variable: str, value: object, what: str) -> Finding | None:
    """Return the finding for a value that still has to be filled in, whatever its kind."""
    if _unset(value) or (isinstance(value, str) and _PLACEHOLDER.search(value)):
        found = "nothing" if _unset(value) else value
        return _fault("fill_in", "is filled in", variable, what, found, "fill it in", node)
    return None


def _address(
    node: str, variable: str, text: object, what: str
) -> tuple[Address | None, list[Finding]]:
    """Return the address a text means, or what is wrong with it."""
    missing = _fill_in(node, variable, text, what)
    if missing:
        return None, [missing]
    shown = str(text)
    if _LEADING_ZERO.search(shown):
        remedy = "write it without the zero: some programs read 061 as 49 (octal)"
        return None, [_fault("leading_zero", "is an address", variable, what, shown, remedy, node)]
    try:
        address = ipaddress.ip_address(shown)
    except ValueError:
        remedy = "correct the address"
        return None, [_fault("address", "is an address", variable, what, shown, remedy, node)]
    if _within(address, _DOCUMENTATION):
        remedy = "replace the documentation address by the node's own"
        return None, [_fault("fill_in", "is filled in", variable, what, shown, remedy, node)]
    return address, []


def _rail(
    node: str, variable: str, text: object
) -> tuple[ipaddress.IPv4Interface | None, list[Finding]]:
    what = "an IPv4 address with prefix length, such as 10.77.0.11/24"
    missing = _fill_in(node, variable, text, what)
    if missing:
        return None, [missing]
    address, slash, prefix = str(text).partition("/")
    parsed, faults = _address(node, variable, address, what)
    if faults:
        return None, faults
    if not slash or not prefix.isdecimal() or not 8 <= int(prefix) <= 30 or parsed is None:
        remedy = "add the prefix length, between /8 and /30"
        return None, [_fault("prefix", "has a prefix length", variable, what, text, remedy, node)]
    if parsed.version != 4 or not _within(parsed, _PRIVATE):
        remedy = "use a private range of its own for each rail, fixed, not link-local"
        return None, [_fault("rail", "is a private address", variable, what, text, remedy, node)]
    rail = ipaddress.IPv4Interface(f"{parsed}/{prefix}")
    if rail.ip in {rail.network.network_address, rail.network.broadcast_address}:
        remedy = "use a host address of the prefix"
        return None, [_fault("rail", "is a host address", variable, what, text, remedy, node)]
    return rail, []


def _login(node: str, text: object) -> tuple[Address | str | None, list[Finding]]:
    """Return what a node is reached at: an address, or a name that the control node resolves."""
    what = "the node's address or name"
    missing = _fill_in(node, "ansible_host", text, what)
    if missing:
        return None, [missing]
    shown = str(text)
    if not re.fullmatch(r"[0-9.]+", shown) and ":" not in shown:
        if _HOST_NAME.fullmatch(shown):
            return shown, []
        remedy = "correct the name"
        return None, [_fault("address", "is a name", "ansible_host", what, shown, remedy, node)]
    return _address(node, "ansible_host", shown, what)


def _bind(value: object) -> list[Finding]:
    what = "a private address of the head"
    address, faults = _address("", "appliance_api_bind", value, what)
    if address is None:
        return faults
    if address.is_unspecified:
        remedy = "bind one private address; a wildcard would serve every network of the head"
    elif not _within(address, (*_PRIVATE, *_LOOPBACK)):
        remedy = "bind a private address and put an authenticating proxy before anything public"
    else:
        return []
    return [
        _fault("bind", "the API's address is private", "appliance_api_bind", what, value, remedy)
    ]


def _ports(inventory: Inventory, taken: Mapping[str, range]) -> Iterator[Finding]:
    seen: dict[int, str] = {}
    for variable in ("appliance_api_port", "appliance_ray_port"):
        value = inventory.of_head(variable)
        text = str(value)
        number = int(text) if re.fullmatch(r"[1-9][0-9]{3,4}", text) else 0
        if not 1024 <= number <= 65535:
            what = "a number from 1024 to 65535"
            yield _fault("port", "is a port", variable, what, value, "correct the port")
        elif number in seen:
            what = f"another port than {seen[number]}"
            yield _fault("port", "ports differ", variable, what, value, "choose another port")
        else:
            seen[number] = variable
            for key, ports in taken.items():
                if number in ports:
                    what = f"a port that the recipe's {key} does not take"
                    remedy = "choose another port"
                    yield _fault("port", "ports differ", variable, what, value, remedy)


def _key(value: object) -> Iterator[Finding]:
    # The key itself is never shown.
    what = f"a secret of at least {KEY_LENGTH} characters without spaces"
    remedy = "make one with `openssl rand -hex 32` and keep it in a vault"
    if _unset(value) or not isinstance(value, str):
        yield _fault("key", "the API demands a key", "appliance_api_key", what, "nothing", remedy)
    elif _PLACEHOLDER.search(value):
        yield _fault(
            "key", "the API demands a key", "appliance_api_key", what, "a placeholder", remedy
        )
    elif len(value) < KEY_LENGTH or not re.fullmatch(r"[!-~]+", value):
        found = f"{len(value)} characters" if len(value) < KEY_LENGTH else "spaces or line breaks"
        yield _fault("key", "the API's key is strong", "appliance_api_key", what, found, remedy)


def _mtu(value: object) -> Iterator[Finding]:
    low, high = MTU_RANGE
    what = f"9000, or another Ethernet MTU from {low} to {high}"
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]*", text):
        yield _fault("mtu", "is an MTU", "appliance_fabric_mtu", what, value, "set 9000")
    elif int(text) == INFINIBAND_MTU:
        remedy = (
            "set 9000; 4096 is RoCE's own active_mtu, which follows from an Ethernet MTU of 9000"
        )
        yield _fault("mtu", "is an Ethernet MTU", "appliance_fabric_mtu", what, value, remedy)
    elif not low <= int(text) <= high:
        yield _fault("mtu", "is an MTU", "appliance_fabric_mtu", what, value, "set 9000")


def _sources(inventory: Inventory) -> Iterator[Finding]:
    for variable in ("appliance_release_url", "appliance_weights_source"):
        value = inventory.of_head(variable)
        what = (
            "the URL of a folder: http://, https://, file:/// on the head, or control:/// on the "
            "control node"
        )
        missing = _fill_in("", variable, value, what)
        if missing:
            yield missing
        elif variable == "appliance_weights_source" and str(value).startswith("hub://"):
            if not _HUB.fullmatch(str(value)):
                what = "hub://OWNER/NAME@ and a revision of 40 hexadecimal digits"
                remedy = "name the revision; a branch or a tag may name other files tomorrow"
                yield _fault("source", "is a hub's snapshot", variable, what, value, remedy)
        elif not str(value).startswith(_SCHEMES) or re.search(r"\s", str(value)):
            yield _fault("source", "is a URL", variable, what, value, "correct the URL")
        elif "@" in str(value).partition("://")[2].partition("/")[0]:
            found = "a URL with a name or a password in it"
            remedy = "take it out: it would be seen in process lists and receipts"
            yield _fault("source", "holds no secret", variable, what, found, remedy)
    directory = inventory.of_head("appliance_weights_dir")
    what = "an absolute path of letters, digits and ._-"
    missing = _fill_in("", "appliance_weights_dir", directory, what)
    if missing:
        yield missing
    elif not _PATH.fullmatch(str(directory)):
        remedy = "choose such a path; docker's --mount cannot hold others"
        yield _fault("path", "is a path", "appliance_weights_dir", what, directory, remedy)


def _names(inventory: Inventory) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for node, names in inventory.names.items():
        for name in names:
            found.setdefault(name, []).append(node)
    for name, nodes in sorted(found.items()):
        node = nodes[0] if len(nodes) == 1 else ""
        if _DERIVED.match(name):
            what = "no interface, RDMA device or GID index in the inventory"
            remedy = "take it away: they are derived from each node's facts, each time"
            yield _fault("derived", "is not set by hand", name, what, name, remedy, node)
        elif _OWN.match(name) and name not in VARIABLES:
            near = get_close_matches(name, VARIABLES, n=1)
            what = near[0] if near else f"one of {', '.join(sorted(VARIABLES))}"
            remedy = "correct the name, or take the variable away"
            yield _fault(
                "variable", "is a variable of the appliance", name, what, name, remedy, node
            )


def _duplicates(named: Sequence[tuple[str, str, object]]) -> Iterator[Finding]:
    """Yield a finding for each value that two (node, variable) pairs share."""
    seen: dict[str, tuple[str, str]] = {}
    for node, variable, value in named:
        key = str(value)
        if key in seen:
            other, other_variable = seen[key]
            where = f"{other} [{other_variable}]"
            yield _fault(
                "duplicate",
                "every address is its own",
                variable,
                f"an address that {where} does not have",
                key,
                "give each node and rail its own address",
                node,
            )
        else:
            seen[key] = (node, variable)


def _prefixes(rails: Mapping[str, Mapping[str, ipaddress.IPv4Interface]]) -> Iterator[Finding]:
    networks: dict[str, ipaddress.IPv4Network] = {}
    for variable, by_node in rails.items():
        distinct = {rail.network for rail in by_node.values()}
        if len(distinct) > 1:
            found = ", ".join(f"{node} {rail.network}" for node, rail in by_node.items())
            yield _fault(
                "one_prefix",
                "a rail has one prefix on all nodes",
                variable,
                "the same prefix on every node",
                found,
                "put the rail's addresses into one prefix",
            )
        elif distinct:
            networks[variable] = distinct.pop()
    for (first, one), (second, other) in combinations(networks.items(), 2):
        if one.overlaps(other):
            yield _fault(
                "rails_apart",
                "the rails have prefixes of their own",
                second,
                f"a prefix that does not overlap {first} {one}",
                other,
                "give each rail its own prefix",
            )


def _groups(inventory: Inventory, nodes: int | None) -> Iterator[Finding]:
    if len(inventory.head) != 1:
        found = ", ".join(inventory.head) or "none"
        yield _fault(
            "head", "there is one head", "groups.head", "exactly one host", found, "name one host"
        )
    twice = set(inventory.head) & set(inventory.workers)
    if twice:
        yield _fault(
            "groups",
            "a host has one role",
            "groups.workers",
            "hosts that are not in group head",
            ", ".join(sorted(twice)),
            "take them out of one group",
        )
    if nodes is not None and len(inventory.nodes) != nodes:
        yield _fault(
            "nodes",
            "as many nodes as the recipe needs",
            "groups.spark",
            f"{nodes} hosts in head and workers",
            f"{len(inventory.nodes)}: {', '.join(inventory.nodes)}",
            "add or take away hosts, or choose another recipe",
        )


def read_inventory(
    inventory: Inventory, nodes: int | None, taken: Mapping[str, range] | None = None
) -> tuple[Site | None, list[Finding]]:
    """Return the site that an inventory describes, and everything that is wrong with it.

    Parameters:
        inventory: groups and variables.
        nodes: number of nodes that the recipe needs; None where the recipe could not be read.
        taken: ports that the recipe takes, by key.

    Returns:
        The site, None where it could not be built, and the findings; any finding refuses.
    """
    findings = list(_groups(inventory, nodes))
    rails: dict[str, dict[str, ipaddress.IPv4Interface]] = {"spark_rail_a": {}, "spark_rail_b": {}}
    logins: list[tuple[str, str, object]] = []
    management: list[tuple[str, Address]] = []
    for node in inventory.nodes:
        variables = inventory.hosts[node]
        login, faults = _login(node, variables.get("ansible_host"))
        findings += faults
        if login is not None:
            logins.append((node, "ansible_host", login))
        if isinstance(login, ipaddress.IPv4Address | ipaddress.IPv6Address):
            management.append((node, login))
        for variable, by_node in rails.items():
            rail, faults = _rail(node, variable, variables.get(variable))
            findings += faults
            if rail is not None:
                by_node[node] = rail
    addresses = [
        (node, variable, rail.ip)
        for variable, found in rails.items()
        for node, rail in found.items()
    ]
    findings += _duplicates([*logins, *addresses])
    findings += _prefixes(rails)
    findings += _management_apart(rails, management)
    findings += _bind(inventory.of_head("appliance_api_bind"))
    findings += _ports(inventory, taken or {})
    findings += _key(inventory.of_head("appliance_api_key"))
    findings += _mtu(inventory.of_head("appliance_fabric_mtu"))
    findings += _sources(inventory)
    findings += _names(inventory)
    if findings:
        return None, findings
    head = inventory.of_head
    return (
        Site(
            nodes=inventory.nodes,
            rails={
                node: tuple(str(by_node[node]) for by_node in rails.values())
                for node in inventory.nodes
            },
            fabric_mtu=int(head("appliance_fabric_mtu")),
            api_bind=str(head("appliance_api_bind")),
            api_port=int(head("appliance_api_port")),
            ray_port=int(head("appliance_ray_port")),
            weights_dir=str(head("appliance_weights_dir")),
        ),
        [],
    )


def _management_apart(
    rails: Mapping[str, Mapping[str, ipaddress.IPv4Interface]],
    management: Sequence[tuple[str, Address]],
) -> Iterator[Finding]:
    for variable, by_node in rails.items():
        for node, login in management:
            rail = by_node.get(node)
            if rail is not None and login in rail.network:
                yield _fault(
                    "management_apart",
                    "the rails are apart from management",
                    variable,
                    f"a prefix without {login} [ansible_host]",
                    rail.network,
                    "give the rail a prefix of its own",
                    node,
                )
