# SPDX-License-Identifier: Apache-2.0
"""A served system as data: the schema of ``recipes/*.yml`` and its loader."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Hashable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Bytes,
    Memory,
    Positive,
    Section,
    Source,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_rules import (
    Fault,
    faults,
    placeholders,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.shapes import (
    GraphManager,
    parse_ladder,
    reachable,
)
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

_NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Exit codes of the published launcher, by the last parts of a key.
_EXIT_CODES: dict[tuple[str, ...], int] = {
    ("speculation", "max_depth"): 2,
    ("speculation", "window"): 4,
    ("speculation", "ladder"): 5,
    ("graphs", "capture_sizes"): 7,
}

Name = Annotated[str, Field(pattern=_NAME)]
Port = Annotated[int, Field(ge=1024, le=65535, strict=True)]
Seconds = Annotated[int, Field(ge=1, le=86400, strict=True)]
Switch = Annotated[bool, Field(strict=True)]


class RecipeError(ValueError):
    """A recipe that cannot be used; carries one finding for each fault."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(finding.message() for finding in findings))
        self.findings = findings


def _exact_bytes(value: object) -> int:
    # One byte decides whether the pool has one more block, so no unit that rounds is taken.
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]{0,19} B", value):
        raise ValueError(f"{value!r} is not a whole number of bytes, such as '8410000000 B'")
    return int(value.removesuffix(" B"))


def _share(value: object) -> Decimal:
    # A float has already lost digits, so shares are written as text.
    if not isinstance(value, str):
        raise ValueError("write the share in quotes, such as '0.87'")
    try:
        share = Decimal(value)
    except InvalidOperation as error:
        raise ValueError(f"{value!r} is not a decimal number") from error
    if not share.is_finite() or not 0 < share <= 1:
        raise ValueError(f"{value} is not above 0 and at most 1")
    return share


