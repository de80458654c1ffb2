# SPDX-License-Identifier: Apache-2.0
"""Checksum files in the format of ``sha256sum``, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError

# 64 MiB of weights need far less than a thousand lines; a larger file is something else.
LIMIT_BYTES = 4 << 20
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<name>[^\s/\\][^\n\\]*)")


@dataclass(frozen=True, slots=True)
class PartNaming:
    """How a release names the parts of its archive.

    Parameters:
        archive: name of the joined archive.
        count: number of parts.
        digits: digits of a part's number, padded with zeros.
    """

    archive: str
    count: int
    digits: int

    def names(self) -> list[str]:
        """Return the names of all parts in joining order."""
        return [f"{self.archive}.part-{number:0{self.digits}d}.bin" for number in range(self.count)]


def unsafe_path(path: str) -> str:
    """Return why a relative path must not be used below a folder, or nothing when it may be."""
    if not path or path.startswith("/"):
        return "is not relative"
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in path):
        return "holds a control character"
    if "\\" in path:
        return "holds a backslash"
    parts = path.split("/")
    if ".." in parts:
        return "climbs out of its folder"
    if "" in parts or "." in parts:
        return "is not in its shortest form"
    return ""


def parse_checksums(content: bytes, source: str) -> dict[str, str]:
    """Return file name → sha256 in hexadecimal, in the order of the file.

    Parameters:
        content: the file, at most 4 MiB.
        source: where it came from, for messages.

    Raises:
        RefusalError: empty, a web page, carriage returns, not UTF-8, a line of another form, an
            unsafe or a repeated name.
    """
    remedy = "get the checksum file of the release itself and compare it with its publisher's"
    if not content.strip():
        raise RefusalError(f"{source}: expected checksums, found an empty file; {remedy}")
    head = content[:512].lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise RefusalError(
            f"{source}: expected checksums, found a web page; the address leads to a login or an "
            f"error page: correct it, or {remedy}"
        )
    if b"\r" in content:
        raise RefusalError(
            f"{source}: expected lines that end in a line feed, found carriage returns: the file "
            f"went through a text conversion; {remedy}"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusalError(f"{source}: expected UTF-8 text, found binary data; {remedy}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise RefusalError(
                f"{source}: line {number}: expected '<64 hexadecimal digits>  <name>', found "
                f"{line[:80]!r}; {remedy}"
            )
        name = match["name"]
        if reason := unsafe_path(name):
            raise RefusalError(
                f"{source}: line {number}: the name {name[:80]!r} {reason}; {remedy}"
            )
        if name in sums:
            raise RefusalError(f"{source}: line {number}: {name} is listed twice; {remedy}")
        sums[name] = match["digest"]
    return sums


def select_parts(
    sums: Mapping[str, str], naming: PartNaming, source: str
) -> tuple[list[tuple[str, str]], str | None]:
    """Return the parts in joining order with their sha256, and that of the archive where listed.

    The checksum file says which parts there are, the release's description which there must be.

    Raises:
        RefusalError: a part is missing, or a name is listed that the release does not have.
    """
    expected = naming.names()
    missing = [name for name in expected if name not in sums]
    extra = sorted(set(sums) - set(expected) - {naming.archive})
    if missing or extra:
        found = []
        if missing:
            found.append(f"without {', '.join(missing)}")
        if extra:
            found.append(f"with {', '.join(extra[:5])}{' and more' if len(extra) > 5 else ''}")
        raise RefusalError(
            f"{source}: expected the {naming.count} parts {expected[0]} … {expected[-1]}, found a "
            f"list {' and '.join(found)}; take the checksum file of this release, or correct "
            "parts.count and archive in its description"
        )
    return [(name, sums[name]) for name in expected], sums.get(naming.archive)


def canonical(files: Sequence[tuple[str, str]]) -> bytes:
    """Return (path, sha256) pairs as one checksum file, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(files)).encode()
