# SPDX-License-Identifier: Apache-2.0
"""Who holds a node's memory: the running service, the desktop, or somebody else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.units import MIB, format_size

# Below this a process is part of the operating system, not a tenant.
TENANT_BYTES = 500 * MIB

# On Ubuntu gdm.service is the unit and the two others are its aliases.
DISPLAY_UNITS = frozenset({"gdm.service", "gdm3.service", "display-manager.service"})


class ForeignFactsError(ValueError):
    """Facts whose memory cannot be judged; the message says which and why."""


class Kind(StrEnum):
    """Whose memory it is."""

    SERVICE = "running service"
    DESKTOP = "desktop"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory of one process.

    Parameters:
        pid: process id on the node.
        name: command name.
        owner: container or unit that the process belongs to.
        kind: see :class:`Kind`.
        source: how the size was read.
        size_bytes: anonymous and shared bytes, or GPU bytes; None when it could not be read.
    """

    pid: int
    name: str
    owner: str
    kind: Kind
    source: str
    size_bytes: int | None

    def __str__(self) -> str:
        size = "unreadable" if self.size_bytes is None else format_size(self.size_bytes)
        return f"process {self.pid} ({self.name}, {self.owner}): {size}"


def section_data(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the data of a section of a node's facts.

    Raises:
        ForeignFactsError: the section is absent, was not readable, or has no data.
    """
    section = facts.get("sections", {}).get(name)
    if not isinstance(section, Mapping):
        raise ForeignFactsError(f"the facts have no section {name!r}")
    if not section.get("ok"):
        raise ForeignFactsError(f"{name} could not be read: {section.get('reason', 'no reason')}")
    data = section.get("data")
    if not isinstance(data, Mapping):
        raise ForeignFactsError(f"section {name!r} has no data")
    return data


def observe_holders(
    facts: Mapping[str, Any], service_containers: Collection[str]
) -> tuple[Holder, ...]:
    """Return every holder that a node's facts name, host memory first, then GPU memory.

    Parameters:
        facts: what ``node_facts`` returned for the node.
        service_containers: names of the containers that the running service owns.

    Raises:
        ForeignFactsError: a section is missing or was not readable.
    """
    containers = {
        str(container["id"]): str(container["name"]).lstrip("/")
        for container in section_data(facts, "docker").get("containers", ())
    }
    display_pids = {int(p["pid"]) for p in section_data(facts, "display").get("processes", ())}
    host = list(_host_holders(facts, containers, service_containers, display_pids))
    kinds = {holder.pid: holder for holder in host}
    return (*host, *_gpu_holders(facts, kinds))


def _host_holders(
    facts: Mapping[str, Any],
    containers: Mapping[str, str],
    service_containers: Collection[str],
    display_pids: Collection[int],
) -> Iterator[Holder]:
    for process in section_data(facts, "holders").get("processes", ()):
        pid, unit = int(process["pid"]), str(process.get("unit") or "")
        container_id = str(process.get("container") or "")
        container = containers.get(container_id, container_id[:12])
        if container and container in service_containers:
            kind = Kind.SERVICE
        elif not container and (pid in display_pids or unit in DISPLAY_UNITS):
            kind = Kind.DESKTOP
        else:
            kind = Kind.OTHER
        yield Holder(
            pid,
            str(process["name"]),
            f"container {container}" if container else unit or "no unit",
            kind,
            str(process.get("source", "anonymous and shared pages")),
            None if process.get("memory_bytes") is None else int(process["memory_bytes"]),
        )


def _gpu_holders(facts: Mapping[str, Any], host: Mapping[int, Holder]) -> Iterator[Holder]:
    for tenant in section_data(facts, "gpu").get("tenants", ()):
        pid, used = int(tenant["pid"]), tenant.get("used_bytes")
        known = host.get(pid)
        yield Holder(
            pid,
            str(tenant["name"]),
            known.owner if known else "no container of ours",
            known.kind if known else Kind.OTHER,
            "GPU memory by nvidia-smi",
            None if used is None else int(used),
        )


def _sums(holders: Iterable[Holder], kinds: Collection[Kind], prefix: str) -> tuple[Term, ...]:
    """Return the holders of some kinds, one term for each owner and source."""
    sums: dict[tuple[Kind, str, str], int] = {}
    for holder in holders:
        if holder.kind in kinds and holder.size_bytes:
            key = (holder.kind, holder.owner, holder.source)
            sums[key] = sums.get(key, 0) + holder.size_bytes
    return tuple(
        Term(f"{prefix}{kind.value} ({owner})", size_bytes, Grade.MEASURED, source)
        for (kind, owner, source), size_bytes in sums.items()
    )


def returning_terms(holders: Iterable[Holder], stopping: Collection[Kind]) -> tuple[Term, ...]:
    """Return what comes back when the given kinds stop."""
    return _sums(holders, stopping, "given back: ")


def desktop_terms(holders: Iterable[Holder]) -> tuple[Term, ...]:
    """Return what the display stack holds."""
    return _sums(holders, {Kind.DESKTOP}, "")


def tenant_terms(holders: Iterable[Holder]) -> tuple[Term, ...]:
    """Return what others hold: any GPU memory, and host memory from 500 MiB a process."""
    return tuple(
        Term(
            f"{holder.name} (process {holder.pid})", holder.size_bytes, Grade.MEASURED, holder.owner
        )
        for holder in holders
        if holder.kind is Kind.OTHER
        and holder.size_bytes is not None
        and (holder.size_bytes >= TENANT_BYTES or holder.source.startswith("GPU"))
    )


def unreadable(holders: Iterable[Holder], stopping: Collection[Kind]) -> tuple[str, ...]:
    """Return the holders that decide the judgement and whose memory could not be read."""
    return tuple(
        str(holder)
        for holder in holders
        if holder.size_bytes is None
        and (holder.kind in stopping or holder.source.startswith("GPU"))
    )


def largest(holders: Iterable[Holder], count: int = 5) -> tuple[str, ...]:
    """Return the largest holders as text, largest first."""
    ranked = sorted(holders, key=lambda holder: holder.size_bytes or 0, reverse=True)
    return tuple(str(holder) for holder in ranked[:count])
