# SPDX-License-Identifier: Apache-2.0
"""What must hold between the parts of a recipe: rules that no single field can state.

The exit codes in the remedies are those of the published launcher, for whoever comes from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ansible_collections.spark.appliance.plugins.plugin_utils.shapes import (
    GraphManager,
    capture_sizes,
)

if TYPE_CHECKING:
    from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Recipe

# What a flag may refer to as ``$name``; launch.render gives each its value.
REFERENCES = frozenset(
    {"weights", "served_name", "tensor_parallel", "pipeline_parallel", "max_depth", "window",
     "capture_sizes", "context_tokens", "kv_cache_bytes", "dcp", "utilization", "max_seqs",
     "batched_tokens", "long_prefill_tokens", "api_bind", "api_port"}
)  # fmt: skip
# Flags that carry a number of the matched set: written out, they could differ from the profile.
_BY_REFERENCE = {
    "decode-context-parallel-size": "$dcp",
    "gpu-memory-utilization": "$utilization",
    "host": "$api_bind",
    "kv-cache-memory-bytes": "$kv_cache_bytes",
    "max-model-len": "$context_tokens",
    "max-num-batched-tokens": "$batched_tokens",
    "max-num-seqs": "$max_seqs",
    "pipeline-parallel-size": "$pipeline_parallel",
    "port": "$api_port",
    "served-model-name": "$served_name",
    "tensor-parallel-size": "$tensor_parallel",
}
# Without these the server would run with numbers that nobody judged.
_NEEDED = frozenset(_BY_REFERENCE) - {"decode-context-parallel-size"}
# These differ between nodes or sites and are derived from facts and inventory, each time.
_DERIVED_ENV = frozenset(
    {"GLOO_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "RAY_ADDRESS",
     "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "VLLM_HOST_IP"}
)  # fmt: skip
_SECRET_ENV = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_PLACEHOLDER = re.compile(r"<[^<>]*>")
# The thresholds of the tuned ladder were found with this many scheduler steps in a window.
TUNED_WINDOW = 32
_FULL = "FULL_AND_PIECEWISE"


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule that a recipe breaks.

    Parameters:
        key: path of the key to change.
        expected: what should stand there.
        found: what stands there.
        fix: what to do, with the published exit code where there is one.
    """

    key: str
    expected: str
    found: str
    fix: str


