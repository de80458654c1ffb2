# SPDX-License-Identifier: Apache-2.0
"""The ``memory`` section of a recipe: what is known about a served system's use of memory."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.units import parse_bytes
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)


class Role(StrEnum):
    """What a node does in the served system."""

    HEAD = "head"
    WORKER = "worker"


def _quantity(value: object) -> int:
    return parse_bytes(value)


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("say where the number comes from")
    return text


Bytes = Annotated[int, BeforeValidator(_quantity)]
Source = Annotated[str, AfterValidator(_said)]
Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1, strict=True)]


class Section(BaseModel):
    """A closed, immutable mapping: an unknown key is an error, not a silent nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KvEntrySpec(Section):
    """Bytes that one token takes in one kind of cached layer, on one rank."""

    name: str
    layers: Positive
    size: Bytes


class KvCacheSpec(Section):
    """Layout of the KV cache on a rank; see ``envelope.kv_pool.KvGeometry``."""

    block_tokens: Positive
    null_blocks: Count
    entries: Annotated[tuple[KvEntrySpec, ...], Field(min_length=1)]
    source: Source


class IndexerSpec(Section):
    """Chunk and measured cost of a sparse-attention indexer.

    ``chunk_tokens`` are the query rows scored at once, ``bound`` the engine's limit on one score
    matrix, ``fold`` the bytes of scratch for each pair of context and batch tokens.
    """

    chunk_tokens: Positive
    bound: Bytes | None = None
    fold: Bytes | None = None
    source: Source


class TermSpec(Section):
    """What a rank takes besides KV blocks and graphs, as a range where only a range is known."""

    name: str
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    low: Bytes
    high: Bytes
    grade: Grade
    source: Source

    @model_validator(mode="after")
    def _in_order(self) -> TermSpec:
        if self.low > self.high:
            raise ValueError(f"term {self.name}: low is above high")
        return self


class FloorSpec(Section):
    """The least ``MemAvailable`` that a role may reach."""

    size: Bytes
    source: Source


class FloorsSpec(Section):
    """Floors of one profile. The head also carries the API server and the cluster's services."""

    head: FloorSpec
    worker: FloorSpec

    @model_validator(mode="after")
    def _head_is_stricter(self) -> FloorsSpec:
        if self.head.size < self.worker.size:
            raise ValueError("the head's floor is below the worker's; the head binds first")
        return self


class RunNodeSpec(Section):
    """What one node showed during a run.

    ``min_available`` is the least MemAvailable, ``min_free`` the least MemFree and
    ``available_before`` the MemAvailable just before the engine started; ``kv_blocks`` are the KV
    blocks in use at the minimum, ``graph_pool`` is what the engine logged for its CUDA graphs.
    """

    name: str
    role: Role
    min_available: Bytes | None = None
    min_free: Bytes | None = None
    available_before: Bytes | None = None
    at_seconds: float | None = None
    kv_blocks: Count | None = None
    graph_pool: Bytes | None = None


class RunSpec(Section):
    """A run whose memory was measured, of this recipe or of a predecessor with its geometry."""

    name: str
    context_tokens: Positive
    kv_cache_bytes: Annotated[int, Field(ge=1, strict=True)]
    dcp: Positive
    max_seqs: Positive
    shapes: Count
    outcome: Literal["served", "killed"]
    nodes: Annotated[tuple[RunNodeSpec, ...], Field(min_length=1)]
    source: Source


class Memory(Section):
    """The whole section; ``floors`` has one entry for each profile of the recipe."""

    min_total: Bytes
    swap: Literal["none", "keep"]
    admission: Literal["available", "none"]
    kv_cache: KvCacheSpec
    indexer: IndexerSpec | None = None
    terms: tuple[TermSpec, ...] = ()
    floors: dict[str, FloorsSpec]
    runs: tuple[RunSpec, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Memory:
        names = [run.name for run in self.runs]
        if len(names) != len(set(names)):
            raise ValueError("two runs have the same name")
        for profile, floors in self.floors.items():
            for role in Role:
                floor: FloorSpec = getattr(floors, role.value)
                if floor.size < 1:
                    raise ValueError(f"floors.{profile}.{role}: a floor of 0 guards nothing")
        return self
