# SPDX-License-Identifier: Apache-2.0
"""From a recipe and a profile to what the checks ask of nodes."""

from __future__ import annotations

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Needs
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Profile, Recipe


def needs_of(recipe: Recipe, profile: Profile) -> Needs:
    """Return what a profile of a recipe demands; a profile without floors has none to hold."""
    floors = recipe.memory.floors.get(profile.name)
    return Needs(
        nodes=recipe.topology.nodes,
        gpus_per_node=recipe.topology.gpus_per_node,
        rdma=recipe.topology.rdma,
        context_tokens=profile.context_tokens,
        min_total_bytes=recipe.memory.min_total,
        floors_bytes={"head": floors.head.size, "worker": floors.worker.size} if floors else {},
        keep_swap=recipe.memory.swap == "keep",
        rank_port=recipe.engine.master_port if recipe.engine.kind == "multinode" else None,
    )
