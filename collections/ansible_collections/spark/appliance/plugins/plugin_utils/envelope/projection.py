# SPDX-License-Identifier: Apache-2.0
"""The floor of a profile that was not run, from one that was.

A node's floor is set by the first activation transient, which two profiles of one recipe share when
their decode context parallel size and their number of sequences are the same. Then only the pools
differ::

    floor = floor_ref - (blocks - blocks_ref) · block_bytes - (graphs - graphs_ref) + freed

Across those sizes the transient itself changes and nothing is projected.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolDelta:
    """What a profile's pools take more than a reference run's, in bytes per rank.

    Parameters:
        blocks: KV blocks more.
        block_bytes: bytes of one KV block.
        graphs_bytes: graph pool more.
    """

    blocks: int
    block_bytes: int
    graphs_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        """KV bytes more."""
        return self.blocks * self.block_bytes

    @property
    def size_bytes(self) -> int:
        """All bytes more."""
        return self.kv_bytes + self.graphs_bytes


def project_floor(floor_ref_bytes: int, delta: PoolDelta, *, freed_bytes: int = 0) -> int:
    """Return the projected least ``MemAvailable`` in bytes; negative means an out-of-memory kill.

    Parameters:
        floor_ref_bytes: least ``MemAvailable`` measured in the reference run on that role.
        delta: what the pools take more.
        freed_bytes: memory of the host that was used in the reference run and is not now.
    """
    return floor_ref_bytes - delta.size_bytes + freed_bytes


def affordable_blocks(margin_bytes: int, block_bytes: int) -> int:
    """Return how many KV blocks may be added (or, negative, must go) for a margin over the floor.

    The result is exact: one block more than it would break the floor.
    """
    return margin_bytes // block_bytes
