# SPDX-License-Identifier: Apache-2.0
"""What a profile asks of the memory of each node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import (
    KvEntry,
    KvGeometry,
    KvPool,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Memory,
    Role,
    RunSpec,
)


@dataclass(frozen=True, slots=True)
class Need:
    """The matched set of a profile, as far as memory is concerned.

    Parameters:
        profile: name of the profile.
        context_tokens: ``max_model_len``.
        kv_cache_bytes: ``kv_cache_memory_bytes`` of a rank.
        dcp: decode context parallel size.
        max_seqs: sequences decoded at once.
        shapes: FULL CUDA graph shapes captured.
        max_depth: speculative tokens of the deepest rung, 0 without speculation.
        utilization: share that must be free at start, or None where the engine does not ask.
        tensor_parallel: ranks that share a layer.
        rank_roles: roles whose nodes carry a rank of the model, and thus KV blocks and graphs.
    """

    profile: str
    context_tokens: int
    kv_cache_bytes: int
    dcp: int
    max_seqs: int
    shapes: int
    max_depth: int
    utilization: Decimal | None
    tensor_parallel: int
    rank_roles: tuple[Role, ...] = (Role.HEAD, Role.WORKER)

    def pool(self, geometry: KvGeometry) -> KvPool:
        """Return the KV pool of a rank under this profile."""
        return KvPool(geometry, self.kv_cache_bytes, self.context_tokens, self.dcp)

    def with_blocks(self, blocks: int, geometry: KvGeometry) -> Need:
        """Return the same profile with exactly ``blocks`` KV blocks and the context they hold."""
        budget = blocks * geometry.block_bytes
        pool = KvPool(geometry, budget, self.context_tokens, self.dcp)
        return replace(
            self, kv_cache_bytes=budget, context_tokens=pool.largest_context(self.max_depth)
        )

    def is_run(self, run: RunSpec) -> bool:
        """Tell whether a run was of exactly this matched set."""
        return self.is_like(run) and (
            run.context_tokens == self.context_tokens
            and run.kv_cache_bytes == self.kv_cache_bytes
            and run.shapes == self.shapes
        )

    def is_like(self, run: RunSpec) -> bool:
        """Tell whether a run shares the transients of this profile, so that only pools differ."""
        return run.dcp == self.dcp and run.max_seqs == self.max_seqs


def need_of_run(run: RunSpec, *, max_depth: int, tensor_parallel: int) -> Need:
    """Return what a run of the past asked for, to judge it again as if it were a profile."""
    return Need(
        profile=run.name,
        context_tokens=run.context_tokens,
        kv_cache_bytes=run.kv_cache_bytes,
        dcp=run.dcp,
        max_seqs=run.max_seqs,
        shapes=run.shapes,
        max_depth=max_depth,
        utilization=None,
        tensor_parallel=tensor_parallel,
    )


def geometry_of(memory: Memory) -> KvGeometry:
    """Return the KV geometry that a recipe states."""
    cache = memory.kv_cache
    return KvGeometry.of(
        (KvEntry(entry.name, entry.layers, entry.size) for entry in cache.entries),
        block_tokens=cache.block_tokens,
        null_blocks=cache.null_blocks,
    )
