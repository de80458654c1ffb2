# SPDX-License-Identifier: Apache-2.0
"""Whether there is room on a disk, judged before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError

# What stays free on a disk that logs, journals and the engine's compile cache also write to.
RESERVE_BYTES = 2 << 30


def existing(path: Path) -> Path:
    """Return the nearest folder of a path that exists already."""
    while not path.exists():
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Return what root may still write where ``path`` lies or will lie."""
    status = os.statvfs(existing(path))
    return status.f_bavail * status.f_frsize


def demand_room(path: Path, need_bytes: int, purpose: str) -> None:
    """Refuse when there is no room.

    Raises:
        RefusalError: with what is needed, what is free and where.
    """
    free = free_bytes(path)
    if need_bytes > free:
        raise RefusalError(
            f"{path}: expected {need_bytes:,} bytes free for {purpose}, found {free:,}; free "
            f"{need_bytes - free:,} bytes there or choose a folder on another disk"
        )


def docker_need_bytes(image_bytes: int) -> int:
    """Return what Docker's disk needs for one load, in bytes.

    Parameters:
        image_bytes: size of the image unpacked.

    Both stores hold the image twice while they load: the classic one unpacks the whole archive
    into a temporary folder before it extracts the layers, containerd's keeps the layers' blobs
    beside the extracted snapshots (and goes on keeping them).
    """
    return 2 * image_bytes
