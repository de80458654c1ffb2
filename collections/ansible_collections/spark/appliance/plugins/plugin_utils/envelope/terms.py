# SPDX-License-Identifier: Apache-2.0
"""A term of the envelope: bytes, where they come from, and how they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade

_CONFIDENCE = {Grade.MEASURED: 0, Grade.COMPUTED: 1, Grade.PROJECTED: 2}


@dataclass(frozen=True, slots=True)
class Term:
    """One row of an envelope's table.

    Parameters:
        name: what takes or gives the memory.
        size_bytes: signed bytes; in a stack what the term takes, in a chain what it adds.
        grade: see :class:`Grade`.
        source: the observation, the formula or the publication behind the number.
    """

    name: str
    size_bytes: int
    grade: Grade
    source: str


def total(terms: Iterable[Term]) -> int:
    """Return the signed sum of terms in bytes."""
    return sum(term.size_bytes for term in terms)


def weakest(terms: Iterable[Term]) -> Grade:
    """Return the grade of a sum: as well known as its least known term."""
    return max((term.grade for term in terms), key=_CONFIDENCE.__getitem__, default=Grade.MEASURED)
