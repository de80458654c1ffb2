# SPDX-License-Identifier: Apache-2.0
"""Parts → hash → join → ``zstd -d`` → proof → ``docker load``, in one pass and without a copy."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ansible_collections.spark.appliance.plugins.module_utils._facts.docker import (
    config_digest,
    image_store,
    uses_containerd_store,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    ENVIRONMENT,
    Unknown,
    open_host,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import (
    Expected,
    stream_archive,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.room import (
    RESERVE_BYTES,
    demand_room,
    docker_need_bytes,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.tar_walk import (
    BLOCK_BYTES,
    TruncatedError,
)

CHUNK_BYTES = 1 << 20
_EVICT_BYTES = 64 << 20
_BREAK_OFF_S = 60.0
KEEP_LABEL = "org.spark-appliance.keep"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The image as Docker holds it.

    Parameters:
        image_id: Docker's id: the config's digest, or that of a manifest in containerd's store.
        layers: diff ids.
        changed: it was not there before.
    """

    image_id: str
    layers: tuple[str, ...]
    changed: bool


class Docker:
    """The few commands of the Docker CLI that a load needs.

    Parameters:
        environment: variables of the CLI's process.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = environment or ENVIRONMENT

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["docker", *argv],
                env=self._environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        except FileNotFoundError as error:
            raise RefusalError("expected Docker, found no docker command; install it") from error
        except subprocess.TimeoutExpired as error:
            raise CutError(f"docker {argv[0]}: no answer in 120 s; look at its journal") from error

    def info(self) -> dict[str, Any]:
        """Return ``docker info``.

        Raises:
            CutError: the engine does not answer.
        """
        done = self._run("info", "--format", "{{json .}}")
        try:
            info: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            info = {}
        if done.returncode or not info.get("DockerRootDir"):
            said = " ".join((done.stderr or "; ".join(info.get("ServerErrors") or [])).split())[
                :200
            ]
            raise CutError(f"expected Docker to answer, found: {said}; start docker.service")
        return info

    def inspect(self, name: str) -> dict[str, Any] | None:
        """Return ``docker image inspect``, None when there is no such image.

        Raises:
            CutError: the engine does not answer.
        """
        done = self._run("image", "inspect", name)
        if done.returncode:
            if "no such image" in done.stderr.lower():
                return None
            raise CutError(f"docker image inspect: {' '.join(done.stderr.split())[:200]}")
        return cast(dict[str, Any], json.loads(done.stdout)[0])

    def tag(self, name: str, reference: str) -> None:
        """Give an image a name.

        Raises:
            CutError: the engine refused.
        """
        done = self._run("tag", name, reference)
        if done.returncode:
            raise CutError(f"docker tag: {' '.join(done.stderr.split())[:200]}")

    def config_digest(self, info: dict[str, Any], shown: dict[str, Any]) -> str | None:
        """Return the digest of an image's config, whichever store holds it."""
        try:
            return config_digest(open_host("/"), info, shown["Id"], shown["Architecture"])
        except Unknown:
            return None

    def _keepers(self) -> list[str]:
        done = self._run(
            "container", "ls", "--all", "--filter", f"label={KEEP_LABEL}", "--format", "{{.Names}}"
        )
        if done.returncode:
            raise CutError(f"docker container ls: {' '.join(done.stderr.split())[:200]}")
        return done.stdout.split()

    def keeps(self, digest: str) -> bool:
        """Tell whether an image is protected by ``keep``.

        Raises:
            CutError: the engine does not answer.
        """
        return _keeper(digest) in self._keepers()

    def keep(self, reference: str, digest: str) -> None:
        """Protect an image from ``docker image prune --all`` by a container that never starts.

        The two newest such containers stay: that of the image to come and that of the one before.

        Raises:
            CutError: the engine refused.
        """
        name = _keeper(digest)
        # Newest first, as the engine lists them.
        names = self._keepers()
        if name not in names:
            done = self._run(
                "create",
                "--pull=never",
                f"--name={name}",
                f"--label={KEEP_LABEL}={digest}",
                "--network=none",
                reference,
                "/keeps-the-image-from-being-pruned",
            )
            if done.returncode:
                raise CutError(f"docker create: {' '.join(done.stderr.split())[:200]}")
            names.insert(0, name)
        for old in names[2:]:
            self._run("container", "rm", old)

    def load(self) -> subprocess.Popen[bytes]:
        """Start ``docker load``, which reads its standard input."""
        return subprocess.Popen(
            ["docker", "load", "--quiet"],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )


