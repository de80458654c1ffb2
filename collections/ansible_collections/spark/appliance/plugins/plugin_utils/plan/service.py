# SPDX-License-Identifier: Apache-2.0
"""What staging and cutover have to do on each node, from what is there and what was rendered."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts

LAUNCHES = "/etc/spark-appliance/launches"
CURRENT = "/etc/spark-appliance/current"
ENGINE_UNIT = "spark-engine.service"
API_UNIT = "spark-api.service"
# Environment files with a secret, each readable by root only.
API_ENV_FILE = "api.env"
RAY_ENV_FILE = "ray.env"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a launch as it must be on the node.

    Parameters:
        name: its name inside the launch's folder.
        mode: permissions as four octal digits.
        content: the whole text.
    """

    name: str
    mode: str
    content: str

    @property
    def sha256(self) -> str:
        """Digest of the content in hexadecimal."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Start:
    """How a launch is started; kept in its ``launch.json``, so that a way back knows it too.

    Parameters:
        id: launch id, empty for none.
        folder: where it is staged.
        kind: ``ray`` or ``multinode``.
        units: units of this node, in starting order.
        gpus: GPUs of all nodes together.
        gpus_per_node: GPUs that one node brings.
        ray: how to ask the cluster, see module ``engine_progress``; empty without Ray.
        health_url: health endpoint of the API server.
        ranks_timeout_s: limit for all ranks to join, in seconds.
        health_timeout_s: limit for the API server to become healthy, in seconds.
    """

    id: str = ""
    folder: str = ""
    kind: str = ""
    units: tuple[str, ...] = ()
    gpus: int = 0
    gpus_per_node: int = 0
    ray: Mapping[str, Any] | None = None
    health_url: str = ""
    ranks_timeout_s: int = 0
    health_timeout_s: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for a role or for ``launch.json``."""
        return asdict(self) | {"units": list(self.units), "ray": dict(self.ray or {})}

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> Start:
        """Return the start that a ``launch.json`` describes, or an empty one.

        Parameters:
            content: the parsed file; None where there is none. One that lacks a field is of
                another version of this toolkit and can't be started by this one.
        """
        described = (content or {}).get("start")
        names = {entry.name for entry in fields(cls)}
        if not isinstance(described, Mapping) or set(described) != names:
            return cls()
        return cls(**{**described, "units": tuple(described["units"])})


def secret_env(api_key: str, name: str) -> str:
    """Return the content of an environment file with a secret.

    Parameters:
        api_key: key that the API server demands; Ray's token is derived from it, so that every
            node has the same without a second secret to keep.
        name: :data:`API_ENV_FILE` or :data:`RAY_ENV_FILE`.

    Raises:
        ValueError: another name.
    """
    if name == API_ENV_FILE:
        return f"VLLM_API_KEY={api_key}\n"
    if name == RAY_ENV_FILE:
        token = hmac.new(api_key.encode(), b"spark-appliance ray token", "sha256").hexdigest()
        return f"RAY_AUTH_TOKEN={token}\n"
    raise ValueError(f"{name} is no file with a secret")


def key_digest(api_key: str) -> str:
    """Return a digest that changes with the key, so that a new key makes another launch."""
    return hashlib.sha256(f"spark-appliance {api_key}".encode()).hexdigest()


def plan_launch(
    node: NodeFacts,
    launch_id: str,
    files: Sequence[StagedFile],
    secrets: Sequence[str],
    api_key: str,
) -> dict[str, Any]:
    """Return what a node lacks of a rendered launch.

    Parameters:
        node: facts of the node.
        launch_id: id of the launch.
        files: its files, without those that hold a secret.
        secrets: names of the files with a secret that this node needs.
        api_key: key that the API server demands.

    Returns:
        ``needed``, ``folder``, the ``files`` to write with their content, and the ``secrets`` to
        write by name and path: what they hold is not part of the plan.
    """
    folder = f"{LAUNCHES}/{launch_id}"
    there = node.launch.launches.get(launch_id, {})

    def lacks(file: StagedFile) -> bool:
        entry = there.get(file.name, {})
        return (entry.get("sha256"), entry.get("mode"), entry.get("uid")) != (
            file.sha256,
            file.mode,
            0,
        )

    missing = [file for file in files if lacks(file)]
    hidden = [
        name for name in secrets if lacks(StagedFile(name, "0600", secret_env(api_key, name)))
    ]
    return {
        "needed": bool(missing or hidden),
        "id": launch_id,
        "folder": folder,
        "files": [
            {"path": f"{folder}/{file.name}", "mode": file.mode, "content": file.content}
            for file in missing
        ],
        "secrets": [{"name": name, "path": f"{folder}/{name}"} for name in hidden],
    }


def _stopped(node: NodeFacts, units: Sequence[str]) -> Iterator[str]:
    for name in units:
        unit = node.units.get(name)
        if unit is None or unit.active != "active":
            state = unit.active if unit is not None and unit.load == "loaded" else "not installed"
            yield f"{node.name}: {name} is {state}"


def cutover_reasons(
    facts: Mapping[str, NodeFacts], launches: Mapping[str, tuple[str, Sequence[str]]]
) -> tuple[str, ...]:
    """Return why the appliance must be started anew; nothing means that it runs as rendered.

    Parameters:
        facts: facts by node.
        launches: rendered launch id and units by node.
    """
    reasons: list[str] = []
    for name, (launch_id, units) in launches.items():
        current = facts[name].launch.id
        if current != launch_id:
            reasons.append(f"{name}: launch {current or 'none'} → {launch_id}")
        reasons += _stopped(facts[name], units)
    return tuple(reasons)


def previous_start(facts: Mapping[str, NodeFacts], launch_id: str) -> dict[str, Start]:
    """Return, by node, the launch to go back to; an empty one where there is none.

    There is a way back only if every node has the same other launch in force and can start it.

    Parameters:
        facts: facts by node.
        launch_id: the launch that is cut over to.
    """
    starts = {name: Start.of(node.launch.content) for name, node in facts.items()}
    ids = {start.id for start in starts.values()}
    if len(ids) != 1 or ids <= {"", launch_id}:
        return dict.fromkeys(facts, Start())
    return starts
