# SPDX-License-Identifier: Apache-2.0
"""The facts of one node as types: a section is either known or raises why it is not."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

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


@dataclass(frozen=True, slots=True)
class Dgx:
    """What /etc/dgx-release says; ``ota_version`` is the last update, None where none was made."""

    present: bool
    name: str = ""
    pretty_name: str = ""
    swbuild_version: str = ""
    ota_version: str | None = None
    platform: str = ""

    @property
    def version(self) -> str:
        """The version that runs: the last update, or the factory's where none was made."""
        return self.ota_version or self.swbuild_version


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel that runs and the one that the next boot starts."""

    running: str
    next: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which machine and system this is; ``container`` names the manager where the node is one."""

    hostname: str
    machine: str
    container: str | None
    dgx: Dgx
    os: dict[str, str]
    kernel: Kernel
    dmi: dict[str, str | None]
    cpu_count: int
    boot_id: str
    uptime_s: float


@dataclass(frozen=True, slots=True)
class InstalledKernel:
    """What an installed kernel finds when it starts; ``modules`` by name."""

    version: str
    initrd: bool
    modules_dir: bool
    modules: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Boot:
    """The installed kernels and whether something waits for a reboot."""

    running: str
    next: str | None
    kernels: tuple[InstalledKernel, ...]
    reboot_required: bool
    reboot_packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """One row of /proc/swaps."""

    name: str
    type: str
    size_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class FstabSwap:
    """One swap line of fstab, commented ones too; ``number`` counts lines from 1."""

    line: str
    number: int
    spec: str
    active: bool


@dataclass(frozen=True, slots=True)
class SwapUnit:
    """One swap unit of systemd."""

    name: str
    load: str
    active: str
    enabled: str
    what: str = ""
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory and swap; ``meminfo`` in bytes, its ``HugePages_*`` rows in pages."""

    meminfo: dict[str, int]
    swaps: tuple[Swap, ...]
    fstab_swaps: tuple[FstabSwap, ...]
    swap_units: tuple[SwapUnit, ...]
    sysctl: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """``MemTotal`` in bytes."""
        return self.meminfo["MemTotal"]

    @property
    def available_bytes(self) -> int:
        """``MemAvailable`` in bytes, the only figure that a floor is compared with."""
        return self.meminfo["MemAvailable"]


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


# Checks ask for the same few addresses and names over and over.
_ip_interface = lru_cache(4096)(ipaddress.ip_interface)


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an interface; ``family`` is inet or inet6."""

    address: str
    prefix: int
    family: str
    scope: str
    dynamic: bool

    @property
    def interface(self) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
        """The address with its prefix."""
        return _ip_interface(f"{self.address}/{self.prefix}")


# A ConnectX-7 netdev: the PCI domain (none is 0000) tells the rail, the function tells the cage.
_CX7_NETDEV = re.compile(r"^en(?:P(?P<domain>\d+))?p\d+s\d+f(?P<function>\d)np\d$")


@lru_cache(1024)
def _position(netdev: str) -> tuple[str, int | None]:
    match = _CX7_NETDEV.match(netdev)
    if match is None:
        return "", None
    return "b" if match.group("domain") else "a", int(match.group("function"))


@dataclass(frozen=True, slots=True)
class Interface:
    """One netdev; speed in Mb/s and MTU in bytes."""

    name: str
    mtu: int
    max_mtu: int | None
    operstate: str
    carrier: bool
    speed_mbps: int | None
    kind: str | None
    addresses: tuple[Address, ...]
    driver: str | None
    pci: str | None

    @property
    def rail(self) -> str:
        """``a`` for PCI domain 0000, ``b`` for another, empty where this is no ConnectX-7."""
        return _position(self.name)[0]

    @property
    def cage(self) -> int | None:
        """The cage that the netdev's function belongs to; None where this is no ConnectX-7."""
        return _position(self.name)[1]

    @property
    def ipv4(self) -> tuple[Address, ...]:
        """The interface's IPv4 addresses."""
        return tuple(entry for entry in self.addresses if entry.family == "inet")


@dataclass(frozen=True, slots=True)
class NetplanFile:
    """One netplan file with its mode in octal and its digest."""

    path: str
    mode: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Netplan:
    """What netplan holds; ``merged`` is None where it could not be told, for ``reason``."""

    present: bool
    files: tuple[NetplanFile, ...]
    merged: dict[str, Any] | None
    renderer: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """One wired NetworkManager profile; not ``persistent`` where it lives under /run."""

    id: str
    interface: str
    autoconnect: bool
    ipv4_method: str
    persistent: bool


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces, what keeps them over a boot, and which one carries the control session."""

    interfaces: tuple[Interface, ...]
    control_interface: str | None
    netplan: Netplan
    profiles: tuple[Profile, ...]
    routes: tuple[dict[str, str], ...]

    def rails(self) -> tuple[Interface, ...]:
        """Every ConnectX-7 netdev, by cage and rail."""
        found = (entry for entry in self.interfaces if entry.rail)
        return tuple(sorted(found, key=lambda entry: (entry.cage or 0, entry.rail)))

    def live_cage(self) -> int | None:
        """The one cage with carrier on a rail; None where no cage has it, or both have it."""
        cages = {entry.cage for entry in self.rails() if entry.carrier}
        return cages.pop() if len(cages) == 1 else None

    def holder(self, address: str) -> Interface | None:
        """The interface that holds an IPv4 or IPv6 address."""
        for interface in self.interfaces:
            if any(entry.address == address for entry in interface.addresses):
                return interface
        return None


@dataclass(frozen=True, slots=True)
class FirewallRule:
    """One rule of ufw."""

    action: str
    protocol: str
    port: str
    destination: str
    source: str
    interface: str


@dataclass(frozen=True, slots=True)
class Firewall:
    """The state of ufw, from its files."""

    installed: bool
    enabled: bool
    input_policy: str
    rules: tuple[FirewallRule, ...]


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a GID table; ``gid`` as IPv4 where it maps one."""

    index: int
    gid: str
    type: str
    ndev: str | None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device."""

    port: int
    state: str
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One RDMA device; ``state`` is its first port's."""

    name: str
    netdev: str | None
    state: str
    rate: str | None
    ports: tuple[RdmaPort, ...]


