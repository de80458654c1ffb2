# SPDX-License-Identifier: Apache-2.0
"""Desktop off, swap off, mDNS on: what differs on a node, and nothing else of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    FstabSwap,
    NodeFacts,
    SectionUnknownError,
    SwapUnit,
    Unit,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    refusals,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, format_size

UNIT_FOLDER = "/etc/systemd/system"
HEADLESS_TARGET = "multi-user.target"
AVAHI_UNITS = ("avahi-daemon.service", "avahi-daemon.socket")
# Services of zram-tools and zram-config, which call swapon themselves, without a swap unit.
ZRAM_UNITS = ("zramswap.service", "zram-config.service")
# Never stopped or masked, whatever unit an alias on the node leads to.
PROTECTED_UNITS = frozenset(
    {*AVAHI_UNITS, "containerd.service", "dbus.service", "dgx-dashboard.service",
     "docker.service", "docker.socket", "fwupd.service", "NetworkManager.service",
     "nvidia-persistenced.service", "ssh.service", "ssh.socket", "systemd-logind.service",
     "systemd-networkd.service"}
)  # fmt: skip
# Left free while pages come back from swap; without it the kernel may kill to make room.
SWAPOFF_RESERVE_BYTES = GIB
FSTAB_NOTE = "# spark-appliance: swap is off; was: "

_RUNNING = frozenset({"active", "activating", "deactivating", "reloading", "refreshing"})
_ZRAM = re.compile(r"^/dev/zram\d+$")


@dataclass(frozen=True, slots=True)
class HardenPolicy:
    """What the inventory wants of a node.

    Parameters:
        display: ``off`` stops the display manager for good, ``keep`` leaves it alone.
        swap: ``off`` ends all swap, ``keep`` leaves it alone.
    """

    display: Literal["off", "keep"] = "off"
    swap: Literal["off", "keep"] = "off"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link below /etc/systemd/system that has to lead elsewhere."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Service:
    """A unit whose state has to change; None leaves that part of its state alone."""

    name: str
    state: Literal["started", "stopped"]
    enabled: bool | None = None
    masked: bool | None = None


@dataclass(frozen=True, slots=True)
class FstabLine:
    """A swap line to turn into a comment: the pattern matches that line alone."""

    regexp: str
    replace: str


@dataclass(frozen=True, slots=True)
class HardenPlan:
    """What has to change on one node; all empty where nothing differs or the plan refuses.

    Parameters:
        links: links to set, in this order.
        services: units to stop or start, after the links.
        fstab: lines to comment out.
        changes: the same for a reader, one line each.
        findings: what the plan noticed; an error empties the plan.
    """

    links: tuple[Link, ...] = ()
    services: tuple[Service, ...] = ()
    fstab: tuple[FstabLine, ...] = ()
    changes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether anything has to change."""
        return bool(self.links or self.services or self.fstab)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as role ``harden`` takes it; parts of a state left alone are absent."""
        return {
            "needed": self.needed,
            "links": [asdict(link) for link in self.links],
            "services": [
                {key: value for key, value in asdict(service).items() if value is not None}
                for service in self.services
            ],
            "fstab": [asdict(line) for line in self.fstab],
            "changes": list(self.changes),
            "refusals": [finding.message() for finding in refusals(self.findings)],
        }


@dataclass(slots=True)
class _Draft:
    """A plan while its parts are added."""

    node: str
    links: list[Link] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    fstab: list[FstabLine] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def mask(self, name: str) -> None:
        self.links.append(Link(f"{UNIT_FOLDER}/{name}", "/dev/null"))
        self.changes.append(f"mask {name}")

    def service(self, service: Service, change: str) -> None:
        self.services.append(service)
        self.changes.append(f"{change} {service.name}")

    def note(
        self,
        severity: Severity,
        rule: str,
        title: str,
        *,
        expected: str,
        found: str,
        remedy: str,
        variable: str = "",
    ) -> None:
        self.findings.append(
            Finding(f"harden.{rule}", self.node, severity, title, expected, found, remedy, variable)
        )

    def finish(self) -> HardenPlan:
        if refusals(self.findings):
            return HardenPlan(findings=tuple(self.findings))
        return HardenPlan(
            tuple(self.links),
            tuple(self.services),
            tuple(self.fstab),
            tuple(self.changes),
            tuple(self.findings),
        )


def _owned_by_admin(name: str, fragment: str) -> bool:
    """Whether the unit's own file lies where its mask would have to be."""
    return fragment == f"{UNIT_FOLDER}/{name}"


