# SPDX-License-Identifier: Apache-2.0
"""An envelope as an operator reads it: a table and a bar for each role, the verdict, what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from string import ascii_uppercase

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.gates import worst
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvPool
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    Fix,
    NodeEnvelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import (
    Term,
    total,
    weakest,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import ordered
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, format_bytes
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 118
BAR_CELLS = 72
FREE, OVER = "·", "!"


def remainder(node: NodeEnvelope) -> Term:
    """Return what the terms leave of the node: the expectation, or what a mere sum would leave."""
    expected = node.expected_bytes
    if expected is not None and node.grade is not None:
        return Term("least MemAvailable", expected, node.grade, "see below")
    left = node.memory.total_bytes - total(node.stack)
    return Term("left by these terms", left, weakest(node.stack), "no run tells the transient")


def bar(node: NodeEnvelope, cells: int = BAR_CELLS) -> str:
    """Return the stack as one line: a letter for each term, dots for what is left.

    Every term that is there gets a cell at least, so that a small one is not mistaken for none.
    What exceeds ``MemTotal`` is drawn with exclamation marks behind the end of the bar.
    """
    total_bytes = node.memory.total_bytes
    drawn = ""
    reached = 0
    for letter, term in zip(ascii_uppercase, node.stack, strict=False):
        reached += term.size_bytes
        upto = round(reached * cells / total_bytes)
        drawn += letter * max(upto - len(drawn), 1)
    if len(drawn) <= cells:
        return f"[{drawn.ljust(cells, FREE)}]"
    return f"[{drawn[:cells]}]{OVER * (len(drawn) - cells)}"


def _row(letter: str, term: Term) -> tuple[str, str, str, str, str, str]:
    gib = f"{term.size_bytes / GIB:,.3f}"
    return letter, term.name, f"{term.size_bytes:,}", gib, str(term.grade), term.source


def _stack_table(role: Role, node: NodeEnvelope) -> Table:
    memory = node.memory
    table = Table(title=f"{role} ({memory.node})", title_justify="left", width=WIDTH)
    table.add_column("")
    table.add_column("term")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("known", no_wrap=True)
    table.add_column("source")
    for letter, term in zip(ascii_uppercase, node.stack, strict=False):
        table.add_row(*_row(letter, term))
    table.add_section()
    for name, size_bytes, source in (
        ("MemTotal", memory.total_bytes, memory.source),
        ("page cache", memory.cache_bytes, "reclaimable: part of MemAvailable, not of MemFree"),
        ("swap", memory.swap_bytes, "SwapTotal; the floors hold for none"),
    ):
        if size_bytes:
            table.add_row(*_row("", Term(name, size_bytes, memory.grade, source)))
    table.add_row(*_row(FREE, remainder(node)))
    floor = Term("floor", node.floor_bytes, Grade.COMPUTED, node.floor_source)
    table.add_row(*_row("", floor)[:4], "set", node.floor_source)
    if node.admission_bytes is not None:
        source = "utilization x MemTotal"
        admission = Term("free at start", node.admission_bytes, Grade.COMPUTED, source)
        table.add_row(*_row("", admission))
    return table


def _start_lines(node: NodeEnvelope) -> Iterator[str]:
    """Yield how the memory before the start comes about, where the expectation does not say it."""
    memory = node.memory
    if node.counts_from_now or not memory.returns:
        return
    yield f"{memory.available_bytes:>+20,} B  MemAvailable now ({memory.grade}: {memory.source})"
    for term in memory.returns:
        yield f"{term.size_bytes:>+20,} B  {term.name} ({term.grade}: {term.source})"
    yield f"{memory.before_start_bytes:>+20,} B  MemAvailable before the start"


def _chain_lines(node: NodeEnvelope) -> Iterator[str]:
    if not node.chain or node.expected_bytes is None or node.margin_bytes is None:
        yield "least MemAvailable: unmeasured; no run of this size is near enough to project from"
        return
    for term in node.chain:
        yield f"{term.size_bytes:>+20,} B  {term.name} ({term.grade}: {term.source})"
    yield f"{node.expected_bytes:>+20,} B  least MemAvailable, {node.grade}"
    yield f"{-node.floor_bytes:>+20,} B  floor of the {node.memory.role}"
    yield f"{node.margin_bytes:>+20,} B  margin"


def pool_line(pool: KvPool) -> str:
    """Return the pool of a rank in one line."""
    return (
        f"KV pool of a rank: {pool.blocks:,} blocks = {format_bytes(pool.allocated_bytes)}; "
        f"{pool.advertised_tokens:,} tokens advertised, {pool.usable_tokens:,} usable, "
        f"context {pool.context_tokens:,}; {float(pool.geometry.slope(pool.dcp)):,.0f} B a token"
    )


def fix_line(fix: Fix) -> str:
    """Return a fix in one line."""
    said = f"{fix.what}: {fix.change_bytes:+,} B"
    if fix.kv_cache_bytes is not None:
        said += f" to kv_cache_bytes {fix.kv_cache_bytes:,}"
    if fix.context_tokens is not None:
        said += f", context up to {fix.context_tokens:,} tokens"
    return said


def _role_parts(role: Role, nodes: Sequence[NodeEnvelope]) -> Iterator[RenderableType]:
    binding = worst(nodes)
    yield _stack_table(role, binding)
    yield Text(bar(binding))
    yield from (Text(line) for line in (*_start_lines(binding), *_chain_lines(binding)))
    others = [node for node in nodes if node is not binding]
    if others:
        said = ", ".join(
            f"{node.memory.node} "
            + ("unmeasured" if node.margin_bytes is None else f"margin {node.margin_bytes:+,} B")
            for node in others
        )
        yield Text(f"other {role}s: {said}")
    yield Text("")


def render(envelope: Envelope) -> str:
    """Return the whole envelope as text of at most 118 columns."""
    parts: list[RenderableType] = [Text(f"Memory envelope of profile {envelope.need.profile}")]
    if envelope.pool is not None:
        parts.append(Text(pool_line(envelope.pool)))
    for role in Role:
        nodes = [node for node in envelope.nodes if node.memory.role is role]
        if nodes:
            parts += _role_parts(role, nodes)
    parts.append(Text(f"verdict: {envelope.verdict}"))
    parts += [Text(f"  {f.severity}: {f.message()}") for f in ordered(envelope.findings)]
    if envelope.fixes:
        parts.append(Text("what would help:"))
        parts += [Text(f"  {fix_line(fix)}") for fix in envelope.fixes]
    out = StringIO()
    # soft_wrap leaves long lines whole, so that a figure can be searched for; tables keep to WIDTH.
    Console(file=out, width=WIDTH, color_system=None).print(Group(*parts), soft_wrap=True)
    return out.getvalue()
