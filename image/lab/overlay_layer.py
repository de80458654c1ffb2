"""The image's topmost layer: the files of vLLM that the project's overlay replaces."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from image.lab import environment
from image.lab.layer import Entry, Layer, write_layer
from image.lab.site_tree import BASE

_REPOSITORY = Path(__file__).parents[2]
OVERLAY = _REPOSITORY / "image" / "overlay"
_PACKAGE = "vllm"


def overlay_sources() -> list[bytes]:
    """Return path and content of each file of the overlay, or nothing when there is none."""
    sources: list[bytes] = []
    for path in sorted(OVERLAY.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sources += [str(path.relative_to(OVERLAY)).encode(), path.read_bytes()]
    return sources


def _digests(tree: Path) -> dict[Path, str]:
    return {
        path.relative_to(tree): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tree.rglob("*.py")
    }


def stage_sources(tree: Path) -> None:
    """Copy the Python files of the environment's vLLM.

    Parameters
    ----------
    tree
        Empty directory that stands for the packages' directory.
    """
    packages = environment.site_packages(environment.ensure_environment())
    shutil.copytree(
        packages / _PACKAGE,
        tree / _PACKAGE,
        ignore=lambda _, names: [
            name
            for name in names
            if name == "__pycache__" or (Path(name).suffix not in {"", ".py"})
        ],
    )


def write_overlay_layer(file: Path, tree: Path) -> tuple[Layer, ...]:
    """Apply the overlay to a copy of the sources and write what it changed.

    Parameters
    ----------
    file
        Takes the layer.
    tree
        The sources as staged by `stage_sources`; they are changed in place.

    Returns
    -------
    tuple[Layer, ...]
        The layer, or nothing when the project has no overlay.

    Raises
    ------
    RuntimeError
        The applier refused, removed a file, or changed nothing.
    """
    if not (OVERLAY / "apply.py").is_file():
        return ()
    before = _digests(tree)
    applied = subprocess.run(
        [sys.executable, "-m", "image.overlay.apply", str(tree)],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if applied.returncode != 0:
        raise RuntimeError(f"the overlay does not apply:\n{applied.stdout}{applied.stderr}")
    after = _digests(tree)
    if removed := sorted(map(str, before.keys() - after.keys())):
        raise RuntimeError(f"the overlay removed {', '.join(removed)}, which a layer cannot show")
    changed = [path for path, digest in sorted(after.items()) if before.get(path) != digest]
    if not changed:
        raise RuntimeError("the overlay changed no file")
    return (write_layer(file, _entries(tree, changed), "the appliance's overlay on vLLM"),)


def _entries(tree: Path, changed: list[Path]) -> Iterator[Entry]:
    for path in changed:
        yield Entry(f"{BASE}/{path}", tree / path)
