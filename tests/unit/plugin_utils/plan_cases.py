"""Nodes for the plans: composed trees, observed with the units that the plans need."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ansible_collections.spark.appliance.plugins.module_utils._facts.gather import gather
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import open_host
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.plan import OBSERVED_UNITS

from tests.fixtures.nodes.compose import _MEMORY, FACTORY, Edit, tree

GENERATED_SWAP = "/run/systemd/generator/swap.img.swap"


def node(
    *edits: Edit,
    name: str = "alpha",
    layers: tuple[str, ...] = FACTORY,
    units: tuple[str, ...] = OBSERVED_UNITS,
) -> NodeFacts:
    """Return the facts of a composed node on which the observed units are not installed."""
    composed = tree(name, layers)
    for unit in OBSERVED_UNITS:
        composed.unit(unit, LoadState="not-found", ActiveState="inactive", UnitFileState="")
    if "swap.img.swap" in composed.units:
        composed.unit("swap.img.swap", FragmentPath=GENERATED_SWAP)
    for edit in edits:
        edit(composed)
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        root = composed.put(Path(folder))
        return NodeFacts.of(name, gather(open_host(str(root)), Request(units=units)))
