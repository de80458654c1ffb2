# SPDX-License-Identifier: Apache-2.0
"""The launch that is staged or in force, and whether it serves."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Context
from ansible_collections.spark.appliance.plugins.plugin_utils.checks.registry import (
    SERVING,
    Phase,
    Problem,
    Scope,
    check,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity


@check(
    "launch.staged",
    "the rendered launch is staged",
    scope=Scope.NODE,
    phases=frozenset({Phase.GATE}),
    remedy="run playbooks/launch.yml",
    cases=("RAY-12",),
)
def staged(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The launch id is a digest of all that was rendered, so equal ids mean equal launches."""
    wanted = context.launch(node.name).id
    if wanted not in node.launch.staged:
        yield Problem(
            expected=f"launch {wanted} staged",
            found=", ".join(node.launch.staged) or "no launch",
        )


@check(
    "launch.current",
    "the rendered launch is the one in force",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="run site.yml, or roll to the profile that shall be in force",
    cases=("RAY-12", "ANS-12"),
)
def current(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """What runs must be what recipe, profile and inventory render to now."""
    wanted = context.launch(node.name).id
    if node.launch.id != wanted:
        yield Problem(
            expected=f"current launch {wanted}",
            found=node.launch.id or "none",
        )


@check(
    "launch.same",
    "all nodes have the same launch in force",
    scope=Scope.FLEET,
    phases=SERVING | {Phase.PREFLIGHT},
    repaired_by="cutover",
    remedy="run site.yml, which brings all nodes to one launch",
    cases=("ANS-12", "ANS-05"),
)
def same(context: Context) -> Iterator[Problem]:
    """A cutover that reached only some nodes leaves ranks that cannot form a cluster."""
    current = {name: launch.id or "none" for name, launch in context.known("launch")}
    if len(set(current.values())) > 1:
        listing = ", ".join(f"{name} {launch}" for name, launch in current.items())
        yield Problem(expected="one current launch", found=listing)


@check(
    "serving.units",
    "the service's units are active",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="read journalctl -u UNIT on the node; run site.yml to start the launch again",
    cases=("BOOT-01", "BOOT-06", "RAY-10", "RAY-11", "VLLM-06"),
)
def units(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Each unit of the launch must be active; how it ended says why it is not."""
    for name in context.launch(node.name).units:
        unit = node.units.get(name)
        if unit is None:
            yield Problem(expected=f"{name} active", found="the module was not asked for it")
        elif unit.active != "active":
            yield Problem(
                expected=f"{name} active",
                found=f"{unit.active} ({unit.sub})",
                evidence=f"load {unit.load}, result {unit.result}, exit status "
                f"{unit.exec_main_status}, {unit.n_restarts} restarts",
            )


@check(
    "serving.container",
    "the service's container runs the pinned image",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="run site.yml to start the launch again",
    cases=("BOOT-01", "BOOT-06", "IMG-01", "IMG-11", "RAY-11"),
)
def container(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """The running container is compared by its image's config digest, not by a name."""
    name = context.launch(node.name).container
    wanted = context.require(context.image, "image").config_digest
    running = node.docker.container(name)
    if running is None:
        yield Problem(expected=f"container {name} running", found="no such container")
        return
    if running.state != "running":
        cause = ", killed for want of memory" if running.oom_killed else ""
        yield Problem(
            expected=f"container {name} running",
            found=f"{running.state}, exit code {running.exit_code}{cause}",
        )
    image = node.docker.image(running.image_id)
    digest = image.config_digest if image else None
    # On the classic store the container names the config digest itself.
    if (digest or running.image_id) != wanted:
        yield Problem(expected=f"image {wanted}", found=digest or running.image_id)


@check(
    "serving.only_container",
    "no other container of the appliance runs",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=SERVING,
    remedy="stop and remove it; its memory is the engine's",
    cases=("MEM-08", "RAY-10"),
)
def only_container(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A second running container takes memory from the floor, whoever started it."""
    name = context.launch(node.name).container
    for entry in node.docker.containers:
        if entry.name != name and entry.state == "running":
            yield Problem(expected=f"{name} as the only container", found=entry.name)


@check(
    "serving.restart_policy",
    "only systemd restarts the container",
    severity=Severity.WARNING,
    scope=Scope.NODE,
    phases=SERVING,
    remedy="start the launch that the recipe renders",
    cases=("BOOT-03",),
)
def restart_policy(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """Docker would restart one rank of a dead group, without gates and without end."""
    running = node.docker.container(context.launch(node.name).container)
    if running is not None and running.restart_policy not in {"no", ""}:
        yield Problem(expected="restart policy no", found=running.restart_policy)


@check(
    "serving.ranks",
    "every worker is connected to the head",
    scope=Scope.NODE,
    phases=SERVING,
    remedy="read the engine's journal on the node; run site.yml to start the group again",
    cases=("RAY-01", "RAY-03", "BOOT-06"),
)
def ranks(node: NodeFacts, context: Context) -> Iterator[Problem]:
    """A worker that joined stays connected to Ray's control store, or to the head's own rank."""
    site = context.site
    port = context.needs.rank_port or site.ray_port
    if port is None or node.name == site.head:
        return
    head = site.rank_address(site.head)
    if not any(peer.address == head and peer.port == port for peer in node.connections):
        yield Problem(expected=f"a connection to {head}:{port}", found="none")


@check(
    "serving.api",
    "the API server serves the profile",
    scope=Scope.FLEET,
    phases=SERVING,
    remedy="read journalctl -u spark-api.service -u spark-engine.service on the head",
    cases=("BOOT-05", "VLLM-11"),
)
def api(context: Context) -> Iterator[Problem]:
    """Health alone can be good while the scheduler is stuck, so what it serves is compared too."""
    serving = context.require(context.serving, "serving")
    head = context.site.head
    if serving.get("health") != 200 or serving.get("error"):
        yield Problem(
            node=head,
            expected="health 200 and an answer to every question",
            found=str(serving.get("error") or f"HTTP {serving.get('health')}"),
        )
        return
    lengths = [model.get("max_model_len") for model in serving.get("models") or []]
    if context.needs.context_tokens not in lengths:
        yield Problem(
            node=head,
            expected=f"max_model_len {context.needs.context_tokens}",
            found=", ".join(map(str, lengths)) or "no model",
        )


@check(
    "serving.completion",
    "the API server generates",
    scope=Scope.FLEET,
    phases=frozenset({Phase.AFTER_START}),
    remedy="read journalctl -u spark-api.service -u spark-engine.service on the head",
    cases=("BOOT-05",),
)
def completion(context: Context) -> Iterator[Problem]:
    """One completion proves weights, ranks and graphs together."""
    serving = context.require(context.serving, "serving")
    answer = serving.get("completion")
    if not serving.get("error") and not (answer and answer.get("completion_tokens")):
        yield Problem(node=context.site.head, expected="at least one generated token", found="none")
