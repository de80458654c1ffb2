# SPDX-License-Identifier: Apache-2.0
"""Whether a starting engine has arrived, is still under way, or will never arrive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Goal(StrEnum):
    """What is waited for."""

    RANKS = "ranks"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a starting engine: at most one of ``done`` and ``failed`` holds."""

    done: bool
    failed: bool
    line: str


def assess(
    goal: Goal,
    seen: Mapping[str, Any],
    *,
    addresses: Collection[str],
    gpus: int,
    elapsed_s: float,
    timeout_s: float,
) -> Progress:
    """Judge one answer of the ``engine_progress`` module.

    Parameters:
        goal: what is waited for.
        seen: the module's result.
        addresses: rank addresses that must have joined (goal ``ranks``).
        gpus: GPUs that the joined nodes must offer in all (goal ``ranks``).
        elapsed_s: seconds waited so far.
        timeout_s: seconds after which waiting is over.

    Returns:
        The :class:`Progress`, whose line says what is there and what is missing.
    """
    clock = f"{elapsed_s:.0f} s of {timeout_s:.0f} s"
    for unit, state in seen["units"].items():
        if state.get("ActiveState") not in {"active", "activating"}:
            return Progress(
                done=False,
                failed=True,
                line=(
                    f"{unit} stopped while it was waited for: expected active, found "
                    f"{state.get('ActiveState')} (result {state.get('Result')}, exit status "
                    f"{state.get('ExecMainStatus')}) after {clock}; the end of its log follows"
                ),
            )
    reached, line = _ranks(seen, addresses, gpus) if goal is Goal.RANKS else _health(seen)
    if reached:
        return Progress(done=True, failed=False, line=f"{line} after {elapsed_s:.0f} s")
    if elapsed_s >= timeout_s:
        return Progress(done=False, failed=True, line=f"{line}; gave up after {clock}")
    return Progress(done=False, failed=False, line=f"{line}, {clock}")


def _ranks(seen: Mapping[str, Any], addresses: Collection[str], gpus: int) -> tuple[bool, str]:
    alive = {node["address"]: node["gpus"] for node in seen["ray_nodes"] if node["alive"]}
    missing = sorted(set(addresses) - set(alive))
    foreign = sorted(set(alive) - set(addresses))
    offered = sum(alive.values())
    line = f"{len(set(addresses) & set(alive))} of {len(addresses)} ranks joined"
    if seen["ray_error"]:
        line += f" ({seen['ray_error']})"
    if missing:
        line += f"; missing {', '.join(missing)}"
    if foreign:
        line += f"; not of this appliance: {', '.join(foreign)}"
    if not missing and offered != gpus:
        line += f"; expected {gpus} GPUs in all, found {offered:g}"
    return not missing and not foreign and offered == gpus and bool(addresses), line


def _health(seen: Mapping[str, Any]) -> tuple[bool, str]:
    if seen["health"] == 200:
        return True, "the API server is healthy"
    said = seen["log"][-1][:120] if seen["log"] else "nothing in its log yet"
    return False, f"the API server is loading: {said}"
