# SPDX-License-Identifier: Apache-2.0
"""Quantities of bytes: exact, and refused when their unit is missing or ambiguous."""

from __future__ import annotations

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.units import (
    GIB,
    KIB,
    UnitError,
    format_bytes,
    format_size,
    parse_bytes,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 B", 0),
        ("8410000000 B", 8_410_000_000),
        ("496236 KiB", 508_145_664),
        ("484.6 MiB", 508_139_930),
        ("0.5 GiB", 536_870_912),
        ("118 GB", 118_000_000_000),
        ("118GiB", 126_701_535_232),
        (" 1 TiB ", 1_099_511_627_776),
        ("440 MB", 440_000_000),
    ],
)
def test_quantity(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (512, "bare number"),
        (0.88, "bare number"),
        (True, "not a quantity"),
        (None, "not a quantity"),
        ("512", "bare number"),
        ("512 M", "may mean"),
        ("8g", "may mean"),
        ("118566368 kB", "/proc/meminfo"),
        ("16 Gi", "write GiB"),
        ("16 Gb", "bits or bytes"),
        ("16 gib", "no unit"),
        ("16 parsecs", "no unit"),
        ("-1 B", "plain digits"),
        ("1e9 B", "plain digits"),
        ("8,410,000,000 B", "plain digits"),
        ("\uff18 B", "plain digits"),
        ("nan B", "plain digits"),
        ("", "plain digits"),
        ("9" * 400 + " B", "plain digits"),
    ],
)
def test_refused(value: object, said: str) -> None:
    with pytest.raises(UnitError, match=said):
        parse_bytes(value)


def test_part_of_a_byte_is_rounded_up_or_refused() -> None:
    assert parse_bytes("0.0001 KiB") == 1
    with pytest.raises(UnitError, match="whole number"):
        parse_bytes("484.6 MiB", whole=True)


@pytest.mark.parametrize(
    ("size_bytes", "exact", "rounded"),
    [
        (0, "0 B", "0 B"),
        (1023, "1,023 B", "1023 B"),
        (508_145_664, "508,145,664 B (484.6 MiB)", "484.6 MiB"),
        (-32 * KIB, "-32,768 B (-32.0 KiB)", "-32.0 KiB"),
        (118_566_368 * KIB, "121,411,960,832 B (113.074 GiB)", "113.074 GiB"),
        (2 * KIB * GIB, "2,199,023,255,552 B (2.000 TiB)", "2.000 TiB"),
    ],
)
def test_printed(size_bytes: int, exact: str, rounded: str) -> None:
    assert format_bytes(size_bytes) == exact
    assert format_size(size_bytes) == rounded


@given(st.integers(min_value=0, max_value=2**63))
def test_whole_bytes_survive_a_round_trip(size_bytes: int) -> None:
    assert parse_bytes(f"{size_bytes} B", whole=True) == size_bytes
