"""The applier: all or nothing, on a tree of the pinned release's own sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from image.lab import cache, environment
from image.overlay import apply
from image.overlay.edits import ADDED, EDITS, RELIED_ON
from image.overlay.manifest import Manifest, digest, load_manifest
from image.overlay.seal import added, seal
from image.overlay.tree import OverlayError

pytestmark = pytest.mark.vllm
EDITED = sorted({edit.path for edit in EDITS})


@pytest.fixture(scope="session")
def packages() -> Path:
    """The packages of the pinned environment; only read."""
    found = environment.environment_path()
    if not cache.is_complete(found):
        pytest.fail(f"{found} is missing: run make vllm-env")
    return environment.site_packages(found)


@pytest.fixture
def tree(packages: Path, tmp_path: Path) -> Path:
    """The overlay's files as released, in a tree of their own."""
    for path in (*EDITED, *RELIED_ON):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packages / path, tmp_path / path)
    return tmp_path


@pytest.fixture
def manifest() -> Manifest:
    """The sealed manifest."""
    return load_manifest()


def contents(tree: Path) -> dict[str, bytes]:
    """Return every file of a tree."""
    files = (path for path in tree.rglob("*") if path.is_file())
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}


def test_the_manifest_is_the_one_that_the_release_and_the_sources_give(
    packages: Path, manifest: Manifest
) -> None:
    """After a change to the overlay, python -m image.overlay.seal writes it anew."""
    assert seal(packages) == manifest


def test_apply_then_again_then_revert(tree: Path, manifest: Manifest) -> None:
    """Writes eleven files, then none, then the released bytes are back."""
    released = contents(tree)
    assert not apply.check(tree, manifest)
    assert sorted(apply.change(tree, manifest)) == sorted(manifest.after)
    overlaid = contents(tree)
    assert {path: digest(overlaid[path]) for path in manifest.after} == manifest.after
    assert apply.check(tree, manifest)
    assert apply.change(tree, manifest) == []
    assert contents(tree) == overlaid
    assert sorted(apply.change(tree, manifest, revert=True)) == sorted(manifest.after)
    assert contents(tree) == released


@pytest.mark.parametrize("path", [*EDITED, *RELIED_ON])
def test_one_byte_anywhere_refuses_and_touches_nothing(
    tree: Path, manifest: Manifest, path: str
) -> None:
    """A file of another release, or a patched one."""
    file = tree / path
    file.write_bytes(file.read_bytes() + b"\n")
    before = contents(tree)
    with pytest.raises(OverlayError, match=f"(?s)is not vLLM 0.32.0.*{path}.*install vllm==0.32.0"):
        apply.change(tree, manifest)
    assert contents(tree) == before


@pytest.mark.parametrize("path", [EDITED[0], RELIED_ON[0]])
def test_a_missing_file_refuses(tree: Path, manifest: Manifest, path: str) -> None:
    """And says so."""
    (tree / path).unlink()
    with pytest.raises(OverlayError, match="found no file"):
        apply.change(tree, manifest)


def test_a_foreign_file_where_one_is_added_refuses(tree: Path, manifest: Manifest) -> None:
    """Nothing is overwritten that was not known."""
    path = next(iter(ADDED))
    (tree / path).write_text("mine\n")
    with pytest.raises(OverlayError, match="expected no such file"):
        apply.change(tree, manifest)
    assert (tree / path).read_text() == "mine\n"


def test_a_half_overlaid_tree_refuses_both_ways(tree: Path, manifest: Manifest) -> None:
    """One file taken back by hand: neither state, and no mark that says who did it."""
    original = (tree / EDITED[0]).read_bytes()
    apply.change(tree, manifest)
    (tree / EDITED[0]).write_bytes(original)
    before = contents(tree)
    for revert in (False, True):
        with pytest.raises(OverlayError, match="half overlaid"):
            apply.change(tree, manifest, revert=revert)
    with pytest.raises(OverlayError, match="half overlaid"):
        apply.check(tree, manifest)
    assert contents(tree) == before


