# SPDX-License-Identifier: Apache-2.0
"""The container engine, its images and containers, over the engine's own socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
    concurrently,
)

# Why an engine does not answer is in its log, and a first boot can leave it dead for ever.
ENGINE_LOG = Command(
    "journalctl-docker",
    ("journalctl", "-u", "docker.service", "-b", "-n", "20", "-o", "cat", "--no-pager", "-q"),
    empty_ok=True,
)
CDI_SPECS = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml", "/run/cdi/nvidia.yaml")
DEFAULT_ROOT = "/var/lib/docker"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
_CONTAINERD_ROOT = "/var/lib/containerd"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def uses_containerd_store(info: dict[str, Any]) -> bool:
    """Tell whether images live in containerd's store, where an image's id is a manifest digest."""
    pairs = info.get("DriverStatus") or []
    return any(
        isinstance(pair, list) and len(pair) == 2 and pair[1] == "io.containerd.snapshotter.v1"
        for pair in pairs
    )


def image_store(host: Host, info: dict[str, Any]) -> str:
    """Return the folder that holds the layers of images.

    Parameters:
        host: the node.
        info: the engine's ``/info``.

    The engine does not tell where containerd's store is: a containerd that the engine started lies
    below the engine's own root, any other where its configuration says.
    """
    root = str(info["DockerRootDir"])
    if not uses_containerd_store(info):
        return root
    containerd = info.get("Containerd")
    address = str(containerd.get("Address")) if isinstance(containerd, dict) else ""
    if address.startswith(("/run/docker/", "/var/run/docker/")):
        return f"{root}/containerd/daemon"
    # The keys of the document itself stand before its first table.
    top = re.split(r"^\s*\[", host.text(CONTAINERD_CONFIG) or "", maxsplit=1, flags=re.MULTILINE)[0]
    named = re.search(r"""^\s*root\s*=\s*["']([^"']+)["']""", top, re.MULTILINE)
    return named[1] if named else _CONTAINERD_ROOT


def _blob(host: Host, store: str, digest: str) -> dict[str, Any] | None:
    if not _DIGEST.fullmatch(digest):
        return None
    blobs = f"{store}/io.containerd.content.v1.content/blobs/sha256"
    raw = host.read_bytes(f"{blobs}/{digest.removeprefix('sha256:')}")
    if raw is None:
        return None
    try:
        parsed = json.loads(raw)
    except ValueError as error:
        raise Unknown(f"{blobs}: the blob {digest[:19]} is not JSON") from error
    return parsed if isinstance(parsed, dict) else None


def config_digest(host: Host, info: dict[str, Any], image_id: str, architecture: str) -> str | None:
    """Return the digest of an image's config, whichever store holds it; None when not to be told.

    Parameters:
        host: the node.
        info: the engine's ``/info``.
        image_id: the engine's id of the image.
        architecture: that of the image, as the engine says it.

    On the classic store it is the image's id. On containerd's store the id names a manifest, or an
    index of manifests, which in turn names the config.
    """
    if not uses_containerd_store(info):
        return image_id
    store = image_store(host, info)
    manifest = _blob(host, store, image_id)
    if manifest and "manifests" in manifest:
        matching = [
            entry
            for entry in manifest["manifests"]
            if entry.get("platform", {}).get("architecture") == architecture
        ]
        manifest = _blob(host, store, matching[0].get("digest", "")) if len(matching) == 1 else None
    digest = (manifest or {}).get("config", {}).get("digest")
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None


def _image(host: Host, listed: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    image_id = listed["Id"]
    short = image_id.removeprefix("sha256:")[:12]
    shown = host.docker(f"docker-image-{short}", f"/images/{quote(image_id)}/json")
    architecture = shown["Architecture"]
    return {
        "id": image_id,
        "config_digest": config_digest(host, info, image_id, architecture),
        "tags": sorted(shown.get("RepoTags") or []),
        "architecture": architecture,
        "os": shown["Os"],
        "layers": list(shown["RootFS"].get("Layers") or []),
        "labels": dict((shown.get("Config") or {}).get("Labels") or {}),
        "size_bytes": int(shown["Size"]),
    }


def _container(host: Host, listed: dict[str, Any]) -> dict[str, Any]:
    short = listed["Id"][:12]
    shown = host.docker(f"docker-container-{short}", f"/containers/{listed['Id']}/json")
    state, limits = shown["State"], shown["HostConfig"]
    return {
        "id": listed["Id"],
        "name": shown["Name"].lstrip("/"),
        "image": shown["Config"]["Image"],
        "image_id": shown["Image"],
        "state": state["Status"],
        "exit_code": int(state["ExitCode"]),
        "started_at": state["StartedAt"],
        "labels": dict(shown["Config"].get("Labels") or {}),
        "pid": int(state.get("Pid") or 0),
        "oom_killed": bool(state.get("OOMKilled")),
        "privileged": bool(limits.get("Privileged")),
        "restart_policy": (limits.get("RestartPolicy") or {}).get("Name") or "no",
        "memory_limit_bytes": int(limits.get("Memory") or 0),
        "devices": sorted(entry["PathOnHost"] for entry in limits.get("Devices") or []),
        "memlock_bytes": _memlock(limits.get("Ulimits") or []),
        "ray_auth_mode": _variable(shown["Config"].get("Env") or [], "RAY_AUTH_MODE"),
    }


def _variable(environment: list[str], name: str) -> str | None:
    # One variable that is no secret; the environment as a whole holds keys and stays on the node.
    prefix = f"{name}="
    return next((v.removeprefix(prefix) for v in environment if v.startswith(prefix)), None)


def _memlock(limits: list[dict[str, Any]]) -> int | None:
    return next((int(limit["Hard"]) for limit in limits if limit["Name"] == "memlock"), None)


def cdi_versions(host: Host) -> list[str]:
    """Return the driver versions that the generated CDI specification mounts.

    Raises:
        Unknown: a specification is there and names no library of a driver.
    """
    found: set[str] = set()
    for path in CDI_SPECS:
        text = host.text(path)
        if text is None:
            continue
        named = set(re.findall(r"\.so\.(\d{3}\.\d+(?:\.\d+)?)\b", text))
        if not named:
            raise Unknown(f"{path}: names no library of a driver")
        found |= named
    return sorted(found)


def _info(host: Host) -> dict[str, Any]:
    info = host.docker("docker-info", "/info")
    if not isinstance(info, dict) or not isinstance(info.get("DockerRootDir"), str):
        raise Unknown("docker: /info: not as expected: no DockerRootDir")
    return info


def image_directory(host: Host) -> str:
    """Return where the engine keeps images, the usual place when it does not answer."""
    try:
        return image_store(host, _info(host))
    except Unknown:
        return DEFAULT_ROOT


def _expected(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unknown(f"docker: an answer is not as expected: {error!r}") from error


def _all(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    answers = concurrently(tasks)
    failed = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    if failed is not None:
        raise failed
    return answers


def observe_docker(host: Host) -> dict[str, Any]:
    """Return the ``docker`` section."""
    try:
        info, images, containers = _all(
            [
                lambda: _info(host),
                lambda: host.docker("docker-images", "/images/json"),
                lambda: host.docker("docker-containers", "/containers/json?all=true"),
            ]
        )
    except Unknown as reason:
        raise Unknown(f"{reason}{_engine_complaint(host)}") from reason
    if not isinstance(images, list) or not isinstance(containers, list):
        raise Unknown("docker: images or containers are no list")
    shown = _all(
        [partial(_expected, partial(_image, host, listed, info)) for listed in images]
        + [partial(_expected, partial(_container, host, listed)) for listed in containers]
    )
    described = _expected(lambda: _engine(info))
    return {
        **described,
        "containerd_store": uses_containerd_store(info),
        "image_dir": image_store(host, info),
        "cdi_driver_versions": cdi_versions(host),
        "images": shown[: len(images)],
        "containers": shown[len(images) :],
    }


def _engine(info: dict[str, Any]) -> dict[str, Any]:
    root = info["DockerRootDir"]
    return {
        "server_version": info["ServerVersion"],
        "storage_driver": info["Driver"],
        "root_dir": root,
        "origin": "snap" if root.startswith("/var/snap/") else "package",
        "runtimes": sorted(info.get("Runtimes") or {}),
        "cdi_devices": sorted(
            entry["ID"]
            for entry in info.get("DiscoveredDevices") or []
            if entry.get("Source") == "cdi"
        ),
    }


def _engine_complaint(host: Host) -> str:
    try:
        lines = host.ask(ENGINE_LOG).splitlines()
    except Unknown:
        return ""
    complaints = [line for line in lines if re.search(r"fail|invalid|error", line, re.IGNORECASE)]
    if not complaints:
        return ""
    # A first boot that was cut off leaves it broken for ever; what is in it is only a cache.
    cure = f" (has been cured by moving {DEFAULT_ROOT}/buildkit aside)"
    hint = cure if "buildkit" in complaints[-1] else ""
    return f"; its log says: {complaints[-1].strip()[:200]}{hint}"
