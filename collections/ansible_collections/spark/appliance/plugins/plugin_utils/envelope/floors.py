# SPDX-License-Identifier: Apache-2.0
"""What a role's memory will go down to under a profile, from the runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import KvGeometry
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.projection import PoolDelta
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import Term, total
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.workspace import (
    graph_pool_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    Role,
    RunNodeSpec,
    RunSpec,
)


@dataclass(frozen=True, slots=True)
class FloorEstimate:
    """The least ``MemAvailable`` a role is expected to reach, as one run lets expect it.

    Parameters:
        role: the role that the estimate is for.
        grade: measured for a run of this very profile, projected from a similar one.
        run: name of the run it rests on.
        reference: least ``MemAvailable`` of that run on the role.
        deltas: signed terms by which this profile differs from the run.
        demand_bytes: what the engine of the run took from ``MemAvailable`` between the moment
            before its start and its worst moment; None where the run does not say what was there
            before. With it the estimate applies to a node with other things on it, too.
    """

    role: Role
    grade: Grade
    run: str
    reference: Term
    deltas: tuple[Term, ...]
    demand_bytes: int | None

    @property
    def minimum_bytes(self) -> int:
        """The expected least ``MemAvailable`` on a node that starts like the run's."""
        return self.reference.size_bytes + total(self.deltas)


def measured_graph_pools(runs: Iterable[RunSpec], role: Role) -> dict[int, int]:
    """Return the largest graph pool measured on a role for each number of FULL shapes."""
    pools: dict[int, int] = {}
    for run in runs:
        for node in run.nodes:
            if node.role is role and node.graph_pool is not None:
                pools[run.shapes] = max(pools.get(run.shapes, 0), node.graph_pool)
    return pools


def graph_pool(need: Need, role: Role, runs: Sequence[RunSpec]) -> Term | None:
    """Return the graph pool of a profile on a role, or None when no run can tell.

    A pool logged by a run of the very same profile counts before the largest of its shape count.
    """
    own = measured_graph_pools([run for run in runs if need.is_run(run)], role)
    if need.shapes in own:
        return Term(
            "CUDA graphs",
            own[need.shapes],
            Grade.MEASURED,
            f"logged for {need.shapes} FULL shapes by a run of this profile",
        )
    try:
        size_bytes, measured = graph_pool_bytes(measured_graph_pools(runs, role), need.shapes)
    except ValueError:
        return None
    basis = "largest pool logged" if measured else "steepest measured cost of a shape"
    return Term(
        "CUDA graphs",
        size_bytes,
        Grade.MEASURED if measured else Grade.PROJECTED,
        f"{basis}, for {need.shapes} FULL shapes",
    )


def killed_runs(need: Need, runs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs of exactly this profile that ended in an out-of-memory kill."""
    return [run for run in runs if need.is_run(run) and run.outcome == "killed"]


def _lowest(run: RunSpec, role: Role) -> RunNodeSpec | None:
    known = [node for node in run.nodes if node.role is role and node.min_available is not None]
    return min(known, key=lambda node: node.min_available or 0, default=None)


def _demand(run: RunSpec, role: Role) -> int | None:
    demands = [
        node.available_before - node.min_available
        for node in run.nodes
        if node.role is role
        and node.available_before is not None
        and node.min_available is not None
    ]
    return max(demands, default=None)


def _deltas(
    need: Need, run: RunSpec, role: Role, geometry: KvGeometry, runs: Sequence[RunSpec]
) -> tuple[Term, ...] | None:
    """Return how the pools of a profile differ from a run's, or None when a pool is unknown."""
    if role not in need.rank_roles:
        return ()
    size = geometry.block_bytes
    delta = PoolDelta(need.kv_cache_bytes // size - run.kv_cache_bytes // size, size)
    kv = Term(
        "KV blocks", -delta.kv_bytes, Grade.COMPUTED, f"{delta.blocks:+,} blocks of {size:,} B"
    )
    if need.shapes == run.shapes:
        return (kv,)
    new, old = graph_pool(need, role, runs), measured_graph_pools([run], role).get(run.shapes)
    if new is None or old is None:
        return None
    source = f"{need.shapes} FULL shapes instead of {run.shapes}"
    return kv, Term("CUDA graphs", old - new.size_bytes, Grade.PROJECTED, source)


def _from_run(
    need: Need, run: RunSpec, role: Role, geometry: KvGeometry, runs: Sequence[RunSpec]
) -> FloorEstimate | None:
    lowest = _lowest(run, role)
    if lowest is None or lowest.min_available is None:
        return None
    same = need.is_run(run)
    deltas = () if same else _deltas(need, run, role, geometry, runs)
    if deltas is None:
        return None
    reference = Term(
        f"least MemAvailable, {run.name}",
        lowest.min_available,
        Grade.MEASURED,
        f"{lowest.name}: {run.source}",
    )
    grade = Grade.MEASURED if same else Grade.PROJECTED
    return FloorEstimate(role, grade, run.name, reference, deltas, _demand(run, role))


def estimate_floors(
    need: Need, role: Role, geometry: KvGeometry, runs: Sequence[RunSpec]
) -> tuple[FloorEstimate, ...]:
    """Return what the measured runs let expect on a role, lowest first.

    A run of this very profile beats every projection. Otherwise each run with the same decode
    context parallel size and the same number of sequences gives a projection.

    Returns:
        Nothing when no run is near enough: the floor of this profile is unmeasured, and a number
        made up from single terms would not say what the first transient takes.
    """
    served = [run for run in runs if run.outcome == "served"]
    for candidates in (
        [run for run in served if need.is_run(run)],
        [run for run in served if need.is_like(run)],
    ):
        found = (_from_run(need, run, role, geometry, runs) for run in candidates)
        estimates = [estimate for estimate in found if estimate is not None]
        if estimates:
            return tuple(sorted(estimates, key=lambda estimate: estimate.minimum_bytes))
    return ()
