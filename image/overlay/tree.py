# SPDX-License-Identifier: Apache-2.0
"""The overlay's judgement of a tree: which files are as released, as overlaid, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from image.overlay.edits import ADDED, EDITS
from image.overlay.manifest import Manifest, digest


class OverlayError(Exception):
    """The overlay refuses; the message says what was expected, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class TreeState:
    """The overlay's files as found.

    Parameters:
        released: edited files as released, and added files that are absent.
        overlaid: files as the overlay leaves them.
    """

    released: frozenset[str]
    overlaid: frozenset[str]


def read(tree: Path, path: str) -> bytes | None:
    """Return a file's content, or None when it is absent.

    Raises:
        OverlayError: it is a link, or a folder on the way is; or it cannot be read.
    """
    file = tree / path
    for part in (file, *file.parents):
        if part == tree:
            break
        if part.is_symlink():
            raise OverlayError(f"{part} is a link; the overlay only writes plain files in the tree")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OverlayError(f"{file} cannot be read: {error}") from error


def examine(tree: Path, manifest: Manifest) -> TreeState:
    """Sort the overlay's files by their hashes.

    Parameters:
        tree: folder that holds the package ``vllm``.
        manifest: the sealed manifest.

    Raises:
        OverlayError: a file is neither as released nor as overlaid.
    """
    released, overlaid, faults = set(), set(), []
    for path, sealed in sorted(manifest.after.items()):
        content = read(tree, path)
        found = None if content is None else digest(content)
        original = manifest.before.get(path)
        if found == sealed:
            overlaid.add(path)
        elif found == original:
            released.add(path)
        else:
            expected = f"sha256 {original}" if original else "no such file"
            faults.append(f"{path}: expected {expected} or {sealed}, found {found or 'no file'}")
    for path, sealed in sorted(manifest.relied_on.items()):
        content = read(tree, path)
        found = "no file" if content is None else digest(content)
        if found != sealed:
            faults.append(f"{path}: expected sha256 {sealed}, found {found}")
    if faults:
        raise OverlayError(
            f"{tree} is not vLLM {manifest.release} as released, nor with this overlay:\n  "
            + "\n  ".join(faults)
            + f"\nNothing was written; install vllm=={manifest.release} anew and apply again."
        )
    return TreeState(frozenset(released), frozenset(overlaid))


def replace_once(path: str, text: str, old: str, new: str) -> str:
    """Replace a text that occurs exactly once.

    Raises:
        OverlayError: it occurs never or more often.
    """
    if (count := text.count(old)) != 1:
        raise OverlayError(f"{path}: expected the anchor once, found it {count} times: {old!r}")
    return text.replace(old, new)


def edited(path: str, released: bytes) -> bytes:
    """Return a released file with its edits.

    Raises:
        OverlayError: an anchor does not occur exactly once.
    """
    text = released.decode()
    for edit in EDITS:
        if edit.path == path:
            text = replace_once(path, text, edit.before, edit.after)
    return text.encode()


def restored(path: str, overlaid: bytes) -> bytes:
    """Return an overlaid file without its edits.

    Raises:
        OverlayError: an edit does not occur exactly once.
    """
    text = overlaid.decode()
    for edit in reversed(EDITS):
        if edit.path == path:
            text = replace_once(path, text, edit.after, edit.before)
    return text.encode()


def stage_overlaid(tree: Path, state: TreeState, manifest: Manifest) -> dict[str, bytes | None]:
    """Return, in memory, the files that applying has to write, checked against the manifest.

    Raises:
        OverlayError: a result is not the sealed one.
    """
    staged: dict[str, bytes | None] = {}
    for path in sorted(state.released):
        source = ADDED.get(path)
        content = source.read_bytes() if source else edited(path, read(tree, path) or b"")
        staged[path] = content
    _compare(staged, manifest.after)
    return staged


def stage_released(tree: Path, state: TreeState, manifest: Manifest) -> dict[str, bytes | None]:
    """Return, in memory, what reverting has to write; None for a file to remove.

    Raises:
        OverlayError: a result is not the released one.
    """
    staged: dict[str, bytes | None] = {
        path: None if path in ADDED else restored(path, read(tree, path) or b"")
        for path in sorted(state.overlaid)
    }
    _compare(staged, manifest.before)
    return staged


def _compare(staged: Mapping[str, bytes | None], sealed: Mapping[str, str]) -> None:
    for path, content in staged.items():
        found = None if content is None else digest(content)
        if found != sealed.get(path):
            raise OverlayError(
                f"{path}: the result has sha256 {found}, the sealed manifest says"
                f" {sealed.get(path)}; nothing was written. After a change to the overlay's own"
                " files, run python -m image.overlay.seal"
            )
