# SPDX-License-Identifier: Apache-2.0
"""The display stack, which costs the head gigabytes, and the services that must outlive it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    HOST,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.units import format_size

# Must not be switched off along with the desktop; absent ones are not missed.
NEEDED_UNITS = ("docker.service", "containerd.service", "nvidia-persistenced.service")


@check(
    "desktop.units_off",
    "the display manager is off and stays off",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml",
    cases=("GUI-01", "GUI-02", "GUI-05", "GUI-07"),
)
def units_off(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The real unit is judged, not an alias: masking gdm3 leaves gdm.service running."""
    if context.needs.keep_display:
        return
    seen: set[str] = set()
    for name, unit in node.display.units.items():
        if unit.load == "not-found" or unit.id in seen:
            continue
        seen.add(unit.id)
        if unit.active in {"active", "activating", "reloading"}:
            yield Problem(expected=f"{unit.id} stopped", found=f"{unit.active} (asked as {name})")
        if unit.load != "masked":
            yield Problem(
                expected=f"{unit.id} masked", found=f"{unit.load}, {unit.enabled or 'no state'}"
            )


@check(
    "desktop.processes",
    "no desktop process runs",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml, then log out of any desktop session",
    cases=("GUI-01", "GUI-07"),
)
def processes(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Processes tell the truth about the desktop whatever the units say."""
    if context.needs.keep_display:
        return
    running = node.display.processes
    if running:
        held = sum(process.rss_bytes for process in running)
        names = sorted({process.name for process in running})
        yield Problem(
            expected="no Xorg, Xwayland, gnome-shell or gdm process",
            found=f"{', '.join(names)} with {format_size(held)} resident",
        )


@check(
    "desktop.default_target",
    "the node boots without a desktop",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml",
    cases=("GUI-01", "GUI-07"),
)
def default_target(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The default target decides whether the next boot brings the desktop back."""
    if context.needs.keep_display:
        return
    target = node.display.default_target
    if target != "multi-user.target":
        yield Problem(expected="default target multi-user.target", found=target)


@check(
    "desktop.collateral",
    "no needed service was switched off with the desktop",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="unmask, enable and start the unit",
    cases=("GUI-06",),
)
def collateral(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Lists of services to disable tend to take the engine's own services along."""
    del context
    for name in NEEDED_UNITS:
        unit = node.units.get(name)
        if unit is not None and (unit.load == "masked" or unit.enabled == "disabled"):
            yield Problem(expected=f"{name} enabled", found=f"{unit.load}, {unit.enabled}")


@check(
    "mdns.installed",
    "avahi-daemon is installed",
    scope=Scope.NODE,
    phases=HOST,
    remedy="install the package avahi-daemon and mark it as wanted (apt-mark manual), so that no "
    "autoremove takes it along with the desktop",
    cases=("GUI-03",),
)
def avahi_installed(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Removing a desktop's packages can take avahi with it; no role installs packages."""
    del context
    if node.avahi.unit.load == "not-found":
        yield Problem(expected="avahi-daemon.service", found="no such unit")


@check(
    "mdns.active",
    "avahi-daemon runs and starts at boot",
    scope=Scope.NODE,
    phases=HOST,
    repaired_by="harden",
    remedy="run playbooks/harden.yml",
    cases=("GUI-03",),
)
def avahi_active(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Node names under .local and the discovery of peers depend on it, so it must survive."""
    del context
    unit = node.avahi.unit
    if unit.load == "not-found":
        return
    if unit.active != "active":
        yield Problem(expected="avahi-daemon.service active", found=f"{unit.load}, {unit.active}")
    elif unit.enabled not in {"enabled", "static", "indirect", "alias"}:
        yield Problem(expected="avahi-daemon.service enabled", found=unit.enabled or "no state")


@check(
    "mdns.rails_visible",
    "avahi announces on the rails",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="take the rails off deny-interfaces in /etc/avahi/avahi-daemon.conf, or put them on "
    "allow-interfaces where there is such a list",
    cases=("MDNS-02",),
)
def rails_visible(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A deny list with the rails, or an allow list without them, leaves discovery blind there."""
    del context
    avahi = node.avahi
    rails = {rail.name for rail in node.network.rails()}
    if denied := sorted(rails & set(avahi.deny_interfaces)):
        yield Problem(expected="no rail on deny-interfaces", found=", ".join(denied))
    cage = node.network.live_cage()
    live = {rail.name for rail in node.network.rails() if rail.cage == cage and rail.carrier}
    if avahi.allow_interfaces and (left_out := sorted(live - set(avahi.allow_interfaces))):
        yield Problem(
            expected=f"{', '.join(left_out)} on allow-interfaces, which is not empty",
            found=", ".join(sorted(avahi.allow_interfaces)),
        )


@check(
    "mdns.name",
    "the announced name is the node's own",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=HOST,
    remedy="end the address conflict on the rails (fabric.dhcp), then restart avahi-daemon",
    cases=("NET-15",),
)
def announced_name(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """After a conflict with itself avahi adds a number to the name that it announces."""
    del context
    announced, own = node.avahi.host_name, node.identity.hostname.partition(".")[0]
    if announced and re.fullmatch(rf"{re.escape(own)}-\d+", announced):
        yield Problem(expected=f"{own}.local", found=f"{announced}.local")