@pytest.mark.parametrize("writes", range(1, 13))
@pytest.mark.parametrize("revert", [False, True])
def test_a_kill_at_any_write_is_picked_up(
    tree: Path, manifest: Manifest, writes: int, revert: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at its n-th rename or removal, the next run finishes, and --check says it must."""
    if revert:
        apply.change(tree, manifest)
    left = writes

    class Killed(BaseException):
        """Stands for the signal: no handler of the applier may catch it."""

    def counted(file: Path, content: bytes | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        put(file, content)

    put = apply._put
    monkeypatch.setattr(apply, "_put", counted)
    if writes <= len(manifest.after):
        with pytest.raises(Killed):
            apply.change(tree, manifest, revert=revert)
        with pytest.raises(OverlayError, match="broke off"):
            apply.check(tree, manifest)
    monkeypatch.undo()
    apply.change(tree, manifest, revert=revert)
    assert apply.check(tree, manifest) is not revert
    assert not (tree / apply.MARK).exists()


def test_a_mark_of_another_overlay_refuses(tree: Path, manifest: Manifest) -> None:
    """Its half-written files could be anything."""
    (tree / apply.MARK).write_text("0" * 64)
    with pytest.raises(OverlayError, match="another version"):
        apply.change(tree, manifest)


def test_stale_bytecode_is_dropped(tree: Path, manifest: Manifest) -> None:
    """For the files that changed, and for no other."""
    cached = (tree / EDITED[0]).parent / "__pycache__"
    cached.mkdir()
    stem = Path(EDITED[0]).stem
    for name in (f"{stem}.cpython-312.pyc", "other.cpython-312.pyc"):
        (cached / name).write_bytes(b"old")
    apply.change(tree, manifest)
    assert [file.name for file in cached.iterdir()] == ["other.cpython-312.pyc"]


def test_a_link_in_the_tree_refuses(tree: Path, manifest: Manifest, tmp_path: Path) -> None:
    """What it points to may serve another installation."""
    file = tree / EDITED[0]
    target = tmp_path / "shared.py"
    file.rename(target)
    file.symlink_to(target)
    with pytest.raises(OverlayError, match="is a link"):
        apply.change(tree, manifest)


def test_an_edit_keeps_the_mode_and_breaks_hard_links(tree: Path, manifest: Manifest) -> None:
    """A package cache that shares the file keeps its own content."""
    file, twin = tree / EDITED[0], tree / "twin"
    file.chmod(0o640)
    os.link(file, twin)
    before = twin.read_bytes()
    apply.change(tree, manifest)
    assert file.stat().st_mode & 0o777 == 0o640
    assert twin.read_bytes() == before


def test_a_tree_that_cannot_be_written_refuses(
    tree: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is the first write; root passes permissions, so the error is the file system's."""

    def refuse(file: Path, _content: bytes) -> None:
        raise OSError(30, "Read-only file system", str(file))

    before = contents(tree)
    monkeypatch.setattr(apply, "_write", refuse)
    with pytest.raises(OverlayError, match=r"Read-only file system: .*; nothing was changed"):
        apply.change(tree, manifest)
    assert contents(tree) == before


def test_the_command_line(tree: Path) -> None:
    """Exit statuses 3, 0, 0, 1 and 2, with one message each."""

    def run(*arguments: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "image.overlay.apply", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False,
                              cwd=Path(__file__).parents[3])  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert run(str(tree), "--check") == (3, "vLLM 0.32.0 as released\n")
    assert run(str(tree))[0] == 0
    assert run(str(tree), "--check") == (0, "vLLM 0.32.0 with the overlay\n")
    (tree / EDITED[0]).write_text("")
    status, text = run(str(tree), "--check")
    assert (status, text.startswith("refused: ")) == (1, True)
    assert run(str(tree / "nowhere"))[0] == 2


def test_added_files_are_sealed_as_they_are(manifest: Manifest) -> None:
    """The shapes module among them is the recipe's own."""
    assert added().items() <= manifest.after.items()
    shapes = next(source for path, source in ADDED.items() if path.endswith("decode_shapes.py"))
    assert shapes.resolve().parts[-2:] == ("plugin_utils", "shapes.py")
