# SPDX-License-Identifier: Apache-2.0
"""How far a job is, written where another process can read it at any moment."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WINDOW_S = 10.0
_WRITE_S = 0.5


class Progress:
    """Thread-safe counters of one job.

    Parameters:
        path: file that holds the last state, replaced twice a second; None keeps it in memory.
        clock: monotonic seconds.
    """

    def __init__(
        self, path: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._total_bytes = 0
        self._done_bytes = 0
        self._moved_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0) -> None:
        """Begin a stage in which ``total_bytes`` pass, ``done_bytes`` of them already there."""
        with self._lock:
            self._stage, self._total_bytes, self._done_bytes = name, total_bytes, done_bytes
            self._marks.clear()

    def add(self, count: int, *, moved: bool = True) -> None:
        """Count bytes as done; ``moved`` ones came over the network or through the loader."""
        with self._lock:
            self._done_bytes += count
            if moved:
                self._moved_bytes += count

    def take_back(self, count: int) -> None:
        """Bytes that were counted as done turned out to be worthless."""
        with self._lock:
            self._done_bytes -= count

    @property
    def moved_bytes(self) -> int:
        """Bytes that went over the network or through the loader so far."""
        with self._lock:
            return self._moved_bytes

    def state(self) -> dict[str, Any]:
        """Return stage, done and total bytes, bytes a second over 10 s and seconds left."""
        now = self._clock()
        with self._lock:
            self._marks.append((now, self._moved_bytes))
            while len(self._marks) > 1 and now - self._marks[0][0] > _WINDOW_S:
                self._marks.popleft()
            elapsed_s = now - self._marks[0][0]
            moved = self._moved_bytes - self._marks[0][1]
            rate = moved / elapsed_s if elapsed_s > 0 else 0.0
            left = max(0, self._total_bytes - self._done_bytes)
            return {
                "stage": self._stage,
                "done_bytes": self._done_bytes,
                "total_bytes": self._total_bytes,
                "moved_bytes": self._moved_bytes,
                "rate_bytes_s": round(rate),
                "remaining_s": round(left / rate) if rate > 0 else None,
            }

    def _write(self) -> None:
        if self._path is not None:
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self.state()), encoding="utf-8")
            os.replace(draft, self._path)  # noqa: PTH105 -- one system call, both names at hand

    def _tick(self) -> None:
        while not self._stop.wait(_WRITE_S):
            self._write()

    def __enter__(self) -> Progress:
        self._write()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._write()
