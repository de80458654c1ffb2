# SPDX-License-Identifier: Apache-2.0
"""Everything that a judgement may look at, and nothing that it may do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)

T = TypeVar("T")


class NotGivenError(LookupError):
    """A check needs context that the caller did not give; ``name`` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@lru_cache(1024)
def _interfaces(texts: tuple[str, ...]) -> tuple[ipaddress.IPv4Interface, ...]:
    found = []
    for text in texts:
        try:
            found.append(ipaddress.IPv4Interface(text))
        except ValueError:
            break
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Site:
    """What the inventory says.

    Parameters:
        nodes: inventory names by rank, the head first.
        rails: for each node its addresses with prefix length, rail A first.
        fabric_mtu: MTU that every rail shall have, in bytes.
        api_bind: address that the API server binds.
        api_port: its port.
        ray_port: port of Ray's control store; None for an engine without Ray.
        weights_dir: directory with the weights on every node.
        allow_mixed_stack: nodes may differ in update, kernel, driver or toolkit.
        allow_link_local: a rank's address may be link-local.
    """

    nodes: tuple[str, ...]
    rails: Mapping[str, tuple[str, ...]]
    fabric_mtu: int
    api_bind: str
    api_port: int
    ray_port: int | None
    weights_dir: str
    allow_mixed_stack: bool = False
    allow_link_local: bool = False

    @property
    def head(self) -> str:
        """The node of rank 0."""
        return self.nodes[0]

    def role(self, node: str) -> str:
        """``head`` or ``worker``."""
        return "head" if node == self.head else "worker"

    def rail_interfaces(self, node: str) -> tuple[ipaddress.IPv4Interface, ...]:
        """The node's rail addresses, rail A first; one that is no address ends the list."""
        return _interfaces(tuple(self.rails.get(node, ())))

    def rank_address(self, node: str) -> str:
        """The address that a rank announces: the one of rail A; empty where it is no address."""
        return next((str(interface.ip) for interface in self.rail_interfaces(node)), "")


@dataclass(frozen=True, slots=True)
class ExpectedImage:
    """The image that every node must hold.

    Parameters:
        config_digest: ``sha256:`` digest of the image's config.
        architecture: as Docker names it.
        layers: uncompressed layer digests; empty where the release does not pin them.
    """

    config_digest: str
    architecture: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedLaunch:
    """What was rendered for a node.

    Parameters:
        id: launch id, a digest of everything rendered for all nodes.
        container: name of the container that serves.
        units: units that must be active.
        devices: host devices that the container must have.
        memlock_bytes: locked-memory limit that the recipe asks for, -1 for none; None if inherited.
    """

    id: str
    container: str
    units: tuple[str, ...]
    devices: tuple[str, ...] = ()
    memlock_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What recipe and profile demand of the nodes, as the checks read it.

    Parameters:
        nodes: number of nodes.
        gpus_per_node: GPUs that each node brings.
        rdma: the engine talks over RDMA.
        context_tokens: longest request in tokens, as the server must announce it.
        min_total_bytes: least MemTotal.
        floors_bytes: least MemAvailable by role.
        keep_swap: swap is left alone.
        keep_display: the desktop is left alone.
        rank_port: port of the head that every other rank stays connected to; None is Ray's.
        driver_branch: driver branch that the recipe was proven on, such as ``580``.
    """

    nodes: int
    gpus_per_node: int
    rdma: bool
    context_tokens: int
    min_total_bytes: int
    floors_bytes: Mapping[str, int]
    keep_swap: bool = False
    keep_display: bool = False
    rank_port: int | None = None
    driver_branch: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """One judgement's material.

    Parameters:
        site: the inventory.
        needs: what recipe and profile demand.
        facts: facts by inventory name; a node that did not answer has none.
        image: the pinned image.
        launches: what was rendered, by node.
        serving: what the API server said of itself.
        receipt: the last good receipt.
    """

    site: Site
    needs: Needs
    facts: Mapping[str, NodeFacts]
    image: ExpectedImage | None = None
    launches: Mapping[str, ExpectedLaunch] | None = None
    serving: Mapping[str, Any] | None = None
    receipt: Mapping[str, Any] | None = None
    _unknown: list[SectionUnknownError] = field(default_factory=list, repr=False, compare=False)

    def require(self, value: T | None, name: str) -> T:
        """Return context that a check cannot do without.

        Raises:
            NotGivenError: the caller did not give it.
        """
        if value is None:
            raise NotGivenError(name)
        return value

    def launch(self, node: str) -> ExpectedLaunch:
        """Return what was rendered for a node.

        Raises:
            NotGivenError: nothing was.
        """
        return self.require((self.launches or {}).get(node), "launches")

    def known(self, section: str) -> Iterator[tuple[str, Any]]:
        """Yield (node, section) for each node that has it; the others are noted as not judged."""
        for name in self.site.nodes:
            node = self.facts.get(name)
            if node is None:
                continue
            try:
                value = getattr(node, section)
            except SectionUnknownError as unknown:
                self._unknown.append(unknown)
                continue
            yield name, value

    def note(self, unknown: Iterable[SectionUnknownError]) -> None:
        """Remember sections that a check went on without, so that they are findings."""
        self._unknown.extend(unknown)

    def take_unknown(self) -> list[SectionUnknownError]:
        """Return and forget what :meth:`known` could not read and :meth:`note` was told."""
        taken, self._unknown[:] = list(self._unknown), []
        return taken
