# SPDX-License-Identifier: Apache-2.0
"""Rail addresses and MTU: what netplan has to hold, and whether live rails have to change."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    Interface,
    Netplan,
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    refusals,
)

# After cloud-init's 50 and the vendor's 40, so that scalars of theirs give way to these.
NETPLAN_PATH = "/etc/netplan/60-spark-fabric.yaml"
NETPLAN_MODE = "0600"
HEADER = "# Written by spark-appliance, playbooks/fabric.yml; edits here are overwritten.\n"
RAILS = ("a", "b")
# Armed while a change of live rails waits for its confirmation.
WAY_BACK_TIMER = "spark-fabric-way-back.timer"


@dataclass(frozen=True, slots=True)
class FabricPolicy:
    """What the inventory wants of every rail.

    Parameters:
        mtu: Ethernet MTU in bytes.
        allow_disruption: rails may change under a serving engine.
    """

    mtu: int = 9000
    allow_disruption: bool = False


@dataclass(frozen=True, slots=True)
class Rail:
    """One rail of a node as it shall be.

    Parameters:
        rail: ``a`` or ``b``.
        interface: netdev.
        address: IPv4 address with prefix length.
        mtu: Ethernet MTU in bytes.
    """

    rail: str
    interface: str
    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One path to prove: from a rail of this node to the same rail of a peer."""

    node: str
    rail: str
    interface: str
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """What has to change on one node's rails; nothing where nothing differs or the plan refuses.

    Parameters:
        rails: the rails as they shall be.
        write: the netplan file has to be written.
        apply: live rails have to change.
        prove: some node of the fleet changes, so that every path has to be proven again.
        control_interface: netdev that carries the control session, which is never touched.
        probes: paths from this node to every peer, on every rail.
        changes: what changes, for a reader, one line each.
        findings: what the plan noticed; an error empties the plan.
    """

    rails: tuple[Rail, ...] = ()
    write: bool = False
    apply: bool = False
    prove: bool = False
    control_interface: str = ""
    probes: tuple[Probe, ...] = ()
    changes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether anything has to change on this node."""
        return self.write or self.apply

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as role ``fabric`` takes it."""
        return {
            "needed": self.needed,
            "write": self.write,
            "apply": self.apply,
            "prove": self.prove,
            "path": NETPLAN_PATH,
            "content": render_netplan(self.rails) if self.needed else "",
            "rails": [asdict(rail) for rail in self.rails],
            "control_interface": self.control_interface,
            "probes": [asdict(probe) for probe in self.probes],
            "changes": list(self.changes),
            "refusals": [finding.message() for finding in refusals(self.findings)],
        }


