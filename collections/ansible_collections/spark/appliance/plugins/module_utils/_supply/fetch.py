# SPDX-License-Identifier: Apache-2.0
"""Fetch files into a folder: each byte is hashed as it passes, and what is verified is kept.

A file is in one of four states: missing; partial (``.NAME.partial``, continued where it stops);
wrong at its full size (thrown away and fetched once more); verified (never touched again).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import unsafe_path
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
    SupplyError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import (
    FolderOrigin,
    Offer,
    Origin,
    StartOver,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.room import demand_room
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import (
    Memory,
    Seen,
    load_memory,
    look,
    save_memory,
    untouched,
)

_T = TypeVar("_T")

CHUNK_BYTES = 1 << 20
# Written pages are flushed and dropped in steps of this size: a node that serves has no memory to
# spare for a cache of files that it reads once.
EVICT_BYTES = 64 << 20
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file of a set: relative path, sha256 in hexadecimal, size in bytes where known."""

    name: str
    sha256: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The verified set and what it cost.

    Parameters:
        files: every file with its size.
        moved_bytes: bytes that came from the origin in this run.
        manifest_sha256: digest of the set.
        archive_sha256: digest of the joined archive, where the checksum file lists it.
    """

    files: tuple[Wanted, ...]
    moved_bytes: int
    manifest_sha256: str
    archive_sha256: str | None = None


def missing_files(folder: Path, wanted: Sequence[Wanted]) -> list[Wanted]:
    """Return the files that are not verified yet, reading status only."""
    memory = load_memory(folder)
    return [
        file
        for file in wanted
        if (seen := memory.files.get(file.name)) is None
        or seen.sha256 != file.sha256
        or not untouched(folder, file.name, seen)
    ]


class Fetcher:
    """Brings a set of files into a folder.

    Parameters:
        folder: where the files go; created when absent.
        origin: where they come from.
        progress: counts bytes.
        connections: files in flight at once.
        label: address to remember the files under, the origin's own by default.
        sleep: waits between attempts, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        origin: Origin,
        progress: Progress,
        *,
        connections: int = 4,
        label: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._origin = origin
        self._progress = progress
        self._connections = connections
        self._sleep = sleep
        self._lock = threading.Lock()
        self._abandoned = threading.Event()
        self._label = label or origin.describe()
        self._memory = Memory(self._label, {})

    def run(
        self,
        wanted: Sequence[Wanted],
        *,
        archive_sha256: str | None = None,
        reserve_bytes: int = 0,
    ) -> Fetched:
        """Fetch what is not verified yet.

        Parameters:
            wanted: the whole set.
            archive_sha256: digest of the archive that the files are parts of, to remember.
            reserve_bytes: space that must stay free beyond the files.

        Raises:
            RefusalError: a file is missing at the origin, wrong twice, or there is no room.
            CutError: the way was cut more often than is tried.
        """
        for file in wanted:
            if reason := unsafe_path(file.name):
                raise RefusalError(f"{file.name!r} {reason}; correct the list of files")
        self._folder.mkdir(parents=True, exist_ok=True)
        known = load_memory(self._folder)
        lacking = {file.name for file in missing_files(self._folder, wanted)}
        kept = {file.name: known.files[file.name] for file in wanted if file.name not in lacking}
        names = {file.name for file in wanted}
        # Until the new set is whole, the former one stays known, so that its files go in the end.
        former = {name: seen for name, seen in known.files.items() if name not in names}
        self._memory = Memory(self._label, former | kept, archive_sha256)
        offers = self._offers([file for file in wanted if file.name in lacking])
        sized = [
            file
            if file.name in kept or file.size_bytes is not None
            else replace(file, size_bytes=offers[file.name].size_bytes)
            for file in wanted
        ]
        total = sum(file.size_bytes or 0 for file in sized if file.name not in kept)
        room = sum(self._room_bytes(file) for file in sized if file.name in lacking)
        demand_room(self._folder, room + reserve_bytes, "the files to fetch")
        self._progress.stage("fetch", total)
        with ThreadPoolExecutor(self._connections) as pool:
            jobs: list[Future[None]] = [
                pool.submit(self._bring, file, offers[file.name])
                for file in sized
                if file.name in lacking
            ]
            settled, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            failed = [job for job in settled if job.exception() is not None]
            if failed:
                # The other transfers stop within one chunk; what they stored is kept.
                self._abandoned.set()
                for job in jobs:
                    job.cancel()
        self._raise_worst(jobs)
        for name, seen in former.items():
            # A loader may read all it finds.
            if untouched(self._folder, name, seen):
                (self._folder / name).unlink()
        present = {name: seen for name, seen in self._memory.files.items() if name in names}
        self._memory = replace(self._memory, files=present, whole=True)
        save_memory(self._folder, self._memory)
        files = tuple(
            Wanted(file.name, file.sha256, self._memory.files[file.name].size_bytes)
            for file in wanted
        )
        return Fetched(
            files, self._progress.moved_bytes, self._memory.manifest_sha256, archive_sha256
        )

    @staticmethod
    def _raise_worst(jobs: Sequence[Future[None]]) -> None:
        errors = [job.exception() for job in jobs if not job.cancelled()]
        for kind in (RefusalError, CutError, BaseException):
            for error in errors:
                if isinstance(error, kind) and not isinstance(error, _AbandonedError):
                    raise error

    def _offers(self, files: Sequence[Wanted]) -> dict[str, Offer]:
        with ThreadPoolExecutor(self._connections) as pool:
            answers = pool.map(lambda file: self._offer(file.name), files)
            return dict(zip((file.name for file in files), answers, strict=True))

    def _offer(self, name: str) -> Offer:
        return self._patiently(lambda: self._origin.offer(name), lambda: 0)

    def _partial(self, name: str) -> Path:
        path = self._folder / name
        return path.with_name(f".{path.name}.partial")

    def _stored_bytes(self, name: str) -> int:
        for path in (self._partial(name), self._folder / name):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def _room_bytes(self, file: Wanted) -> int:
        """Return what a file will still take of the disk, 0 where a second name will do."""
        if (
            isinstance(self._origin, FolderOrigin)
            and not self._partial(file.name).exists()
            and self._origin.locate(file.name).stat().st_dev == self._folder.stat().st_dev
        ):
            return 0
        return max(0, (file.size_bytes or 0) - self._stored_bytes(file.name))

    def _bring(self, file: Wanted, offer: Offer) -> None:
        final, partial = self._folder / file.name, self._partial(file.name)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.is_symlink() or (final.exists() and not final.is_file()):
            raise RefusalError(
                f"{final}: expected a file or nothing, found something else; move it away"
            )
        for path in (final, partial):
            # A file with a second name is the origin's own: never write to it.
            if path.exists() and path.stat().st_nlink > 1:
                path.unlink()
        if final.exists():
            # Not remembered: put there by hand, or touched since. Its bytes decide.
            final.rename(partial)
        if isinstance(self._origin, FolderOrigin) and self._adopt(self._origin, file, final):
            return
        for last in (False, True):
            try:
                found = self._transfer(file, offer, partial)
            except (SupplyError, OSError):
                # Nothing came: an empty file would be no help to the next run.
                if not partial.stat().st_size:
                    partial.unlink()
                    _etag_path(partial).unlink(missing_ok=True)
                raise
            if found == file.sha256:
                partial.rename(final)
                _etag_path(partial).unlink(missing_ok=True)
                self._remember(file.name, look(final, file.sha256))
                return
            size = partial.stat().st_size
            partial.unlink()
            _etag_path(partial).unlink(missing_ok=True)
            self._progress.take_back(size)
            if last:
                raise RefusalError(
                    f"{self._origin.describe()}/{file.name}: expected sha256 {file.sha256}, found "
                    f"{found} over {size:,} bytes, twice; the origin holds another file than its "
                    "checksum file says: replace it there"
                )

    def _adopt(self, origin: FolderOrigin, file: Wanted, final: Path) -> bool:
        """Take a file of this file system by a second name: no copy, no space."""
        partial = self._partial(file.name)
        if partial.exists():
            return False
        try:
            os.link(origin.locate(file.name), partial)
        except OSError:
            return False
        with partial.open("rb", buffering=0) as stream:
            hasher = hashlib.sha256()
            _hash_stored(stream.fileno(), hasher, self._progress)
        if hasher.hexdigest() != file.sha256:
            partial.unlink()
            raise RefusalError(
                f"{origin.describe()}/{file.name}: expected sha256 {file.sha256}, found "
                f"{hasher.hexdigest()}; replace the file in that folder"
            )
        partial.rename(final)
        self._remember(file.name, look(final, file.sha256))
        return True

    def _remember(self, name: str, seen: Seen) -> None:
        with self._lock:
            self._memory = replace(self._memory, files={**self._memory.files, name: seen})
            save_memory(self._folder, self._memory)

    def _transfer(self, file: Wanted, offer: Offer, partial: Path) -> str:
        """Fill ``partial`` to the end of the file; return the sha256 of what it then holds."""
        hasher = hashlib.sha256()
        with partial.open("ab+", buffering=0) as store:
            stored = _hash_stored(store.fileno(), hasher, self._progress)
            expected = file.size_bytes if file.size_bytes is not None else offer.size_bytes
            if expected is not None and stored >= expected:
                return hasher.hexdigest()
            if not stored:
                _etag_path(partial).write_text(offer.etag, encoding="utf-8")

            def attempt() -> str:
                nonlocal hasher
                offset = store.seek(0, os.SEEK_END)
                try:
                    self._receive(file, store, hasher, offset=offset, expected=expected)
                except StartOver:
                    self._progress.take_back(offset)
                    store.truncate(0)
                    hasher = hashlib.sha256()
                    _etag_path(partial).write_text(self._origin.offer(file.name).etag)
                    self._receive(file, store, hasher, offset=0, expected=expected)
                except CutError:
                    # A server that promises more than it has: complete all the same.
                    if hasher.hexdigest() != file.sha256:
                        raise
                return hasher.hexdigest()

            return self._patiently(attempt, lambda: store.seek(0, os.SEEK_END))

    def _receive(
        self,
        file: Wanted,
        store: IO[bytes],
        hasher: hashlib._Hash,
        *,
        offset: int,
        expected: int | None,
    ) -> None:
        handle, etag_path = store.fileno(), _etag_path(self._partial(file.name))
        etag = etag_path.read_text(encoding="utf-8") if etag_path.exists() else ""
        written = dropped = offset
        try:
            with self._origin.stream(file.name, offset, etag) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    if self._abandoned.is_set():
                        raise _AbandonedError
                    hasher.update(chunk)
                    _write_all(handle, chunk)
                    written += len(chunk)
                    self._progress.add(len(chunk))
                    if written - dropped >= EVICT_BYTES:
                        evict(handle)
                        dropped = written
                    if expected is not None and written > expected:
                        raise _TooLongError
        except _TooLongError:
            # The digest will differ; the caller decides about a second try.
            return
        finally:
            evict(handle)
        if expected is not None and written < expected and hasher.hexdigest() != file.sha256:
            raise CutError(
                f"{self._origin.describe()}/{file.name}: ended at {written:,} of {expected:,} bytes"
            )

    def _patiently(self, attempt: Callable[[], _T], reached: Callable[[], int]) -> _T:
        """Try again after a cut, longer apart each time; what got further starts the count anew."""
        tries, before = 0, reached()
        while True:
            try:
                return attempt()
            except CutError as cut:
                now = reached()
                tries, before = (0 if now > before else tries + 1), now
                if tries > len(BACKOFF_S) or self._abandoned.is_set():
                    raise CutError(
                        f"{cut}; tried {len(BACKOFF_S) + 1} times without getting further; "
                        "repair the way to it and run again, what arrived is kept"
                    ) from cut
                self._sleep(BACKOFF_S[max(0, tries - 1)])


class _AbandonedError(SupplyError):
    """Another file of the set failed, so this transfer is given up."""


class _TooLongError(Exception):
    """The origin sends more bytes than it announced."""


def _etag_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


def _write_all(handle: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(handle, view) :]


def evict(handle: int) -> None:
    """Flush a file and drop its pages from the cache."""
    os.fdatasync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _hash_stored(handle: int, hasher: hashlib._Hash, progress: Progress) -> int:
    """Hash a file from its start; return its length in bytes."""
    offset = 0
    while chunk := os.pread(handle, CHUNK_BYTES, offset):
        hasher.update(chunk)
        offset += len(chunk)
        progress.add(len(chunk), moved=False)
        if offset % EVICT_BYTES == 0:
            os.posix_fadvise(handle, 0, offset, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return offset
