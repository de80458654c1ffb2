# SPDX-License-Identifier: Apache-2.0
"""Apply the overlay to an installed vLLM, take it off again, or say which of both it is.

    python -m image.overlay.apply TREE [--check | --revert]

``TREE`` is the folder that holds the package ``vllm`` (``site-packages``). Exit status: 0 done,
nothing to do, or ``--check`` found the overlay; 1 refused, nothing written; 2 usage; 3 ``--check``
found vLLM as released; 4 writing broke off: run the same command again, it picks up the work.

Every file is judged by its sha256 first, every result is computed in memory and compared with the
sealed manifest, and only then is anything written: each file whole, by a rename. A mark in the tree
says that writing is under way, so that a tree left half written by a kill is told from one that
something else changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from image.overlay.manifest import Manifest, digest, load_manifest
from image.overlay.tree import (
    OverlayError,
    TreeState,
    examine,
    stage_overlaid,
    stage_released,
)

MARK = "vllm/.overlay-in-progress"
REFUSED, RELEASED, BROKE_OFF = 1, 3, 4


class WriteError(Exception):
    """Writing broke off; the mark is in the tree and a further run picks up the work."""


def change(tree: Path, manifest: Manifest, *, revert: bool = False) -> list[str]:
    """Bring a tree to the overlaid state, or back to the released one.

    Parameters:
        tree: folder that holds the package ``vllm``.
        manifest: the sealed manifest.
        revert: take the overlay off.

    Returns:
        Paths written or removed, in order; empty when there was nothing to do.

    Raises:
        OverlayError: refused, nothing written.
        WriteError: writing broke off.
    """
    state = examine(tree, manifest)
    _refuse_mixture(tree, state, manifest)
    stage = stage_released if revert else stage_overlaid
    staged = stage(tree, state, manifest)
    mark = tree / MARK
    if staged:
        try:
            _write(mark, digest(manifest.text().encode()).encode())
        except OSError as error:
            raise OverlayError(f"{tree} cannot be written: {error}; nothing was changed") from error
    try:
        for path, content in staged.items():
            _put(tree / path, content)
        for path in manifest.after:
            _drop_bytecode(tree / path)
        _verify(tree, manifest, revert=revert)
        mark.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(f"writing {tree} broke off: {error}; run the command again") from error
    return list(staged)


def check(tree: Path, manifest: Manifest) -> bool:
    """Return whether the tree carries the overlay; False when it is as released.

    Raises:
        OverlayError: it is neither.
    """
    state = examine(tree, manifest)
    if (tree / MARK).exists():
        raise OverlayError(f"{tree / MARK} says that writing broke off; apply or revert again")
    _refuse_mixture(tree, state, manifest)
    return not state.released


def _refuse_mixture(tree: Path, state: TreeState, manifest: Manifest) -> None:
    try:
        mark = (tree / MARK).read_text()
    except FileNotFoundError:
        mark = None
    if mark is not None and mark not in {"", digest(manifest.text().encode())}:
        raise OverlayError(
            f"{tree / MARK} was left by another version of the overlay; install vLLM anew"
        )
    if state.released and state.overlaid and mark is None:
        raise OverlayError(
            f"{tree} is half overlaid: {', '.join(sorted(state.overlaid))} carry the overlay,"
            f" {', '.join(sorted(state.released))} do not; install"
            f" vllm=={manifest.release} anew and apply again"
        )


def _write(file: Path, content: bytes) -> None:
    mode = file.stat().st_mode & 0o7777 if file.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _put(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        _write(file, content)


def _drop_bytecode(file: Path) -> None:
    for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        cached.unlink()


def _verify(tree: Path, manifest: Manifest, *, revert: bool) -> None:
    try:
        state = examine(tree, manifest)
    except OverlayError as error:
        raise WriteError(f"the tree changed while it was written: {error}") from error
    if wrong := state.overlaid if revert else state.released:
        raise WriteError(f"{tree}: {', '.join(sorted(wrong))} are not as they were written")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the module's own text."""
    parser = argparse.ArgumentParser(prog="python -m image.overlay.apply")
    parser.add_argument("tree", type=Path, help="folder that holds the package vllm")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--check", action="store_true", help="say what the tree is, write nothing")
    way.add_argument("--revert", action="store_true", help="take the overlay off")
    options = parser.parse_args(arguments)
    if not (options.tree / "vllm").is_dir():
        parser.error(f"{options.tree} holds no package vllm")
    try:
        manifest = load_manifest()
        if options.check:
            overlaid = check(options.tree, manifest)
            print(f"vLLM {manifest.release} {'with the overlay' if overlaid else 'as released'}")
            return 0 if overlaid else RELEASED
        for path in change(options.tree, manifest, revert=options.revert):
            print(path)
    except OverlayError as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    except WriteError as error:
        print(error, file=sys.stderr)
        return BROKE_OFF
    return 0


if __name__ == "__main__":
    sys.exit(main())
