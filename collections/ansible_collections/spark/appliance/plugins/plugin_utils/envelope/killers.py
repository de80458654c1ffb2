# SPDX-License-Identifier: Apache-2.0
"""Which programs end processes when memory gets short, and at how many bytes on this node.

A killer that acts at or above a role's floor ends a healthy run. A node on which nothing acts at
all lets a spike reach the kernel, which picks the victim itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.holders import (
    ForeignFactsError,
    section_data,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.units import KIB, format_bytes

# earlyoom(1): SIGTERM at 10 % of available memory unless -m or -M says otherwise.
EARLYOOM_DEFAULT_PERCENT = Fraction(10)
# mm/page_alloc.c caps the reserve it computes itself at 256 MiB; more was asked for by somebody.
KERNEL_RESERVE_CAP_BYTES = 262_144 * KIB

_EARLYOOM_VALUES = frozenset({"-m", "-M", "-s", "-S", "-r", "-N", "-P", "-k"})
_EARLYOOM_LONG_VALUES = frozenset({"--prefer", "--avoid", "--ignore", "--sort-by-rss"})


@dataclass(frozen=True, slots=True)
class Killer:
    """A program that ends processes.

    Parameters:
        name: the program.
        acts_at_bytes: ``MemAvailable`` at or below which it acts; None where its measure is
            another one, which ``rule`` then describes.
        rule: its rule as configured on this node.
        reaches_engine: whether the engine's processes are among its victims.
    """

    name: str
    acts_at_bytes: int | None
    rule: str
    reaches_engine: bool


def _threshold(text: str) -> Fraction:
    """Return the SIGTERM value of an earlyoom option: the first of ``VALUE[,KILL_VALUE]``."""
    return Fraction(text.split(",", 1)[0])


def _earlyoom_options(argv: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    words = iter(argv[1:])
    for word in words:
        name, _, joined = word.partition("=")
        if name.startswith("--"):
            if name in _EARLYOOM_LONG_VALUES and not joined:
                next(words, None)
        elif word[:2] in _EARLYOOM_VALUES:
            options[word[:2]] = word[2:] or next(words, "")
    return options


def earlyoom(argv: Sequence[str], total_bytes: int) -> Killer:
    """Return what a running earlyoom does on a node.

    A percentage counts against the memory that user processes can have; taken against ``MemTotal``
    it errs on the side of refusing. Of ``-m`` and ``-M`` the lower one counts.

    Raises:
        ForeignFactsError: a threshold is no number.
    """
    options = _earlyoom_options(argv)
    try:
        percent = _threshold(options["-m"]) if "-m" in options else None
        size = _threshold(options["-M"]) * KIB if "-M" in options else None
    except (ValueError, ZeroDivisionError) as error:
        raise ForeignFactsError(
            f"earlyoom runs with thresholds that are no numbers: {options}"
        ) from error
    if percent is None and size is None:
        percent = EARLYOOM_DEFAULT_PERCENT
    thresholds: dict[str, int] = {}
    if percent is not None:
        thresholds[f"{float(percent):g} % of memory"] = int(percent * total_bytes / 100)
    if size is not None:
        thresholds[f"{int(size) // KIB} KiB"] = int(size)
    said, acts_at_bytes = min(thresholds.items(), key=lambda item: item[1])
    return Killer("earlyoom", acts_at_bytes, f"{said} = {format_bytes(acts_at_bytes)}", True)


def ray_monitor(refresh_ms: int, usage_threshold: Fraction, total_bytes: int) -> Killer | None:
    """Return Ray's memory monitor, or None where it is off (refresh 0).

    It ends a worker when more than ``usage_threshold`` of the memory is in use.
    """
    if refresh_ms == 0:
        return None
    acts_at_bytes = total_bytes - int(usage_threshold * total_bytes)
    rule = f"above {float(usage_threshold):.2%} in use = below {format_bytes(acts_at_bytes)}"
    return Killer("Ray's memory monitor", acts_at_bytes, rule, True)


def observed_killers(
    facts: Mapping[str, Any], *, total_bytes: int, swap_bytes: int
) -> list[Killer]:
    """Return the killers that run on a node; rules about swap are void where there is none.

    Raises:
        ForeignFactsError: the section is missing, or a killer runs with unreadable settings.
    """
    guards = section_data(facts, "guards")
    found = []
    if guards["earlyoom"]["running"]:
        argv = guards["earlyoom"].get("argv")
        if not argv:
            raise ForeignFactsError("earlyoom runs, but its arguments could not be read")
        found.append(earlyoom(argv, total_bytes))
    oomd = guards["oomd"]
    if oomd["running"]:
        for unit, rule in oomd["managed"].items():
            pressure = rule["memory_pressure"] == "kill"
            swap = rule["swap"] == "kill" and swap_bytes > 0
            if pressure or swap:
                what = f"memory pressure above {rule['limit']}" if pressure else "swap use"
                found.append(Killer("systemd-oomd", None, f"{unit}: {what}", unit != "user.slice"))
    found += [
        Killer(name, None, "its own rules, which are not read", True)
        for name in guards.get("others", ())
    ]
    return found


def audit_killers(
    node: str,
    killers: Sequence[Killer],
    *,
    floor_bytes: int,
    reserve_bytes: int,
    headroom_bytes: int | None,
    watched: bool,
) -> Iterator[Finding]:
    """Yield what is wrong with the killers of a node for a floor.

    Parameters:
        node: inventory name.
        killers: what would end processes there, Ray's monitor included.
        floor_bytes: the role's floor.
        reserve_bytes: ``vm.min_free_kbytes`` in bytes.
        headroom_bytes: expected least ``MemAvailable`` minus the floor, None when unmeasured. It is
            what a reserve above the kernel's own may still take, where the expectation comes from
            runs without one.
        watched: whether the appliance's own watch follows memory from start to first long prefill.
    """
    for killer in killers:
        at = killer.acts_at_bytes
        if not killer.reaches_engine:
            continue
        if at is None:
            yield Finding(
                "memory.killer_unbounded",
                node,
                Severity.ERROR,
                f"{killer.name} may end the engine by a rule that is not in bytes",
                f"no killer that acts above the floor of {format_bytes(floor_bytes)}",
                killer.rule,
                f"stop {killer.name}, or take the engine out of its reach",
            )
        elif at >= floor_bytes:
            yield Finding(
                "memory.killer_above_floor",
                node,
                Severity.ERROR,
                f"{killer.name} would end a healthy run",
                f"acting below the floor of {format_bytes(floor_bytes)}",
                f"it acts at {killer.rule}",
                f"stop {killer.name}, or lower its threshold below {floor_bytes // KIB} KiB",
            )
    excess_bytes = max(reserve_bytes - KERNEL_RESERVE_CAP_BYTES, 0)
    if headroom_bytes is not None and excess_bytes > max(headroom_bytes, 0):
        yield Finding(
            "memory.reserve_eats_floor",
            node,
            Severity.ERROR,
            "vm.min_free_kbytes takes more than the floor can spare",
            f"at most {format_bytes(KERNEL_RESERVE_CAP_BYTES + max(headroom_bytes, 0))}",
            format_bytes(reserve_bytes),
            f"set it to {KERNEL_RESERVE_CAP_BYTES // KIB} or less, or measure this profile with it",
            "vm.min_free_kbytes",
        )
    acting = [killer for killer in killers if killer.reaches_engine]
    if not acting and not watched:
        yield Finding(
            "memory.no_guard",
            node,
            Severity.ERROR,
            "nothing guards the memory of this node",
            "the memory watch, or a killer that acts below the floor",
            "no killer and no watch",
            "run with the memory watch switched on",
        )