def _real_units(units: Iterable[Unit]) -> Iterator[Unit]:
    """Yield each installed unit once, by the name that is its own and not an alias."""
    seen: set[str] = set()
    for unit in units:
        if unit.load != "not-found" and unit.id not in seen:
            seen.add(unit.id)
            yield unit


def _plan_display(node: NodeFacts, draft: _Draft) -> None:
    """Mask and stop the real display manager.

    An alias masks nothing but itself, so the real unit's name is masked; the name
    ``display-manager.service`` too, because the boot asks for a desktop by it and an upgrade may
    point it at another display manager.
    """
    display = node.display
    for unit in _real_units(display.units.values()):
        if unit.id in PROTECTED_UNITS:
            draft.note(
                Severity.ERROR,
                "protected",
                "no needed unit poses as a display manager",
                expected="aliases that lead to a display manager",
                found=f"an alias leads to {unit.id}",
                remedy=f"remove the alias from {UNIT_FOLDER}",
            )
            continue
        if unit.load != "masked" and _owned_by_admin(unit.id, unit.fragment):
            draft.note(
                Severity.ERROR,
                "unit_file",
                "no unit file stands where its mask belongs",
                expected=f"{unit.id} from a package",
                found=f"a file of its own at {unit.fragment}",
                remedy="move the file away, or keep the desktop",
                variable="harden_display",
            )
            continue
        if unit.load != "masked":
            draft.mask(unit.id)
        if unit.active in _RUNNING:
            draft.service(Service(unit.id, "stopped"), "stop")
    name = "display-manager.service"
    alias = display.units.get(name)
    if alias is not None and alias.load != "not-found" and alias.id != name:
        draft.mask(name)
    if display.default_target != HEADLESS_TARGET:
        target = f"/usr/lib/systemd/system/{HEADLESS_TARGET}"
        draft.links.append(Link(f"{UNIT_FOLDER}/default.target", target))
        draft.changes.append(f"default target {display.default_target} → {HEADLESS_TARGET}")


def _plan_avahi(node: NodeFacts, draft: _Draft) -> None:
    unit = node.avahi.unit
    if unit.load == "not-found":
        draft.note(
            Severity.WARNING,
            "avahi",
            "avahi-daemon is installed",
            expected="avahi-daemon.service",
            found="not installed",
            remedy="install the package avahi-daemon",
        )
        return
    socket = node.units.get("avahi-daemon.socket")
    if socket is not None and socket.load == "masked":
        draft.service(Service(socket.id, "started", enabled=True, masked=False), "unmask, start")
    masked = unit.load == "masked"
    enabled = unit.enabled in {"enabled", "static", "indirect", "alias"}
    if masked or not enabled or unit.active not in {"active", "activating"}:
        draft.service(
            Service("avahi-daemon.service", "started", enabled=True, masked=False),
            "unmask, enable and start" if masked else "enable and start",
        )


def swap_unit_name(path: str) -> str:
    """Return the unit that systemd has for a swap file or device; rules of systemd.unit(5).

    Parameters:
        path: absolute path, as /proc/swaps names it.
    """
    escaped = []
    parts = "/".join(part for part in path.split("/") if part)
    for position, byte in enumerate(parts.encode()):
        char = chr(byte)
        if char == "/":
            escaped.append("-")
        elif (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and position):
            escaped.append(char)
        else:
            escaped.append(f"\\x{byte:02x}")
    return "".join(escaped) + ".swap"


def fstab_comment(entry: FstabSwap) -> FstabLine:
    """Return the edit that turns a swap line into a comment, keeping the line readable in it."""
    return FstabLine(
        regexp=f"^({re.escape(entry.line.rstrip())})[ \\t\\r]*$",
        replace=f"{FSTAB_NOTE}\\1",
    )


