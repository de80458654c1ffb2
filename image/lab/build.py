"""Build the lab's release: image parts with checksums, weights, and the release's description.

``make lab-image`` prints the release's directory, which a plain file server can serve::

    lab/              <archive>.part-00.bin … part-03.bin, SHA256SUMS
    weights/lab/      the checkpoint, SHA256SUMS
    lab.yml           the release's description, copied to image/releases/
    lab.sha256        sealed manifest of the files that the overlay may replace, copied likewise

Nothing is built whose inputs are in the cache already.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from image.lab import cache, environment, overlay_layer, release
from image.lab.archive import ImageConfig, image_config, write_archive
from image.lab.layer import Entry, Layer, write_layer
from image.lab.progress import file_bytes, run_logged, ticking, tree_bytes
from image.lab.rootfs import ensure_root
from image.lab.site_tree import CACHE, ensure_site_layer, host_instruction_set
from image.lab.split import split_archive

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[1]
_RELEASES = _REPOSITORY / "image" / "releases"
_CURRENT = _REPOSITORY / ".lab" / "release"
# Level 3 packs within a tenth of what level 9 does, several times faster.
_ZSTD = ("zstd", "--threads=0", "-3", "--quiet", "--force")

_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    # Each start is a new container: bytecode written there would never be read.
    "PYTHONDONTWRITEBYTECODE": "1",
    "VLLM_CACHE_ROOT": CACHE,
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# The files of vLLM that speculation depth and graph coverage depend on.
_SEALED_SOURCES = (
    "vllm/config/speculative.py",
    "vllm/config/vllm.py",
    "vllm/v1/core/sched/async_scheduler.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/spec_decode/dynamic/utils.py",
    "vllm/v1/worker/gpu/cudagraph_utils.py",
    "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py",
    "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py",
)


def _sha256(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def provenance(kernels: str) -> dict[str, str]:
    """Digest the inputs of a build.

    Parameters
    ----------
    kernels
        The instruction set whose library is taken.

    Returns
    -------
    dict[str, str]
        Hexadecimal SHA-256 of the lock, the builder and the overlay (``none`` without one), and
        the instruction set.
    """
    overlay = overlay_layer.overlay_sources()
    return {
        "lock_sha256": _sha256([environment.LOCK.read_bytes()]),
        "builder_sha256": _sha256([path.read_bytes() for path in sorted(_HERE.glob("*.py"))]),
        "overlay_sha256": _sha256(overlay) if overlay else "none",
        "instruction_set": kernels,
    }


def _write_weights(directory: Path, log: Path) -> None:
    directory.mkdir(parents=True)
    python = environment.ensure_environment() / "bin" / "python"
    run_logged(
        "lab-image: checkpoint",
        [str(python), "-m", "image.lab.checkpoint", str(directory)],
        log,
        lambda: tree_bytes(directory),
        cwd=_REPOSITORY,
    )


def _compress(archive: Path, reference: str, config: ImageConfig, layers: Sequence[Layer]) -> None:
    """Write the archive through zstd into a file."""
    argv = [*_ZSTD, "-o", str(archive)]
    with (
        ticking("lab-image: archive", lambda: file_bytes(archive)),
        subprocess.Popen(argv, stdin=subprocess.PIPE) as zstd,
    ):
        if zstd.stdin is None:
            raise RuntimeError("zstd has no standard input")
        write_archive(zstd.stdin, reference, config, layers)
        zstd.stdin.close()
        if zstd.wait() != 0:
            raise RuntimeError(f"zstd ended with {zstd.returncode}")


def _sealed(tree: Path) -> str:
    """Return the sealed manifest: a digest for each file that matters, as the image holds it."""
    lines = [f"{_sha256([(tree / path).read_bytes()])}  {path}\n" for path in _SEALED_SOURCES]
    return "".join(lines)


def _build(entry: Path, key: str, inputs: dict[str, str]) -> None:
    scratch = entry / "scratch"
    tree = scratch / "sources"
    tree.mkdir(parents=True)
    root = ensure_root()
    site = ensure_site_layer(inputs["instruction_set"])
    note = Entry(release.PROVENANCE, release.provenance_file(inputs))
    noted = write_layer(scratch / "provenance.tar", [note], "digests of the build's inputs")
    overlay_layer.stage_sources(tree)
    overlay = overlay_layer.write_overlay_layer(scratch / "overlay.tar", tree)
    layers = (root, site, noted, *overlay)
    config = image_config(layers, "amd64", _ENV, release.image_labels(key, inputs))
    archive = scratch / release.ARCHIVE
    _compress(archive, release.reference(key), config, layers)
    parts = entry / release.NAME
    parts.mkdir()
    with ticking("lab-image: parts", lambda: tree_bytes(parts)):
        archive_bytes = split_archive(archive, parts, release.PARTS)
    _write_weights(entry / "weights" / release.NAME, entry / "build.log")
    sealed = _sealed(tree)
    built = release.Built(
        key=key,
        config=config,
        archive_bytes=archive_bytes,
        image_bytes=sum(layer.file.stat().st_size for layer in layers),
        provenance=inputs,
        sealed=sealed,
    )
    (entry / release.SEALED).write_text(sealed)
    (entry / f"{release.NAME}.yml").write_text(release.describe(built))
    shutil.rmtree(scratch)


def _publish(entry: Path) -> None:
    """Let this working tree use a release: its description, and a link for the file server."""
    for name in (f"{release.NAME}.yml", release.SEALED):
        content = (entry / name).read_bytes()
        target = _RELEASES / name
        if not target.exists() or target.read_bytes() != content:
            target.write_bytes(content)
    _CURRENT.parent.mkdir(exist_ok=True)
    if not _CURRENT.is_symlink() or _CURRENT.readlink() != entry:
        fresh = _CURRENT.with_name("release.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(entry)
        fresh.replace(_CURRENT)


def ensure_release() -> Path:
    """Build the release unless it exists, and publish it to this working tree.

    Returns
    -------
    Path
        The release's directory in the cache.

    Raises
    ------
    RuntimeError
        A tool is missing or a step failed.
    """
    inputs = provenance(host_instruction_set())
    key = cache.content_key([f"{name}={digest}" for name, digest in inputs.items()])
    entry = cache.cache_root() / f"lab-release-{key}"
    with cache.building(entry) as needed:
        if needed:
            _build(entry, key, inputs)
            for kind in ("lab-root", "lab-site", "lab-release"):
                cache.prune(kind)
    _publish(entry)
    return entry


def main() -> int:
    """Build the release when it is missing and print its directory."""
    try:
        print(ensure_release())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