def placeholders(value: object, path: str = "") -> Iterator[Fault]:
    """Yield every text of a recipe that is still a ``<placeholder>``."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from placeholders(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from placeholders(item, f"{path}.{index}")
    elif isinstance(value, str) and _PLACEHOLDER.search(value):
        yield Fault(path, "a value", value, "fill it in (exit 11)")


def faults(recipe: Recipe) -> list[Fault]:
    """Return every rule that the recipe breaks."""
    return [
        *_topology(recipe),
        *_container(recipe),
        *_environment(recipe),
        *_ports(recipe),
        *_flags(recipe),
        *_graphs(recipe),
        *_speculation(recipe),
        *_profiles(recipe),
    ]


def _topology(recipe: Recipe) -> Iterator[Fault]:
    topology = recipe.topology
    split = topology.tensor_parallel * topology.pipeline_parallel
    # On a CPU the Ray recipe serves beside Ray, so its server is not split over the nodes.
    beside = recipe.engine.kind == "ray" and recipe.engine.device == "cpu"
    wanted = 1 if beside else topology.gpus
    if split != wanted:
        yield Fault(
            "topology.tensor_parallel",
            f"tensor_parallel × pipeline_parallel = {wanted}",
            f"{topology.tensor_parallel} × {topology.pipeline_parallel}",
            "split the model over exactly the GPUs that there are",
        )
    if recipe.engine.device == "gb10" and topology.pipeline_parallel != 1:
        yield Fault(
            "topology.pipeline_parallel",
            "1",
            str(topology.pipeline_parallel),
            "the adaptive depth is proven without pipeline stages only",
        )
    if (recipe.engine.kind == "ray") != (recipe.ray is not None):
        yield Fault(
            "ray",
            "this section with engine.kind ray, and only then",
            f"engine.kind {recipe.engine.kind} {'without' if recipe.ray is None else 'with'} it",
            "add the section, or take it away",
        )


def _container(recipe: Recipe) -> Iterator[Fault]:
    container, gpu = recipe.container, recipe.engine.device == "gb10"
    if (container.gpus == "all") != gpu:
        yield Fault(
            "container.gpus",
            "all on gb10, none on cpu",
            container.gpus,
            "give the container what the engine computes on",
        )
    if not recipe.topology.rdma:
        return
    for key, good, found in (
        ("devices", "/dev/infiniband" in container.devices, container.devices),
        ("cap_add", "IPC_LOCK" in container.cap_add, container.cap_add),
        ("memlock", container.memlock == "unlimited", container.memlock),
    ):
        if not good:
            yield Fault(
                f"container.{key}",
                "/dev/infiniband, IPC_LOCK and unlimited memlock with topology.rdma",
                str(found or "nothing"),
                "add it: NCCL silently takes TCP without it",
            )


def _environment(recipe: Recipe) -> Iterator[Fault]:
    for name in recipe.container.env:
        key = f"container.env.{name}"
        if name in _DERIVED_ENV:
            yield Fault(
                key,
                "no variable that differs between nodes",
                name,
                "take it away; it is derived from each node's facts or left unset",
            )
        elif _SECRET_ENV.search(name):
            yield Fault(key, "no secret", name, "keep secrets in a vault of the inventory")


def _ports(recipe: Recipe) -> Iterator[Fault]:
    ray = recipe.ray
    if ray is None:
        return
    low, high = ray.min_worker_port, ray.max_worker_port
    fixed = ray.fixed_ports()
    for (first, one), (second, other) in combinations(fixed.items(), 2):
        if one == other:
            yield Fault(
                f"ray.{second}", f"another port than ray.{first}", str(other), "choose another"
            )
    for name, port in fixed.items():
        if low <= port <= high:
            yield Fault(
                f"ray.{name}", f"a port outside {low} to {high}", str(port), "choose another"
            )


def _references(value: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 -- JSON
    if isinstance(value, str) and value.startswith("$"):
        yield path, value.removeprefix("$")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _references(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, f"{path}.{index}")


def _flags(recipe: Recipe) -> Iterator[Fault]:
    server = recipe.server
    extra = [set(profile.extra) for profile in recipe.profiles.values()]
    known = REFERENCES | (set.intersection(*extra) if extra else set())
    for section, flags in (("flags", server.flags), ("dcp_flags", server.dcp_flags)):
        for path, name in _references(flags, f"server.{section}"):
            if name not in known:
                yield Fault(path, f"one of {', '.join(sorted(known))}", name, "correct the name")
    for flag, reference in _BY_REFERENCE.items():
        value = server.flags.get(flag)
        if value != reference and (value is not None or flag in _NEEDED):
            yield Fault(
                f"server.flags.{flag}",
                reference,
                "nothing" if value is None else str(value),
                "take the number from the profile, so that it is the one that was judged",
            )
    for flag in ("dcp-comm-backend", "dcp-kv-cache-interleave-size"):
        if flag in server.flags:
            yield Fault(
                f"server.flags.{flag}",
                "this flag in server.dcp_flags",
                str(server.flags[flag]),
                "move it: at DCP 1 it ends the engine at start (exit 6)",
            )


def _graphs(recipe: Recipe) -> Iterator[Fault]:
    graphs, server = recipe.graphs, recipe.server
    if recipe.engine.device != "gb10":
        return
    if graphs.manager is GraphManager.NONE:
        yield Fault(
            "graphs.manager", "r13-fork or upstream", "none", "eager decoding is refused (exit 7)"
        )
    if server.flags.get("enforce-eager") not in {None, False}:
        yield Fault("server.flags.enforce-eager", "no such flag", "true", "take it away (exit 7)")
    compilation = server.flags.get("compilation-config")
    found = compilation if isinstance(compilation, Mapping) else {}
    sizes, mode = found.get("cudagraph_capture_sizes"), found.get("cudagraph_mode", _FULL)
    if sizes != "$capture_sizes":
        yield Fault(
            "server.flags.compilation-config.cudagraph_capture_sizes",
            "$capture_sizes",
            str(sizes or "nothing"),
            "take the sizes from graphs.capture_sizes (exit 7)",
        )
    if mode != _FULL:
        yield Fault(
            "server.flags.compilation-config.cudagraph_mode",
            f"{_FULL}, or nothing, which resolves to it",
            str(mode),
            "take it away (exit 7)",
        )


def _speculation(recipe: Recipe) -> Iterator[Fault]:
    speculation, env = recipe.speculation, recipe.container.env
    if speculation.window != TUNED_WINDOW:
        yield Fault(
            "speculation.window",
            str(TUNED_WINDOW),
            str(speculation.window),
            "the ladder's thresholds were tuned on that window (exit 4)",
        )
    if recipe.graphs.manager is not GraphManager.R13_FORK:
        return
    ladder = ",".join(map(str, speculation.ladder))
    for name, good, expected, code in (
        ("VLLM_ADAPTIVE_SPEC_DEPTHS", re.escape(ladder), ladder, 5),
        ("VLLM_USE_V2_MODEL_RUNNER", "1", "1, the runner that keeps FULL graphs", 7),
        ("VLLM_MTP_INSTRUMENT", "1", "1: the ladder is judged by this telemetry", 8),
        ("VLLM_MTP_INSTRUMENT_WINDOW", "[1-9][0-9]*", "a whole number of steps above 0", 8),
    ):
        found = env.get(name, "nothing")
        if not re.fullmatch(good, found):
            yield Fault(f"container.env.{name}", expected, found, f"set it so (exit {code})")


def _profiles(recipe: Recipe) -> Iterator[Fault]:
    if recipe.default_profile not in recipe.profiles:
        yield Fault(
            "default_profile",
            f"one of {', '.join(recipe.profiles)}",
            recipe.default_profile,
            "name one of them (exit 12)",
        )
    for name in sorted(set(recipe.memory.floors) ^ set(recipe.profiles)):
        there = "floors only" if name in recipe.memory.floors else "profiles only"
        yield Fault(
            f"memory.floors.{name}",
            "floors for each profile, and for nothing else",
            f"{name} in {there}",
            "state both roles' floors, or take them away",
        )
    graphs, tensor_parallel = recipe.graphs, recipe.topology.tensor_parallel
    for name, profile in recipe.profiles.items():
        wanted = capture_sizes(graphs.manager, recipe.speculation.ladder, profile.max_seqs)
        if graphs.capture_sizes != wanted:
            yield Fault(
                f"profiles.{name}.max_seqs",
                f"captures {list(wanted)} for {profile.max_seqs} sequences",
                f"graphs.capture_sizes {list(graphs.capture_sizes)}",
                "change max_seqs or capture_sizes together (exit 7, exit 10)",
            )
        if tensor_parallel % profile.dcp:
            yield Fault(
                f"profiles.{name}.dcp",
                f"a divisor of tensor_parallel {tensor_parallel}",
                str(profile.dcp),
                "choose a divisor (exit 6)",
            )
        if profile.dcp > 1 and "dcp-comm-backend" not in recipe.server.dcp_flags:
            yield Fault(
                "server.dcp_flags.dcp-comm-backend",
                f"a backend, since profile {name} has DCP {profile.dcp}",
                "nothing",
                "name it (exit 6)",
            )
        if profile.dcp > 1 and recipe.server.flags.get("decode-context-parallel-size") is None:
            yield Fault(
                "server.flags.decode-context-parallel-size",
                "$dcp",
                "nothing",
                "hand the profile's DCP size to the server (exit 6)",
            )
