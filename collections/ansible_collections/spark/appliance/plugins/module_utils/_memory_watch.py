# SPDX-License-Identifier: Apache-2.0
"""Watch a node's memory from before an engine's start: the least of it, and when that was.

This file is also the program of the watch's unit: it imports the standard library only and nothing
of the collection. One look is one read of ``/proc/meminfo``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
PERIOD_S = 0.2
# The engine renders all its metrics for each look, which costs it milliseconds.
METRICS_PERIOD_S = 2.0
METRICS_LIMIT_BYTES = 8 << 20
WRITE_PERIOD_S = 1.0

_FIGURE = re.compile(r"^(MemTotal|MemFree|MemAvailable):\s+(\d+) kB$", re.MULTILINE)
# The gauge's name in vLLM from 0.10 on, a share from 0 to 1 for each engine.
_KV_SHARE = re.compile(
    rb"^vllm:kv_cache_usage_perc(?:\{[^}\n]*\})? (\d+(?:\.\d+)?(?:e-?\d+)?)$", re.MULTILINE
)


class ForeignMeminfoError(ValueError):
    """``/proc/meminfo`` is not as the kernel writes it."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at memory, in bytes."""

    total_bytes: int
    available_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Least:
    """The least of a quantity so far.

    Parameters:
        bytes: its value.
        at_s: seconds since the watch began.
        kv_share: share of the KV pool in use by then, None while no engine told.
    """

    bytes: int
    at_s: float
    kv_share: float | None


def parse_meminfo(text: str) -> Look:
    """Return what a watch needs of ``/proc/meminfo``, whose kB are 1024 bytes.

    Raises:
        ForeignMeminfoError: a figure is missing, in another unit, or larger than the total.
    """
    figures = {name: int(kib) * 1024 for name, kib in _FIGURE.findall(text)}
    missing = {"MemTotal", "MemFree", "MemAvailable"} - figures.keys()
    if missing:
        raise ForeignMeminfoError(f"no {', '.join(sorted(missing))} in kB in /proc/meminfo")
    look = Look(figures["MemTotal"], figures["MemAvailable"], figures["MemFree"])
    if max(look.available_bytes, look.free_bytes) > look.total_bytes:
        raise ForeignMeminfoError(f"/proc/meminfo contradicts itself: {look}")
    return look


def parse_kv_share(metrics: bytes) -> float | None:
    """Return the fullest KV pool that an engine's metrics tell of, None where they tell of none."""
    shares = [float(share) for share in _KV_SHARE.findall(metrics)]
    return max(shares, default=None)


class Watch:
    """Keeps the least memory seen, and when it was seen."""

    def __init__(self, launch: str, period_s: float) -> None:
        self.launch = launch
        self.period_s = period_s
        self.samples = 0
        self.faults = 0
        self.kv_share: float | None = None
        self.peak_kv_share: float | None = None
        self._before: Look | None = None
        self._least_available: Least | None = None
        self._least_free: Least | None = None
        self._seconds = 0.0

    def tell_kv(self, share: float | None) -> None:
        """Take note of how full the KV pool is."""
        self.kv_share = share
        if share is not None:
            self.peak_kv_share = max(share, self.peak_kv_share or 0.0)

    def see(self, look: Look, at_s: float) -> bool:
        """Take note of a look; return whether a least value changed."""
        self.samples += 1
        self._seconds = at_s
        if self._before is None:
            self._before = look
        lower = False
        if self._least_available is None or look.available_bytes < self._least_available.bytes:
            self._least_available = Least(look.available_bytes, at_s, self.kv_share)
            lower = True
        if self._least_free is None or look.free_bytes < self._least_free.bytes:
            self._least_free = Least(look.free_bytes, at_s, self.kv_share)
            lower = True
        return lower

    def state(self) -> dict[str, Any]:
        """Return everything seen so far as JSON data; sizes in bytes, times in seconds."""
        return {
            "schema": SCHEMA,
            "launch": self.launch,
            "period_s": self.period_s,
            "samples": self.samples,
            "faults": self.faults,
            "watched_s": round(self._seconds, 3),
            "cpu_s": round(time.process_time(), 3),
            "before": None if self._before is None else asdict(self._before),
            "min_available": _rounded(self._least_available),
            "min_free": _rounded(self._least_free),
            "peak_kv_share": self.peak_kv_share,
        }


def _rounded(least: Least | None) -> dict[str, Any] | None:
    return None if least is None else asdict(least) | {"at_s": round(least.at_s, 3)}


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Replace the state file as a whole: a reader sees the old or the new one."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(state), encoding="utf-8")
    draft.replace(path)


def _follow_metrics(url: str, watch: Watch, stop: threading.Event) -> None:
    # No proxy: the engine is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while not stop.wait(METRICS_PERIOD_S):
        try:
            with opener.open(url, timeout=METRICS_PERIOD_S) as answer:
                watch.tell_kv(parse_kv_share(answer.read(METRICS_LIMIT_BYTES)))
        except (OSError, urllib.error.URLError, ValueError):
            # No engine yet, or no longer: the share is unknown, not zero.
            watch.tell_kv(None)


def run(*, launch: str, state_path: Path, period_s: float, metrics_url: str | None) -> None:
    """Watch until SIGTERM or SIGINT, then write the state once more.

    Parameters:
        launch: id of the launch that is watched.
        state_path: file that holds what was seen.
        period_s: seconds between two looks.
        metrics_url: metrics of the engine on this node, None on a node without an API server.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    watch = Watch(launch, period_s)
    if metrics_url:
        follower = threading.Thread(
            target=_follow_metrics, args=(metrics_url, watch, stop), daemon=True
        )
        follower.start()
    began = time.monotonic()
    written = -WRITE_PERIOD_S
    # One open file, read again from its start: a look must not cost a path walk.
    meminfo = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.closing(os.fdopen(meminfo, "rb", buffering=0)):
        while True:
            at_s = time.monotonic() - began
            try:
                look = parse_meminfo(os.pread(meminfo, 1 << 16, 0).decode("ascii"))
                watch.see(look, at_s)
            except (OSError, ValueError):
                watch.faults += 1
            if at_s - written >= WRITE_PERIOD_S:
                write_state(state_path, watch.state())
                written = at_s
            if stop.wait(period_s):
                break
        write_state(state_path, watch.state())


def main() -> None:
    """Run the watch with the arguments of its unit."""
    parser = argparse.ArgumentParser(description="Watch a node's memory.")
    parser.add_argument("--launch", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--period", type=float, default=PERIOD_S)
    parser.add_argument("--metrics")
    asked = parser.parse_args()
    run(
        launch=asked.launch,
        state_path=asked.state,
        period_s=asked.period,
        metrics_url=asked.metrics,
    )


if __name__ == "__main__":
    main()
