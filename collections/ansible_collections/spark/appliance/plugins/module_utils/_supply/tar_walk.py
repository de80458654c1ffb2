# SPDX-License-Identifier: Apache-2.0
"""Walk a tar stream once, strictly, passing its bytes on as they are proven harmless.

Only what an image archive holds is accepted: folders, regular files, links inside the archive,
and the long-name extensions of POSIX pax and GNU tar. Whatever two tar readers might understand
differently (sparse files, repeated names, unknown extensions, data after the end) is refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import unsafe_path
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError

BLOCK_BYTES = 512
CHUNK_BYTES = 1 << 20
# A long name or a pax header is a few hundred bytes; more is an attack on memory.
_EXTENSION_LIMIT_BYTES = 64 << 10
_MEMBER_LIMIT = 20_000
_HARMLESS_PAX = {
    "path",
    "linkpath",
    "size",
    "mtime",
    "atime",
    "ctime",
    "uid",
    "gid",
    "uname",
    "gname",
    "comment",
    "charset",
}
_REMEDY = "take the archive from its publisher again; nothing was registered"


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, nothing at the end."""


class TruncatedError(RefusalError):
    """The stream ends before the archive does."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: path, kind (``file``, ``folder`` or ``link``), size in bytes, link target."""

    path: str
    kind: str
    size_bytes: int
    target: str = ""


