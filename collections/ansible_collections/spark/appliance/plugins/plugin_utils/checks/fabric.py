# SPDX-License-Identifier: Apache-2.0
"""The rails of each node and of the fleet: cage, addresses, MTU and what outlives a boot."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    ON_PAPER,
    STAGED,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    Interface,
    NodeFacts,
    Profile,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import judge_reach

RAIL_NAMES = ("A", "B")
# 802.3 jumbo frames as the ConnectX-7 and its switches carry them; 4096 is InfiniBand's own MTU.
ETHERNET_MTU = 9000
INFINIBAND_MTUS = frozenset({256, 512, 1024, 2048, 4096})
_VOLATILE = "in memory only"


def _live_rails(node: NodeFacts) -> tuple[Interface, ...]:
    """Both rails of the cage in use, rail A first; empty where no single cage has carrier."""
    cage = node.network.live_cage()
    rails = [rail for rail in node.network.rails() if rail.cage == cage and cage is not None]
    return tuple(sorted(rails, key=lambda rail: rail.rail))


@check(
    "fabric.card",
    "the network card is on the bus",
    scope=Scope.NODE,
    phases=HOST,
    own_kernel=True,
    remedy="reboot all nodes together with their cables in; one rebooting end takes the card "
    "off the other where hot-plug power saving is on",
    cases=("NET-19", "NET-17"),
)
def card(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A card that left PCI is another fault than ports that are down."""
    if context.needs.rdma and not node.rdma.functions:
        saving = "on" if node.rdma.hotplug_power_saving else "off"
        yield Problem(
            expected="ConnectX-7 functions (15b3:1021) on PCI",
            found=f"none; hot-plug power saving is {saving}",
            evidence=", ".join(device.name for device in node.rdma.devices),
        )


