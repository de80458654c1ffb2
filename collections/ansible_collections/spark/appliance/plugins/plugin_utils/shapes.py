# SPDX-License-Identifier: Apache-2.0
"""Which decode shapes a draft-depth ladder can reach, and which capture sizes cover them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

# The only ladder whose transition thresholds were tuned; any other would run another policy.
TUNED_LADDER = (2, 4, 5)


class GraphManager(StrEnum):
    """How an engine chooses the decode shapes that it captures as FULL graphs.

    ``R13_FORK`` captures every (depth + 1) · n by construction and is given the sizes of its
    deepest rung; ``UPSTREAM`` (vLLM 0.25 and later) captures exactly the sizes that it is given;
    ``NONE`` is a device without CUDA graphs.
    """

    R13_FORK = "r13-fork"
    UPSTREAM = "upstream"
    NONE = "none"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A decode batch of ``requests`` with ``query_length`` tokens each."""

    query_length: int
    requests: int

    @property
    def tokens(self) -> int:
        """Tokens of the batch: (depth + 1) · n."""
        return self.query_length * self.requests


def parse_ladder(value: object) -> tuple[int, ...]:
    """Return the rungs of a ladder.

    Parameters:
        value: a list of integers, or their text separated by commas.

    Raises:
        ValueError: not the tuned ladder, in whatever spelling.
    """
    if isinstance(value, str):
        texts = ["".join(rung.split()) for rung in value.split(",")]
        rungs = [int(text) for text in texts if text.isdecimal() and not text.startswith("0")]
        if len(rungs) != len(texts):
            raise ValueError(f"ladder {value!r} is not a list of positive whole numbers")
    elif isinstance(value, Sequence) and all(type(rung) is int for rung in value):
        rungs = list(value)
    else:
        raise ValueError(f"ladder {value!r} is not a list of positive whole numbers")
    if tuple(rungs) != TUNED_LADDER:
        raise ValueError(
            f"ladder {','.join(map(str, rungs))} has no tuned thresholds; only 2,4,5 has"
        )
    return TUNED_LADDER


def reachable(ladder: Iterable[int], max_seqs: int, new_tokens: int = 1) -> tuple[Shape, ...]:
    """Return every decode shape that a ladder can reach, by query length, then requests.

    Parameters:
        ladder: draft depths.
        max_seqs: sequences decoded at once.
        new_tokens: tokens that a step verifies beyond the drafts.
    """
    return tuple(
        Shape(depth + new_tokens, requests)
        for depth in sorted(set(ladder))
        for requests in range(1, max_seqs + 1)
    )


def capture_sizes(manager: GraphManager, ladder: Sequence[int], max_seqs: int) -> tuple[int, ...]:
    """Return the capture sizes, in tokens, that make every reachable shape a FULL graph.

    Parameters:
        manager: see :class:`GraphManager`.
        ladder: draft depths; the last rung is the deepest.
        max_seqs: sequences decoded at once.
    """
    if manager is GraphManager.NONE:
        return ()
    shapes = reachable(ladder, max_seqs)
    if manager is GraphManager.R13_FORK:
        deepest = max(shape.query_length for shape in shapes)
        shapes = tuple(shape for shape in shapes if shape.query_length == deepest)
    return tuple(sorted({shape.tokens for shape in shapes}))


def uncovered(
    manager: GraphManager, sizes: Sequence[int], ladder: Sequence[int], max_seqs: int
) -> tuple[Shape, ...]:
    """Return the reachable shapes that would not replay their own FULL graph.

    Parameters:
        manager: see :class:`GraphManager`.
        sizes: capture sizes in tokens.
        ladder: draft depths.
        max_seqs: sequences decoded at once.

    Returns:
        For the fork, which captures by construction up to its largest size, the shapes above it;
        for upstream, the shapes whose tokens are not listed; without graphs, every shape.
    """
    shapes = reachable(ladder, max_seqs)
    if manager is GraphManager.R13_FORK:
        return tuple(shape for shape in shapes if shape.tokens > max(sizes, default=0))
    if manager is GraphManager.UPSTREAM:
        return tuple(shape for shape in shapes if shape.tokens not in set(sizes))
    return shapes
