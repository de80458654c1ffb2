"""Content-addressed entries under the user's cache directory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_MARKER = ".complete"
_KEY_CHARACTERS = 12
# Two working trees and the one before the last change.
_KEPT = 3


def cache_root() -> Path:
    """Return the project's directory under ``XDG_CACHE_HOME`` (``~/.cache`` when unset)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "spark-appliance"


def content_key(parts: Iterable[bytes | str]) -> str:
    """Hash the inputs of a build into a short key.

    Parameters
    ----------
    parts
        Everything the result depends on, in a fixed order. Each part is preceded by its length
        in the digest, so that moving a byte from one part to the next changes the key.

    Returns
    -------
    str
        Twelve hex digits of the SHA-256.
    """
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(raw)}:".encode())
        digest.update(raw)
    return digest.hexdigest()[:_KEY_CHARACTERS]


def is_complete(entry: Path) -> bool:
    """Say whether an entry was built to its end."""
    return (entry / _MARKER).is_file()


@contextmanager
def building(entry: Path) -> Iterator[bool]:
    """Give the one builder of an entry an empty directory, and mark it complete on success.

    A build in another process is waited for. What a killed build left behind has no marker and
    is removed by the next one.

    Parameters
    ----------
    entry
        Directory of the entry; its parents are created.

    Yields
    ------
    bool
        True when the caller has to fill the (empty) directory, False when it is complete.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    with entry.with_name(f".{entry.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(entry):
            # The time of last use, for prune().
            (entry / _MARKER).touch()
            yield False
            return
        if entry.exists():
            shutil.rmtree(entry)
        entry.mkdir()
        yield True
        (entry / _MARKER).touch()


def prune(kind: str) -> None:
    """Remove complete entries of a kind but the three that were used last.

    Parameters
    ----------
    kind
        Name of the entries before the dash and the key.
    """
    key = "[0-9a-f]" * _KEY_CHARACTERS
    entries = [path for path in cache_root().glob(f"{kind}-{key}") if is_complete(path)]
    entries.sort(key=lambda path: (path / _MARKER).stat().st_mtime_ns, reverse=True)
    for entry in entries[_KEPT:]:
        shutil.rmtree(entry)