class _RefusalError(Exception):
    """The plan cannot be made; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message())
        self.finding = finding


def _refusal(
    node: str,
    rule: str,
    title: str,
    *,
    expected: str,
    found: str,
    remedy: str,
    variable: str = "",
) -> _RefusalError:
    return _RefusalError(
        Finding(f"fabric.{rule}", node, Severity.ERROR, title, expected, found, remedy, variable)
    )


def render_netplan(rails: Sequence[Rail]) -> str:
    """Return the netplan file for a node's rails.

    It names no renderer, so that the node keeps the one it has; ``optional`` keeps a boot from
    waiting for a peer that is off.
    """
    ethernets = {
        rail.interface: {
            "optional": True,
            "dhcp4": False,
            "dhcp6": False,
            "link-local": [],
            "mtu": rail.mtu,
            "addresses": [rail.address],
        }
        for rail in rails
    }
    tree = {"network": {"version": 2, "ethernets": ethernets}}
    return HEADER + yaml.safe_dump(tree, sort_keys=False)


def _wanted_rails(
    node: NodeFacts, addresses: Sequence[str], policy: FabricPolicy
) -> Iterator[tuple[Rail, Interface]]:
    """Yield each rail as it shall be, and as it is.

    Raises:
        _RefusalError: no single cage is in use, or a rail of it cannot become what is wanted.
    """
    network = node.network
    listing = ", ".join(f"{r.name} {'up' if r.carrier else 'down'}" for r in network.rails())
    cage = network.live_cage()
    if cage is None:
        raise _refusal(
            node.name,
            "plan_cage",
            "one cage carries the rails",
            expected="carrier on the netdevs of one cage",
            found=listing or "no rail netdev",
            remedy="plug the cable into one cage; nothing is written for absent or dark ports",
        )
    for letter, text in zip(RAILS, addresses, strict=False):
        variable = f"spark_rail_{letter}"
        try:
            wanted = ipaddress.IPv4Interface(text)
        except ValueError as error:
            raise _refusal(
                node.name,
                "plan_address",
                "a rail's address can be read",
                expected="an IPv4 address with prefix length",
                found=repr(text),
                remedy=f"correct it: {error}",
                variable=variable,
            ) from error
        live = next((r for r in network.rails() if r.cage == cage and r.rail == letter), None)
        if live is None or not live.carrier:
            raise _refusal(
                node.name,
                "plan_rail",
                "both rails of the cage in use have carrier",
                expected=f"rail {letter.upper()} of cage {cage} up",
                found=listing,
                remedy="see that both netdevs of the cage come up, or give the node one rail",
                variable=variable,
            )
        if live.max_mtu is not None and live.max_mtu < policy.mtu:
            raise _refusal(
                node.name,
                "plan_mtu",
                "the rail can carry the MTU",
                expected=f"MTU {policy.mtu} on {live.name}",
                found=f"at most {live.max_mtu}",
                remedy="lower the MTU for all nodes",
                variable="appliance_fabric_mtu",
            )
        holder = network.holder(str(wanted.ip))
        if holder is not None and holder.name != live.name:
            raise _refusal(
                node.name,
                "plan_taken",
                "the rail's address is free on the node",
                expected=f"{wanted.ip} on {live.name} only",
                found=f"{holder.name} holds it",
                remedy="give the rail another address, or free this one",
                variable=variable,
            )
        yield Rail(letter, live.name, str(wanted), policy.mtu), live


def _live_changes(rail: Rail, live: Interface) -> Iterator[str]:
    held = sorted(str(entry.interface) for entry in live.ipv4)
    leased = any(entry.dynamic for entry in live.ipv4)
    if held != [rail.address] or leased:
        was = ", ".join(held) or "none"
        yield f"{rail.interface}: address {was}{' (leased)' if leased else ''} → {rail.address}"
    if live.mtu != rail.mtu:
        yield f"{rail.interface}: MTU {live.mtu} → {rail.mtu}"


def _entry(netplan: Netplan, interface: str) -> Mapping[str, Any]:
    entry = ((netplan.merged or {}).get("ethernets") or {}).get(interface)
    return entry if isinstance(entry, dict) else {}


def _kept_addresses(entry: Mapping[str, Any]) -> list[str]:
    """Return a netplan entry's addresses, of which each is a string or a mapping with one key."""
    listed = entry.get("addresses") or []
    return sorted(item if isinstance(item, str) else str(next(iter(item), "")) for item in listed)


def _kept(netplan: Netplan, rail: Rail) -> bool:
    """Whether the files on the node, taken together, bring the rail up as it shall be."""
    entry = _entry(netplan, rail.interface)
    return (
        _kept_addresses(entry) == [rail.address]
        and entry.get("mtu") == rail.mtu
        and not entry.get("dhcp4")
        and not entry.get("dhcp6")
        and "ipv4" not in (entry.get("link-local") or [])
    )


def _must_write(node: NodeFacts, rails: Sequence[Rail]) -> bool:
    """Whether the netplan file differs from what it shall be.

    Raises:
        _RefusalError: netplan cannot be read, or another file also describes a rail.
    """
    netplan = node.network.netplan
    if netplan.merged is None:
        raise _refusal(
            node.name,
            "plan_netplan",
            "netplan's merged view can be read",
            expected="an answer of netplan get",
            found=netplan.reason
            or ("no answer" if netplan.present else "netplan is not installed"),
            remedy="install netplan, or repair the file that it complains about",
        )
    own = next((file for file in netplan.files if file.path == NETPLAN_PATH), None)
    digest = hashlib.sha256(render_netplan(rails).encode()).hexdigest()
    if own is not None and (own.sha256 != digest or own.mode != NETPLAN_MODE):
        return True
    missing = [rail for rail in rails if not _kept(netplan, rail)]
    if not missing:
        return False
    others = ", ".join(f.path for f in netplan.files if f.path != NETPLAN_PATH) or "no other file"
    for rail in missing:
        foreign = [
            address
            for address in _kept_addresses(_entry(netplan, rail.interface))
            if address != rail.address
        ]
        # Netplan adds up the addresses of all files, so that another file's would stay.
        if foreign or own is not None:
            raise _refusal(
                node.name,
                "plan_conflict",
                "only one netplan file describes the rails",
                expected=f"{rail.interface} with {rail.address} and MTU {rail.mtu} alone",
                found=f"{', '.join(foreign) or 'other settings'} for it in one of {others}",
                remedy=f"take {rail.interface} out of that file, or give the rail its address",
                variable=f"spark_rail_{rail.rail}",
            )
    return True