@dataclass(frozen=True, slots=True)
class Rdma:
    """RDMA devices, and the card's functions on PCI, none of them where it left the bus."""

    present: bool
    devices: tuple[RdmaDevice, ...]
    functions: tuple[str, ...]
    hotplug_power_saving: bool
    uverbs: tuple[str, ...]

    def by_netdev(self, netdev: str) -> RdmaDevice | None:
        """The RDMA device of a netdev."""
        return next((device for device in self.devices if device.netdev == netdev), None)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One process on the GPU; ``used_bytes`` is None where the driver does not tell."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU and its users; ``count`` 0 means that the driver lists none."""

    name: str
    count: int
    driver_version: str
    loaded_driver_version: str | None
    max_sm_mhz: int | None
    tenants: tuple[Tenant, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """One image; ``config_digest`` is None where the store does not tell it."""

    id: str
    config_digest: str | None
    tags: tuple[str, ...]
    architecture: str
    os: str
    layers: tuple[str, ...]
    labels: dict[str, str]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Container:
    """One container; ``memlock_bytes`` is -1 for unlimited and None where it is inherited."""

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int
    started_at: str
    labels: dict[str, str]
    pid: int = 0
    oom_killed: bool = False
    privileged: bool = False
    restart_policy: str = "no"
    memory_limit_bytes: int = 0
    devices: tuple[str, ...] = ()
    memlock_bytes: int | None = None
    ray_auth_mode: str | None = None


@dataclass(frozen=True, slots=True)
class Docker:
    """The engine, its images and containers; ``origin`` is package or snap."""

    server_version: str
    storage_driver: str
    containerd_store: bool
    root_dir: str
    origin: str
    runtimes: tuple[str, ...]
    cdi_devices: tuple[str, ...]
    cdi_driver_versions: tuple[str, ...]
    images: tuple[Image, ...]
    containers: tuple[Container, ...]

    def image(self, image_id: str) -> Image | None:
        """The image with an id, as a container names it."""
        return next((image for image in self.images if image.id == image_id), None)

    def container(self, name: str) -> Container | None:
        """The container with a name."""
        return next((entry for entry in self.containers if entry.name == name), None)


@dataclass(frozen=True, slots=True)
class File:
    """One path that was asked for."""

    exists: bool
    type: str = ""
    target: str | None = None
    mode: str = ""
    uid: int = 0
    gid: int = 0
    size_bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Space under one path, as its file system counts it."""

    path: str
    filesystem: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch in force and the staged ones, with their files."""

    present: bool
    id: str | None
    staged: tuple[str, ...]
    content: dict[str, Any] | None
    files: dict[str, str | None]
    launches: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightDirectory:
    exists: bool
    indexed: bool = False
    shards_listed: int | None = None
    shards: int = 0
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    shard_bytes: int = 0
    tensor_bytes: int | None = None
    config: bool = False
    verified: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket."""

    address: str
    port: int
    process: str | None
    pid: int | None

    @property
    def wildcard(self) -> bool:
        """Whether the socket takes connections on every address."""
        return self.address in {"0.0.0.0", "::"}  # noqa: S104 -- compared with, not bound to


@dataclass(frozen=True, slots=True)
class Peer:
    """The remote end of an established connection."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Time:
    """The clock; ``skew_s`` is the node's less the control node's, None where it was not asked."""

    synchronized: bool
    skew_s: float | None


@dataclass(frozen=True, slots=True)
class Power:
    """How the previous run ended: clean, unclean or unknown."""

    previous_run: str
    pstore_records: int


@dataclass(frozen=True, slots=True)
class BrokenSource:
    """A file of package sources that holds something else."""

    path: str
    first_line: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Package sources and pins."""

    broken: tuple[BrokenSource, ...]
    cuda_repository: bool
    pinned: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packages:
    """Versions that matter, holds, and who holds the package database."""

    held: tuple[str, ...]
    driver_installed: str | None
    driver_packages: tuple[str, ...]
    versions: dict[str, str]
    snap_docker: bool
    sources: Sources
    manager_running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Marker:
    """One kind of line in the kernel log, with its last time in seconds after boot."""

    kind: str
    count: int
    last_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KernelLog:
    markers: tuple[Marker, ...]
    lines: int

    def marker(self, kind: str) -> Marker | None:
        """The marker of a kind, where the log has one."""
        return next((marker for marker in self.markers if marker.kind == kind), None)


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
