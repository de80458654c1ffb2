# SPDX-License-Identifier: Apache-2.0
"""Units, the display stack and avahi."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit as systemd shows it; ``id`` is its own name where it was asked for by an alias."""

    id: str
    names: tuple[str, ...]
    load: str
    active: str
    sub: str
    enabled: str
    result: str
    exec_main_status: int
    n_restarts: int
    main_pid: int
    active_since_boot_us: int
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One process; ``name`` as the kernel keeps it, at most 15 bytes."""

    pid: int
    name: str
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Display:
    """The display stack: default target, display managers and desktop processes."""

    default_target: str
    units: dict[str, Unit]
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Avahi:
    """avahi-daemon; ``host_name`` is the name that it announces."""

    unit: Unit
    deny_interfaces: tuple[str, ...]
    allow_interfaces: tuple[str, ...]
    host_name: str | None
