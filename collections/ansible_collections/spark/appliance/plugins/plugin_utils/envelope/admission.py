# SPDX-License-Identifier: Apache-2.0
"""The engine's own check at start: is a share of the memory free?

With an explicit KV budget vLLM sizes nothing by ``gpu_memory_utilization``; it only refuses to
start unless ⌈utilization · total⌉ bytes are free. On a node with unified memory the free bytes come
from the host's ``MemAvailable``, or from ``MemFree`` in builds that read the driver's figure, where
page cache counts as used. So the share is an admission check and no bound on what is used.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction


def required_bytes(utilization: Decimal, total_bytes: int) -> int:
    """Return ⌈utilization · total⌉, the bytes that must be free when the engine starts.

    Raises:
        ValueError: the utilization is not in (0, 1].
    """
    share = Fraction(utilization)
    if not 0 < share <= 1:
        raise ValueError(f"utilization {utilization} is not above 0 and at most 1")
    needed = share * total_bytes
    return -(-needed.numerator // needed.denominator)


def largest_utilization(free_bytes: int, total_bytes: int) -> Decimal:
    """Return the largest utilization in steps of 0.01 that ``free_bytes`` admits, at most 1."""
    return Decimal(min(free_bytes * 100 // total_bytes, 100)) / 100