def _refuse_armed(node: NodeFacts) -> None:
    """Refuse to plan from rails that are about to go back to what they were.

    Raises:
        _RefusalError: a way back is armed, or nobody asked whether one is.
    """
    timer = node.units.get(WAY_BACK_TIMER)
    if timer is None or timer.active != "inactive":
        raise _refusal(
            node.name,
            "plan_armed",
            "no change of the rails waits for its confirmation",
            expected=f"{WAY_BACK_TIMER} inactive",
            found="not observed" if timer is None else timer.active,
            remedy="run again when it has undone the earlier change, within fabric_confirm_s",
        )


def _plan(
    node: NodeFacts, addresses: Sequence[str], policy: FabricPolicy, serving: bool
) -> FabricPlan:
    _refuse_armed(node)
    pairs = list(_wanted_rails(node, addresses, policy))
    rails = tuple(rail for rail, _ in pairs)
    live = [change for rail, now in pairs for change in _live_changes(rail, now)]
    write = _must_write(node, rails)
    control = node.network.control_interface
    if live and (control is None or control in {rail.interface for rail in rails}):
        raise _refusal(
            node.name,
            "plan_control",
            "the control session runs over none of the rails",
            expected="ssh over the management network",
            found=f"over {control}" if control else "an interface that could not be told",
            remedy="reach the node by an address of its management network",
            variable="ansible_host",
        )
    if live and serving and not policy.allow_disruption:
        raise _refusal(
            node.name,
            "plan_serving",
            "rails do not change under a serving engine",
            expected="a stopped engine, or consent",
            found=f"serving; would change {'; '.join(live)}",
            remedy="stop the engine, or allow it",
            variable="fabric_allow_disruption",
        )
    changes = ([f"write {NETPLAN_PATH}"] if write else []) + live
    return FabricPlan(
        rails=rails,
        write=write,
        apply=bool(live),
        control_interface=control or "",
        changes=tuple(changes),
    )


def plan_fabric(
    node: NodeFacts, addresses: Sequence[str], policy: FabricPolicy, *, serving: bool
) -> FabricPlan:
    """Return what has to change on a node's rails.

    A rail that is right live and only lacks persistence is written and not applied, so that
    nothing that runs over it notices. Nothing is planned for a node whose network is unknown.

    Parameters:
        node: facts of the node.
        addresses: the node's rail addresses with prefix length, rail A first; empty for none.
        policy: what the inventory wants.
        serving: an engine of the fleet serves.
    """
    if not addresses:
        return FabricPlan()
    try:
        return _plan(node, addresses, policy, serving)
    except _RefusalError as refusal:
        return FabricPlan(findings=(refusal.finding,))
    except SectionUnknownError as unknown:
        unread = _refusal(
            node.name,
            "plan_facts",
            "the node's network can be read",
            expected=f"section {unknown.section} of the node's facts",
            found=unknown.reason,
            remedy="make the probe work on the node; nothing was changed",
        )
        return FabricPlan(findings=(unread.finding,))


def plan_probes(
    node: str, rails: Sequence[Rail], addresses: Mapping[str, Sequence[str]]
) -> tuple[Probe, ...]:
    """Return the paths from a node's rails to every peer.

    Parameters:
        node: the node that probes.
        rails: its rails.
        addresses: rail addresses with prefix length by node, rail A first.
    """
    probes = []
    for peer, listed in addresses.items():
        by_rail = dict(zip(RAILS, listed, strict=False))
        for rail in rails:
            if peer != node and rail.rail in by_rail:
                target = str(ipaddress.IPv4Interface(by_rail[rail.rail]).ip)
                probes.append(Probe(node, rail.rail, rail.interface, peer, target))
    return tuple(probes)


def plan_fabrics(
    facts: Mapping[str, NodeFacts],
    addresses: Mapping[str, Sequence[str]],
    policy: FabricPolicy,
    *,
    serving: bool,
) -> dict[str, FabricPlan]:
    """Return every node's plan, with the paths to prove where any node changes.

    Parameters:
        facts: facts by node.
        addresses: rail addresses with prefix length by node, rail A first.
        policy: what the inventory wants.
        serving: an engine of the fleet serves.
    """
    plans = {
        name: plan_fabric(node, addresses.get(name, ()), policy, serving=serving)
        for name, node in facts.items()
    }
    prove = any(plan.needed for plan in plans.values())
    # A path has two ends: where one node has no rails to plan with, none can be proven.
    whole = all(plan.rails for plan in plans.values())
    return {
        name: replace(
            plan,
            prove=prove and whole,
            probes=plan_probes(name, plan.rails, addresses) if whole else (),
        )
        for name, plan in plans.items()
    }
