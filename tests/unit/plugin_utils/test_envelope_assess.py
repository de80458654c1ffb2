# SPDX-License-Identifier: Apache-2.0
"""Live facts: what comes back, who else is there, what kills a healthy run, what a gate says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.assess import (
    Circumstances,
    RayMonitor,
    assess,
    observe_nodes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.gates import (
    Gate,
    Watched,
    gate,
    must_come_back_bytes,
    worst,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.holders import (
    ForeignFactsError,
    largest,
    observe_holders,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.killers import earlyoom
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.node import offline_node
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import (
    Envelope,
    Verdict,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.terms import total
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe_memory import (
    FloorSpec,
    FloorsSpec,
    Memory,
    Role,
    RunNodeSpec,
    RunSpec,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.units import GIB, KIB, MIB

from tests.unit.plugin_utils.envelope_cases import GEOMETRY, TOTAL_BYTES, memory, r13

Facts = dict[str, Any]

CONTAINER = "c" * 64
ROLES = {"alpha": Role.HEAD, "bravo": Role.WORKER, "charlie": Role.WORKER}
CIRCUMSTANCES = Circumstances(
    service_containers={"spark-engine"}, monitor=RayMonitor(0, Fraction(99, 100))
)
PSS = "anonymous and shared pages (Pss)"
QUIET = {
    "earlyoom": {"running": False, "argv": None},
    "oomd": {"running": False, "managed": {}},
    "others": [],
}


def section(data: Any) -> Facts:
    return {"ok": True, "data": data}


def idle(available_bytes: int = 113 * GIB, total_bytes: int = TOTAL_BYTES) -> Facts:
    """Facts of a node on which nothing of ours runs."""
    meminfo = {
        "MemTotal": total_bytes,
        "MemAvailable": available_bytes,
        "MemFree": available_bytes - 2 * GIB,
        "Cached": 3 * GIB,
        "Shmem": 36 * MIB,
        "SwapTotal": 0,
        "HugePages_Total": 0,
        "Hugepagesize": 2048 * KIB,
    }
    return {
        "schema": 1,
        "sections": {
            "memory": section({"meminfo": meminfo, "sysctl": {"vm.min_free_kbytes": 67_584}}),
            "holders": section({"processes": []}),
            "guards": section(QUIET),
            "docker": section({"containers": []}),
            "display": section({"processes": []}),
            "gpu": section({"tenants": []}),
        },
    }


def data(facts: Facts, name: str) -> Any:
    return facts["sections"][name]["data"]


def serving(facts: Facts, host_bytes: int, gpu_bytes: int | None) -> Facts:
    """The same node with the old service running."""
    facts = copy.deepcopy(facts)
    data(facts, "docker")["containers"] = [{"id": CONTAINER, "name": "/spark-engine"}]
    data(facts, "holders")["processes"].append(process(10, "ray::Rank", host_bytes, CONTAINER))
    data(facts, "gpu")["tenants"] = [{"pid": 10, "name": "ray::Rank", "used_bytes": gpu_bytes}]
    data(facts, "memory")["meminfo"]["MemAvailable"] -= host_bytes + (gpu_bytes or 0)
    data(facts, "memory")["meminfo"]["MemFree"] -= host_bytes + (gpu_bytes or 0)
    return facts


def process(
    pid: int, name: str, size: int | None, container: str | None = None, unit: str | None = None
) -> Facts:
    return {
        "pid": pid,
        "name": name,
        "container": container,
        "unit": unit,
        "memory_bytes": size,
        "source": PSS,
    }


def measured(least: int = 2 * GIB) -> Memory:
    """The recipe with a run of balanced that was measured on such nodes."""
    need = r13("balanced")
    run = RunSpec(
        name="measured",
        context_tokens=need.context_tokens,
        kv_cache_bytes=need.kv_cache_bytes,
        dcp=need.dcp,
        max_seqs=need.max_seqs,
        shapes=need.shapes,
        outcome="served",
        nodes=tuple(
            RunNodeSpec.model_validate(
                {
                    "name": name,
                    "role": role,
                    "available_before": f"{113 * GIB} B",
                    "min_available": f"{least} B",
                }
            )
            for name, role in ROLES.items()
        ),
        source="made up for this test",
    )
    return memory().model_copy(update={"runs": (*memory().runs, run)})


def judged(
    facts: dict[str, Facts] | None = None, circumstances: Circumstances = CIRCUMSTANCES, **kw: Any
) -> Envelope:
    nodes = {name: idle() for name in ROLES} | (facts or {})
    return assess(measured(**kw), r13("balanced"), ROLES, nodes, circumstances)


def refused(envelope: Envelope) -> set[tuple[str, str]]:
    return {(finding.check, finding.node) for finding in refusals(envelope.findings)}


def test_idle_nodes_pass() -> None:
    envelope = judged()
    assert envelope.verdict is Verdict.MEASURED
    assert not envelope.findings


def test_running_service_and_desktop_are_added_back_with_their_source() -> None:
    head = serving(idle(), 3 * GIB, 100 * GIB)
    data(head, "display")["processes"] = [{"pid": 20, "name": "Xorg", "rss_bytes": 1}]
    data(head, "holders")["processes"] += [
        process(20, "Xorg", 200 * MIB, unit="session-1.scope"),
        process(21, "gdm3", 50 * MIB, unit="gdm.service"),
    ]
    data(head, "memory")["meminfo"]["MemAvailable"] -= 250 * MIB
    envelope = judged({"alpha": head})
    assert not refusals(envelope.findings)
    node = envelope.nodes[0]
    assert node.expected_bytes == 2 * GIB
    assert [(term.name, term.size_bytes, term.source) for term in node.memory.returns] == [
        ("given back: running service (container spark-engine)", 3 * GIB, PSS),
        ("given back: desktop (session-1.scope)", 200 * MIB, PSS),
        ("given back: desktop (gdm.service)", 50 * MIB, PSS),
        (
            "given back: running service (container spark-engine)",
            100 * GIB,
            "GPU memory by nvidia-smi",
        ),
    ]


def test_desktop_that_stays_is_not_added_back() -> None:
    head = idle(113 * GIB - 250 * MIB)
    data(head, "holders")["processes"] = [process(21, "gdm3", 250 * MIB, unit="gdm.service")]
    stays = replace(CIRCUMSTANCES, desktop_stops=False)
    node = judged({"alpha": head}, stays).nodes[0]
    assert node.expected_bytes == 2 * GIB - 250 * MIB
    names = [term.name for term in node.stack]
    assert names[:3] == ["operating system", "desktop (gdm.service)", "shared memory and tmpfs"]
    assert total(node.stack) + node.expected_bytes == node.memory.total_bytes


def test_memory_that_a_process_shares_counts_once_in_the_stack() -> None:
    head = idle(50 * GIB)
    data(head, "memory")["meminfo"]["Shmem"] = 63 * GIB
    data(head, "holders")["processes"] = [process(99, "cache", 63 * GIB, unit="x.service")]
    node = judged({"alpha": head}).nodes[0]
    assert node.expected_bytes is not None
    assert total(node.stack) + node.expected_bytes == node.memory.total_bytes


def test_memory_taken_by_somebody_on_the_head_refuses_and_names_him() -> None:
    head = idle(113 * GIB - 3 * GIB)
    data(head, "holders")["processes"] = [process(99, "stress-ng", 3 * GIB, unit="ssh.service")]
    envelope = judged({"alpha": head})
    assert refused(envelope) == {("memory.floor", "alpha")}
    tenant = next(f for f in envelope.findings if f.check == "memory.tenant")
    assert "stress-ng (process 99)" in tenant.found


def test_unmeasured_profile_still_needs_room_for_what_is_certain_of_it() -> None:
    need = r13("balanced", utilization=None)
    accepting = replace(CIRCUMSTANCES, accept_unmeasured=True)
    least = memory().terms[0].low + memory().terms[1].low + need.pool(GEOMETRY).allocated_bytes
    nodes = {name: idle() for name in ROLES}
    nodes["alpha"] = idle(least + 384 * MIB)
    nodes["bravo"] = idle(least + 256 * MIB)
    assert not refused(assess(memory(), need, ROLES, nodes, accepting))
    nodes["alpha"] = idle(least + 384 * MIB - 1)
    nodes["bravo"] = idle(least + 256 * MIB - 1)
    envelope = assess(memory(), need, ROLES, nodes, accepting)
    assert refused(envelope) == {
        ("memory.least_does_not_fit", "alpha"),
        ("memory.least_does_not_fit", "bravo"),
    }
    assert [fix.change_bytes for fix in envelope.fixes] == [1, 1]


def test_a_worker_is_judged_by_its_own_floor() -> None:
    between = 300 * MIB  # above the worker's floor of 256 MiB, below the head's of 384 MiB
    taken = 2 * GIB - between
    assert not refused(judged({"bravo": idle(113 * GIB - taken)}))
    assert refused(judged({"alpha": idle(113 * GIB - taken)})) == {("memory.floor", "alpha")}
    too_much = idle(113 * GIB - taken - 100 * MIB)
    assert refused(judged({"bravo": too_much})) == {("memory.floor", "bravo")}


def test_projection_without_a_known_start_subtracts_tenants() -> None:
    head = idle()
    data(head, "gpu")["tenants"] = [{"pid": 7, "name": "jupyter", "used_bytes": 200 * MIB}]
    need = replace(r13("balanced"), max_seqs=3, shapes=9, profile="balanced")
    nodes = {name: idle() for name in ROLES} | {"alpha": head}
    envelope = assess(memory(), need, ROLES, nodes, CIRCUMSTANCES)
    assert envelope.nodes[0].expected_bytes == 496_236 * KIB - 200 * MIB
    assert ("memory.floor", "alpha") in refused(envelope)


def test_gpu_memory_that_nobody_tells_refuses() -> None:
    ours = serving(idle(), 3 * GIB, None)
    assert ("memory.holder_unreadable", "alpha") in refused(judged({"alpha": ours}))
    other = idle()
    data(other, "gpu")["tenants"] = [{"pid": 7, "name": "python", "used_bytes": None}]
    assert ("memory.holder_unreadable", "bravo") in refused(judged({"bravo": other}))


def drop(name: str) -> Callable[[Facts], None]:
    return lambda facts: facts["sections"].pop(name)


def unread(name: str) -> Callable[[Facts], None]:
    def apply(facts: Facts) -> None:
        facts["sections"][name] = {"ok": False, "reason": "not finished after 20 s"}

    return apply


def meminfo(**changed: Any) -> Callable[[Facts], None]:
    return lambda facts: data(facts, "memory")["meminfo"].update(changed)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (drop("memory"), "no section 'memory'"),
        (unread("memory"), "not finished after 20 s"),
        (unread("holders"), "not finished"),
        (unread("guards"), "not finished"),
        (unread("gpu"), "not finished"),
        (meminfo(MemAvailable=None), "MemAvailable=None"),
        (meminfo(MemTotal="127600748 kB"), "MemTotal='127600748 kB'"),
        (meminfo(MemAvailable=TOTAL_BYTES + 1), "contradicts itself"),
        (meminfo(MemFree=-1), "MemFree=-1"),
        (meminfo(MemTotal=True), "MemTotal=True"),
        (lambda facts: data(facts, "memory").pop("sysctl"), "vm.min_free_kbytes is None"),
        (lambda facts: facts.pop("sections"), "no section"),
    ],
)
def test_unreadable_facts_refuse_the_node(spoil: Callable[[Facts], Any], said: str) -> None:
    spoilt = idle()
    spoil(spoilt)
    envelope = judged({"bravo": spoilt})
    assert envelope.verdict is Verdict.REFUSED
    found = [f for f in refusals(envelope.findings) if f.check == "memory.facts_unreadable"]
    assert [finding.node for finding in found] == ["bravo"]
    assert said in found[0].found


def guarded(**changed: Any) -> Facts:
    facts = idle()
    facts["sections"]["guards"] = section(QUIET | changed)
    return facts


def running(*argv: str) -> Facts:
    return guarded(earlyoom={"running": True, "argv": ["/usr/bin/earlyoom", *argv]})


@pytest.mark.parametrize(
    ("argv", "acts_at"),
    [
        ((), TOTAL_BYTES // 10),
        (("-r", "3600"), TOTAL_BYTES // 10),
        (("-m", "5"), TOTAL_BYTES * 5 // 100),
        (("-m5,2", "-s", "100"), TOTAL_BYTES * 5 // 100),
        (("-M", "262144"), 262_144 * KIB),
        (("-M", "262144,131072", "-m", "10"), 262_144 * KIB),
        (("--prefer", "-m 1", "-m", "0.2"), TOTAL_BYTES * 2 // 1000),
    ],
)
def test_earlyoom_percent_becomes_bytes_of_this_node(argv: tuple[str, ...], acts_at: int) -> None:
    assert earlyoom(["/usr/bin/earlyoom", *argv], TOTAL_BYTES).acts_at_bytes == acts_at


def test_earlyoom_with_nonsense_is_refused() -> None:
    with pytest.raises(ForeignFactsError, match="no numbers"):
        earlyoom(["earlyoom", "-m", "some"], TOTAL_BYTES)
    assert ("memory.facts_unreadable", "alpha") in refused(judged({"alpha": running("-m", "x")}))
    nameless = guarded(earlyoom={"running": True, "argv": None})
    assert ("memory.facts_unreadable", "alpha") in refused(judged({"alpha": nameless}))


def oomd(unit: str, **rule: str) -> Facts:
    managed = {unit: {"memory_pressure": "auto", "swap": "auto", "limit": "60%"} | rule}
    return guarded(oomd={"running": True, "managed": managed})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (running("-m", "5"), "memory.killer_above_floor"),
        (running("-M", str(384 * KIB)), "memory.killer_above_floor"),
        (running("-M", str(384 * KIB - 1)), None),
        (oomd("system.slice", memory_pressure="kill"), "memory.killer_unbounded"),
        (oomd("user.slice", memory_pressure="kill"), None),
        (oomd("-.slice", swap="kill"), None),
        (guarded(others=["nohang"]), "memory.killer_unbounded"),
    ],
)
def test_killers_on_the_head(facts: Facts, expected: str | None) -> None:
    assert refused(judged({"alpha": facts})) == ({(expected, "alpha")} if expected else set())


def test_the_same_killer_may_be_right_for_the_head_and_wrong_for_a_worker() -> None:
    facts = running("-M", str(300 * KIB))
    assert not refused(judged({"alpha": facts}))
    assert refused(judged({"bravo": facts})) == {("memory.killer_above_floor", "bravo")}


def test_rays_monitor() -> None:
    on = replace(CIRCUMSTANCES, monitor=RayMonitor(250, Fraction(95, 100)))
    assert {check for check, _ in refused(judged(circumstances=on))} == {
        "memory.killer_above_floor"
    }


def test_no_killer_and_no_watch_leaves_no_guard() -> None:
    unwatched = replace(CIRCUMSTANCES, watched=False)
    assert {check for check, _ in refused(judged(circumstances=unwatched))} == {"memory.no_guard"}
    low = {name: running("-M", "65536") for name in ROLES}
    assert not refused(judged(low, unwatched))


def test_reserve_counts_where_the_expectation_does_not_start_at_this_node() -> None:
    head = idle()
    data(head, "memory")["sysctl"]["vm.min_free_kbytes"] = 5 * GIB // KIB
    assert not refused(judged({"alpha": head}))
    need = replace(r13("balanced"), max_seqs=3, shapes=9)
    nodes = {name: idle() for name in ROLES} | {"alpha": head}
    envelope = assess(memory(), need, ROLES, nodes, CIRCUMSTANCES)
    assert ("memory.reserve_eats_floor", "alpha") in refused(envelope)


def checks(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.check, finding.node) for finding in findings]


def test_gate_before_the_stop_is_the_prediction() -> None:
    envelope = judged({"alpha": idle(100 * GIB)})
    assert gate(Gate.PREDICTED, envelope) == envelope.findings


def test_gate_after_the_stop_waits_for_what_the_engine_needs_and_names_the_holder() -> None:
    envelope = judged({"alpha": serving(idle(), 3 * GIB, 100 * GIB)})
    still = serving(idle(), 1 * GIB, 93 * GIB)
    facts = {name: idle() for name in ROLES} | {"alpha": still}
    nodes, findings = observe_nodes(ROLES, facts, CIRCUMSTANCES)
    assert not findings
    (finding,) = gate(Gate.AFTER_STOP, envelope, now=nodes)
    assert (finding.check, finding.node) == ("memory.not_returned", "alpha")
    assert "spark-engine" in finding.found
    nodes, _ = observe_nodes(ROLES, {name: idle() for name in ROLES}, CIRCUMSTANCES)
    assert gate(Gate.AFTER_STOP, envelope, now=nodes) == ()


def test_memory_that_no_process_holds_is_the_drivers() -> None:
    envelope = judged()
    facts = {name: idle() for name in ROLES} | {"bravo": idle(28_000_000 * KIB)}
    nodes, _ = observe_nodes(ROLES, facts, CIRCUMSTANCES)
    (finding,) = gate(Gate.AFTER_STOP, envelope, now=nodes)
    assert "no process" in finding.found
    assert "reboot" in finding.remedy


def test_unmeasured_profile_waits_for_what_was_predicted() -> None:
    nodes = {name: idle() for name in ROLES}
    need = r13("balanced", utilization=None)
    envelope = assess(memory(), need, ROLES, nodes, CIRCUMSTANCES)
    assert must_come_back_bytes(envelope.nodes[0]) == 113 * GIB - TOTAL_BYTES // 100


def test_gate_after_the_cache_drop_counts_free_memory_only() -> None:
    envelope = judged()
    facts = {name: idle() for name in ROLES}
    data(facts["charlie"], "memory")["meminfo"].update(MemFree=860 * MIB, Cached=100 * GIB)
    nodes, _ = observe_nodes(ROLES, facts, CIRCUMSTANCES)
    assert checks(gate(Gate.AFTER_DROP_CACHES, envelope, now=nodes)) == [
        ("memory.cache_not_dropped", "charlie")
    ]
    facts["charlie"] = idle(108 * GIB)
    nodes, _ = observe_nodes(ROLES, facts, CIRCUMSTANCES)
    assert checks(gate(Gate.AFTER_DROP_CACHES, envelope, now=nodes)) == [
        ("memory.floor_before_start", "charlie")
    ]


def test_gate_after_the_start_judges_what_was_measured() -> None:
    envelope = judged()
    fine = Watched(300 * MIB, 100 * MIB, samples=900, active=True)
    seen = {"bravo": fine, "charlie": fine, "alpha": fine}
    assert checks(gate(Gate.AFTER_START, envelope, watched=seen)) == [
        ("memory.floor_broken", "alpha")
    ]
    blind = seen | {"charlie": replace(fine, samples=0), "alpha": replace(fine, active=False)}
    del blind["bravo"]
    assert checks(gate(Gate.AFTER_START, envelope, watched=blind)) == [
        ("memory.unseen", name) for name in ROLES
    ]


@pytest.mark.parametrize("kind", [Gate.AFTER_STOP, Gate.AFTER_DROP_CACHES])
def test_gate_without_an_observation_is_closed(kind: Gate) -> None:
    assert {check for check, _ in checks(gate(kind, judged()))} == {"memory.unseen"}


def test_binding_node_is_the_one_with_the_least_margin() -> None:
    envelope = judged({"charlie": idle(112 * GIB)})
    assert worst(envelope.nodes[1:]).memory.node == "charlie"


def test_largest_holders_first() -> None:
    holders = observe_holders(serving(idle(), 3 * GIB, 100 * GIB), {"spark-engine"})
    first, second = largest(holders)
    assert "100.000 GiB" in first
    assert "3.000 GiB" in second


def test_swap_and_huge_pages_are_said_and_counted() -> None:
    head = idle()
    data(head, "memory")["meminfo"].update(SwapTotal=16 * GIB, HugePages_Total=512)
    envelope = judged({"alpha": head})
    assert ("memory.swap", "alpha") in checks(envelope.findings)
    pages = next(term for term in envelope.nodes[0].stack if term.name == "huge pages")
    assert pages.size_bytes == GIB


def test_node_on_paper_with_more_available_than_there_is() -> None:
    with pytest.raises(ForeignFactsError, match="impossible"):
        offline_node("alpha", Role.HEAD, total_bytes=GIB, available_bytes=2 * GIB)


def test_floors_of_a_recipe_carry_units_and_the_head_binds() -> None:
    floor = FloorSpec.model_validate({"size": "1 GiB", "source": "here"})
    with pytest.raises(ValueError, match="head's floor is below"):
        FloorsSpec(head=FloorSpec.model_validate({"size": "1 MiB", "source": "here"}), worker=floor)
