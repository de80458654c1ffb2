# SPDX-License-Identifier: Apache-2.0
"""One node's facts: a section is either known or raises why it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ansible_collections.spark.appliance.plugins.plugin_utils.facts.clock import Power, Time
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.docker import Docker
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.gpu import Clocks, Gpu
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.identity import Boot, Identity
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.kernel_log import KernelLog
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.memory import Memory
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.network import Network
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.packages import Packages
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.rdma import Rdma
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.sockets import (
    Firewall,
    Listener,
    Peer,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.storage import (
    Disk,
    File,
    Launch,
    WeightDirectory,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts.systemd import (
    Avahi,
    Display,
    Unit,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.reach import Path
from pydantic import TypeAdapter, ValidationError

SCHEMA = 1


class SectionUnknownError(LookupError):
    """A section of a node that could not be observed.

    Parameters:
        node: inventory name.
        section: name of the section.
        reason: why it is unknown, as the node told it.
    """

    def __init__(self, node: str, section: str, reason: str) -> None:
        super().__init__(f"{node}: {section}: {reason}")
        self.node = node
        self.section = section
        self.reason = reason


T = TypeVar("T")


# Building a validator costs more than using it a hundred times.
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(shape: type[T]) -> TypeAdapter[T]:
    if shape not in _ADAPTERS:
        _ADAPTERS[shape] = TypeAdapter(shape)
    return _ADAPTERS[shape]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node said, each section parsed when it is first asked for.

    Parameters:
        name: inventory name.
        sections: section name to ``{"ok": true, "data": …}`` or ``{"ok": false, "reason": …}``.
    """

    name: str
    sections: Mapping[str, Any]
    _parsed: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any]) -> NodeFacts:
        """Return the facts that the module returned for a node.

        Facts of another schema are kept as facts without a single known section.
        """
        sections = facts.get("sections")
        if facts.get("schema") != SCHEMA or not isinstance(sections, Mapping):
            return cls(name, {})
        return cls(name, sections)

    def reason(self, section: str) -> str:
        """Return why a section is unknown, empty where it is known."""
        entry = self.sections.get(section)
        if not isinstance(entry, Mapping):
            return "the node did not report this section"
        if entry.get("ok") is True and "data" in entry:
            return ""
        return str(entry.get("reason") or "no reason given")

    def _section(self, section: str, shape: type[T]) -> T:
        if section in self._parsed:
            known: T = self._parsed[section]
            return known
        if reason := self.reason(section):
            raise SectionUnknownError(self.name, section, reason)
        try:
            value: T = _adapter(shape).validate_python(self.sections[section]["data"])
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            reason = f"not in the expected shape: {where or section}: {first['msg']}"
            raise SectionUnknownError(self.name, section, reason) from error
        self._parsed[section] = value
        return value

    @property
    def identity(self) -> Identity:
        return self._section("identity", Identity)

    @property
    def boot(self) -> Boot:
        return self._section("boot", Boot)

    @property
    def memory(self) -> Memory:
        return self._section("memory", Memory)

    @property
    def display(self) -> Display:
        return self._section("display", Display)

    @property
    def avahi(self) -> Avahi:
        return self._section("avahi", Avahi)

    @property
    def network(self) -> Network:
        return self._section("network", Network)

    @property
    def firewall(self) -> Firewall:
        return self._section("firewall", Firewall)

    @property
    def rdma(self) -> Rdma:
        return self._section("rdma", Rdma)

    @property
    def reach(self) -> list[Path]:
        return self._section("reach", list[Path])

    @property
    def gpu(self) -> Gpu:
        return self._section("gpu", Gpu)

    @property
    def clocks(self) -> Clocks:
        return self._section("clocks", Clocks)

    @property
    def docker(self) -> Docker:
        return self._section("docker", Docker)

    @property
    def units(self) -> dict[str, Unit]:
        return self._section("units", dict[str, Unit])

    @property
    def files(self) -> dict[str, File]:
        return self._section("files", dict[str, File])

    @property
    def disk(self) -> tuple[Disk, ...]:
        return self._section("disk", tuple[Disk, ...])

    @property
    def launch(self) -> Launch:
        return self._section("launch", Launch)

    @property
    def weights(self) -> dict[str, WeightDirectory]:
        return self._section("weights", dict[str, WeightDirectory])

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return self._section("listeners", tuple[Listener, ...])

    @property
    def connections(self) -> tuple[Peer, ...]:
        return self._section("connections", tuple[Peer, ...])

    @property
    def time(self) -> Time:
        return self._section("time", Time)

    @property
    def power(self) -> Power:
        return self._section("power", Power)

    @property
    def packages(self) -> Packages:
        return self._section("packages", Packages)

    @property
    def kernel_log(self) -> KernelLog:
        return self._section("kernel_log", KernelLog)
