# SPDX-License-Identifier: Apache-2.0
"""Memory outside the KV pool: the sparse indexer's matrices and the CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

# fp32 scores of every query row of a chunk against the whole history, per sparse layer.
SCORE_BYTES = 4


def score_matrix_bytes(
    chunk_tokens: int, history_tokens: int, *, pooling: int = 1, buffers: int = 1
) -> int:
    """Return the bytes of an indexer's score matrices: 4 B · chunk · ⌈history / pooling⌉ · buffers.

    Parameters:
        chunk_tokens: query rows scored at once.
        history_tokens: tokens of the sequence so far.
        pooling: tokens that share one index key.
        buffers: matrices alive at the same time, two where a gather copies one.
    """
    keys = -(-history_tokens // pooling)
    return SCORE_BYTES * chunk_tokens * keys * buffers


def fold_scratch_bytes(batch_tokens: int, context_tokens: int, *, bytes_per_pair: int = 10) -> int:
    """Return the scratch of an indexer that folds top-k over the whole context.

    Measured as 11.45 GiB at 600,000 tokens and a batch of 2,048: 10.0 B for each pair of context
    and batch tokens. It is not divided by the decode context parallel size.
    """
    return bytes_per_pair * batch_tokens * context_tokens


def fold_bytes_per_pair(scratch_bytes: int, batch_tokens: int, context_tokens: int) -> Fraction:
    """Return the bytes for each pair of context and batch tokens behind a measured scratch."""
    return Fraction(scratch_bytes, batch_tokens * context_tokens)


def graph_pool_bytes(measured: Mapping[int, int], shapes: int) -> tuple[int, bool]:
    """Return the bytes of the graph pool for a number of FULL shapes, and whether it was measured.

    Parameters:
        measured: largest measured pool in bytes for each number of shapes.
        shapes: FULL shapes to capture.

    Returns:
        The measured pool of that number of shapes; or else the pool of the nearest smaller measured
        number plus the steepest measured cost of a shape for each one more.

    Raises:
        ValueError: fewer than two numbers of shapes were measured and ``shapes`` is not among them,
            or it is below all of them: nothing can be projected.
    """
    if shapes in measured:
        return measured[shapes], True
    counts = sorted(measured)
    below = [count for count in counts if count < shapes]
    if len(counts) < 2 or not below:
        known = ", ".join(map(str, counts)) or "none"
        raise ValueError(f"no graph pool known for {shapes} shapes (measured: {known})")
    steepest = max(
        Fraction(measured[high] - measured[low], high - low)
        for index, low in enumerate(counts)
        for high in counts[index + 1 :]
    )
    grown = measured[below[-1]] + max(steepest, Fraction(0)) * (shapes - below[-1])
    return -(-grown.numerator // grown.denominator), False
