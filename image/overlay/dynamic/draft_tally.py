# SPDX-License-Identifier: Apache-2.0
"""Counts of verified drafts, from which every acceptance figure follows."""

from __future__ import annotations

from itertools import accumulate


class DraftTally:
    """How many drafts of each length had how many tokens accepted.

    A draft is what one request offers for verification in one scheduler step. Acceptance stops at
    the first wrong token, so (drafted, accepted) says all there is to know of a draft, and one
    counter is incremented for it.

    Parameters:
        max_depth: the longest draft, in tokens.

    Raises:
        ValueError: ``max_depth`` is not positive.
    """

    __slots__ = ("_counts", "_row", "drafts", "max_depth")

    def __init__(self, max_depth: int) -> None:
        if max_depth <= 0:
            raise ValueError(f"the deepest draft must have at least one token, not {max_depth}")
        self.max_depth = max_depth
        self.drafts = 0
        self._row = max_depth + 1
        self._counts = [0] * (self._row * self._row)

    def add(self, drafted: int, accepted: int) -> None:
        """Count one draft; one of no tokens is none.

        Parameters:
            drafted: draft tokens offered for verification.
            accepted: draft tokens accepted, from the first position on.

        Raises:
            ValueError: the counts are negative, contradict each other or exceed ``max_depth``.
        """
        if not 0 <= accepted <= drafted <= self.max_depth:
            raise ValueError(
                f"a draft of {drafted} tokens with {accepted} accepted cannot be"
                f" (0 <= accepted <= drafted <= {self.max_depth})"
            )
        if drafted:
            self.drafts += 1
            self._counts[drafted * self._row + accepted] += 1

    def clear(self) -> None:
        """Forget every draft."""
        self.drafts = 0
        self._counts[:] = [0] * len(self._counts)

    @property
    def drafted(self) -> int:
        """Draft tokens offered for verification."""
        row, counts = self._row, self._counts
        return sum(d * sum(counts[d * row : d * row + d + 1]) for d in range(1, row))

    @property
    def accepted(self) -> int:
        """Draft tokens accepted."""
        return sum(self.accepted_at())

    def accepted_at(self) -> list[int]:
        """Return, per position from 0, the drafts whose token there was accepted."""
        row, counts = self._row, self._counts
        exactly = [sum(counts[a::row]) for a in range(row)]
        at_least = list(accumulate(reversed(exactly)))
        return at_least[-2::-1]

    def eligible_at(self) -> list[int]:
        """Return, per position from 0, the drafts that reached it.

        A position is reached when the draft is long enough and every token before was accepted.
        """
        row, counts = self._row, self._counts
        return [
            sum(sum(counts[d * row + p : d * row + d + 1]) for d in range(p + 1, row))
            for p in range(self.max_depth)
        ]


def ratio(part: int, whole: int) -> float:
    """Return part / whole, and 0.0 of nothing."""
    return part / whole if whole else 0.0
