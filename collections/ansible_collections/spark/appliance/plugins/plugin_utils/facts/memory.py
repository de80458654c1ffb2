# SPDX-License-Identifier: Apache-2.0
"""Memory and swap, live and after the next boot."""

from __future__ import annotations

from dataclasses import dataclass


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
