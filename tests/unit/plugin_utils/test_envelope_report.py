# SPDX-License-Identifier: Apache-2.0
"""What an operator reads and sees: every term once, the verdict, and what would help."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.chart import draw
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import judge_envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.text import (
    BAR_CELLS,
    WIDTH,
    bar,
    render,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, MIB

from tests.unit.plugin_utils.envelope_cases import memory, r9, r13, sparks


def test_killed_profile_reads_as_it_died() -> None:
    text = render(judge_envelope(memory(), r9("r9-550k"), sparks()))
    for said in (
        "553,455 tokens advertised, 553,344 usable",
        "+647,000,064 B  least MemAvailable, r9-fixed-k5-550k",
        "-987,842,478 B  CUDA graphs",
        "-340,842,414 B  least MemAvailable, projected",
        "verdict: refused",
        "free memory on alpha for the floor: +743,495,598 B",
        "context up to 506,747 tokens",
    ):
        assert said in text


def test_measured_profile_reads_its_floor() -> None:
    text = render(judge_envelope(memory(), r9("r9-520k"), sparks()))
    assert "+508,145,664 B  least MemAvailable, measured" in text
    assert "verdict: fits, measured" in text
    assert "what would help" not in text


def test_unmeasured_profile_shows_what_a_mere_sum_would_leave() -> None:
    text = render(judge_envelope(memory(), r13("fast"), sparks()))
    assert "least MemAvailable: unmeasured" in text
    assert "left by these terms" in text
    assert "memory.terms_exceed_node" in text
    assert "+444,696 B to kv_cache_bytes 13,432,989,696" in text


def test_what_comes_back_is_said_also_without_a_measurement() -> None:
    back = Term("given back: desktop (gdm.service)", 300 * MIB, Grade.MEASURED, "Pss")
    nodes = [replace(node, returns=(back,)) for node in sparks(100 * GIB)]
    text = render(judge_envelope(memory(), r13("balanced"), nodes))
    assert "+314,572,800 B  given back: desktop (gdm.service) (measured: Pss)" in text
    assert f"+{100 * GIB + 300 * MIB:,} B  MemAvailable before the start" in text


def test_tables_keep_to_the_width_and_name_each_term_once() -> None:
    text = render(judge_envelope(memory(), r13("balanced"), sparks()))
    tables = [line for line in text.splitlines() if line and line[0] in "┏┃┡│├└"]
    assert {len(line) for line in tables} == {WIDTH}
    head = text[: text.index("worker (")]
    assert head.count("│ weights ") == 1
    assert head.count("│ projected │") >= 3


def test_pool_that_cannot_exist_still_reads() -> None:
    text = render(judge_envelope(memory(), replace(r13("balanced"), dcp=3), sparks()))
    assert "possible: 1, 2, 4" in text
    assert "verdict: refused" in text


def test_bar_gives_every_term_a_cell_and_shows_what_exceeds_the_node() -> None:
    node = judge_envelope(memory(), r9("r9-520k"), sparks()).nodes[0]
    total_bytes = node.memory.total_bytes

    def drawn(*sizes: int) -> str:
        stack = tuple(Term(str(size), size, Grade.COMPUTED, "here") for size in sizes)
        return bar(replace(node, stack=stack))

    half = drawn(total_bytes // 2)
    assert half == f"[{'A' * (BAR_CELLS // 2)}{'·' * (BAR_CELLS // 2)}]"
    assert drawn(1, total_bytes // 2).startswith("[AB")
    assert drawn(total_bytes + 10 * GIB).endswith("]!!!!!!")


def test_pictures() -> None:
    envelope = judge_envelope(memory(), r9("r9-550k"), sparks())
    svg = draw(envelope, "svg")
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 -- drawn right here
    assert svg == draw(envelope, "svg")
    assert draw(envelope, "png").startswith(b"\x89PNG")


def test_picture_says_the_verdict_and_every_node() -> None:
    svg = draw(judge_envelope(memory(), r9("r9-550k"), sparks()), "svg").decode()
    for said in ("r9-550k: refused", "alpha", "delta", "least -325.1 MiB, projected"):
        assert f"<!-- {said}" in svg
