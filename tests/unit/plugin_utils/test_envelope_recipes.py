# SPDX-License-Identifier: Apache-2.0
"""The recipes as they are: each profile's need, and what the envelope says of it on idle nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import (
    monitor_of,
    need_by_name,
    need_of,
    roles_of,
    with_floors_of_runs,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.judge import judge_envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import geometry_of
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import Verdict
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import (
    Recipe,
    RecipeError,
    load_recipe,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import Role

from tests.unit.plugin_utils.envelope_cases import r13, sparks

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yml"))
PROFILES = [(path, name) for path in RECIPES for name in ("balanced", "fast")]


def recipe(path: Path) -> Recipe:
    return load_recipe(path.read_text(encoding="utf-8"), str(path))


@pytest.fixture(scope="module")
def real() -> Recipe:
    return recipe(next(path for path in RECIPES if path.stem == "glm52-r13"))


@pytest.mark.parametrize(
    ("path", "name"), PROFILES, ids=lambda value: getattr(value, "stem", value)
)
def test_every_profile_holds_its_own_context(path: Path, name: str) -> None:
    loaded = recipe(path)
    need = need_of(loaded, loaded.profile(name))
    pool = need.pool(geometry_of(loaded.memory))
    assert pool.spare_tokens(need.max_depth) >= 0
    assert need.tensor_parallel % need.dcp == 0


def test_real_profiles_are_the_published_ones_with_the_pool_of_fast_corrected(real: Recipe) -> None:
    assert need_by_name(real, "balanced") == r13("balanced")
    assert need_by_name(real, "fast-319k") == r13("fast-319k")
    assert need_by_name(real, "fast") == r13("fast", kv_cache_bytes=13_432_989_696)


@pytest.mark.parametrize("name", ["balanced", "fast", "fast-319k"])
def test_real_profiles_start_only_when_the_unmeasured_floor_is_accepted(
    real: Recipe, name: str
) -> None:
    need = need_by_name(real, name)
    (finding,) = refusals(judge_envelope(real.memory, need, sparks()).findings)
    assert finding.check == "memory.floor_unmeasured"
    assert finding.variable == "accept_unmeasured_floor"
    accepted = judge_envelope(real.memory, need, sparks(), accept_unmeasured=True)
    assert accepted.verdict is Verdict.UNMEASURED
    assert not refusals(accepted.findings)


def test_runs_can_be_judged_as_profiles(real: Recipe) -> None:
    memory = with_floors_of_runs(real)
    verdicts = {
        run.name: judge_envelope(memory, need_by_name(real, run.name), sparks()).verdict
        for run in memory.runs
    }
    assert verdicts["r9-520k"] is Verdict.MEASURED
    assert verdicts["r9-550k"] is Verdict.REFUSED
    with pytest.raises(RecipeError, match="balanced"):
        need_by_name(real, "r9-1m")


def test_monitor_is_off_in_every_ray_recipe(real: Recipe) -> None:
    monitor = monitor_of(real)
    assert monitor is not None
    assert monitor.refresh_ms == 0
    kinds = {path.stem: recipe(path).engine.kind for path in RECIPES}
    assert {stem for stem, kind in kinds.items() if kind == "ray"} >= {"lab", "glm52-r13"}
    split = next(path for path in RECIPES if kinds[path.stem] == "multinode")
    assert monitor_of(recipe(split)) is None


def test_model_on_the_head_alone_gives_workers_no_pool() -> None:
    lab = recipe(next(path for path in RECIPES if path.stem == "lab"))
    assert need_of(lab, lab.profile("balanced")).rank_roles == (Role.HEAD,)
    split = recipe(next(path for path in RECIPES if path.stem == "lab-tp4"))
    assert need_of(split, split.profile("balanced")).rank_roles == tuple(Role)


def test_roles_in_rank_order() -> None:
    roles = roles_of(["alpha"], ["bravo", "charlie"])
    assert list(roles.items()) == [
        ("alpha", Role.HEAD),
        ("bravo", Role.WORKER),
        ("charlie", Role.WORKER),
    ]
