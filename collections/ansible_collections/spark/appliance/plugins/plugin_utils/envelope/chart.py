# SPDX-License-Identifier: Apache-2.0
"""An envelope as a picture: one stacked bar for each node, the floor marked at its end."""

from __future__ import annotations

from io import BytesIO
from typing import Literal

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import Envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, format_size
from matplotlib import rc_context
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


def draw(envelope: Envelope, form: Literal["svg", "png"]) -> bytes:
    """Return the picture of an envelope in the given form.

    Parameters:
        envelope: at least one node.
        form: ``svg`` or ``png``.
    """
    figure = Figure(figsize=(11, 1.6 + 0.7 * len(envelope.nodes)), layout="constrained")
    axes = figure.add_subplot()
    colours: dict[str, str] = {}
    for row, node in enumerate(envelope.nodes):
        left = 0.0
        for term in node.stack:
            colour = colours.setdefault(term.name, COLOURS[len(colours) % len(COLOURS)])
            width = term.size_bytes / GIB
            fresh = term.name not in axes.get_legend_handles_labels()[1]
            axes.barh(row, width, left=left, color=colour, label=term.name if fresh else None)
            left += width
        total_gib = node.memory.total_bytes / GIB
        axes.plot([total_gib, total_gib], [row - 0.4, row + 0.4], color="black", linewidth=2)
        floor_gib = total_gib - node.floor_bytes / GIB
        axes.plot([floor_gib, floor_gib], [row - 0.4, row + 0.4], color="red", linestyle=":")
        expected = node.expected_bytes
        said = "unmeasured" if expected is None else f"least {format_size(expected)}, {node.grade}"
        axes.text(max(left, total_gib) + 0.5, row, said, va="center", fontsize=8)
    names = [f"{node.memory.node}\n{node.memory.role}" for node in envelope.nodes]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("GiB; black: MemTotal, red: the floor below it")
    axes.margins(x=0.18)
    axes.set_title(f"{envelope.need.profile}: {envelope.verdict}")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    out = BytesIO()
    # Without a date and without random ids, the same envelope gives the same file.
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": envelope.need.profile}):
        figure.savefig(out, format=form, metadata=metadata)
    return out.getvalue()
