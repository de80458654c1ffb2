"""Recipes as files: what is refused, where the message points, and what the real ones hold."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import need_of
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import geometry_of
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import (
    RecipeError,
    load_recipe,
)

ROOT = Path(__file__).parents[3]
R13 = "recipes/glm52-r13.yml"
FILES = sorted(f"recipes/{path.name}" for path in (ROOT / "recipes").glob("*.yml"))
REMOVE = object()


def text_of(source: str) -> str:
    return (ROOT / source).read_text(encoding="utf-8")


@cache
def content_of(source: str) -> Any:
    return yaml.safe_load(text_of(source))


def changed(path: str, value: Any, source: str = R13) -> str:
    """Return a recipe's text with one value replaced, or taken away with REMOVE."""
    content: Any = copy.deepcopy(content_of(source))
    where = content
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("/"))
    for key in parents:
        where = where[key]
    if value is REMOVE:
        del where[last]
    else:
        where[last] = value
    return json.dumps(content)


def refused(text: str, source: str = R13) -> list[str]:
    """Return the messages of a recipe that must be refused."""
    with pytest.raises(RecipeError) as error:
        load_recipe(text, source)
    for finding in error.value.findings:
        assert source in finding.title
        assert finding.expected
        assert finding.found
        assert finding.remedy
    return [finding.message() for finding in error.value.findings]


@pytest.mark.parametrize("source", FILES)
def test_every_recipe_loads_and_says_the_same_twice(source: str) -> None:
    recipe = load_recipe(text_of(source), source)
    assert recipe.digest == load_recipe(f"# a comment\n{text_of(source)}", source).digest


@pytest.mark.parametrize("source", FILES)
def test_every_profile_holds_its_context_and_its_drafts(source: str) -> None:
    recipe = load_recipe(text_of(source), source)
    for profile in recipe.profiles.values():
        pool = need_of(recipe, profile).pool(geometry_of(recipe.memory))
        assert pool.spare_tokens(recipe.speculation.max_depth) >= 0, profile.name


def test_one_byte_less_than_fast_is_one_block_too_few() -> None:
    recipe = load_recipe(text_of(R13), R13)
    fast = recipe.profile("fast")
    less = fast.model_copy(update={"kv_cache_bytes": fast.kv_cache_bytes - 1})
    geometry = geometry_of(recipe.memory)
    assert need_of(recipe, fast).pool(geometry).spare_tokens(5) == 27
    assert need_of(recipe, less).pool(geometry).spare_tokens(5) == -37