def _env(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if text == "" or "\n" in text:
            raise ValueError(f"{name} is empty or has a line break; leave out what is not set")
    return value


class Engine(Section):
    """Which program serves and how its ranks find each other.

    ``ray``: Ray joins the nodes and the head's API server runs inside the head's container.
    ``multinode``: each container's main process is a rank of the engine's own executor, which
    meets the others at the head's ``master_port``.
    """

    kind: Literal["ray", "multinode"]
    device: Literal["gb10", "cpu"]
    python: str = "python3"
    master_port: Port = 29501
    note: str = ""


class ImageUse(Section):
    """Which release of ``image/releases`` is served."""

    release: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class Weights(Section):
    """Which weights, and where the container sees them.

    ``size`` is that of all files together, ``source`` where the figure comes from. Neither counts
    in the recipe's digest: they are there to judge disks, and no launch depends on them.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    repository: str = ""
    revision: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    manifest_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    mount: Annotated[str, Field(pattern=r"^/[^\s:,]*$")]
    size: Annotated[Bytes | None, Field(exclude=True)] = None
    source: Annotated[Source | None, Field(exclude=True)] = None

    @model_validator(mode="after")
    def _sized(self) -> Weights:
        if (self.size is None) != (self.source is None):
            raise ValueError("a size and the source of the figure belong together")
        return self


class Topology(Section):
    """How many nodes, and how the model is split over them."""

    nodes: Annotated[int, Field(ge=1, le=8, strict=True)]
    gpus_per_node: Positive
    tensor_parallel: Positive
    pipeline_parallel: Positive
    rdma: Switch

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.gpus_per_node


class Container(Section):
    """What ``docker run`` gets besides image and command, on every node.

    ``memlock`` ``unlimited`` sets the limit that RDMA registration needs; ``inherit`` leaves
    Docker's. The environment holds what is the same on every node.
    """

    name: Literal["spark-engine"] = "spark-engine"
    gpus: Literal["all", "none"]
    devices: tuple[Annotated[str, Field(pattern=r"^/dev/[^\s:]+$")], ...] = ()
    cap_add: tuple[Annotated[str, Field(pattern=r"^[A-Z_]+$")], ...] = ()
    memlock: Literal["unlimited", "inherit"]
    cache_mount: Annotated[str, Field(pattern=r"^/[^\s:,]*$")]
    env: Annotated[dict[str, str], AfterValidator(_env)]


class Ray(Section):
    """How Ray runs on a node; every port is fixed, so that a firewall can name them."""

    object_store: Bytes
    cpus: Positive
    node_manager_port: Port
    object_manager_port: Port
    runtime_env_agent_port: Port
    dashboard_agent_listen_port: Port
    dashboard_agent_grpc_port: Port
    metrics_export_port: Port
    min_worker_port: Port
    max_worker_port: Port

    def fixed_ports(self) -> dict[str, int]:
        """Return the ports of Ray's own processes by key; each key is a flag of ``ray start``."""
        return {
            name: value
            for name, value in self.model_dump().items()
            if name.endswith("_port") and "worker" not in name
        }

    @model_validator(mode="after")
    def _ordered(self) -> Ray:
        if self.min_worker_port >= self.max_worker_port:
            raise ValueError("min_worker_port is not below max_worker_port")
        return self


class Server(Section):
    """The API server's command line.

    ``flags`` maps a flag's name to its value: true is a bare flag, a mapping is JSON, a text that
    begins with ``$`` is a value of profile, recipe or node. ``dcp_flags`` are added only above
    DCP 1: the ``a2a`` backend at DCP 1 is fatal in vLLM 0.24 to 0.28. ``command`` is a subcommand
    of the module; vLLM's headless ranks start from ``serve`` alone.
    """

    module: str
    command: str = ""
    served_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    flags: dict[str, JsonValue]
    dcp_flags: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sane(self) -> Server:
        for name in (*self.flags, *self.dcp_flags):
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(f"{name!r} is no flag; write it without the dashes")
            if name == "api-key":
                raise ValueError("a key in argv is visible to every user; it goes by environment")
        return self


class Speculation(Section):
    """Multi-token prediction with an adaptive draft depth."""

    max_depth: Positive
    ladder: Annotated[tuple[int, ...], BeforeValidator(parse_ladder)]
    window: Annotated[int, Field(ge=1, le=1024, strict=True)]

    @model_validator(mode="after")
    def _top_is_depth(self) -> Speculation:
        if self.ladder[-1] != self.max_depth:
            raise ValueError(
                f"max_depth {self.max_depth} is not the top rung {self.ladder[-1]} (exit 6)"
            )
        return self


class Graphs(Section):
    """Which graph manager the engine has, and what it is told to capture, in tokens."""

    manager: GraphManager
    capture_sizes: tuple[Positive, ...]


class Profile(Section):
    """A matched set: chosen by name, never knob by knob."""

    name: str
    context_tokens: Positive
    kv_cache_bytes: Annotated[int, BeforeValidator(_exact_bytes)]
    dcp: Positive
    utilization: Annotated[Decimal, BeforeValidator(_share)]
    max_seqs: Positive
    batched_tokens: Positive
    long_prefill_tokens: Positive
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    status: Source


class Smoke(Section):
    """The one completion that proves generation, at temperature 0; ``expect`` must be in it."""

    prompt: str
    chat: Switch
    max_tokens: Positive
    seed: Annotated[int, Field(ge=0, strict=True)]
    expect: str
    extra: dict[str, JsonValue] = Field(default_factory=dict)


class Gates(Section):
    """Limits and probes of a cutover."""

    drop_caches: Switch
    ranks_timeout: Seconds
    health_timeout: Seconds
    smoke_timeout: Seconds
    smoke: Smoke


class Correction(Section):
    """Where this recipe departs from what was published, and why."""

    id: Annotated[str, Field(pattern=r"^D-[0-9]{2}$")]
    key: str
    published: str
    here: str


class Recipe(Section):
    """One served system."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: str
    default_profile: Name
    engine: Engine
    image: ImageUse
    weights: Weights
    topology: Topology
    container: Container
    ray: Ray | None = None
    server: Server
    speculation: Speculation
    graphs: Graphs
    profiles: dict[Name, Profile]
    memory: Memory
    gates: Gates
    corrections: tuple[Correction, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _name_profiles(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("profiles"), dict):
            return data
        profiles = data["profiles"]
        named = {
            name: {"name": name} | body if isinstance(body, dict) else body
            for name, body in profiles.items()
        }
        return dict(data) | {"profiles": named}

    @cached_property
    def digest(self) -> str:
        """sha256 of what the recipe says, in hexadecimal: a comment does not change it."""
        data = self.model_dump(mode="json", by_alias=True)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def profile(self, name: str) -> Profile:
        """Return a profile by name.

        Raises:
            RecipeError: the recipe has none of that name.
        """
        if name not in self.profiles:
            raise RecipeError(
                [
                    Finding(
                        "recipe.profile",
                        "",
                        Severity.ERROR,
                        "the profile exists",
                        f"one of {', '.join(sorted(self.profiles))} in recipe {self.name}",
                        name or "none",
                        "choose one of them with -e profile=NAME (exit 12)",
                        "profile",
                    )
                ]
            )
        return self.profiles[name]

    def ports(self) -> dict[str, range]:
        """Return the ports that the engine takes on a node, by key of the recipe."""
        if self.ray is None:
            return {
                "engine.master_port": range(self.engine.master_port, self.engine.master_port + 1)
            }
        taken = {
            f"ray.{key}": range(port, port + 1) for key, port in self.ray.fixed_ports().items()
        }
        workers = range(self.ray.min_worker_port, self.ray.max_worker_port + 1)
        return {**taken, "ray.min_worker_port": workers}

    def shapes(self, profile: Profile) -> int:
        """Return how many FULL graph shapes a profile captures; 0 on a device without graphs."""
        if self.graphs.manager is GraphManager.NONE:
            return 0
        return len(reachable(self.speculation.ladder, profile.max_seqs))


# The loader on libyaml is ten times as fast; the pure one reads the same.
if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):
    """Refuses what YAML 1.1 silently turns into something else.

    A key written twice would overwrite the first, ``010`` would be 8, ``yes`` and ``on`` booleans.
    """


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in {"int", "bool"}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not a text", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is written twice", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$"), list("tf"))


def _finding(source: str, key: str, expected: str, found: str, fix: str = "") -> Finding:
    return Finding(
        check="recipe.schema",
        node="",
        severity=Severity.ERROR,
        title=f"{source} is a recipe",
        expected=expected,
        found=found,
        remedy=fix or f"correct {key or 'the file'} in {source}",
        variable=key,
    )


def _of_schema(source: str, fault: ErrorDetails) -> Finding:
    location = tuple(str(part) for part in fault["loc"])
    key = ".".join(location)
    code = 10 if location[-1:] == ("max_seqs",) else _EXIT_CODES.get(location[-2:])
    if fault["type"] == "missing":
        expected, found, code = "this key", "nothing", 11
    elif fault["type"] == "extra_forbidden":
        expected, found = "only keys of the schema", f"{location[-1]!r}, which is none"
    else:
        expected = fault["msg"].removeprefix("Value error, ")
        found = repr(fault["input"])
    said = f" (exit {code})" if code else ""
    return _finding(source, key, expected, found[:80], f"correct {key} in {source}{said}")


def _of_rule(source: str, fault: Fault) -> Finding:
    return _finding(source, fault.key, fault.expected, fault.found, fault.fix)


def load_recipe(text: str, source: str) -> Recipe:
    """Return the recipe that a YAML text describes.

    Parameters:
        text: the recipe.
        source: its path, for messages; the file's stem must be the recipe's name.

    Raises:
        RecipeError: not YAML, a key twice, or not of the schema; one finding for each fault.
    """
    try:
        content: Any = yaml.load(text, Loader=_Loader)  # noqa: S506 -- a SafeLoader, see _Loader
    except yaml.YAMLError as error:
        raise RecipeError([_finding(source, "", "YAML", " ".join(str(error).split()))]) from error
    if not isinstance(content, Mapping):
        raise RecipeError([_finding(source, "", "a mapping", type(content).__name__)])
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError([_of_schema(source, fault) for fault in error.errors()]) from error
    broken = [*placeholders(content), *faults(recipe)]
    if broken:
        raise RecipeError([_of_rule(source, fault) for fault in broken])
    stem = source.rpartition("/")[2].removesuffix(".yml")
    if stem != recipe.name:
        raise RecipeError([_finding(source, "name", stem, recipe.name)])
    return recipe
