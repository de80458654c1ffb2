"""Cut an archive into numbered parts with a checksum file, as releases publish them."""

from __future__ import annotations

import hashlib
from pathlib import Path

CHECKSUMS = "SHA256SUMS"
_CHUNK_BYTES = 4 << 20


def part_names(archive: str, count: int) -> list[str]:
    """Return ``<archive>.part-00.bin`` and so on, in joining order.

    Parameters
    ----------
    archive
        Name of the whole archive.
    count
        Number of parts, at most 100.
    """
    return [f"{archive}.part-{number:02d}.bin" for number in range(count)]


def split_archive(archive: Path, directory: Path, count: int) -> int:
    """Write the parts of an archive and their checksums in one reading.

    Parameters
    ----------
    archive
        The whole archive, not empty.
    directory
        Takes the parts and ``SHA256SUMS`` (the parts, then the archive).
    count
        Number of parts. All have one size, but the last, which may be smaller.

    Returns
    -------
    int
        Size of the archive in bytes.

    Raises
    ------
    ValueError
        The archive is too small for so many parts.
    """
    size_bytes = archive.stat().st_size
    part_bytes = -(-size_bytes // count)
    if size_bytes <= part_bytes * (count - 1):
        raise ValueError(f"{archive}: {size_bytes} bytes cannot be cut into {count} parts")
    whole = hashlib.sha256()
    lines: list[str] = []
    with archive.open("rb") as source:
        for name in part_names(archive.name, count):
            digest = hashlib.sha256()
            left_bytes = part_bytes
            with (directory / name).open("wb") as part:
                while chunk := source.read(min(left_bytes, _CHUNK_BYTES)):
                    part.write(chunk)
                    digest.update(chunk)
                    whole.update(chunk)
                    left_bytes -= len(chunk)
            lines.append(f"{digest.hexdigest()}  {name}\n")
    lines.append(f"{whole.hexdigest()}  {archive.name}\n")
    (directory / CHECKSUMS).write_text("".join(lines))
    return size_bytes
