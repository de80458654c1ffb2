# SPDX-License-Identifier: Apache-2.0
"""Files, disks, launches and weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    """Space under one path, as its file system counts it.

    ``parts`` are the bytes of each folder of an image's parts below it.
    """

    path: str
    filesystem: str
    total_bytes: int
    free_bytes: int
    parts: dict[str, int] = field(default_factory=dict)


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
    """A folder of weights; ``stored_bytes`` counts its files, unfinished ones as well."""

    exists: bool
    indexed: bool = False
    numbered: bool = False
    shards_listed: int | None = None
    shards: int = 0
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    shard_bytes: int = 0
    stored_bytes: int = 0
    disk: Disk | None = None
    tensor_bytes: int | None = None
    config: bool = False
    verified: dict[str, Any] | None = None
