# SPDX-License-Identifier: Apache-2.0
"""A supply job's progress as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.units import format_size

_VERBS = {"fetch": "fetching", "load": "loading", "register": "Docker extracts the layers"}


def progress_line(progress: Mapping[str, Any]) -> str:
    """Return stage, bytes of all bytes, rate and time left; what is unknown is left out.

    Parameters:
        progress: the counters of a job: ``stage``, ``done_bytes``, ``total_bytes``,
            ``rate_bytes_s`` (over the last 10 s) and ``remaining_s`` (or None).
    """
    stage = str(progress.get("stage") or "")
    if not stage:
        return "starting"
    line = _VERBS.get(stage, stage)
    total = progress["total_bytes"]
    if total:
        done = min(progress["done_bytes"], total)
        line += f" {format_size(done)} of {format_size(total)} ({100 * done / total:.0f} %)"
    if progress["rate_bytes_s"]:
        line += f", {format_size(progress['rate_bytes_s'])}/s"
    if progress["remaining_s"] is not None and total:
        line += f", {clock(progress['remaining_s'])} left"
    return line


def clock(seconds: int) -> str:
    """Return seconds as ``42 s``, ``3 min 05 s`` or ``1 h 07 min``."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
