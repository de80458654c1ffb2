# SPDX-License-Identifier: Apache-2.0
"""Lines of the kernel log that go with faults."""

from __future__ import annotations

from dataclasses import dataclass


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
