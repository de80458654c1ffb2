# SPDX-License-Identifier: Apache-2.0
"""The GPU and who uses it."""

from __future__ import annotations

from dataclasses import dataclass


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
class Clocks:
    """The GPU's SM clock now and at most in MHz, and its load in percent."""

    sm_mhz: int
    max_sm_mhz: int
    utilization_percent: int
