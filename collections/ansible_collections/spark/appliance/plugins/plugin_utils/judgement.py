# SPDX-License-Identifier: Apache-2.0
"""Everything that is known → findings, and what each node has to do. No file, no command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks import (
    Context,
    ExpectedImage,
    ExpectedLaunch,
    Needs,
    Phase,
    Site,
    judge,
    needs_of,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.assess import (
    Circumstances,
    assess,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.from_recipe import (
    monitor_of,
    need_of,
    roles_of,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.gates import (
    Gate,
    gate,
    must_come_back_bytes,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.ledger import (
    Ledger,
    LedgerKey,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.result import Envelope
from ansible_collections.spark.appliance.plugins.plugin_utils.envelope.watched import (
    WatchError,
    as_watched,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import (
    Finding,
    Severity,
    ordered,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.launch import (
    NodeLaunch,
    node_view,
    render,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan import (
    FabricPlan,
    FabricPolicy,
    HardenPlan,
    HardenPolicy,
    plan_fabrics,
    plan_harden,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import (
    API_UNIT,
    CURRENT,
    ENGINE_UNIT,
    Start,
    cutover_reasons,
    key_digest,
    plan_launch,
    previous_start,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.supply import (
    SupplyNode,
    SupplyPlan,
    judge_image_room,
    judge_weights_room,
    plan_image,
    plan_weights,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Profile, Recipe
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release
from ansible_collections.spark.appliance.plugins.plugin_utils.staging import stage


def no_plan() -> dict[str, Any]:
    """Return a node's plan before it was observed: every role has nothing to do."""
    supply = SupplyPlan().as_dict()
    return {
        "rank": 0,
        "harden": HardenPlan().as_dict(),
        "fabric": FabricPlan().as_dict(),
        "image": supply,
        "weights": supply,
        "launch": {"needed": False, "files": [], "secrets": []},
        "cutover": {"needed": False},
    }


@dataclass(frozen=True, slots=True)
class Policy:
    """What the inventory wants done, beyond where things are.

    Parameters:
        profile: profile asked for; empty keeps the running one, or takes the recipe's default.
        api_key: key that the API server demands.
        release_url: folder with the image's parts.
        weights_url: folder with the weights.
        harden: what to turn off.
        fabric: what the rails shall be.
        accept_unmeasured_floor: the operator takes a profile whose floor nobody measured.
    """

    profile: str
    api_key: str
    release_url: str
    weights_url: str
    harden: HardenPolicy
    fabric: FabricPolicy
    accept_unmeasured_floor: bool = False


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that a judgement of nodes is made from.

    Parameters:
        site: the inventory.
        policy: what it wants done.
        recipe: the served system.
        release: its image.
        templates: texts of ``templates/``.
        facts: what ``node_facts`` returned, by node.
        serving: what the head's API server said of itself, None where it was not asked.
        receipt: the last good receipt, None where there is none.
        ledger: the floors reached in earlier launches.
        watched: what each node's memory watch saw of this launch, None where it was not read.
        predicting: check mode: what the roles would repair has not been repaired.
    """

    site: Site
    policy: Policy
    recipe: Recipe
    release: Release
    templates: Mapping[str, str]
    facts: Mapping[str, Mapping[str, Any]]
    serving: Mapping[str, Any] | None = None
    receipt: Mapping[str, Any] | None = None
    ledger: Ledger = field(default_factory=Ledger)
    watched: Mapping[str, Mapping[str, Any]] | None = None
    predicting: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came out.

    Parameters:
        findings: what is wrong, the most severe first.
        phase: the checks that took part, None where none did.
        profile: the profile that was judged, empty where none could be chosen.
        launch: id of the rendered launch, empty where none could be rendered.
        plan: what each node has to do, by role.
        envelope: the profile's memory on these nodes, None where it was not judged.
        context: what the checks looked at, None where they did not run.
    """

    findings: tuple[Finding, ...]
    phase: Phase | None = None
    profile: str = ""
    launch: str = ""
    plan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    envelope: Envelope | None = None
    context: Context | None = None


def serving_request(recipe: Recipe, site: Site) -> dict[str, Any]:
    """Return how to ask the API server what it serves: options of ``serving_probe``, no key."""
    smoke = recipe.gates.smoke
    return {
        "address": site.api_bind,
        "port": site.api_port,
        "served_name": recipe.server.served_name,
        "smoke": {
            "prompt": smoke.prompt,
            "chat": smoke.chat,
            "max_tokens": smoke.max_tokens,
            "seed": smoke.seed,
            "extra": dict(smoke.extra),
        },
        "timeout": recipe.gates.smoke_timeout,
    }


