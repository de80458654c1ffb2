# SPDX-License-Identifier: Apache-2.0
"""The real recipe's memory section, and profiles and nodes to judge with it."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import (
    Need,
    geometry_of,
    need_of_run,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    FloorsSpec,
    Memory,
    Role,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import KIB

RECIPE = Path(__file__).parents[3] / "recipes" / "glm52-r13.yml"

# MemTotal and idle MemAvailable of a headless Founders Edition, as captured.
TOTAL_BYTES = 127_600_748 * KIB
IDLE_BYTES = 118_566_368 * KIB


@cache
def memory() -> Memory:
    """Return the memory section of the real recipe, with floors for its predecessors' profiles."""
    section: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["memory"]
    loaded = Memory.model_validate(section)
    floors: dict[str, FloorsSpec] = dict(loaded.floors)
    floors |= {run.name: floors["balanced"] for run in loaded.runs}
    return loaded.model_copy(update={"floors": floors})


GEOMETRY = geometry_of(memory())


def r9(name: str) -> Need:
    """Return a run of the predecessor as a profile."""
    run = next(run for run in memory().runs if run.name == name)
    return need_of_run(run, max_depth=5, tensor_parallel=4)


def r13(profile: str, **changed: Any) -> Need:
    """Return a profile of the recipe in the figures that were published for it."""
    context_tokens, kv_cache_bytes, dcp, utilization = {
        "fast": (420_000, 13_432_545_000, 1, "0.90"),
        "fast-319k": (319_000, 10_233_000_000, 1, "0.87"),
        "balanced": (520_000, 8_410_000_000, 2, "0.87"),
    }[profile]
    values: dict[str, Any] = {
        "profile": profile,
        "context_tokens": context_tokens,
        "kv_cache_bytes": kv_cache_bytes,
        "dcp": dcp,
        "max_seqs": 4,
        "shapes": 12,
        "max_depth": 5,
        "utilization": Decimal(utilization),
        "tensor_parallel": 4,
    }
    return Need(**(values | changed))


def sparks(available_bytes: int = IDLE_BYTES, total_bytes: int = TOTAL_BYTES) -> list[NodeMemory]:
    """Return four idle nodes, head first."""
    return [
        NodeMemory(name, role, total_bytes, available_bytes, available_bytes)
        for name, role in (
            ("alpha", Role.HEAD),
            ("bravo", Role.WORKER),
            ("charlie", Role.WORKER),
            ("delta", Role.WORKER),
        )
    ]
