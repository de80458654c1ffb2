"""Image layers: tar files whose bytes depend on nothing but their content."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

# 2026-01-01T00:00:00Z: time of every file and of the image itself.
EPOCH_S = 1767225600


class Writable(Protocol):
    """A stream that takes bytes."""

    def write(self, data: bytes, /) -> int:
        """Take bytes and return how many."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a layer.

    Parameters
    ----------
    path
        Absolute path in the image.
    source
        File that holds the content, or the content itself; ignored for a link.
    mode
        Permission bits.
    target
        Target of a symbolic link; empty for a regular file.
    """

    path: str
    source: Path | bytes = b""
    mode: int = 0o644
    target: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """A written layer: its file, the SHA-256 of that (uncompressed) file, and what it holds."""

    file: Path
    sha256: str
    comment: str

    @property
    def diff_id(self) -> str:
        """The layer's name in the image's configuration."""
        return f"sha256:{self.sha256}"


class HashingWriter:
    """Passes bytes on and digests them.

    Parameters
    ----------
    sink
        Where the bytes go.
    """

    def __init__(self, sink: Writable) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes, /) -> int:
        """Take bytes and return how many."""
        self._digest.update(data)
        self.size_bytes += len(data)
        self._sink.write(data)
        return len(data)

    def hexdigest(self) -> str:
        """Return the SHA-256 of the bytes so far, in hexadecimal."""
        return self._digest.hexdigest()


def header(path: str, size_bytes: int, mode: int = 0o644) -> tarfile.TarInfo:
    """Return the header of a regular file of root's, dated at the epoch.

    Parameters
    ----------
    path
        Path in the archive; a leading slash is dropped.
    size_bytes
        Size of the content.
    mode
        Permission bits.
    """
    info = tarfile.TarInfo(path.lstrip("/"))
    info.size = size_bytes
    info.mode = mode
    info.mtime = EPOCH_S
    return info


def open_archive(sink: Writable) -> tarfile.TarFile:
    """Open a tar stream for writing, in the POSIX pax format.

    Parameters
    ----------
    sink
        Takes the bytes in order.
    """
    stream: BinaryIO = sink  # type: ignore[assignment]  # in this mode tarfile only calls write()
    return tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT)


def _folder(path: PurePosixPath) -> tarfile.TarInfo:
    info = header(str(path), 0, 0o755)
    info.type = tarfile.DIRTYPE
    return info


def write_entries(sink: Writable, entries: Iterable[Entry]) -> None:
    """Write files, sorted by path, each preceded by the folders that it needs.

    Parameters
    ----------
    sink
        Takes the bytes.
    entries
        The files in any order; no two with one path.
    """
    folders: set[PurePosixPath] = set()
    with open_archive(sink) as archive:
        for entry in sorted(entries, key=lambda entry: entry.path):
            for folder in reversed(PurePosixPath(entry.path.lstrip("/")).parents[:-1]):
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(_folder(folder))
            if entry.target:
                info = header(entry.path, 0, 0o777)
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(info)
            elif isinstance(entry.source, bytes):
                info = header(entry.path, len(entry.source), entry.mode)
                archive.addfile(info, io.BytesIO(entry.source))
            else:
                with entry.source.open("rb") as content:
                    info = header(entry.path, entry.source.stat().st_size, entry.mode)
                    archive.addfile(info, content)


def write_layer(file: Path, entries: Iterable[Entry], comment: str) -> Layer:
    """Write a layer to a file.

    Parameters
    ----------
    file
        Takes the tar.
    entries
        The files of the layer.
    comment
        What the layer is, for the image's history.
    """
    with file.open("wb") as raw:
        sink = HashingWriter(raw)
        write_entries(sink, entries)
    return Layer(file, sink.hexdigest(), comment)
