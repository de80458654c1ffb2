# SPDX-License-Identifier: Apache-2.0
"""The clock, and how the previous run ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Time:
    """The clock; ``skew_s`` is the node's less the control node's, None where it was not asked."""

    synchronized: bool
    skew_s: float | None


@dataclass(frozen=True, slots=True)
class Power:
    """How the previous run ended: clean, unclean or unknown."""

    previous_run: str
    pstore_records: int
