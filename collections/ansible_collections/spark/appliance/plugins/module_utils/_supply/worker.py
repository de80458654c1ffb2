# SPDX-License-Identifier: Apache-2.0
"""What a job does, in a process of its own: it reads its request, works and leaves a result."""

from __future__ import annotations

import errno
import hashlib
import json
import signal
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import (
    LIMIT_BYTES,
    PartNaming,
    canonical,
    parse_checksums,
    select_parts,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
    SupplyError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.fetch import (
    Fetched,
    Fetcher,
    Wanted,
    missing_files,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import Expected
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_load import (
    Docker,
    load_image,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import (
    Origin,
    open_origin,
    read_small,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.share import (
    Sharing,
    open_server,
    serve_until,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import (
    load_memory,
    replace_file,
)

INDEX = "model.safetensors.index.json"
# It names every tensor; the largest served models have some ten MB of it.
INDEX_LIMIT_BYTES = 64 << 20
REQUEST, RESULT, PROGRESS, READY = "request.json", "result.json", "progress.json", "ready.json"


def wanted_files(request: Mapping[str, Any]) -> list[Wanted]:
    """Return the files that a request lists itself."""
    return [Wanted(**file) for file in request.get("files") or []]


def naming_of(request: Mapping[str, Any]) -> PartNaming | None:
    """Return how the parts are named, None for a set whose checksum file says all."""
    naming = request.get("parts")
    return PartNaming(**naming) if naming else None


def remembered(request: Mapping[str, Any]) -> Fetched | None:
    """Return the verified set of an earlier run, None when anything must be fetched.

    It must be whole and be remembered under the same address, else the memory is written anew, for
    which no byte need move. Nothing is read but the files' status.
    """
    folder = Path(request["folder"])
    memory = load_memory(folder)
    if not memory.whole or memory.source != (request.get("label") or request["url"]).rstrip("/"):
        return None
    files = wanted_files(request)
    if not files:
        naming = naming_of(request)
        names = naming.names() if naming else list(memory.files)
        if not names or set(names) - set(memory.files):
            return None
        files = [Wanted(name, memory.files[name].sha256) for name in names]
    if set(memory.files) != {file.name for file in files} or missing_files(folder, files):
        return None
    sized = tuple(
        Wanted(file.name, file.sha256, memory.files[file.name].size_bytes) for file in files
    )
    return Fetched(sized, 0, memory.manifest_sha256, memory.archive_sha256)


def fetch(job: Path, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Bring a set of files into a folder; see :class:`Fetcher`."""
    del job
    url = request["url"]
    origin = open_origin(url, request.get("token", ""), direct=bool(request.get("direct")))
    files = wanted_files(request)
    archive_sha256 = request.get("archive_sha256")
    if not files:
        name = request["checksums"]
        sums = parse_checksums(read_small(origin, name, LIMIT_BYTES), f"{origin.describe()}/{name}")
        naming = naming_of(request)
        if naming:
            pairs, archive_sha256 = select_parts(sums, naming, f"{origin.describe()}/{name}")
        else:
            pairs = list(sums.items())
        files = [Wanted(path, digest) for path, digest in pairs]
    if not (request.get("files") and request.get("direct")):
        # Between nodes the set was judged when it came from outside.
        demand_whole(origin, {file.name for file in files})
    pinned = request.get("manifest_sha256") or ""
    demand_pinned(pinned, [(file.name, file.sha256) for file in files], origin.describe())
    fetcher = Fetcher(
        Path(request["folder"]),
        origin,
        progress,
        connections=int(request.get("connections", 4)),
        label=(request.get("label") or "").rstrip("/"),
    )
    done = fetcher.run(
        files,
        archive_sha256=archive_sha256,
        reserve_bytes=int(request.get("reserve_bytes", 0)),
    )
    return {
        "files": [asdict(file) for file in done.files],
        "moved_bytes": done.moved_bytes,
        "manifest_sha256": done.manifest_sha256,
        "archive_sha256": archive_sha256,
    }


def demand_pinned(pinned: str, pairs: Sequence[tuple[str, str]], source: str) -> None:
    """Refuse another set of files than the pinned one.

    Raises:
        RefusalError: with both digests.
    """
    found = hashlib.sha256(canonical(pairs)).hexdigest()
    if pinned and found != pinned:
        raise RefusalError(
            f"{source}: expected the set of files with digest {pinned}, found {found} over "
            f"{len(pairs)} files; take the pinned weights, or correct weights.manifest_sha256"
        )


def demand_whole(origin: Origin, names: Container[str]) -> None:
    """Refuse a set of weights whose index names shards that the list of files does not.

    Raises:
        RefusalError: with the shards that are missing.
    """
    if INDEX not in names:
        return
    where = f"{origin.describe()}/{INDEX}"
    try:
        shards = set(
            json.loads(read_small(origin, INDEX, INDEX_LIMIT_BYTES))["weight_map"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusalError(f"{where}: expected an index of weights, found {error!r}") from error
    missing = sorted(shard for shard in shards if shard not in names)
    if missing:
        raise RefusalError(
            f"{where}: expected a checksum for each of its {len(shards)} shards, found none for "
            f"{', '.join(missing[:4])}{' and more' if len(missing) > 4 else ''}; the set is not "
            "whole: complete it there"
        )


def load(job: Path, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Load the image from its parts; see :func:`load_image`."""
    del job
    done = load_image(
        Docker(request.get("environment")),
        Path(request["folder"]),
        request["parts"],
        Expected(**request["image"]),
        progress,
    )
    return {"image_id": done.image_id, "layers": list(done.layers), "changed": done.changed}


def share(job: Path, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Hand files out until told to stop; see :mod:`share`."""
    ready = job / READY
    # A sender that was killed comes back on its port, so that receivers need not be told.
    port = json.loads(ready.read_bytes())["port"] if ready.exists() else 0
    server, sharing = open_server(
        Path(request["folder"]), request["names"], request["address"], port, request["token"]
    )
    # The role ends a copy by stopping the unit; it closes then as it does at its own end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    replace_file(ready, json.dumps({"port": server.server_address[1]}).encode(), 0o600)
    progress.stage("share", 0)
    told = 0

    def tell(state: Sharing) -> None:
        nonlocal told
        with state.lock:
            now = state.sent_bytes
        progress.add(now - told)
        told = now

    serve_until(
        server,
        sharing,
        idle_limit_s=float(request["idle_limit_s"]),
        deadline_s=float(request["deadline_s"]),
        tell=tell,
    )
    return {"sent_bytes": sharing.sent_bytes}


KINDS: dict[str, Callable[[Path, Mapping[str, Any], Progress], dict[str, Any]]] = {
    "fetch": fetch,
    "load": load,
    "share": share,
}


def work(job: Path) -> None:
    """Do the job whose request lies in ``job`` and leave its result there.

    Only a refusal or a cut is a result. Anything else ends the process with a traceback in the
    journal, and the unit starts it again.
    """
    request = json.loads((job / REQUEST).read_bytes())
    with Progress(job / PROGRESS) as progress:
        try:
            data = KINDS[request["kind"]](job, request, progress)
            outcome: dict[str, Any] = {"ok": True, "data": data}
        except SupplyError as error:
            outcome = {"ok": False, "message": str(error), "again": isinstance(error, CutError)}
        except OSError as error:
            where = error.filename or request.get("folder") or "the node"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                message = (
                    f"{where}: expected room on its disk, found it full; free space there and run "
                    "again, what was verified is kept"
                )
            else:
                message = f"{where}: {error.strerror}; repair it and run again"
            outcome = {"ok": False, "message": message, "again": False}
    replace_file(job / RESULT, json.dumps(outcome).encode(), 0o600)


def main() -> None:
    """Entry of the job's process: the job's folder is its only argument."""
    work(Path(sys.argv[1]))
