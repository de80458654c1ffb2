from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_lab.process import LabError

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "spark-lab"
DEFAULT_BLOCK = 76
DEFAULT_SUITE = "bookworm"

GIB = 1 << 30

MANAGEMENT = "enP7s7"
RAIL_A = "enp1s0f1np1"
RAIL_B = "enP2p1s0f1np1"
# Cage 0 holds no cable in the lab.
UNPLUGGED = ("enp1s0f0np0", "enP2p1s0f0np0")
RELEASE_PORT = 8080


@dataclass(frozen=True, slots=True)
class Suite:
    """A Debian release that nodes are made of.

    Args:
        name: as Debian's archive calls it.
        volumes: folders that must not lie on a container's own overlay, as Docker and containerd
            lay overlays over what is in them.
    """

    name: str
    volumes: tuple[str, ...]


# Docker keeps images in its classic store on the first, in containerd's on the second.
SUITES = {
    suite.name: suite
    for suite in (
        Suite("bookworm", ("/var/lib/docker",)),
        Suite("trixie", ("/var/lib/docker", "/var/lib/containerd")),
    )
}


@dataclass(frozen=True, slots=True)
class Node:
    """One lab node. `memory_bytes` bounds the container and is its MemTotal."""

    name: str
    number: int
    memory_bytes: int


# The only place of the nodes' order (rank), addresses and memory.
NODES = (
    Node("alpha", 11, 7 * GIB),
    Node("bravo", 12, 4 * GIB),
    Node("charlie", 13, 4 * GIB),
    Node("delta", 14, 4 * GIB),
)
RELEASE_NUMBER = 10


@dataclass(frozen=True, slots=True)
class Lab:
    """Where a lab lives: names, addresses and paths.

    Args:
        name: prefix of everything made on this machine; interface names bound it to 10 characters.
        block: second octet of the management network; the rails have the one after it.
        suite: what the nodes are made of.
        cache: what is built once per machine.
    """

    name: str = DEFAULT_NAME
    block: int = DEFAULT_BLOCK
    suite: Suite = SUITES[DEFAULT_SUITE]
    cache: Path = field(default_factory=lambda: Path.home() / ".cache/spark-appliance")

    @property
    def state(self) -> Path:
        """Keys and inventory of this lab, in this clone."""
        base = REPOSITORY / ".lab"
        return base if self.name == DEFAULT_NAME else base / self.name

    @property
    def inventory(self) -> Path:
        """The inventory directory to give to Ansible."""
        if self.name == DEFAULT_NAME:
            return REPOSITORY / "inventories/lab"
        return self.state / "inventory"

    @property
    def release(self) -> Path:
        """What the release server serves: the built release; before there is one, nothing."""
        built = REPOSITORY / ".lab/release"
        return built.resolve() if built.exists() else self.cache / "lab-release-none"

    @property
    def switch(self) -> str:
        """Network namespace of the bridges."""
        return f"{self.name}-switch"

    @property
    def uplink(self) -> str:
        """This machine's interface on the management network."""
        return f"{self.name}-mgmt"

    def container(self, node: str) -> str:
        """Return the container of a node or of `release`."""
        return f"{self.name}-{node}"

    def management(self, number: int) -> str:
        """Return the management address that ends in `number`."""
        return f"10.{self.block}.0.{number}"

    def rail(self, letter: str, number: int) -> str:
        """Return the address on rail `a` or `b` that ends in `number`."""
        return f"10.{self.block + 1}.{'ab'.index(letter)}.{number}"


def lab_from(environ: Mapping[str, str]) -> Lab:
    """Return the lab that `LAB_NAME`, `LAB_BLOCK`, `LAB_SUITE` and `XDG_CACHE_HOME` ask for.

    Raises:
        LabError: a name that no interface can carry, a block outside 1..253, or an unknown suite.
    """
    name = environ.get("LAB_NAME") or DEFAULT_NAME
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,9}", name):
        msg = f"LAB_NAME={name!r}: want 1 to 10 of a-z, 0-9 and -, the first a letter"
        raise LabError(msg)
    text = environ.get("LAB_BLOCK") or str(DEFAULT_BLOCK)
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= 253:
        msg = f"LAB_BLOCK={text!r}: want the second octet of a free 10.x network, 1 to 253"
        raise LabError(msg)
    if name != DEFAULT_NAME and int(text) in {DEFAULT_BLOCK - 1, DEFAULT_BLOCK, DEFAULT_BLOCK + 1}:
        msg = f"LAB_NAME={name} needs a LAB_BLOCK of its own, at least 2 away from {DEFAULT_BLOCK}"
        raise LabError(msg)
    suite = SUITES.get(environ.get("LAB_SUITE") or DEFAULT_SUITE)
    if suite is None:
        msg = f"LAB_SUITE={environ['LAB_SUITE']!r}: want one of {', '.join(SUITES)}"
        raise LabError(msg)
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Lab(name=name, block=int(text), suite=suite, cache=home / "spark-appliance")


def current_lab() -> Lab:
    """Return the lab that this process's environment asks for."""
    return lab_from(os.environ)


def digest_of(*paths: Path) -> str:
    """Return 12 hex digits over names, modes and contents of files and trees."""
    seen = hashlib.sha256()
    for path in (leaf for root in paths for leaf in _leaves(root)):
        relative = path.relative_to(REPOSITORY)
        if path.is_symlink():
            content, mode = str(path.readlink()).encode(), "link"
        else:
            content, mode = path.read_bytes(), oct(path.stat().st_mode & 0o111)
        seen.update(f"{relative}\0{mode}\0{len(content)}\0".encode() + content)
    return seen.hexdigest()[:12]


def _leaves(root: Path) -> Iterator[Path]:
    if root.is_dir() and not root.is_symlink():
        for child in sorted(root.iterdir()):
            yield from _leaves(child)
    else:
        yield root
