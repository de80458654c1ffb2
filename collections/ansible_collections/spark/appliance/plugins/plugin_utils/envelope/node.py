# SPDX-License-Identifier: Apache-2.0
"""The memory of one live node, as judged: what is there, what will come back, what is not ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.holders import (
    ForeignFactsError,
    Kind,
    desktop_terms,
    observe_holders,
    returning_terms,
    section_data,
    tenant_terms,
    unreadable,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term, total
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """One node's memory in bytes.

    Parameters:
        node: inventory name.
        role: role of the node in the served system.
        total_bytes: ``MemTotal``.
        available_bytes: ``MemAvailable`` now.
        free_bytes: ``MemFree`` now.
        shmem_bytes: shared memory and tmpfs, part of what is in use.
        huge_pages_bytes: memory set aside as huge pages, which the engine cannot use.
        cache_bytes: page cache, part of what is available but not of what is free.
        swap_bytes: swap switched on.
        returns: what stops before the engine starts and gives its memory back.
        tenants: what stays and is not part of a bare node.
        desktop: the display stack, where it is not stopped.
        unknown: holders whose memory could not be read, each named.
        given: these are totals on paper, not observed ones.
    """

    node: str
    role: Role
    total_bytes: int
    available_bytes: int
    free_bytes: int
    shmem_bytes: int = 0
    huge_pages_bytes: int = 0
    cache_bytes: int = 0
    swap_bytes: int = 0
    returns: tuple[Term, ...] = ()
    tenants: tuple[Term, ...] = ()
    desktop: tuple[Term, ...] = ()
    unknown: tuple[str, ...] = ()
    given: bool = False

    @property
    def source(self) -> str:
        """Where the node's own figures come from."""
        return "given" if self.given else "/proc/meminfo"

    @property
    def grade(self) -> Grade:
        """How the node's own figures are known."""
        return Grade.PROJECTED if self.given else Grade.MEASURED

    @property
    def before_start_bytes(self) -> int:
        """``MemAvailable`` expected just before the engine starts, never above ``MemTotal``."""
        return min(self.available_bytes + total(self.returns), self.total_bytes)


def _amount(meminfo: Mapping[str, Any], key: str) -> int:
    value = meminfo.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ForeignFactsError(f"/proc/meminfo has {key}={value!r}, not a number of bytes")
    return value


def node_memory(
    node: str,
    role: Role,
    facts: Mapping[str, Any],
    *,
    service_containers: Collection[str],
    desktop_stops: bool = True,
) -> NodeMemory:
    """Return the memory of a node from its facts.

    Parameters:
        node: inventory name.
        role: role of the node.
        facts: what ``node_facts`` returned for the node.
        service_containers: names of the containers that the running service owns.
        desktop_stops: whether the display stack is stopped before the engine starts.

    Raises:
        ForeignFactsError: a section or a figure is missing or impossible.
    """
    meminfo = section_data(facts, "memory").get("meminfo")
    if not isinstance(meminfo, Mapping):
        raise ForeignFactsError("section 'memory' has no meminfo")
    total_bytes = _amount(meminfo, "MemTotal")
    available_bytes = _amount(meminfo, "MemAvailable")
    free_bytes = _amount(meminfo, "MemFree")
    if not total_bytes > 0 or available_bytes > total_bytes or free_bytes > total_bytes:
        raise ForeignFactsError(
            f"/proc/meminfo contradicts itself: MemTotal {total_bytes}, "
            f"MemAvailable {available_bytes}, MemFree {free_bytes} bytes"
        )
    pages = meminfo.get("HugePages_Total", 0)
    holders = observe_holders(facts, service_containers)
    stopping = {Kind.SERVICE, Kind.DESKTOP} if desktop_stops else {Kind.SERVICE}
    return NodeMemory(
        node=node,
        role=role,
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        free_bytes=free_bytes,
        shmem_bytes=_amount(meminfo, "Shmem"),
        huge_pages_bytes=int(pages) * _amount(meminfo, "Hugepagesize") if pages else 0,
        cache_bytes=max(_amount(meminfo, "Cached") - _amount(meminfo, "Shmem"), 0),
        swap_bytes=_amount(meminfo, "SwapTotal"),
        returns=returning_terms(holders, stopping),
        tenants=tenant_terms(holders),
        desktop=() if desktop_stops else desktop_terms(holders),
        unknown=unreadable(holders, stopping),
    )


def offline_node(node: str, role: Role, *, total_bytes: int, available_bytes: int) -> NodeMemory:
    """Return a node that exists on paper: given totals, nothing running, no page cache.

    Raises:
        ForeignFactsError: more available than there is.
    """
    if not 0 < available_bytes <= total_bytes:
        raise ForeignFactsError(
            f"{node}: {available_bytes} bytes available of {total_bytes} is impossible"
        )
    return NodeMemory(node, role, total_bytes, available_bytes, available_bytes, given=True)