def _plan_swap_unit(unit: SwapUnit, draft: _Draft) -> None:
    active = unit.active in _RUNNING
    if unit.load in {"masked", "not-found"} or not unit.fragment:
        if active:
            draft.service(Service(unit.name, "stopped"), "stop")
        return
    if not _owned_by_admin(unit.name, unit.fragment):
        draft.mask(unit.name)
        if active:
            draft.service(Service(unit.name, "stopped"), "stop")
    elif unit.enabled == "enabled":
        draft.service(Service(unit.name, "stopped", enabled=False), "disable and stop")
    elif unit.enabled == "disabled":
        if active:
            draft.service(Service(unit.name, "stopped"), "stop")
    else:
        draft.note(
            Severity.ERROR,
            "swap_unit",
            "every swap unit can be kept from starting",
            expected=f"{unit.name} enabled or disabled",
            found=f"{unit.enabled or 'no state'} at {unit.fragment}",
            remedy="remove the unit file, or keep swap",
            variable="harden_swap",
        )


def _plan_live_swap(node: NodeFacts, draft: _Draft) -> None:
    """Judge the rows of /proc/swaps: each must have a unit to stop, and its pages a place to go."""
    memory = node.memory
    known = {unit.name for unit in memory.swap_units} | {u.what for u in memory.swap_units}
    for swap in memory.swaps:
        if swap.name not in known and swap_unit_name(swap.name) not in known:
            draft.note(
                Severity.ERROR,
                "swap_row",
                "systemd knows every swap that is on",
                expected=f"a swap unit for {swap.name}",
                found="none",
                remedy=f"swapoff {swap.name}, then run again",
                variable="harden_swap",
            )
        if _ZRAM.match(swap.name):
            draft.note(
                Severity.WARNING,
                "zram",
                "no compressed swap in memory",
                expected="swap that is no memory",
                found=f"{swap.name}, {format_size(swap.size_bytes)}",
                remedy="remove the package that sets it up; its unit is stopped and masked here",
            )
    used = sum(swap.used_bytes for swap in memory.swaps)
    room = memory.available_bytes - SWAPOFF_RESERVE_BYTES
    if used > max(room, 0):
        draft.note(
            Severity.ERROR,
            "swap_room",
            "memory has room for what is in swap",
            expected=f"at most {format_size(max(room, 0))} in swap (MemAvailable less "
            f"{format_size(SWAPOFF_RESERVE_BYTES)})",
            found=f"{format_size(used)} in swap",
            remedy="stop what fills the memory, such as a serving engine, then run again",
            variable="harden_swap",
        )


def _plan_swap(node: NodeFacts, draft: _Draft) -> None:
    memory = node.memory
    for entry in memory.fstab_swaps:
        if entry.active:
            draft.fstab.append(fstab_comment(entry))
            draft.changes.append(f"comment out line {entry.number} of /etc/fstab: {entry.spec}")
    if node.identity.container and memory.swaps:
        # A container sees the swap of a kernel that is not its own to change.
        draft.note(
            Severity.INFO,
            "shared_kernel",
            "swap belongs to this node's own kernel",
            expected="no row in /proc/swaps",
            found=f"{len(memory.swaps)} of the kernel that the container shares",
            remedy="turn swap off on the machine that runs the container",
        )
    elif memory.swaps:
        _plan_live_swap(node, draft)
    for unit in memory.swap_units:
        _plan_swap_unit(unit, draft)
    for name in ZRAM_UNITS:
        service = node.units.get(name)
        if service is None or service.load in {"masked", "not-found"}:
            continue
        if service.active in _RUNNING or service.enabled == "enabled":
            draft.service(Service(name, "stopped", enabled=False), "disable and stop")


def plan_harden(node: NodeFacts, policy: HardenPolicy) -> HardenPlan:
    """Return what has to change on a node so that it serves without desktop and swap.

    Nothing is planned for a node of which a needed section is unknown.

    Parameters:
        node: facts of the node, with :data:`ZRAM_UNITS` among the units asked for.
        policy: what the inventory wants.
    """
    draft = _Draft(node.name)
    try:
        if policy.display == "off":
            _plan_display(node, draft)
        _plan_avahi(node, draft)
        if policy.swap == "off":
            _plan_swap(node, draft)
    except SectionUnknownError as unknown:
        draft.note(
            Severity.ERROR,
            "facts",
            "what is to be changed can be read",
            expected=f"section {unknown.section} of the node's facts",
            found=unknown.reason,
            remedy="make the probe work on the node; nothing was changed",
        )
    return draft.finish()
