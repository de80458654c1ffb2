# SPDX-License-Identifier: Apache-2.0
"""Package sources, versions and holds."""

from __future__ import annotations

from dataclasses import dataclass


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