@pytest.mark.parametrize(
    ("path", "value", "key", "said"),
    [
        # Form and units.
        ("speculation/window", "08", "speculation.window", "exit 4"),
        ("speculation/window", 0, "speculation.window", "exit 4"),
        ("speculation/window", 1, "speculation.window", "exit 4"),
        ("speculation/max_depth", "5", "speculation.max_depth", "exit 2"),
        ("speculation/max_depth", 0, "speculation.max_depth", "exit 2"),
        ("speculation/max_depth", 4, "speculation", "exit 6"),
        ("speculation/ladder", [2, 3, 5], "speculation.ladder", "exit 5"),
        ("speculation/ladder", "2,3,5", "speculation.ladder", "exit 5"),
        ("speculation/ladder", [5, 4, 2], "speculation.ladder", "exit 5"),
        ("speculation/ladder", [2, 4], "speculation.ladder", "exit 5"),
        ("speculation/ladder", ["2", "4", "5"], "speculation.ladder", "exit 5"),
        ("profiles/fast/max_seqs", 3, "profiles.fast.max_seqs", "exit 10"),
        ("profiles/fast/max_seqs", "04", "profiles.fast.max_seqs", "exit 10"),
        ("graphs/capture_sizes", [6, 12, 18], "profiles.fast.max_seqs", "exit 7"),
        ("graphs/capture_sizes", [1, 2, 3, 4], "profiles.fast.max_seqs", "exit 7"),
        ("graphs/capture_sizes", ["6"], "graphs.capture_sizes.0", "integer"),
        ("graphs/manager", "none", "graphs.manager", "exit 7"),
        ("profiles/fast/kv_cache_bytes", 13432989696, "kv_cache_bytes", "8410000000 B"),
        ("profiles/fast/kv_cache_bytes", "12.5 GiB", "kv_cache_bytes", "8410000000 B"),
        ("profiles/fast/kv_cache_bytes", "1.5 B", "kv_cache_bytes", "8410000000 B"),
        ("profiles/fast/utilization", 0.9, "profiles.fast.utilization", "quotes"),
        ("profiles/fast/utilization", "1.1", "profiles.fast.utilization", "at most 1"),
        ("profiles/fast/utilization", "NaN", "profiles.fast.utilization", ""),
        ("profiles/fast/dcp", 3, "profiles.fast.dcp", "exit 6"),
        ("profiles/fast/batched_tokens", "1024", "profiles.fast.batched_tokens", "integer"),
        ("profiles/fast/contex_tokens", 1, "profiles.fast.contex_tokens", "which is none"),
        ("profiles/fast/context_tokens", REMOVE, "profiles.fast.context_tokens", "exit 11"),
        ("memory/floors/fast/head/size", 512, "memory.floors.fast.head.size", "bare number"),
        ("memory/floors/fast/head/size", "484 MB/s", "memory.floors.fast.head.size", ""),
        ("memory/floors/fats", {}, "memory.floors.fats", ""),
        ("memory/floors/fast", REMOVE, "memory.floors.fast", "profiles only"),
        ("ray/object_store", 134217728, "ray.object_store", "bare number"),
        # Parts against each other.
        ("topology/tensor_parallel", 2, "topology.tensor_parallel", "4"),
        ("topology/tensor_parallel", "banana", "topology.tensor_parallel", "integer"),
        ("topology/pipeline_parallel", 2, "topology.tensor_parallel", "4"),
        ("topology/nodes", 3, "topology.tensor_parallel", "3"),
        ("ray", REMOVE, "ray", "without it"),
        ("engine/kind", "multinode", "ray", "with it"),
        ("ray/metrics_export_port", 6380, "ray.metrics_export_port", "another"),
        ("ray/node_manager_port", 20500, "ray.node_manager_port", "outside"),
        ("ray/min_worker_port", 20999, "ray", "not below"),
        ("default_profile", "fats", "default_profile", "exit 12"),
        ("container/devices", [], "container.devices", "TCP"),
        ("container/cap_add", ["SYS_NICE"], "container.cap_add", "TCP"),
        ("container/memlock", "inherit", "container.memlock", "TCP"),
        ("container/gpus", "none", "container.gpus", "all on gb10"),
        ("container/privileged", True, "container.privileged", "which is none"),
        # Environment.
        ("container/env/NCCL_IB_HCA", "rocep1s0f1", "container.env.NCCL_IB_HCA", "derived"),
        ("container/env/NCCL_IB_GID_INDEX", "3", "container.env.NCCL_IB_GID_INDEX", "derived"),
        ("container/env/VLLM_HOST_IP", "10.0.0.1", "container.env.VLLM_HOST_IP", "derived"),
        ("container/env/VLLM_API_KEY", "x", "container.env.VLLM_API_KEY", "secret"),
        ("container/env/NCCL_NET", "", "container.env", "leave out what is not set"),
        ("container/env/A B", "1", "container.env", "no name"),
        ("container/env/NCCL_NET", "<net>", "container.env.NCCL_NET", "exit 11"),
        ("title", "<title>", "title", "exit 11"),
        ("container/env/VLLM_ADAPTIVE_SPEC_DEPTHS", "2,3,5", "SPEC_DEPTHS", "exit 5"),
        ("container/env/VLLM_MTP_INSTRUMENT", "0", "VLLM_MTP_INSTRUMENT", "exit 8"),
        ("container/env/VLLM_MTP_INSTRUMENT_WINDOW", "08", "INSTRUMENT_WINDOW", "exit 8"),
        ("container/env/VLLM_MTP_INSTRUMENT_WINDOW", REMOVE, "INSTRUMENT_WINDOW", "exit 8"),
        ("container/env/VLLM_USE_V2_MODEL_RUNNER", "0", "V2_MODEL_RUNNER", "exit 7"),
        # The server's line.
        ("server/flags/enforce-eager", True, "server.flags.enforce-eager", "exit 7"),
        ("server/flags/compilation-config", {}, "cudagraph_capture_sizes", "exit 7"),
        (
            "server/flags/compilation-config/cudagraph_mode",
            "PIECEWISE",
            "server.flags.compilation-config.cudagraph_mode",
            "exit 7",
        ),
        ("server/flags/max-model-len", 420000, "server.flags.max-model-len", "$context_tokens"),
        ("server/flags/max-model-len", "$context", "server.flags.max-model-len", "context"),
        ("server/flags/max-num-seqs", REMOVE, "server.flags.max-num-seqs", "$max_seqs"),
        ("server/flags/host", "0.0.0.0", "server.flags.host", "$api_bind"),  # noqa: S104 -- refused
        ("server/flags/api-key", "x", "server", "visible to every user"),
        ("server/flags/--model", "x", "server", "without the dashes"),
        ("server/flags/dcp-comm-backend", "a2a", "server.flags.dcp-comm-backend", "exit 6"),
        ("server/dcp_flags", {}, "server.dcp_flags.dcp-comm-backend", "exit 6"),
        ("name", "glm52", "name", "glm52-r13"),
        ("name", "GLM", "name", "match"),
        ("schema", 2, "schema", "1"),
        ("weights/revision", "main", "weights.revision", "match"),
        ("gates/health_timeout", 0, "gates.health_timeout", "greater"),
        ("corrections/0/id", "D-2", "corrections.0.id", "match"),
    ],
)
def test_a_broken_recipe_is_refused_where_it_is_broken(
    path: str, value: Any, key: str, said: str
) -> None:
    messages = refused(changed(path, value))
    assert any(key in message and said in message for message in messages), messages


