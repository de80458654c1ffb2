# SPDX-License-Identifier: Apache-2.0
"""The container engine, its images and containers."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The engine, its images and containers.

    Parameters:
        origin: package or snap.
        root_dir: the engine's own folder.
        image_dir: where the layers of images lie; not below ``root_dir`` on containerd's store.
    """

    server_version: str
    storage_driver: str
    containerd_store: bool
    root_dir: str
    image_dir: str
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
