# SPDX-License-Identifier: Apache-2.0
"""What was verified once and has not been touched since, remembered beside the files.

A file counts as verified while its size, modification time and inode are those it had when its
bytes were hashed. That is a memory against repeated work, not a protection against root.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import canonical

MARKER = ".verified.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """One file as it was when its sha256 (hexadecimal) was taken."""

    sha256: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of a folder.

    Parameters:
        source: where the files came from.
        files: file → :class:`Seen`.
        archive_sha256: digest of the archive that the files are parts of, where there is one.
        whole: the set is complete; False while a copy is under way or was given up.
    """

    source: str
    files: Mapping[str, Seen]
    archive_sha256: str | None = None
    whole: bool = False

    @property
    def manifest_sha256(self) -> str:
        """Digest of the sorted list of paths and digests; equal folders have equal ones."""
        pairs = [(path, seen.sha256) for path, seen in self.files.items()]
        return hashlib.sha256(canonical(pairs)).hexdigest()


def look(path: Path, sha256: str) -> Seen:
    """Return a file's present status beside the digest that was just taken of it."""
    status = path.stat()
    return Seen(sha256, status.st_size, status.st_mtime_ns, status.st_ino)


def untouched(folder: Path, name: str, seen: Seen) -> bool:
    """Tell whether a file is still the one that was hashed."""
    try:
        return look(folder / name, seen.sha256) == seen
    except OSError:
        return False


def load_memory(folder: Path) -> Memory:
    """Return what is remembered; nothing where the marker is absent or not of this schema."""
    try:
        content: dict[str, Any] = json.loads((folder / MARKER).read_bytes())
        if content["schema"] != SCHEMA:
            return Memory("", {})
        files = {str(name): Seen(**seen) for name, seen in content["files"].items()}
        whole = content["whole"] is True
        return Memory(str(content["source"]), files, content["archive_sha256"], whole)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Memory("", {})


def save_memory(folder: Path, memory: Memory) -> None:
    """Replace the marker in one step, so that a crash leaves the old or the new one."""
    content = {
        "schema": SCHEMA,
        "source": memory.source,
        "whole": memory.whole,
        "archive_sha256": memory.archive_sha256,
        "manifest_sha256": memory.manifest_sha256,
        "total_bytes": sum(seen.size_bytes for seen in memory.files.values()),
        "files": {
            name: {
                "sha256": seen.sha256,
                "size_bytes": seen.size_bytes,
                "mtime_ns": seen.mtime_ns,
                "inode": seen.inode,
            }
            for name, seen in sorted(memory.files.items())
        },
    }
    replace_file(folder / MARKER, json.dumps(content, indent=1).encode() + b"\n")


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that it is either the old or the new one, whenever power fails."""
    draft = path.with_name(f"{path.name}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(path)
    except OSError as error:
        # Such as a full disk; the old file stays, and no half of the new one.
        draft.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_verified(directory: str) -> dict[str, Any] | None:
    """Return what is remembered of a folder and whether it still holds, reading status only.

    Returns:
        None without a marker; else ``manifest_sha256``, ``source``, ``whole``, ``files`` (count),
        ``total_bytes`` and ``changed``: the files that are gone or differ from what was hashed.
    """
    folder = Path(directory)
    memory = load_memory(folder)
    if not memory.files:
        return None
    return {
        "manifest_sha256": memory.manifest_sha256,
        "source": memory.source,
        "whole": memory.whole,
        "files": len(memory.files),
        "total_bytes": sum(seen.size_bytes for seen in memory.files.values()),
        "changed": [
            name for name, seen in sorted(memory.files.items()) if not untouched(folder, name, seen)
        ],
    }
