# SPDX-License-Identifier: Apache-2.0
"""Byte quantities with their units: parsed exactly, printed with both the bytes and a rounded size.

Decimal suffixes (``MB``, ``GB``, ``TB``) are powers of 1000 and binary ones (``KiB`` … ``TiB``)
powers of 1024, as IEC 80000-13 defines them. ``kB`` is refused: it is 1000 bytes by that standard
and 1024 bytes in ``/proc/meminfo``, and a floor copied from there would be 2.4 % off.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4

_FACTORS: Final = {
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}

# 20 digits hold every 64-bit size; a longer number is a typing error, not a quantity.
_QUANTITY: Final = re.compile(r"(?P<number>[0-9]{1,20}(?:\.[0-9]{1,20})?) ?(?P<unit>[A-Za-z]*)")

_AMBIGUOUS: Final = {
    "k": "1000 or 1024 bytes",
    "m": "MB (1000²) or MiB (1024²)",
    "g": "GB (1000³) or GiB (1024³)",
    "t": "TB (1000⁴) or TiB (1024⁴)",
    "kb": "1000 bytes by the standard and 1024 in /proc/meminfo; write KiB or B",
    "ki": "the unit of what; write KiB",
    "mi": "the unit of what; write MiB",
    "gi": "the unit of what; write GiB",
    "ti": "the unit of what; write TiB",
    "mb": "bits or bytes; write MB or MiB",
    "gb": "bits or bytes; write GB or GiB",
    "tb": "bits or bytes; write TB or TiB",
}


class UnitError(ValueError):
    """A text that is not an unambiguous quantity of bytes."""


def parse_bytes(value: object, *, whole: bool = False) -> int:
    """Return the number of bytes that a quantity with a unit stands for.

    Parameters:
        value: text such as ``"8410000000 B"``, ``"484.6 MiB"`` or ``"4.5GB"``.
        whole: refuse a quantity that is not an integer number of bytes. Without it, such a quantity
            is rounded up to the next byte, so that a floor never becomes laxer than it was written.

    Returns:
        Bytes, not negative. The arithmetic is rational, never floating point.

    Raises:
        UnitError: a bare number, a sign, an unknown or ambiguous unit, or, with ``whole``, a part
            of a byte. The message says what to write instead.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UnitError(f"{value!r} is not a quantity of bytes; write for example '512 MiB'")
    if not isinstance(value, str):
        raise UnitError(f"{value} is a bare number; write its unit, for example '{value} B'")
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise UnitError(
            f"{value!r} is not a quantity of bytes; write plain digits and a unit, "
            "for example '512 MiB' or '8410000000 B'"
        )
    number, unit = match["number"], match["unit"]
    if not unit:
        raise UnitError(f"{value!r} is a bare number; write its unit, for example '{number} B'")
    factor = _FACTORS.get(unit)
    if factor is None:
        doubt = _AMBIGUOUS.get(unit.lower())
        reason = f"may mean {doubt}" if doubt else "is no unit of bytes"
        raise UnitError(f"unit {unit!r} in {value!r} {reason}; use one of {', '.join(_FACTORS)}")
    quantity = Fraction(number) * factor
    if whole and quantity.denominator != 1:
        raise UnitError(f"{value!r} is not a whole number of bytes; write it in B")
    return -(-quantity.numerator // quantity.denominator)


def format_size(size_bytes: int) -> str:
    """Return bytes in the largest binary unit that leaves at least 1, rounded to one decimal.

    GiB and above keep three decimals, since one decimal of a GiB hides 100 MiB.
    """
    sign, magnitude = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    for unit, factor, places in (
        ("TiB", TIB, 3),
        ("GiB", GIB, 3),
        ("MiB", MIB, 1),
        ("KiB", KIB, 1),
    ):
        if magnitude >= factor:
            return f"{sign}{magnitude / factor:.{places}f} {unit}"
    return f"{sign}{magnitude} B"


def format_bytes(size_bytes: int) -> str:
    """Return ``508,145,664 B (484.6 MiB)``: exact, and rounded where that is shorter to read."""
    exact = f"{size_bytes:,} B"
    return exact if abs(size_bytes) < KIB else f"{exact} ({format_size(size_bytes)})"