def profiles_in_force(recipe: Recipe, facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return by node the profile in force; a node without one, or unreadable, is left out.

    Parameters:
        recipe: a launch of another recipe has no profile of this one in force.
        facts: facts by node.
    """
    found = {}
    for name, node in facts.items():
        try:
            content = node.launch.content or {}
        except SectionUnknownError:
            continue
        profile = content.get("profile")
        if content.get("recipe") == recipe.name and profile in recipe.profiles:
            found[name] = profile
    return found


def running_profile(recipe: Recipe, facts: Mapping[str, NodeFacts]) -> str:
    """Return the one profile in force, empty where there is none or nodes differ.

    A node that has none, such as one that was installed anew, takes the others'.
    """
    found = set(profiles_in_force(recipe, facts).values())
    return found.pop() if len(found) == 1 else ""


def _judge_profile(policy: Policy, in_force: Mapping[str, str]) -> Iterator[Finding]:
    """Where nodes were left with different profiles, only the operator can say which is meant."""
    if not policy.profile and len(set(in_force.values())) > 1:
        yield Finding(
            "launch.profile",
            "",
            Severity.ERROR,
            "all nodes have the same profile in force",
            "one profile",
            ", ".join(f"{node} {profile}" for node, profile in in_force.items()),
            "say which shall serve: -e profile=NAME",
            "appliance_profile",
        )


def _start(launch: NodeLaunch, material: Material) -> Start:
    recipe, site = material.recipe, material.site
    topology, gates = recipe.topology, recipe.gates
    ray = {
        "container": recipe.container.name,
        "address": f"{site.rank_address(site.head)}:{site.ray_port}",
        "python": recipe.engine.python,
    }
    host = f"[{site.api_bind}]" if ":" in site.api_bind else site.api_bind
    return Start(
        id=launch.id,
        folder=launch.folder,
        kind=launch.kind,
        units=(ENGINE_UNIT, API_UNIT) if launch.server_argv else (ENGINE_UNIT,),
        gpus=topology.gpus,
        gpus_per_node=topology.gpus_per_node,
        ray=ray if launch.kind == "ray" else {},
        health_url=f"http://{host}:{site.api_port}/health",
        ranks_timeout_s=gates.ranks_timeout,
        health_timeout_s=gates.health_timeout,
    )


def _needs(material: Material, profile: Profile) -> Needs:
    """Return what is demanded of the nodes: what the inventory keeps is no finding."""
    needs, harden = needs_of(material.recipe, profile), material.policy.harden
    return replace(
        needs,
        keep_swap=needs.keep_swap or harden.swap == "keep",
        keep_display=harden.display == "keep",
    )


def _expected(launch: NodeLaunch, start: Start, recipe: Recipe) -> ExpectedLaunch:
    container = recipe.container
    return ExpectedLaunch(
        id=launch.id,
        container=container.name,
        units=start.units,
        devices=container.devices,
        memlock_bytes=-1 if container.memlock == "unlimited" else None,
    )


def _judge_smoke(material: Material) -> Iterator[Finding]:
    """The completion must hold what the recipe expects; whether one came is the checks' to say."""
    completion = (material.serving or {}).get("completion")
    expect = material.recipe.gates.smoke.expect
    if isinstance(completion, Mapping) and expect not in str(completion.get("text")):
        yield Finding(
            "serving.smoke",
            material.site.head,
            Severity.ERROR,
            "the completion is the expected one",
            repr(expect),
            repr(str(completion.get("text"))[:80]),
            "look at the server's journal; weights or engine are not what the recipe names",
        )


def _judge_watched(
    envelope: Envelope, results: Mapping[str, Mapping[str, Any]], launch: str
) -> tuple[Finding, ...]:
    """The least memory since before the start, against the floor of each role."""
    watched = {}
    for node in envelope.nodes:
        name = node.memory.node
        try:
            watched[name] = as_watched(name, results.get(name, {}), launch)
        except WatchError as error:
            # The gate itself refuses a node without a watch; this says why there is none.
            return (
                Finding(
                    "memory.watch",
                    name,
                    Severity.ERROR,
                    "the memory watch saw this launch",
                    f"samples of launch {launch}",
                    str(error),
                    "look at spark-memory-watch.service on the node",
                ),
            )
    return gate(Gate.AFTER_START, envelope, watched=watched)


def _judge_staged(
    plans: Mapping[str, Mapping[str, Any]], facts: Mapping[str, NodeFacts]
) -> Iterator[Finding]:
    """A staged launch whose files were changed since may not be started."""
    for node, plan in plans.items():
        launch = plan["launch"]
        if launch["needed"] and launch["id"] in facts[node].launch.staged:
            lacking = [entry["path"] for entry in (*launch["files"], *launch["secrets"])]
            yield Finding(
                "launch.files",
                node,
                Severity.ERROR,
                "the staged launch is as it was rendered",
                f"the files of launch {launch['id']}",
                f"{len(lacking)} files missing or different, first {lacking[0]}",
                "run playbooks/launch.yml",
            )


def _unknown(unknown: SectionUnknownError) -> Finding:
    return Finding(
        f"plan.{unknown.section}",
        unknown.node,
        Severity.ERROR,
        f"the node's {unknown.section} can be read",
        "an answer from the probe",
        unknown.reason,
        "make the probe work on the node; nothing was planned on a guess",
    )


def _memory(material: Material, profile: Profile) -> Envelope:
    recipe, site = material.recipe, material.site
    circumstances = Circumstances(
        service_containers={recipe.container.name},
        desktop_stops=material.policy.harden.display == "off",
        monitor=monitor_of(recipe),
        accept_unmeasured=material.policy.accept_unmeasured_floor,
        ledger=material.ledger,
        key=LedgerKey(recipe.digest, material.release.image.config_digest, site.nodes),
    )
    roles = roles_of([site.head], [node for node in site.nodes if node != site.head])
    need = need_of(recipe, profile)
    return assess(recipe.memory, need, roles, material.facts, circumstances)


def judge_nodes(material: Material, phase: Phase | None) -> Judgement:
    """Return what is wrong with the nodes and what each of them has to do.

    Parameters:
        material: everything that is known.
        phase: which checks take part; None only plans.

    Returns:
        The judgement. Its plan is empty where a fault leaves nothing sure to plan on.
    """
    recipe, site, release = material.recipe, material.site, material.release
    facts = {name: NodeFacts.of(name, raw) for name, raw in material.facts.items()}
    in_force = profiles_in_force(recipe, facts)
    name = material.policy.profile or running_profile(recipe, facts) or recipe.default_profile
    profile = recipe.profile(name)
    context = Context(
        site=site,
        needs=_needs(material, profile),
        facts=facts,
        image=ExpectedImage(release.image.config_digest, release.image.architecture),
        serving=material.serving,
        receipt=material.receipt,
    )
    if set(facts) != set(site.nodes):
        return Judgement(
            tuple(judge(context, Phase.PREFLIGHT)),
            Phase.PREFLIGHT,
            profile.name,
            context=context,
        )
    views = {node: node_view(facts[node], recipe) for node in site.nodes}
    findings = [view for view in views.values() if isinstance(view, Finding)]
    if findings:
        return _without_plan(findings, context, profile, material, phase)
    salt = "\n".join(text for _, text in sorted(material.templates.items()))
    launches = render(
        recipe,
        profile,
        site,
        image=release.image,
        views={node: view for node, view in views.items() if not isinstance(view, Finding)},
        salt=salt + key_digest(material.policy.api_key),
    )
    starts = {node: _start(launch, material) for node, launch in launches.items()}
    context = replace(
        context,
        launches={
            node: _expected(launch, starts[node], recipe) for node, launch in launches.items()
        },
    )
    try:
        plans, planned = _plans(material, facts, launches, starts)
    except SectionUnknownError as unknown:
        return _without_plan([_unknown(unknown)], context, profile, material, phase)
    cutover = any(plan["cutover"]["needed"] for plan in plans.values())
    if phase in {None, Phase.PREFLIGHT}:
        findings += planned
    # A way back observes while nodes differ, and must not be refused for it.
    if phase in {Phase.PREFLIGHT, Phase.VERIFY}:
        findings += _judge_profile(material.policy, in_force)
    effective = _effective(phase, predicting=material.predicting, cutover=cutover)
    if effective is not None:
        findings += judge(context, effective)
    if phase is Phase.GATE and cutover and not material.predicting:
        findings += _judge_staged(plans, facts)
    envelope = None
    if phase in {Phase.GATE, Phase.AFTER_STOP} and cutover:
        envelope = _memory(material, profile)
        findings += envelope.findings
        for node in envelope.nodes:
            wanted = must_come_back_bytes(node)
            plans[node.memory.node]["cutover"]["memory_bytes"] = wanted
    if phase is Phase.AFTER_START and material.watched is not None:
        envelope = _memory(material, profile)
        findings += _judge_watched(envelope, material.watched, launches[site.head].id)
    if phase in {Phase.AFTER_START, Phase.VERIFY} and effective is phase:
        findings += _judge_smoke(material)
    launch_id = launches[site.head].id
    return Judgement(
        tuple(ordered(dict.fromkeys(findings))),
        effective,
        profile.name,
        launch_id,
        plans,
        envelope=envelope,
        context=context,
    )


def _without_plan(
    faults: list[Finding],
    context: Context,
    profile: Profile,
    material: Material,
    phase: Phase | None,
) -> Judgement:
    """Return the judgement of nodes that nothing can be planned for, with all else that is wrong.

    Parameters:
        faults: why there is no plan; they speak for the launch that could not be rendered.
    """
    if phase is None:
        return Judgement(tuple(ordered(faults)), None, profile.name, context=context)
    judged = Phase.PREFLIGHT if material.predicting else phase
    others = [found for found in judge(context, judged) if found.check != "context.launches"]
    return Judgement(
        tuple(ordered(dict.fromkeys([*faults, *others]))), judged, profile.name, context=context
    )


def _effective(phase: Phase | None, *, predicting: bool, cutover: bool) -> Phase | None:
    """Return the checks that can hold now.

    What is already as rendered needs no gate. In check mode nothing was repaired, staged or
    started, so the gate asks what preflight asks, and verify waits for the run that starts it.
    """
    if phase is Phase.GATE and not cutover:
        return None
    if predicting and cutover:
        return Phase.PREFLIGHT if phase is Phase.GATE else None if phase is Phase.VERIFY else phase
    return phase


def _plans(
    material: Material,
    facts: Mapping[str, NodeFacts],
    launches: Mapping[str, NodeLaunch],
    starts: Mapping[str, Start],
) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    site, policy, recipe, release = (
        material.site,
        material.policy,
        material.recipe,
        material.release,
    )
    findings: list[Finding] = []
    supply = [SupplyNode(node, site.rank_address(node), facts[node]) for node in site.nodes]
    image = plan_image(release, policy.release_url, supply)
    findings += judge_image_room(release, supply)
    weights = plan_weights(
        policy.weights_url, site.weights_dir, supply, recipe.weights.manifest_sha256
    )
    findings += judge_weights_room(
        site.weights_dir,
        recipe.weights.size,
        supply,
        release=release,
        url=policy.weights_url,
        manifest_sha256=recipe.weights.manifest_sha256,
    )
    serving = any(
        (unit := node.units.get(ENGINE_UNIT)) is not None and unit.active == "active"
        for node in facts.values()
    )
    fabric = plan_fabrics(facts, site.rails, policy.fabric, serving=serving)
    reasons = cutover_reasons(
        facts, {node: (start.id, start.units) for node, start in starts.items()}
    )
    launch_id = launches[site.head].id
    previous = previous_start(facts, launch_id)
    plans: dict[str, dict[str, Any]] = {}
    for node in site.nodes:
        harden = plan_harden(facts[node], policy.harden)
        findings += [*harden.findings, *fabric[node].findings]
        files = stage(launches[node], recipe, starts[node], material.templates)
        plans[node] = {
            "rank": launches[node].rank,
            "harden": harden.as_dict(),
            "fabric": fabric[node].as_dict(),
            "image": image[node].as_dict(),
            "weights": weights[node].as_dict(),
            "launch": plan_launch(
                facts[node], launch_id, files, launches[node].secrets, policy.api_key
            ),
            "cutover": {
                "needed": bool(reasons),
                "reasons": list(reasons),
                "engine_unit": ENGINE_UNIT,
                "api_unit": API_UNIT,
                "installed_units": [
                    unit for unit in (ENGINE_UNIT, API_UNIT) if _installed(facts[node], unit)
                ],
                "current_link": CURRENT,
                "launch": starts[node].as_dict(),
                "previous": previous[node].as_dict(),
                "rerun": facts[node].launch.id == launch_id,
                "rank_addresses": [site.rank_address(name) for name in site.nodes],
                "drop_caches": recipe.gates.drop_caches,
                "memory_bytes": 0,
                "metrics_url": starts[node].health_url.removesuffix("/health") + "/metrics",
                "recipe": recipe.name,
                "profile": launches[node].profile,
                "nodes": list(site.nodes),
                "serving": serving_request(recipe, site),
            },
        }
    return plans, findings


def _installed(node: NodeFacts, unit: str) -> bool:
    known = node.units.get(unit)
    return known is not None and known.load == "loaded"