def test_all_faults_are_reported_at_once() -> None:
    content = copy.deepcopy(content_of(R13))
    content["speculation"]["window"] = 16
    content["profiles"]["fast"]["dcp"] = 3
    content["container"]["memlock"] = "inherit"
    assert len(refused(json.dumps(content))) == 3


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("window: 32", "window: 08", "integer"),
        ("window: 32", "window: 040", "integer"),  # 32 in octal
        ("max_seqs: 4\n", "max_seqs: 04\n", "integer"),
        ("rdma: true", "rdma: yes", "boolean"),
        ("window: 32", "window: 32\n  window: 16", "written twice"),
        ("window: 32", "? [a]\n  : 1", "not a text"),
        ("window: 32", "window: [", "YAML"),
        ("window: 32", "window: !!python/name:os.system", "YAML"),
    ],
)
def test_what_yaml_would_turn_into_something_else_is_refused(
    before: str, after: str, said: str
) -> None:
    text = text_of(R13)
    assert before in text
    assert any(said in message for message in refused(text.replace(before, after)))


@pytest.mark.parametrize("text", ["", "- a", "just text", "\t", "\x00"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert len(refused(text)) == 1


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"balanced, fast, fast-319k.*turbo.*exit 12"):
        load_recipe(text_of(R13), R13).profile("turbo")


def test_utilization_stays_exact() -> None:
    assert load_recipe(text_of(R13), R13).profile("fast").utilization == Decimal("0.90")


def test_corrections_name_keys_that_exist() -> None:
    content = content_of(R13)
    for correction in content["corrections"]:
        section, *_ = correction["key"].split(".")
        assert section in content, correction["id"]
