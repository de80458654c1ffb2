# SPDX-License-Identifier: Apache-2.0
"""Recipe, profile and site → the exact command lines and environment of every node.

Nothing here touches a node, and nothing that is rendered holds the API key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.checks.context import Site
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import (
    NodeFacts,
    SectionUnknownError,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import (
    API_ENV_FILE,
    RAY_ENV_FILE,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Profile, Recipe
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Image

LAUNCH_LABEL = "org.spark-appliance.launch"
# Stands for the launch id while the digest that becomes the id is taken.
_ID = "@launch@"
LAUNCHES = "/etc/spark-appliance/launches"
CACHE = "/var/cache"
# The server's process id inside the container, so that it can be asked to end there.
_PID_FILE = "/run/spark-api.pid"
_START_SERVER = f'echo "$$" > {_PID_FILE}; exec "$@"'
_STOP_SERVER = (
    f'pid=$(cat {_PID_FILE}) && kill -INT "$pid" && while kill -0 "$pid" 2>/dev/null; '
    "do sleep 0.2; done"
)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a launch takes from a node's facts.

    Parameters:
        socket_interface: netdev that holds, or will hold, the rank's address.
        hcas: RDMA devices of both rails, rail A first; empty without RDMA.
    """

    socket_interface: str
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """One node's part of a launch.

    Parameters:
        id: launch id, the same on all nodes.
        node: inventory name.
        rank: position; 0 is the head.
        role: ``head`` or ``worker``.
        kind: engine kind of the recipe.
        profile: name of the profile.
        cache: compile cache below ``/var/cache``, of this recipe, profile and image only.
        env: environment of the container, without secrets.
        secrets: environment files with a secret that the node needs.
        container_argv: ``docker run``, in the foreground.
        server_argv: ``docker exec`` of the API server; empty where there is none.
        stop_argv: ``docker exec`` that ends the API server; empty where there is none.
    """

    id: str
    node: str
    rank: int
    role: str
    kind: str
    profile: str
    cache: str
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    container_argv: tuple[str, ...]
    server_argv: tuple[str, ...] = ()
    stop_argv: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where the launch is staged on the node."""
        return f"{LAUNCHES}/{self.id}"


def _refusal(node: str, title: str, expected: str, found: str, remedy: str) -> Finding:
    return Finding("launch.node_view", node, Severity.ERROR, title, expected, found, remedy)


def node_view(node: NodeFacts, recipe: Recipe) -> NodeView | Finding:
    """Return what a launch takes from a node's facts, or why it can't.

    Parameters:
        node: facts of the node. The rails need no address yet: it is the cage that counts.
        recipe: whether RDMA devices are needed.
    """
    try:
        cage = node.network.live_cage()
        rails = sorted(
            (rail for rail in node.network.rails() if rail.cage == cage), key=lambda rail: rail.rail
        )
        pair = [rail.rail for rail in rails if rail.carrier]
        if cage is None or pair != ["a", "b"]:
            return _refusal(
                node.name,
                "one cage of the ConnectX-7 is cabled",
                "carrier on both rails of exactly one cage",
                ", ".join(
                    f"{rail.name} {'up' if rail.carrier else 'down'}"
                    for rail in node.network.rails()
                )
                or "no rail",
                "cable one cage on every node, or boot all nodes together if the card is gone",
            )
        if not recipe.topology.rdma:
            return NodeView(rails[0].name)
        devices = {rail.name: node.rdma.by_netdev(rail.name) for rail in rails}
    except SectionUnknownError as unknown:
        return _refusal(
            node.name,
            "rails and RDMA devices can be read",
            f"section {unknown.section} of the node's facts",
            unknown.reason,
            "make the probe work on the node",
        )
    lacking = [name for name, device in devices.items() if device is None]
    if lacking:
        return _refusal(
            node.name,
            "every rail has its RDMA device",
            "an RDMA device for each of " + ", ".join(devices),
            "none for " + ", ".join(lacking),
            "load the driver (modprobe mlx5_ib) and look at `rdma link`",
        )
    return NodeView(rails[0].name, tuple(device.name for device in devices.values() if device))


def _values(recipe: Recipe, profile: Profile, site: Site) -> dict[str, Any]:
    return {
        **profile.extra,
        "weights": recipe.weights.mount,
        "served_name": recipe.server.served_name,
        "tensor_parallel": recipe.topology.tensor_parallel,
        "pipeline_parallel": recipe.topology.pipeline_parallel,
        "max_depth": recipe.speculation.max_depth,
        "window": recipe.speculation.window,
        "capture_sizes": list(recipe.graphs.capture_sizes),
        "context_tokens": profile.context_tokens,
        "kv_cache_bytes": profile.kv_cache_bytes,
        "dcp": profile.dcp,
        "utilization": str(profile.utilization),
        "max_seqs": profile.max_seqs,
        "batched_tokens": profile.batched_tokens,
        "long_prefill_tokens": profile.long_prefill_tokens,
        "api_bind": site.api_bind,
        "api_port": site.api_port,
    }


def _filled(value: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- JSON in, JSON out
    if isinstance(value, str) and value.startswith("$"):
        return values[value.removeprefix("$")]
    if isinstance(value, Mapping):
        return {key: _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value


def _flags(flags: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    for name, raw in flags.items():
        value = _filled(raw, values)
        if value is True:
            yield f"--{name}"
        elif value is False:
            yield f"--no-{name}"
        elif isinstance(value, Mapping | list):
            yield from (f"--{name}", json.dumps(value, separators=(",", ":")))
        else:
            yield from (f"--{name}", str(value))


def _server(recipe: Recipe, profile: Profile, site: Site) -> list[str]:
    values = _values(recipe, profile, site)
    flags = {**recipe.server.flags, **(recipe.server.dcp_flags if profile.dcp > 1 else {})}
    command = [recipe.server.command] if recipe.server.command else []
    return [recipe.engine.python, "-m", recipe.server.module, *command, *_flags(flags, values)]


def _ray(recipe: Recipe, site: Site, node: str) -> list[str]:
    ray = recipe.ray
    assert ray is not None  # noqa: S101 -- the recipe's schema demands it for this kind
    port = f"{site.ray_port}"
    head = f"{site.rank_address(site.head)}:{port}"
    joins = ["--head", "--port", port] if node == site.head else ["--address", head]
    return [
        *("ray", "start", *joins),
        *("--node-ip-address", site.rank_address(node)),
        *("--num-gpus", f"{recipe.topology.gpus_per_node}", "--num-cpus", f"{ray.cpus}"),
        *("--object-store-memory", f"{ray.object_store}"),
        *(
            word
            for name, value in ray.fixed_ports().items()
            for word in (f"--{name.replace('_', '-')}", f"{value}")
        ),
        *("--min-worker-port", f"{ray.min_worker_port}"),
        *("--max-worker-port", f"{ray.max_worker_port}"),
        *(["--include-dashboard=false"] if node == site.head else []),
        *("--disable-usage-stats", "--block"),
    ]


def _rank(recipe: Recipe, profile: Profile, site: Site, rank: int) -> list[str]:
    return [
        *_server(recipe, profile, site),
        *("--nnodes", f"{recipe.topology.nodes}", "--node-rank", f"{rank}"),
        *("--master-addr", site.rank_address(site.head)),
        *("--master-port", f"{recipe.engine.master_port}"),
        *(["--headless"] if rank else []),
    ]


def _env(recipe: Recipe, site: Site, node: str, view: NodeView) -> dict[str, str]:
    own = {
        "VLLM_HOST_IP": site.rank_address(node),
        "NCCL_SOCKET_IFNAME": view.socket_interface,
        "GLOO_SOCKET_IFNAME": view.socket_interface,
    }
    if recipe.engine.kind == "ray":
        # Ray's services listen on every address, so they must know their own by a token.
        own["RAY_AUTH_MODE"] = "token"
        own["RAY_ADDRESS"] = f"{site.rank_address(site.head)}:{site.ray_port}"
    if view.hcas:
        own["NCCL_IB_HCA"] = ",".join(view.hcas)
    return dict(sorted({**recipe.container.env, **own}.items()))


def _container(
    recipe: Recipe, site: Site, image: Image, cache: str, env_files: Sequence[str]
) -> list[str]:
    container = recipe.container
    return [
        *("docker", "run", "--name", container.name, "--init"),
        *("--network", "host", "--ipc", "host"),
        *("--restart", "no", "--pull", "never", "--log-driver", "none"),
        *("--label", f"{LAUNCH_LABEL}={_ID}"),
        *(["--gpus", "all"] if container.gpus == "all" else []),
        *(part for device in container.devices for part in ("--device", device)),
        *(part for cap in container.cap_add for part in ("--cap-add", cap)),
        *(["--ulimit", "memlock=-1:-1"] if container.memlock == "unlimited" else []),
        *(part for name in env_files for part in ("--env-file", f"{LAUNCHES}/{_ID}/{name}")),
        "--mount",
        f"type=bind,source={site.weights_dir},target={recipe.weights.mount},readonly",
        "--mount",
        f"type=bind,source={CACHE}/{cache},target={container.cache_mount}",
        image.reference,
    ]


def _node(
    recipe: Recipe, profile: Profile, site: Site, *, image: Image, node: str, view: NodeView
) -> NodeLaunch:
    rank = site.nodes.index(node)
    digest = image.config_digest.removeprefix("sha256:")[:12]
    cache = f"spark-appliance/jit/{recipe.name}-{profile.name}-{digest}"
    ray = recipe.engine.kind == "ray"
    container_secrets = (RAY_ENV_FILE,) if ray else (API_ENV_FILE,) if rank == 0 else ()
    command = _ray(recipe, site, node) if ray else _rank(recipe, profile, site, rank)
    inside = ["docker", "exec"]
    name = recipe.container.name
    serves = ray and rank == 0
    shell = ["sh", "-c", _START_SERVER, "spark-api"]
    key = ["--env-file", f"{LAUNCHES}/{_ID}/{API_ENV_FILE}"]
    return NodeLaunch(
        id=_ID,
        node=node,
        rank=rank,
        role=site.role(node),
        kind=recipe.engine.kind,
        profile=profile.name,
        cache=cache,
        env=_env(recipe, site, node, view),
        secrets=(*container_secrets, *([API_ENV_FILE] if serves else [])),
        container_argv=(
            *_container(recipe, site, image, cache, ["engine.env", *container_secrets]),
            *command,
        ),
        server_argv=(*inside, *key, name, *shell, *_server(recipe, profile, site))
        if serves
        else (),
        stop_argv=(*inside, name, "sh", "-c", _STOP_SERVER) if serves else (),
    )


def render(
    recipe: Recipe,
    profile: Profile,
    site: Site,
    *,
    image: Image,
    views: Mapping[str, NodeView],
    salt: str = "",
) -> dict[str, NodeLaunch]:
    """Return every node's part of a launch.

    Parameters:
        recipe: the served system.
        profile: one of its profiles.
        site: the inventory.
        image: the image that runs.
        views: what each node's facts give, by node.
        salt: what else makes this launch another one, such as the templates of its units.

    Returns:
        The launches by node, in rank order. Their id is a digest of everything rendered for all
        nodes, so that equal ids mean equal launches.
    """
    launches = {
        node: _node(recipe, profile, site, image=image, node=node, view=views[node])
        for node in site.nodes
    }
    rendered = json.dumps(
        [asdict(launch) for launch in launches.values()] + [recipe.digest, salt], sort_keys=True
    )
    launch_id = hashlib.sha256(rendered.encode()).hexdigest()[:16]
    return {node: _with_id(launch, launch_id) for node, launch in launches.items()}


def _with_id(launch: NodeLaunch, launch_id: str) -> NodeLaunch:
    def named(argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(part.replace(_ID, launch_id) for part in argv)

    return replace(
        launch,
        id=launch_id,
        container_argv=named(launch.container_argv),
        server_argv=named(launch.server_argv),
        stop_argv=named(launch.stop_argv),
    )
