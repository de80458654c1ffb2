# SPDX-License-Identifier: Apache-2.0
"""How other engines size their memory, as formulas over plain figures.

vLLM with pinned bytes is the model of ``kv_pool``. Here are the models that recipes of other
systems state: a share of the memory (vLLM without pinned bytes), a static share split between
recurrent state and KV cache (SGLang), slots of recurrent state, and a fixed part for each request.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

# Bytes of one cached element with its block scale.
ELEMENT_BYTES = {"nvfp4": Fraction(9, 16), "fp8": Fraction(1), "bf16": Fraction(2)}


def bytes_per_token(kv_bytes: int, tokens: int) -> Fraction:
    """Return the bytes that a token takes on a rank, from a pool and the tokens it holds."""
    return Fraction(kv_bytes, tokens)


def pinned_tokens(kv_bytes: int, per_token: Fraction) -> int:
    """Return the tokens in a pool of pinned bytes. Nothing checks that the bytes exist."""
    return int(kv_bytes / per_token)


def share_pool_bytes(
    total_bytes: int, share: Fraction, weights_bytes: int, overhead_bytes: int
) -> int:
    """Return the KV bytes that a share of the memory leaves: total · share - weights - overhead.

    Negative means that weights and overhead alone exceed the share.
    """
    return int(total_bytes * share) - weights_bytes - overhead_bytes


@dataclass(frozen=True, slots=True)
class StaticSplit:
    """A static pool that recurrent state and KV cache share.

    Parameters:
        pool_bytes: bytes of both together.
        state_ratio: state divided by KV cache.
    """

    pool_bytes: int
    state_ratio: Fraction

    @property
    def state_share(self) -> Fraction:
        """Share of the pool that is state: ratio / (1 + ratio)."""
        return self.state_ratio / (1 + self.state_ratio)

    @property
    def state_bytes(self) -> int:
        """Bytes of state."""
        return int(self.pool_bytes * self.state_share)

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV cache."""
        return self.pool_bytes - self.state_bytes


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Recurrent state kept in slots.

    Parameters:
        slots: slots in the pool.
        slots_per_request: slots that one running request holds.
    """

    slots: int
    slots_per_request: int

    @property
    def requests(self) -> int:
        """Requests that can run at once: the engine silently caps at this number."""
        return self.slots // self.slots_per_request

    def slots_for(self, requests: int) -> int:
        """Return the slots that a number of running requests needs."""
        return requests * self.slots_per_request


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Memory of one request of a hybrid model.

    Parameters:
        fixed_bytes: state and drafter window, whatever the context.
        per_million_tokens_bytes: what a million tokens of context add.
    """

    fixed_bytes: int
    per_million_tokens_bytes: int

    def bytes_at(self, context_tokens: int) -> int:
        """Return the bytes of a request at a context: the fixed part does not shrink with it."""
        return self.fixed_bytes + self.per_million_tokens_bytes * context_tokens // 1_000_000

    def tokens_in(self, budget_bytes: int) -> int:
        """Return the context that a budget for one request holds, at least 0."""
        spare = max(budget_bytes - self.fixed_bytes, 0)
        return spare * 1_000_000 // self.per_million_tokens_bytes


def retained_bytes(buffers_bytes: list[int], *, every_size_kept: bool) -> int:
    """Return what an allocator holds of per-chunk buffers: the largest, or all it ever served."""
    return sum(buffers_bytes) if every_size_kept else max(buffers_bytes, default=0)