@check(
    "fabric.rails",
    "both rails of one cage have carrier",
    scope=Scope.NODE,
    phases=HOST,
    remedy="put the cable into one cage and see that both of its netdevs come up",
    cases=("NET-01", "NET-07", "NET-17", "NET-18", "NET-19"),
)
def rails(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A cable brings up two netdevs of one cage; with one of them the node has half its speed."""
    wanted = len(context.site.rails.get(node.name, ()))
    found = node.network.rails()
    if not wanted:
        return
    if not found:
        names = ", ".join(entry.name for entry in node.network.interfaces)
        yield Problem(expected="rail netdevs such as enp1s0f1np1", found=f"none among {names}")
        return
    live = [rail for rail in found if rail.carrier]
    listing = ", ".join(f"{rail.name} {'up' if rail.carrier else 'down'}" for rail in found)
    if not live:
        yield Problem(expected="carrier on the rails", found=listing)
        return
    cages = {rail.cage for rail in live}
    if len(cages) > 1:
        yield Problem(
            expected="carrier in one cage",
            found=listing,
            remedy="unplug the cable that is no rail of this fleet; a ring, which takes both "
            "cages of every node, needs a switch instead",
        )
    elif len(live) < wanted:
        yield Problem(expected=f"carrier on {wanted} rails of a cage", found=listing)


@check(
    "fabric.cage",
    "all nodes use the same cage",
    severity=Severity.WARNING,
    scope=Scope.FLEET,
    phases=HOST,
    remedy="plug every node's cable into the same cage",
    cases=("NET-02",),
)
def cage(context: Context) -> Iterator[Problem]:
    """Mixed cages work, since interfaces are derived per node, but the vendor asks for one."""
    cages = {
        name: network.live_cage()
        for name, network in context.known("network")
        if network.live_cage() is not None
    }
    if len(set(cages.values())) > 1:
        listing = ", ".join(f"{name} cage {number}" for name, number in cages.items())
        yield Problem(expected="one cage on all nodes", found=listing)


@check(
    "fabric.mtu",
    "every rail has the target MTU",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="run playbooks/fabric.yml",
    cases=("NET-08",),
)
def mtu(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """One rail at 1500 lets small messages pass and large RDMA transfers fail."""
    target = context.site.fabric_mtu
    for rail in _live_rails(node):
        if rail.mtu != target:
            yield Problem(
                expected=f"MTU {target} on {rail.name}",
                found=str(rail.mtu),
                variable="appliance_fabric_mtu",
            )


@check(
    "fabric.mtu_possible",
    "every rail can carry the target MTU",
    scope=Scope.NODE,
    phases=HOST,
    remedy="lower appliance_fabric_mtu to what the rail allows",
)
def mtu_possible(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The kernel tells the highest MTU of each netdev."""
    target = context.site.fabric_mtu
    for rail in _live_rails(node):
        if rail.max_mtu is not None and rail.max_mtu < target:
            yield Problem(
                expected=f"a netdev that allows MTU {target}",
                found=f"{rail.name} allows {rail.max_mtu}",
                variable="appliance_fabric_mtu",
            )


@check(
    "fabric.addresses",
    "every rail has its address",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="run playbooks/fabric.yml",
    cases=("NET-07", "NET-12", "GID-04"),
)
def addresses(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The address of rail A is the rank's; rail B needs one for its GID to work."""
    live = _live_rails(node)
    for letter, wanted in zip(RAIL_NAMES, context.site.rail_interfaces(node.name), strict=False):
        rail = next((entry for entry in live if entry.rail == letter.lower()), None)
        if rail is None:
            continue
        held = [str(entry.interface) for entry in rail.ipv4]
        if str(wanted) not in held:
            elsewhere = node.network.holder(str(wanted.ip))
            where = f"; {elsewhere.name} holds {wanted.ip}" if elsewhere else ""
            yield Problem(
                expected=f"{wanted} on rail {letter} ({rail.name})",
                found=(", ".join(held) or "no IPv4 address") + where,
                variable=f"spark_rail_{letter.lower()}",
            )


@check(
    "fabric.link_local",
    "no rail lives on a link-local address",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="run playbooks/fabric.yml; a link-local address changes with the next boot",
    cases=("NET-12",),
)
def link_local(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A 169.254 address in a rendered unit is stale after a boot."""
    if context.site.allow_link_local:
        return
    for rail in _live_rails(node):
        for entry in rail.ipv4:
            if entry.interface.ip.is_link_local:
                yield Problem(
                    expected=f"a static address on {rail.name}", found=str(entry.interface)
                )


@check(
    "fabric.rails_apart",
    "each rail has a network of its own",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="give each rail its own prefix, and none that the management network has",
    cases=("NET-06", "NET-23"),
)
def rails_apart(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Two interfaces in one prefix make the kernel answer and send on the wrong one."""
    del context
    live = {rail.name for rail in _live_rails(node)}
    seen: list[tuple[str, ipaddress.IPv4Network | ipaddress.IPv6Network]] = []
    for interface in node.network.interfaces:
        for entry in interface.ipv4:
            network = entry.interface.network
            if entry.interface.ip.is_loopback or network.prefixlen > 30:
                continue
            for other, taken in seen:
                pair = {other, interface.name}
                if len(pair) == 2 and pair & live and network.overlaps(taken):
                    yield Problem(
                        expected="one interface per prefix",
                        found=f"{other} and {interface.name} share {network}",
                    )
            seen.append((interface.name, network))


def _kept_addresses(node: NodeFacts, rail: Interface) -> set[str]:
    """Return the addresses that netplan can give a rail.

    An entry that matches netdevs by other things may have any name, but not another netdev's.
    """
    others = {entry.name for entry in node.network.interfaces} - {rail.name}
    entries = node.network.netplan.entries().items()
    return {address for name, kept in entries if name not in others for address in kept.addresses}


@check(
    "fabric.persistent",
    "rail addresses and MTU outlive a boot",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="run playbooks/fabric.yml; it writes the file without touching a live rail that is "
    "already right",
    cases=("NET-13", "NET-16"),
)
def persistent(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """What is only in memory or under /run is gone after a boot, so netplan must hold it."""
    live = _live_rails(node)
    wanted = context.site.rail_interfaces(node.name)
    if not live or not wanted:
        return
    netplan = node.network.netplan
    if netplan.merged is None:
        why = netplan.reason or ("netplan is not installed" if not netplan.present else "no view")
        yield Problem(expected="rail addresses in netplan", found=why)
        return
    for letter, address in zip(RAIL_NAMES, wanted, strict=False):
        rail = next((entry for entry in live if entry.rail == letter.lower()), None)
        if rail is None:
            continue
        if str(address) not in _kept_addresses(node, rail):
            files = ", ".join(file.path for file in netplan.files) or "no netplan file"
            yield Problem(
                expected=f"{address} for {rail.name} in netplan",
                found=f"not in {files}",
                evidence=", ".join(
                    f"profile {profile.id!r} {'on disk' if profile.persistent else _VOLATILE}"
                    for profile in node.network.profiles
                    if profile.interface == rail.name
                ),
            )
        elif (set_mtu := netplan.entry(rail.name).mtu) != context.site.fabric_mtu:
            yield Problem(
                expected=f"mtu {context.site.fabric_mtu} for {rail.name} in netplan",
                found=f"mtu {set_mtu}" if set_mtu else "no mtu",
            )


@check(
    "fabric.netplan_mode",
    "netplan files are readable by root only",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="chmod 0600 the file",
    cases=("NET-16",),
)
def netplan_mode(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Netplan files may hold keys; netplan itself complains about open ones."""
    del context
    for file in node.network.netplan.files:
        if file.path.startswith("/etc/") and int(file.mode, 8) & 0o077:
            yield Problem(expected=f"{file.path} with mode 0600", found=file.mode)


def _dhcp_profiles(node: NodeFacts) -> Iterator[tuple[Interface, Profile]]:
    for rail in node.network.rails():
        for profile in node.network.profiles:
            asks = profile.autoconnect and profile.ipv4_method == "auto"
            if asks and profile.interface == rail.name:
                yield rail, profile


@check(
    "fabric.dhcp",
    "no rail waits for a DHCP server",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="fabric",
    remedy="run playbooks/fabric.yml",
    cases=("NET-15",),
)
def dhcp(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The stock wired profiles retry DHCP for ever, and the link flaps with them."""
    del context
    for rail, profile in _dhcp_profiles(node):
        yield Problem(expected=f"no DHCP on {rail.name}", found=f"profile {profile.id!r}")


@check(
    "fabric.control_apart",
    "the control session does not run over a rail",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="set ansible_host to an address of the management network",
    cases=("ANS-04",),
)
def control_apart(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Changing a rail would cut the session that changes it."""
    del context
    control = node.network.control_interface
    if control in {rail.name for rail in node.network.rails()}:
        yield Problem(
            expected="ssh over the management network",
            found=f"over {control}",
            variable="ansible_host",
        )


@check(
    "fabric.address_valid",
    "every rail address is one",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="write the address as plain decimal numbers with its prefix length, 10.77.0.61/24",
    cases=("NET-22",),
)
def address_valid(context: Context) -> Iterator[Problem]:
    """A part with a leading zero is octal to some programs: 061 would silently be 49."""
    for name in context.site.nodes:
        rails = context.site.rails.get(name, ())
        for letter, text in zip(RAIL_NAMES, rails, strict=False):
            try:
                interface = ipaddress.IPv4Interface(text)
                fault = "" if "/" in text else "no prefix length"
                fault = fault or ("" if interface.ip.is_private else "a public address")
            except ValueError as error:
                fault = str(error)
            if fault:
                yield Problem(
                    node=name,
                    expected="a private IPv4 address with prefix length",
                    found=f"{text}: {fault}",
                    variable=f"spark_rail_{letter.lower()}",
                )


@check(
    "fabric.prefix",
    "each rail's addresses share one prefix on all nodes",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="give all nodes addresses of one prefix on a rail",
    cases=("NET-25",),
)
def prefix(context: Context) -> Iterator[Problem]:
    """Nodes in different prefixes reach each other only by static routes, which RDMA lacks."""
    for index, letter in enumerate(RAIL_NAMES):
        networks = {
            name: str(context.site.rail_interfaces(name)[index].network)
            for name in context.site.nodes
            if index < len(context.site.rail_interfaces(name))
        }
        if len(set(networks.values())) > 1:
            listing = ", ".join(f"{name} {network}" for name, network in networks.items())
            yield Problem(
                expected=f"one prefix on rail {letter}",
                found=listing,
                variable=f"spark_rail_{letter.lower()}",
            )


@check(
    "fabric.address_unique",
    "no two nodes share a rail address",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="give every node its own address",
    cases=("RAY-02",),
)
def address_unique(context: Context) -> Iterator[Problem]:
    """Two ranks with one address never form a cluster."""
    owners: dict[str, list[str]] = {}
    for name in context.site.nodes:
        for interface in context.site.rail_interfaces(name):
            owners.setdefault(str(interface.ip), []).append(name)
    for address, names in owners.items():
        if len(names) > 1:
            yield Problem(
                expected=f"{address} on one node",
                found=", ".join(names),
                variable="spark_rail_a, spark_rail_b",
            )


@check(
    "fabric.mtu_target",
    "the target MTU is an Ethernet MTU",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="set appliance_fabric_mtu to 9000; 4096 and 1024 are InfiniBand MTUs, which follow "
    "from it",
    cases=("NET-11",),
)
def mtu_target(context: Context) -> Iterator[Problem]:
    """The MTU that ibv_devinfo prints is another number than the netdev's."""
    target = context.site.fabric_mtu
    if target in INFINIBAND_MTUS:
        yield Problem(
            expected=f"an Ethernet MTU such as {ETHERNET_MTU}",
            found=str(target),
            variable="appliance_fabric_mtu",
        )


@check(
    "fabric.link_local_rank",
    "no rank address is link-local",
    scope=Scope.INVENTORY,
    phases=ON_PAPER,
    remedy="use static private addresses on the rails",
    cases=("NET-12",),
)
def link_local_rank(context: Context) -> Iterator[Problem]:
    """A 169.254 address changes with a boot, and what was rendered with it goes stale."""
    if context.site.allow_link_local:
        return
    for name in context.site.nodes:
        for letter, interface in zip(RAIL_NAMES, context.site.rail_interfaces(name), strict=False):
            if interface.ip.is_link_local:
                yield Problem(
                    node=name,
                    expected="a static address",
                    found=str(interface),
                    variable=f"spark_rail_{letter.lower()}",
                )


@check(
    "fabric.reach",
    "full packets pass both ways between all nodes on all rails",
    scope=Scope.FLEET,
    phases=STAGED,
    remedy="check cables and switch",
    cases=("NET-06", "NET-07", "NET-10", "NET-18"),
)
def reach(context: Context) -> Iterator[Problem]:
    """Unfragmented packets prove a path both ways; what ip link says of both ends does not."""
    site = context.site
    count = min(len(site.rail_interfaces(name)) for name in site.nodes)
    letters = [letter.lower() for letter in RAIL_NAMES[:count]]
    seen = dict(context.known("reach"))
    paths = [path for listed in seen.values() for path in listed]
    unread = set(site.nodes) - seen.keys()
    for fault in judge_reach(paths, site.nodes, letters, site.fabric_mtu, unread):
        yield Problem(
            node=fault.node,
            expected=fault.expected,
            found=fault.found,
            remedy=fault.remedy,
            severity=fault.severity,
            variable=fault.variable,
            evidence=fault.check,
        )


@check(
    "fabric.speed",
    "the rails of all nodes run at one speed",
    severity=Severity.WARNING,
    scope=Scope.FLEET,
    phases=HOST,
    remedy="check the cable and its seat; shut all nodes down with the cables in if a link stays "
    "slow",
    cases=("NET-21",),
)
def speed(context: Context) -> Iterator[Problem]:
    """The slowest rail sets the pace of all."""
    speeds = {
        f"{name} {rail.name}": rail.speed_mbps
        for name, network in context.known("network")
        for rail in network.rails()
        if rail.carrier and rail.speed_mbps is not None and rail.cage == network.live_cage()
    }
    if len(set(speeds.values())) > 1:
        best = max(speeds.values())
        slow = [f"{rail} {value} Mb/s" for rail, value in speeds.items() if value < best]
        owners = dict.fromkeys(rail.partition(" ")[0] for rail in slow)
        yield Problem(
            expected=f"{best} Mb/s on every rail",
            found=", ".join(slow),
            evidence=", ".join(
                f"{name} logged too little slot power"
                for name in owners
                if _slot_power(context.facts[name])
            ),
        )


def _slot_power(node: NodeFacts) -> bool:
    """Whether the kernel said that the slot gives too little power, which alone means nothing."""
    try:
        return node.kernel_log.marker("slot-power") is not None
    except SectionUnknownError:
        # A hint only; other checks say that the log cannot be read.
        return False
