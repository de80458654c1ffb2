# SPDX-License-Identifier: Apache-2.0
"""The machine, its system and what its next boot would start."""

from __future__ import annotations

from dataclasses import dataclass


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
    fastos_version: str | None = None


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
