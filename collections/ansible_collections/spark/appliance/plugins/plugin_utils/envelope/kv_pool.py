# SPDX-License-Identifier: Apache-2.0
"""The paged KV cache of one rank: what a byte budget holds, and what a context needs.

A block stores ``block_tokens`` tokens of every cached layer on one rank. With decode context
parallelism of size ``dcp`` the tokens of a sequence are dealt out over ``dcp`` ranks, so that one
block stands for ``block_tokens * dcp`` tokens of the sequence. The allocator keeps ``null_blocks``
for padding: they are counted in the size that the engine advertises and never hold a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


class KvPoolError(ValueError):
    """A pool that cannot exist: its message says which number is impossible and why."""


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


@dataclass(frozen=True, slots=True)
class KvEntry:
    """One kind of cached layer.

    Parameters:
        name: what is cached, for example ``main`` or ``index``.
        layers: layers of the model, with its draft layers, that keep such an entry.
        size_bytes: bytes of one token in one layer on one rank.
    """

    name: str
    layers: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """How the engine lays out the cache on a rank.

    Parameters:
        bytes_per_token: bytes of one token over all cached layers of one rank, at ``dcp`` 1.
        block_tokens: tokens of one rank in a block.
        null_blocks: blocks reserved for padding.
    """

    bytes_per_token: int
    block_tokens: int
    null_blocks: int

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1 or self.block_tokens < 1 or self.null_blocks < 0:
            raise KvPoolError(f"impossible KV geometry: {self}")

    @classmethod
    def of(cls, entries: Iterable[KvEntry], *, block_tokens: int, null_blocks: int) -> KvGeometry:
        """Return the geometry of a model's cached layers: Σ layers · size_bytes per token."""
        per_token = sum(entry.layers * entry.size_bytes for entry in entries)
        return cls(per_token, block_tokens, null_blocks)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on one rank."""
        return self.bytes_per_token * self.block_tokens

    def slope(self, dcp: int) -> Fraction:
        """Return the bytes that one more token of context costs on one rank."""
        return Fraction(self.bytes_per_token, dcp)

    def blocks_for(self, tokens: int, dcp: int) -> int:
        """Return the blocks of a pool that can really hold a sequence of ``tokens``."""
        return _ceil_div(tokens, self.block_tokens * dcp) + self.null_blocks

    def bytes_for(self, tokens: int, dcp: int) -> int:
        """Return the least budget, in bytes per rank, whose pool can hold ``tokens``.

        This is the inverse of :attr:`KvPool.usable_tokens`: a budget one block smaller holds fewer.
        """
        return self.blocks_for(tokens, dcp) * self.block_bytes


@dataclass(frozen=True, slots=True)
class KvPool:
    """The pool of one rank under a profile.

    Parameters:
        geometry: layout of the cache on the rank.
        budget_bytes: the engine's ``kv_cache_memory_bytes``.
        context_tokens: the engine's ``max_model_len``.
        dcp: decode context parallel size.
    """

    geometry: KvGeometry
    budget_bytes: int
    context_tokens: int
    dcp: int

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "context_tokens", "dcp"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise KvPoolError(f"{name} must be a positive integer, not {number!r}")

    @property
    def blocks(self) -> int:
        """Whole blocks in the budget, null blocks included."""
        return self.budget_bytes // self.geometry.block_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the blocks take; the rest of the budget is never allocated."""
        return self.blocks * self.geometry.block_bytes

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request at the full context."""
        return _ceil_div(self.context_tokens, self.geometry.block_tokens * self.dcp)

    @property
    def concurrency(self) -> Fraction:
        """Full-context requests the pool holds by the engine's own count, null blocks included."""
        return Fraction(self.blocks, self.blocks_per_request)

    @property
    def advertised_tokens(self) -> int:
        """Tokens the engine prints at start: ⌊concurrency · context⌋."""
        return int(self.concurrency * self.context_tokens)

    @property
    def usable_tokens(self) -> int:
        """Tokens the pool can really hold: blocks without the null blocks."""
        usable = max(self.blocks - self.geometry.null_blocks, 0)
        return usable * self.geometry.block_tokens * self.dcp

    def occupancy(self, used_blocks: int) -> Fraction:
        """Return the share of the usable blocks that ``used_blocks`` are."""
        usable = self.blocks - self.geometry.null_blocks
        if not 0 <= used_blocks <= usable:
            raise KvPoolError(f"{used_blocks} blocks in use of {usable} usable ones")
        return Fraction(used_blocks, usable)

    def spare_tokens(self, depth: int) -> int:
        """Return the tokens left beside a full context and its ``depth`` drafts; negative is short.

        The drafts of the step that reaches the end of the context need their place, too.
        """
        return self.usable_tokens - self.context_tokens - depth

    def least_budget_bytes(self, depth: int) -> int:
        """Return the least budget under which this context and its drafts fit."""
        return self.geometry.bytes_for(self.context_tokens + depth, self.dcp)

    def largest_context(self, depth: int) -> int:
        """Return the largest context this budget holds beside ``depth`` drafts, at least 0."""
        return max(self.usable_tokens - depth, 0)


def require_dcp(dcp: int, tensor_parallel: int) -> None:
    """Refuse a decode context parallel size that does not divide the tensor parallel size.

    Raises:
        KvPoolError: the message names both numbers and the sizes that are possible.
    """
    possible = [n for n in range(1, tensor_parallel + 1) if tensor_parallel % n == 0]
    if dcp not in possible:
        raise KvPoolError(
            f"dcp {dcp} does not divide tensor_parallel {tensor_parallel}; "
            f"possible: {', '.join(map(str, possible))}"
        )