def _keeper(digest: str) -> str:
    return f"spark-keep-{digest.removeprefix('sha256:')[:12]}"


def present_image(docker: Docker, expected: Expected, *, rename: bool) -> Loaded | None:
    """Return the image where Docker has it already.

    Parameters:
        docker: the engine.
        expected: the image.
        rename: give it its name again when only that is gone.
    """
    info = docker.info()
    shown = docker.inspect(expected.reference)
    if shown is not None and docker.config_digest(info, shown) == expected.config_digest:
        return Loaded(shown["Id"], tuple(shown["RootFS"]["Layers"]), changed=False)
    if uses_containerd_store(info):
        return None
    shown = docker.inspect(expected.config_digest)
    if shown is None:
        return None
    if rename:
        docker.tag(expected.config_digest, expected.reference)
    return Loaded(shown["Id"], tuple(shown["RootFS"]["Layers"]), changed=True)


def load_image(
    docker: Docker,
    folder: Path,
    parts: Sequence[str],
    expected: Expected,
    progress: Progress,
) -> Loaded:
    """Load an image from the parts of its archive, unless Docker has it.

    Parameters:
        docker: the engine.
        folder: where the parts lie.
        parts: their names in joining order.
        expected: the image that they must hold.
        progress: counts compressed bytes.

    Raises:
        RefusalError: the archive or the node is not as expected; Docker has no new image.
        CutError: Docker or zstd went away.
    """
    present = present_image(docker, expected, rename=True)
    if present is not None:
        docker.keep(expected.reference, expected.config_digest)
        return present
    info = docker.info()
    demand_room(
        Path(image_store(open_host("/"), info)),
        docker_need_bytes(expected.size_bytes) + RESERVE_BYTES,
        "Docker to load the image",
    )
    progress.stage("load", sum((folder / part).stat().st_size for part in parts))
    layers = _pipe(docker, folder, parts, expected, progress)
    loaded = _prove_loaded(docker, info, expected, layers)
    docker.keep(expected.reference, expected.config_digest)
    return loaded


