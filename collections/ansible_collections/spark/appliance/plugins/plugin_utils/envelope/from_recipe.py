# SPDX-License-Identifier: Apache-2.0
"""What the envelope takes from a recipe: a profile's need, Ray's monitor, floors for its runs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.assess import RayMonitor
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import (
    Need,
    need_of_run,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Profile, Recipe
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Memory, Role

# The floor ledger's file under the receipts.
LEDGER_NAME = "ledger.json"

# What Ray does where its environment says nothing (ray/_private/ray_constants.py).
RAY_DEFAULT_REFRESH_MS = "250"
RAY_DEFAULT_THRESHOLD = "0.95"


def need_of(recipe: Recipe, profile: Profile) -> Need:
    """Return what a profile of a recipe asks of memory.

    A model that is split over fewer ranks than there are GPUs runs on the head alone.
    """
    topology = recipe.topology
    everywhere = topology.tensor_parallel * topology.pipeline_parallel == topology.gpus
    return Need(
        profile=profile.name,
        context_tokens=profile.context_tokens,
        kv_cache_bytes=profile.kv_cache_bytes,
        dcp=profile.dcp,
        max_seqs=profile.max_seqs,
        shapes=recipe.shapes(profile),
        max_depth=recipe.speculation.max_depth,
        utilization=profile.utilization,
        tensor_parallel=topology.tensor_parallel,
        rank_roles=tuple(Role) if everywhere else (Role.HEAD,),
    )


def need_by_name(recipe: Recipe, name: str) -> Need:
    """Return what a profile, or a run in the memory section, asks of memory.

    Raises:
        RecipeError: the recipe has neither of that name.
    """
    runs = {run.name: run for run in recipe.memory.runs}
    if name in runs and name not in recipe.profiles:
        return need_of_run(
            runs[name],
            max_depth=recipe.speculation.max_depth,
            tensor_parallel=recipe.topology.tensor_parallel,
        )
    return need_of(recipe, recipe.profile(name))


def with_floors_of_runs(recipe: Recipe) -> Memory:
    """Return the memory section with the default profile's floors for every run that has none."""
    memory = recipe.memory
    default = memory.floors[recipe.default_profile]
    floors = {run.name: default for run in memory.runs} | memory.floors
    return memory.model_copy(update={"floors": floors})


def monitor_of(recipe: Recipe) -> RayMonitor | None:
    """Return Ray's memory monitor as the recipe sets it, None for an engine without Ray.

    Raises:
        ValueError: a setting that is no number.
    """
    if recipe.engine.kind != "ray":
        return None
    env = recipe.container.env
    return RayMonitor(
        int(env.get("RAY_memory_monitor_refresh_ms", RAY_DEFAULT_REFRESH_MS)),
        Fraction(env.get("RAY_memory_usage_threshold", RAY_DEFAULT_THRESHOLD)),
    )


def roles_of(head: Iterable[str], workers: Iterable[str]) -> dict[str, Role]:
    """Return the role of every node in rank order, from the inventory's two groups."""
    return dict.fromkeys(head, Role.HEAD) | dict.fromkeys(workers, Role.WORKER)