class TarWalk:
    """One pass over a tar stream.

    Parameters:
        source: the uncompressed archive.
        limit_bytes: most bytes that the stream may hold.

    :meth:`members` yields each member with the raw header blocks that introduced it; between two
    members, :meth:`content` must be read to its end.
    """

    def __init__(self, source: Readable, limit_bytes: int) -> None:
        self._source = source
        self._limit_bytes = limit_bytes
        self._read_bytes = 0
        self._left_bytes = 0
        self._padding_bytes = 0
        self._names: set[str] = set()

    def _exactly(self, count: int, what: str) -> bytes:
        chunks = bytearray()
        while len(chunks) < count:
            chunks += self._some(count - len(chunks), what)
        return bytes(chunks)

    def _some(self, count: int, what: str) -> bytes:
        chunk = self._source.read(count)
        if not chunk:
            raise TruncatedError(
                f"archive: ends within {what} after {self._read_bytes:,} bytes: it is cut off; "
                f"{_REMEDY}"
            )
        self._read_bytes += len(chunk)
        if self._read_bytes > self._limit_bytes:
            raise RefusalError(
                f"archive: expected at most {self._limit_bytes:,} bytes unpacked, found more; "
                f"{_REMEDY}"
            )
        return chunk

    def members(self) -> Iterator[tuple[Member, bytes]]:
        """Yield members until the end mark, whose blocks are read but never yielded.

        Raises:
            RefusalError: see the module.
        """
        raw = b""
        pax: dict[str, str] = {}
        while True:
            if self._left_bytes or self._padding_bytes:
                raise RuntimeError("the content of a member was not read to its end")
            block = self._exactly(BLOCK_BYTES, "a header")
            if block == bytes(BLOCK_BYTES):
                if raw:
                    raise RefusalError(f"archive: a long name has no member; {_REMEDY}")
                self._prove_end()
                return
            header = self._header(block)
            raw += block
            if header.type in {tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}:
                if len(raw) > _EXTENSION_LIMIT_BYTES or header.size > _EXTENSION_LIMIT_BYTES:
                    raise RefusalError(f"archive: a long name is larger than 64 KiB; {_REMEDY}")
                padded = -(-header.size // BLOCK_BYTES) * BLOCK_BYTES
                content = self._exactly(padded, "a long name")
                raw += content
                found = _extension(header.type, content[: header.size])
                if set(found) & set(pax):
                    raise RefusalError(f"archive: a member has two long names; {_REMEDY}")
                pax |= found
                continue
            member = self._member(header, pax)
            self._left_bytes = member.size_bytes
            self._padding_bytes = -member.size_bytes % BLOCK_BYTES
            yield member, raw
            raw, pax = b"", {}

    def content(self) -> Iterator[bytes]:
        """Yield the present member's bytes in chunks of at most 1 MiB, a whole block first."""
        if self._left_bytes:
            first = self._exactly(min(BLOCK_BYTES, self._left_bytes), "a file")
            self._left_bytes -= len(first)
            yield first
        while self._left_bytes:
            chunk = self._some(min(CHUNK_BYTES, self._left_bytes), "a file")
            self._left_bytes -= len(chunk)
            yield chunk

    def padding(self) -> bytes:
        """Return the blank bytes that follow the present member's content."""
        raw = self._exactly(self._padding_bytes, "the padding of a file")
        self._padding_bytes = 0
        return raw

    @staticmethod
    def _header(block: bytes) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise RefusalError(f"archive: not a tar header: {error}; {_REMEDY}") from error

    def _member(self, header: tarfile.TarInfo, pax: dict[str, str]) -> Member:
        path = pax.get("path", header.name)
        kinds = {
            tarfile.REGTYPE: "file",
            tarfile.AREGTYPE: "file",
            tarfile.DIRTYPE: "folder",
            tarfile.SYMTYPE: "link",
        }
        kind = kinds.get(header.type)
        if kind is None:
            names = {
                tarfile.CHRTYPE: "a character device",
                tarfile.BLKTYPE: "a block device",
                tarfile.FIFOTYPE: "a named pipe",
                tarfile.LNKTYPE: "a hard link",
                tarfile.GNUTYPE_SPARSE: "a sparse file",
                tarfile.XGLTYPE: "a global header",
            }
            found = names.get(header.type, f"an entry of type {header.type!r}")
            raise RefusalError(
                f"archive: expected files, folders and links, found {found} at {path[:80]!r}; "
                f"{_REMEDY}"
            )
        path = path.removeprefix("./").rstrip("/") if kind == "folder" else path.removeprefix("./")
        if kind == "folder" and path in {"", "."}:
            path = "."
        elif reason := unsafe_path(path):
            raise RefusalError(f"archive: the path {path[:80]!r} {reason}; {_REMEDY}")
        if path in self._names:
            raise RefusalError(f"archive: {path[:80]!r} is there twice; {_REMEDY}")
        self._names.add(path)
        if len(self._names) > _MEMBER_LIMIT:
            raise RefusalError(f"archive: more than {_MEMBER_LIMIT:,} members; {_REMEDY}")
        size = header.size
        if "size" in pax:
            if not pax["size"].isdecimal():
                raise RefusalError(f"archive: {path[:80]!r} has no readable size; {_REMEDY}")
            size = int(pax["size"])
        if kind != "file" and size:
            raise RefusalError(f"archive: {path[:80]!r} is a {kind} with content; {_REMEDY}")
        target = pax.get("linkpath", header.linkname) if kind == "link" else ""
        return Member(path, kind, size, _inside(path, target) if kind == "link" else "")

    def _prove_end(self) -> None:
        if self._exactly(BLOCK_BYTES, "its end mark") != bytes(BLOCK_BYTES):
            raise RefusalError(f"archive: its end mark is incomplete; {_REMEDY}")
        while chunk := self._source.read(CHUNK_BYTES):
            self._read_bytes += len(chunk)
            if chunk.strip(b"\0") or self._read_bytes > self._limit_bytes:
                raise RefusalError(f"archive: data follow its end mark; {_REMEDY}")


def _inside(path: str, target: str) -> str:
    """Return a link's target as a path of the archive."""
    parts = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                break
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    else:
        resolved = "/".join(parts)
        if not target.startswith("/") and not unsafe_path(resolved):
            return resolved
    raise RefusalError(f"archive: the link {path[:80]!r} leads out of the archive; {_REMEDY}")


def _extension(kind: bytes, content: bytes) -> dict[str, str]:
    try:
        if kind == tarfile.GNUTYPE_LONGNAME:
            return {"path": content.rstrip(b"\0").decode()}
        if kind == tarfile.GNUTYPE_LONGLINK:
            return {"linkpath": content.rstrip(b"\0").decode()}
        return _pax_records(content)
    except (UnicodeDecodeError, ValueError) as error:
        raise RefusalError(f"archive: an unreadable long name: {error}; {_REMEDY}") from error


def _pax_records(content: bytes) -> dict[str, str]:
    records: dict[str, str] = {}
    rest = content
    while rest:
        length_text, separator, _ = rest.partition(b" ")
        length = int(length_text)
        record = rest[:length]
        if not separator or length <= len(length_text) + 2 or record[-1:] != b"\n":
            raise ValueError("a record has a wrong length")
        key, equals, value = record[len(length_text) + 1 : -1].decode().partition("=")
        if not equals or key in records:
            raise ValueError("a record is repeated or has no value")
        if key not in _HARMLESS_PAX:
            raise ValueError(f"unknown record {key[:40]!r}")
        records[key] = value
        rest = rest[length:]
    return records


Sink = Callable[[bytes], None]
