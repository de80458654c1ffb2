# SPDX-License-Identifier: Apache-2.0
"""Terms, floors and nodes → the envelope of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.expectation import (
    node_envelope,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.kv_pool import (
    KvPoolError,
    require_dcp,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.need import Need, geometry_of
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import NodeMemory
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    Fix,
    NodeEnvelope,
    Verdict,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.rules import (
    judge_admission,
    judge_floor,
    judge_least,
    judge_measured,
    judge_pool,
    judge_terms,
    judge_totals,
    no_floor,
    smaller_pool,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    refusals,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.receipt import Grade
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    FloorSpec,
    Memory,
    Role,
    RunSpec,
)


def _floor(memory: Memory, need: Need, role: Role) -> FloorSpec | None:
    floors = memory.floors.get(need.profile)
    if floors is None:
        return None
    return floors.head if role is Role.HEAD else floors.worker


def verdict_of(findings: Sequence[Finding], envelopes: Sequence[NodeEnvelope]) -> Verdict:
    """Return the verdict that findings and expectations add up to."""
    refused = refusals(findings)
    if [finding for finding in refused if finding.check != "memory.floor_unmeasured"]:
        return Verdict.REFUSED
    if refused or any(envelope.grade is None for envelope in envelopes):
        return Verdict.UNMEASURED
    if all(envelope.grade is Grade.MEASURED for envelope in envelopes):
        return Verdict.MEASURED
    return Verdict.PROJECTED


def judge_envelope(
    memory: Memory,
    need: Need,
    nodes: Sequence[NodeMemory],
    *,
    ledger_runs: Sequence[RunSpec] = (),
    accept_unmeasured: bool = False,
) -> Envelope:
    """Return the envelope of a profile on nodes.

    Parameters:
        memory: the recipe's memory section.
        need: the profile, in bytes and tokens.
        nodes: the nodes as observed, or as given for a judgement on paper.
        ledger_runs: runs measured on these very nodes, with this recipe and image.
        accept_unmeasured: the operator takes the risk of a profile whose floor nobody measured.

    Returns:
        The envelope; a profile that must not start has at least one finding of severity error.
    """
    memory = memory.model_copy(update={"runs": (*memory.runs, *ledger_runs)})
    geometry = geometry_of(memory)
    try:
        pool = need.pool(geometry)
        require_dcp(need.dcp, need.tensor_parallel)
    except KvPoolError as error:
        finding = Finding(
            "memory.kv_pool",
            "",
            Severity.ERROR,
            f"the KV pool of {need.profile} cannot exist",
            "positive integers, and a dcp that divides the tensor parallel size",
            str(error),
            "correct the profile in the recipe",
            f"profiles.{need.profile}",
        )
        return Envelope(need, None, (), Verdict.REFUSED, (), (finding,))
    findings: list[Finding] = []
    fixes: list[Fix] = []
    envelopes: list[NodeEnvelope] = []
    judged = [*judge_pool(need, pool)]
    for node in nodes:
        floor = _floor(memory, need, node.role)
        if floor is None:
            findings.append(no_floor(need, node))
            continue
        envelope = node_envelope(memory, need, pool, node, floor)
        envelopes.append(envelope)
        findings += judge_totals(memory, need, node, floor)
        findings += judge_terms(need, envelope)
        judged += judge_admission(need, envelope)
        judged += judge_floor(need, envelope)
        judged += judge_least(need, envelope)
    findings += [finding for finding, _ in judged]
    fixes += [fix for _, fix in judged]
    fixes += smaller_pool(need, pool, envelopes)
    findings += judge_measured(memory, need, envelopes, accept_unmeasured)
    verdict = verdict_of(findings, envelopes)
    return Envelope(need, pool, tuple(envelopes), verdict, tuple(fixes), tuple(findings))
