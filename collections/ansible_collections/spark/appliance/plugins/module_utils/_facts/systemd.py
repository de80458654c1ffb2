# SPDX-License-Identifier: Apache-2.0
"""Units, the display stack and avahi, from one call of systemctl."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.processes import processes
from ansible_collections.spark.appliance.plugins.module_utils._facts.reach import Reach

SERVING_UNITS = ("spark-engine.service", "spark-api.service")
DISPLAY_UNITS = ("gdm.service", "gdm3.service", "lightdm.service", "display-manager.service")
HOST_UNITS = (
    "avahi-daemon.service",
    "avahi-daemon.socket",
    "containerd.service",
    "dgx-dashboard.service",
    "docker.service",
    "docker.socket",
    "earlyoom.service",
    "gb10-clock-cap.service",
    "NetworkManager.service",
    "nvidia-persistenced.service",
    "ssh.service",
    "systemd-networkd.service",
    "ufw.service",
    "unattended-upgrades.service",
)
# Names that hold a desktop's memory, in the 15 bytes that the kernel keeps of a name.
DISPLAY_PROCESSES = frozenset(
    {"Xorg", "Xwayland", "gnome-shell", "gdm3", "gdm", "gdm-session-wor", "gdm-wayland-ses",
     "gdm-x-session", "gnome-session-b", "gnome-remote-de", "lightdm", "kwin_wayland",
     "plasmashell"}
)  # fmt: skip
_PROPERTIES = (
    "Id,Names,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,Result,ExecMainStatus,"
    "NRestarts,MainPID,ActiveEnterTimestampMonotonic,What"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants to know beyond the fixed sections.

    Parameters:
        paths: files to stat and hash, directories to stat.
        units: further systemd units.
        weights: directories with model weights.
        reference_epoch_s: the control node's clock when it asked, in seconds since 1970.
        reach: paths over the rails to prove; None asks for no such section.
    """

    paths: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    reference_epoch_s: float | None = None
    reach: Reach | None = None

    unit_names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        names = dict.fromkeys((*SERVING_UNITS, *DISPLAY_UNITS, *HOST_UNITS, *self.units))
        object.__setattr__(self, "unit_names", tuple(names))


def show_command(request: Request) -> Command:
    """Return the one systemctl call that answers for every unit and all swap units."""
    argv = ("systemctl", "show", f"--property={_PROPERTIES}", "--", *request.unit_names, "*.swap")
    return Command("systemctl-show", argv)


def parse_show(text: str) -> list[dict[str, str]]:
    """Return the blocks of ``systemctl show``, one a unit."""
    blocks: list[dict[str, str]] = []
    for chunk in re.split(r"\n\s*\n", text.strip()):
        block = dict(line.split("=", 1) for line in chunk.splitlines() if "=" in line)
        if block:
            blocks.append(block)
    return blocks


def _number(value: str) -> int:
    return int(value) if value.isdigit() else 0


def _unit(name: str, block: dict[str, str]) -> dict[str, Any]:
    # A name that is not the unit's own is an alias, as is-enabled says of a link to a unit.
    is_alias = block["Id"] != name and block["LoadState"] == "loaded"
    return {
        "id": block["Id"],
        "names": sorted(block.get("Names", "").split()),
        "load": block["LoadState"],
        "active": block["ActiveState"],
        "sub": block.get("SubState", ""),
        "enabled": "alias" if is_alias else block.get("UnitFileState", ""),
        "fragment": block.get("FragmentPath", ""),
        "result": block.get("Result", ""),
        "exec_main_status": _number(block.get("ExecMainStatus", "")),
        "n_restarts": _number(block.get("NRestarts", "")),
        "main_pid": _number(block.get("MainPID", "")),
        "active_since_boot_us": _number(block.get("ActiveEnterTimestampMonotonic", "")),
    }


def _blocks(host: Host, request: Request) -> list[dict[str, str]]:
    blocks = parse_show(host.ask(show_command(request)))
    needed = {"Id", "LoadState", "ActiveState"}
    if not blocks or any(not needed <= block.keys() for block in blocks):
        raise Unknown("systemctl: did not print Id, LoadState and ActiveState for every unit")
    return blocks


def units(host: Host, request: Request) -> dict[str, dict[str, Any]]:
    """Return every requested unit by the name it was asked for.

    Raises:
        Unknown: systemctl failed or left a unit out.
    """
    found: dict[str, dict[str, Any]] = {}
    blocks = _blocks(host, request)
    for name in request.unit_names:
        own = next((block for block in blocks if block["Id"] == name), None)
        block = own or next((b for b in blocks if name in b.get("Names", "").split()), None)
        if block is None:
            raise Unknown(f"systemctl: no answer for {name}")
        found[name] = _unit(name, block)
    return found


def swap_units(host: Host, request: Request) -> list[dict[str, Any]]:
    """Return the swap units that systemd knows, by name."""
    return [
        {
            "name": block["Id"],
            "load": block["LoadState"],
            "active": block["ActiveState"],
            "enabled": block.get("UnitFileState", ""),
            "what": block.get("What", ""),
            "fragment": block.get("FragmentPath", ""),
        }
        for block in _blocks(host, request)
        if block["Id"].endswith(".swap")
    ]


def _default_target(host: Host) -> str:
    for folder in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"):
        target = host.link(f"{folder}/default.target")
        if target:
            return target.rpartition("/")[2]
    raise Unknown("default.target: no link in /etc, /run or /usr/lib")


def observe_display(host: Host, request: Request) -> dict[str, Any]:
    """Return the ``display`` section."""
    known = units(host, request)
    return {
        "default_target": _default_target(host),
        "units": {name: known[name] for name in DISPLAY_UNITS},
        "processes": [
            {"pid": process.pid, "name": process.name, "rss_bytes": process.rss_bytes}
            for process in processes(host)
            if process.name in DISPLAY_PROCESSES
        ],
    }


def parse_avahi(text: str) -> dict[str, list[str]]:
    """Return the interface lists of avahi-daemon.conf(5).

    Raises:
        Unknown: a line is none of it; avahi-daemon does not start with such a file either.
    """
    lists: dict[str, list[str]] = {"deny-interfaces": [], "allow-interfaces": []}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if line.strip() and not separator and not line.lstrip().startswith(("#", ";", "[")):
            raise Unknown(f"/etc/avahi/avahi-daemon.conf: not as expected: {line[:60]!r}")
        if separator and key.strip() in lists:
            lists[key.strip()] = [name.strip() for name in value.split(",") if name.strip()]
    return lists


def observe_avahi(host: Host, request: Request) -> dict[str, Any]:
    """Return the ``avahi`` section.

    ``host_name`` is the name that the daemon announces, which it writes into its own command line:
    after a conflict it carries a number that the node's name does not.

    Raises:
        Unknown: the daemon runs and does not say its name.
    """
    unit = units(host, request)["avahi-daemon.service"]
    lists = parse_avahi(host.text("/etc/avahi/avahi-daemon.conf") or "")
    line = host.read_bytes(f"/proc/{unit['main_pid']}/cmdline") if unit["main_pid"] else None
    match = re.search(rb"\[([A-Za-z0-9_.-]+?)(?:\.local)?\]", line or b"")
    if unit["main_pid"] and match is None:
        raise Unknown(f"/proc/{unit['main_pid']}/cmdline: avahi-daemon does not say its name")
    return {
        "unit": unit,
        "deny_interfaces": lists["deny-interfaces"],
        "allow_interfaces": lists["allow-interfaces"],
        "host_name": match.group(1).decode(errors="replace") if match else None,
    }