def _pipe(
    docker: Docker,
    folder: Path,
    parts: Sequence[str],
    expected: Expected,
    progress: Progress,
) -> tuple[str, ...]:
    try:
        zstd = subprocess.Popen(
            # The window of a frame made with --long=31 is 2 GiB; memory for it would starve the
            # engine, so the default limit of 128 MiB stays and a larger one is refused by zstd.
            ["zstd", "--decompress", "--stdout", "--quiet"],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
    except FileNotFoundError as error:
        raise RefusalError("expected zstd, found none; install the package zstd") from error
    _widen(zstd.stdin, zstd.stdout)
    feeder = _Feeder(folder, parts, cast(IO[bytes], zstd.stdin), progress)
    loader = docker.load()
    docker_input = cast(IO[bytes], loader.stdin)
    _widen(docker_input)

    def release() -> None:
        feeder.join()
        _judge_unpacking(zstd, feeder, expected)

    try:
        feeder.start()
        try:
            layers = stream_archive(
                cast(IO[bytes], zstd.stdout),
                expected,
                lambda raw: _send(docker_input, raw),
                release,
            )
        except TruncatedError:
            # A part that fails to unpack looks like a cut archive; the cause is the better message.
            _break_off(loader)
            release()
            raise
        docker_input.close()
        # The engine extracts layers after it has the whole archive, which no counter shows.
        progress.stage("register", 0)
        said = _outcome(loader)
        if loader.returncode:
            raise _load_error(said)
    except BrokenPipeError as error:
        raise _load_error(_outcome(loader)) from error
    finally:
        _break_off(loader)
        _kill(zstd)
        feeder.join()
        for pipe in (loader.stdin, loader.stdout, loader.stderr, zstd.stdout, zstd.stderr):
            if pipe is not None:
                pipe.close()
    return layers


class _Feeder(threading.Thread):
    """Reads the parts once, hashes the joined archive and feeds it to zstd."""

    def __init__(
        self, folder: Path, parts: Sequence[str], sink: IO[bytes], progress: Progress
    ) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._parts = parts
        self._sink = sink
        self._progress = progress
        self._hasher = hashlib.sha256()
        self.error: OSError | None = None

    @property
    def sha256(self) -> str:
        """Digest of the joined archive so far."""
        return self._hasher.hexdigest()

    def run(self) -> None:
        try:
            for part in self._parts:
                self._feed(self._folder / part)
        except BrokenPipeError:
            # zstd ended early; its exit status and message say why.
            pass
        except OSError as error:
            self.error = error
        finally:
            try:
                self._sink.close()
            except OSError as error:
                self.error = self.error or error

    def _feed(self, path: Path) -> None:
        with path.open("rb", buffering=0) as stream:
            offset = dropped = 0
            while chunk := stream.read(CHUNK_BYTES):
                self._hasher.update(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[self._sink.write(view) :]
                offset += len(chunk)
                self._progress.add(len(chunk))
                if offset - dropped >= _EVICT_BYTES:
                    os.posix_fadvise(stream.fileno(), 0, offset, os.POSIX_FADV_DONTNEED)
                    dropped = offset
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _widen(*pipes: IO[bytes] | None) -> None:
    """Let pipes hold 1 MiB instead of 64 KiB: fewer switches between the processes."""
    for pipe in pipes:
        if pipe is not None:
            # A limit of the system on pipe memory leaves them as they are.
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, CHUNK_BYTES)


def _send(pipe: IO[bytes], raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[pipe.write(view) :]


def _break_off(loader: subprocess.Popen[bytes]) -> None:
    """End a load that must not succeed, where it has not ended.

    An engine that finds the archive broken drops what it got within seconds. One whose client is
    killed keeps the layers for a day, in a lease of containerd. So the archive ends in a header
    that no tar can have, and not cleanly, which could pass for a whole one.
    """
    if loader.poll() is None:
        timer = threading.Timer(_BREAK_OFF_S, loader.kill)
        timer.start()
        pipe = cast(IO[bytes], loader.stdin)
        with contextlib.suppress(BrokenPipeError):
            if not pipe.closed:
                _send(pipe, b"\xff" * BLOCK_BYTES)
                pipe.close()
        loader.wait()
        timer.cancel()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _outcome(process: subprocess.Popen[bytes]) -> str:
    out = cast(IO[bytes], process.stdout).read()
    err = cast(IO[bytes], process.stderr).read()
    process.wait()
    return " ".join((err or out).decode(errors="replace").split())[:300]


def _judge_unpacking(zstd: subprocess.Popen[bytes], feeder: _Feeder, expected: Expected) -> None:
    if feeder.error is not None:
        raise CutError(f"a part became unreadable: {feeder.error}; check the disk and run again")
    # Its output ended, so it ends too; a process that does not is broken.
    code = zstd.wait(timeout=60)
    if code:
        said = cast(IO[bytes], zstd.stderr).read().decode(errors="replace")
        raise RefusalError(
            f"archive: expected zstd frames, found: {' '.join(said.split())[:200]}; take the "
            "archive from its publisher again; nothing was registered"
        )
    if expected.archive_sha256 and feeder.sha256 != expected.archive_sha256:
        raise RefusalError(
            f"archive: expected sha256 {expected.archive_sha256}, found {feeder.sha256}: its parts "
            "are not joined as they were split; correct the parts' order in the checksum file"
        )


def _load_error(said: str) -> RefusalError | CutError:
    if "no space left" in said:
        return RefusalError(
            f"docker load: expected room on Docker's disk, found: {said}; free space and run again"
        )
    return CutError(f"docker load: {said or 'ended without a word'}; see docker.service's journal")


def _prove_loaded(
    docker: Docker, info: dict[str, Any], expected: Expected, layers: tuple[str, ...]
) -> Loaded:
    shown = docker.inspect(expected.reference)
    if shown is None:
        raise CutError(
            f"docker load said it loaded {expected.reference}, found no such image; see "
            "docker.service's journal and free space, then run again"
        )
    found = docker.config_digest(info, shown)
    differing = [
        f"{name} {have} instead of {want}"
        for name, have, want in (
            ("config digest", found, expected.config_digest),
            ("architecture", shown["Architecture"], expected.architecture),
            ("os", shown["Os"], expected.os),
            ("layers", tuple(shown["RootFS"]["Layers"]), layers),
        )
        if have != want
    ]
    if differing:
        raise RefusalError(
            f"{expected.reference}: loaded, and found with {'; '.join(differing)[:300]}; remove it "
            "with docker image rm and see docker.service's journal"
        )
    return Loaded(shown["Id"], layers, changed=True)
