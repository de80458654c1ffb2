# SPDX-License-Identifier: Apache-2.0
"""Files, disk space, weights and the launches staged on the node."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.docker import image_directory
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import read_verified

APPLIANCE_CONFIG = "/etc/spark-appliance"
APPLIANCE_STATE = "/var/lib/spark-appliance"
# A weight index names every tensor; the largest served models have some ten MB of it.
_INDEX_LIMIT_BYTES = 64 << 20
# A shard that says how many there are; only the index tells which.
_NUMBERED = re.compile(r"-\d+-of-\d+\.safetensors$")


def _file(host: Host, path: str) -> dict[str, Any]:
    entry = host.entry(path)
    if entry is None:
        return {"exists": False}
    return {
        "exists": True,
        "type": entry.kind,
        "target": host.link(path) if entry.kind == "link" else None,
        "mode": f"{entry.mode:04o}",
        "uid": entry.uid,
        "gid": entry.gid,
        "size_bytes": entry.size_bytes,
        "sha256": host.sha256(path) if entry.kind in {"file", "link"} else None,
    }


def observe_files(host: Host, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the ``files`` section: one entry for every path asked for."""
    return {path: _file(host, path) for path in paths}


def _existing(host: Host, path: str) -> str:
    while path not in {"", "/"}:
        if host.entry(path) is not None:
            return path
        path = path.rpartition("/")[0]
    return "/"


def parse_df(text: str) -> list[tuple[str, int, int]]:
    """Return (mount point, total, free to use) in bytes for each row of ``df``.

    Raises:
        Unknown: a row is not target, size and avail.
    """
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 3 or not fields[-1].isdigit() or not fields[-2].isdigit():
            raise Unknown(f"df: a row is not as expected: {line[:80]!r}")
        rows.append((" ".join(fields[:-2]), int(fields[-2]), int(fields[-1])))
    return rows


def observe_disk(host: Host) -> list[dict[str, Any]]:
    """Return the ``disk`` section for images, the appliance's state and ``/``."""
    asked = list(dict.fromkeys((image_directory(host), APPLIANCE_STATE, "/")))
    existing = [_existing(host, path) for path in asked]
    argv = ("df", "--block-size=1", "--output=target,size,avail", "--", *existing)
    rows = parse_df(host.ask(Command("df", argv)))
    if len(rows) != len(asked):
        raise Unknown(f"df: {len(rows)} rows for {len(asked)} paths")
    return [
        {
            "path": path,
            "filesystem": mount,
            "total_bytes": total,
            "free_bytes": free,
            "parts": _parts(host) if path == APPLIANCE_STATE else {},
        }
        for path, (mount, total, free) in zip(asked, rows, strict=True)
    ]


def _stored_bytes(host: Host, directory: str, names: list[str]) -> int:
    entries = (host.entry(f"{directory}/{name}") for name in names)
    return sum(entry.size_bytes for entry in entries if entry and entry.kind == "file")


def _parts(host: Host) -> dict[str, int]:
    """Return the bytes that lie in each folder of an image's parts, unfinished ones as well."""
    root = f"{APPLIANCE_STATE}/parts"
    return {
        name: _stored_bytes(host, f"{root}/{name}", host.names(f"{root}/{name}") or [])
        for name in host.names(root) or []
    }


def _weights_disk(host: Host, directory: str) -> dict[str, Any] | None:
    """Return the disk that holds or will hold a folder, None where ``df`` does not tell."""
    argv = ("df", "--block-size=1", "--output=target,size,avail", "--", _existing(host, directory))
    try:
        ((mount, total, free),) = parse_df(host.ask(Command("df-weights", argv)))
    except (Unknown, ValueError):
        return None
    return {"path": directory, "filesystem": mount, "total_bytes": total, "free_bytes": free}


def _is_object(host: Host, path: str) -> bool:
    try:
        return isinstance(json.loads(host.text(path) or ""), dict)
    except ValueError:
        return False


def _weights(host: Host, directory: str) -> dict[str, Any]:
    names = host.names(directory)
    if names is None:
        return {"exists": False}
    index_name = "model.safetensors.index.json"
    text = host.text(f"{directory}/{index_name}", _INDEX_LIMIT_BYTES)
    listed: list[str] = []
    total_bytes = None
    if text is not None:
        try:
            index = json.loads(text)
            listed = sorted(set(index["weight_map"].values()))
            total_bytes = index.get("metadata", {}).get("total_size")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unknown(f"{directory}/{index_name}: not an index: {error!r}") from error
    shards = [name for name in names if name.endswith(".safetensors")]
    sizes = {name: (host.entry(f"{directory}/{name}"), name) for name in shards}
    linked = [name for name, (entry, _) in sizes.items() if entry and entry.kind == "link"]
    return {
        "exists": True,
        "indexed": text is not None,
        "numbered": any(_NUMBERED.search(name) for name in shards),
        "shards_listed": len(listed) if text is not None else None,
        "shards": len(shards),
        "missing": [name for name in listed if name not in names],
        "empty": [name for name, (entry, _) in sizes.items() if entry and entry.size_bytes == 0],
        "links": linked,
        "incomplete": [name for name in names if name.endswith((".incomplete", ".part", ".tmp"))],
        "stored_bytes": _stored_bytes(host, directory, list(names)),
        "shard_bytes": sum(entry.size_bytes for entry, _ in sizes.values() if entry),
        "tensor_bytes": total_bytes if isinstance(total_bytes, int) else None,
        "config": "config.json" in names and _is_object(host, f"{directory}/config.json"),
        "verified": read_verified(str(host.locate(directory))),
    }


def observe_weights(host: Host, directories: tuple[str, ...]) -> dict[str, Any]:
    """Return the ``weights`` section: presence and completeness, without reading a shard."""
    return {
        directory: _weights(host, directory) | {"disk": _weights_disk(host, directory)}
        for directory in directories
    }


def observe_launch(host: Host) -> dict[str, Any]:
    """Return the ``launch`` section: which launch is current and which are staged.

    Raises:
        Unknown: ``current`` names a launch that is not there or has no readable ``launch.json``.
    """
    folder = f"{APPLIANCE_CONFIG}/launches"
    staged = [name for name in host.names(folder) or [] if not name.startswith(".")]
    launches = {
        name: {
            file: _file(host, f"{folder}/{name}/{file}")
            for file in host.names(f"{folder}/{name}") or []
        }
        for name in staged
    }
    target = host.link(f"{APPLIANCE_CONFIG}/current")
    if target is None:
        return {
            "present": False,
            "id": None,
            "staged": staged,
            "launches": launches,
            "content": None,
            "files": {},
        }
    launch_id = target.rstrip("/").rpartition("/")[2]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", launch_id) or launch_id not in staged:
        raise Unknown(f"{APPLIANCE_CONFIG}/current: names no staged launch: {target[:80]!r}")
    try:
        content = json.loads(host.need(f"{folder}/{launch_id}/launch.json"))
    except ValueError as error:
        raise Unknown(f"{folder}/{launch_id}/launch.json: not JSON") from error
    return {
        "present": True,
        "id": launch_id,
        "staged": staged,
        "launches": launches,
        "content": content,
        "files": {name: file.get("sha256") for name, file in launches[launch_id].items()},
    }
