from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts import host
from ansible_collections.spark.appliance.plugins.module_utils._supply import room
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import Expected
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_load import (
    Docker,
    Loaded,
    load_image,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress

from tests.unit.module_utils.supply_archives import Built, classic, oci

STAND_IN = Path(__file__).with_name("docker_stand_in.py")


@dataclass(frozen=True, slots=True)
class Node:
    """A node whose Docker is the stand-in of this folder; the parts and zstd are real."""

    folder: Path
    docker: Docker

    def images(self) -> dict[str, Any]:
        path = self.folder / "images.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def mood(self, how: str) -> None:
        (self.folder / "mood.json").write_text(json.dumps(how))

    def received(self) -> set[str]:
        """Members that reached Docker as a whole archive, if any did."""
        path = self.folder / "received.tar"
        if not path.exists():
            return set()
        try:
            with tarfile.open(fileobj=io.BytesIO(path.read_bytes()), mode="r:") as archive:
                return set(archive.getnames())
        except tarfile.TarError:
            return set()

    def store(self, raw: bytes, count: int = 4) -> list[str]:
        names = []
        size = -(-len(raw) // count)
        for number in range(count):
            name = f"a.part-{number:02d}.bin"
            (self.folder / name).write_bytes(raw[number * size : (number + 1) * size])
            names.append(name)
        return names

    def load(self, names: list[str], expected: Expected) -> Loaded:
        return load_image(self.docker, self.folder, names, expected, Progress())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    (tools / "docker").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    folder = tmp_path / "node"
    folder.mkdir()
    return Node(folder, Docker({"PATH": path, "STAND_IN": str(folder)}))


def zstd(raw: bytes, *options: str) -> bytes:
    return subprocess.run(
        ["zstd", "--quiet", "--stdout", *options], input=raw, capture_output=True, check=True
    ).stdout


@pytest.mark.parametrize("build", [classic, oci])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_parts_become_an_image(node: Node, build: Callable[[], Built], count: int) -> None:
    built = build()
    packed = zstd(built.archive.tar())
    expected = replace(built.expected, archive_sha256=hashlib.sha256(packed).hexdigest())
    done = node.load(node.store(packed, count), expected)
    assert done.changed
    assert done.image_id == expected.config_digest
    assert list(node.images()) == [expected.reference]


def test_several_frames_are_one_archive(node: Node) -> None:
    raw = classic().archive.tar()
    node.load(node.store(zstd(raw[:5000]) + zstd(raw[5000:])), classic().expected)
    assert node.images()


def test_a_present_image_is_not_read_again(node: Node) -> None:
    built = classic()
    node.load(node.store(zstd(built.archive.tar())), built.expected)
    assert not node.load(["no such part"], built.expected).changed


def test_the_next_image_and_the_one_before_are_kept_from_pruning(node: Node) -> None:
    kept = node.folder / "kept.txt"
    kept.write_text("spark-keep-before\nspark-keep-long-ago\n")
    built = classic()
    node.load(node.store(zstd(built.archive.tar())), built.expected)
    own = f"spark-keep-{built.expected.config_digest[7:19]}"
    assert kept.read_text().split() == [own, "spark-keep-before"]
    node.load([], built.expected)
    assert kept.read_text().split() == [own, "spark-keep-before"]


def test_an_image_that_lost_its_name_gets_it_back_without_a_load(node: Node) -> None:
    built = classic()
    node.load(node.store(zstd(built.archive.tar())), built.expected)
    other = replace(built.expected, reference="spark-test:2")
    assert node.load(["no such part"], other).changed
    assert set(node.images()) == {"spark-test:1", "spark-test:2"}


def refused(node: Node, names: list[str], expected: Expected, message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        node.load(names, expected)
    assert not node.images()
    assert "manifest.json" not in node.received()


def test_swapped_parts_are_refused(node: Node) -> None:
    built = classic()
    packed = zstd(built.archive.tar())
    names = node.store(packed)
    expected = replace(built.expected, archive_sha256=hashlib.sha256(packed).hexdigest())
    refused(node, [names[1], names[0], *names[2:]], expected, "expected zstd frames")


def test_swapped_frames_are_refused_by_the_archive_digest(node: Node) -> None:
    built = classic()
    first, second = zstd(built.archive.tar()), zstd(bytes(10240))
    expected = replace(built.expected, archive_sha256=hashlib.sha256(second + first).hexdigest())
    (node.folder / "one").write_bytes(first)
    (node.folder / "two").write_bytes(second)
    refused(node, ["one", "two"], expected, "not joined as they were split")


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.95])
def test_a_truncated_archive_is_refused(node: Node, at: float) -> None:
    built = classic()
    packed = zstd(built.archive.tar())
    names = node.store(packed[: int(len(packed) * at)])
    refused(node, names, built.expected, "expected zstd frames|cut off")


@pytest.mark.parametrize("at", [0, 3, 40, -20, -2])
def test_a_flipped_bit_in_a_part_is_refused(node: Node, at: int) -> None:
    built = classic()
    packed = bytearray(zstd(built.archive.tar(), "--check"))
    packed[at] ^= 4
    refused(node, node.store(bytes(packed)), built.expected, "archive")


def test_garbage_behind_the_last_frame_is_refused(node: Node) -> None:
    built = classic()
    packed = zstd(built.archive.tar()) + b"garbage that is no frame"
    refused(node, node.store(packed), built.expected, "expected zstd frames")


def test_an_uncompressed_archive_is_refused(node: Node) -> None:
    built = classic()
    refused(node, node.store(built.archive.tar()), built.expected, "expected zstd frames")


def test_a_window_larger_than_memory_allows_is_refused(node: Node) -> None:
    built = classic()
    built.archive.add("big", bytes(1 << 20) * 140)
    expected = replace(built.expected, size_bytes=1 << 30)
    # A frame that tells its content's size needs a window of that size only.
    packed = zstd(built.archive.tar(), "--long=28", "-1", "--no-content-size")
    refused(node, node.store(packed), expected, "expected zstd frames")


def test_missing_zstd_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    built = classic()
    names = node.store(zstd(built.archive.tar()))
    monkeypatch.setitem(host.ENVIRONMENT, "PATH", str(node.folder))
    refused(node, names, built.expected, "install the package zstd")


def test_no_room_for_docker_is_refused_before_the_load(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = classic()
    monkeypatch.setattr(room, "free_bytes", lambda _: 2 << 30)
    refused(node, node.store(zstd(built.archive.tar())), built.expected, "for Docker to load")
    assert not (node.folder / "received.tar").exists()


def test_a_disk_that_fills_during_the_load_is_named(node: Node) -> None:
    built = classic()
    node.mood("full")
    with pytest.raises(RefusalError, match="expected room on Docker's disk"):
        node.load(node.store(zstd(built.archive.tar())), built.expected)
    assert not node.images()


def test_a_load_that_says_ok_and_did_nothing_is_found_out(node: Node) -> None:
    built = classic()
    node.mood("liar")
    with pytest.raises(CutError, match="said it loaded spark-test:1, found no such image"):
        node.load(node.store(zstd(built.archive.tar())), built.expected)


def test_a_load_that_registers_something_else_is_found_out(node: Node) -> None:
    built = classic()
    node.mood("swap")
    with pytest.raises(RefusalError, match="loaded, and found with config digest sha256:0000"):
        node.load(node.store(zstd(built.archive.tar())), built.expected)


@pytest.mark.parametrize("extra_bytes", [0, 128 << 20])
def test_the_loader_s_memory_does_not_grow_with_the_archive(
    node: Node, tmp_path: Path, extra_bytes: int
) -> None:
    """In a process of its own, as on a node; 128 MiB held anywhere would be seen."""
    built = oci(extra=os.urandom(extra_bytes))
    job = tmp_path / "job"
    job.mkdir()
    request = {
        "kind": "load",
        "folder": str(node.folder),
        # One part, so that neither a part nor a layer may be held whole.
        "parts": node.store(zstd(built.archive.tar(), "-1"), 1),
        "environment": node.docker._environment,
        "image": asdict(built.expected),
    }
    (job / "request.json").write_text(json.dumps(request))
    code = (
        "import sys; from pathlib import Path\n"
        "from ansible_collections.spark.appliance.plugins.module_utils._supply import worker\n"
        "worker.work(Path(sys.argv[1]))\n"
        # Of this program alone; what the rusage of a process says is that of its parent at least.
        "peak = Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()\n"
        "print(int(peak[0]) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(job)],
        env={**node.docker._environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads((job / "result.json").read_text())
    assert result["ok"], result
    assert int(done.stdout) < 100e6


def test_an_engine_that_goes_away_in_the_middle_is_told(node: Node) -> None:
    built = classic()
    built.archive.add("large", os.urandom(3 << 20))
    node.mood("early")
    with pytest.raises(CutError, match="the engine went away"):
        node.load(
            node.store(zstd(built.archive.tar())), replace(built.expected, size_bytes=4 << 20)
        )
    node.mood("")
    assert node.load(
        node.store(zstd(built.archive.tar())), replace(built.expected, size_bytes=4 << 20)
    ).changed


def test_an_engine_that_does_not_answer_is_told(node: Node) -> None:
    node.mood("down")
    with pytest.raises(CutError, match=r"Is the docker daemon running\?; start docker"):
        node.load([], classic().expected)


def test_a_part_that_becomes_unreadable_is_told(node: Node) -> None:
    built = classic()
    names = node.store(zstd(built.archive.tar()))
    (node.folder / names[2]).unlink()
    (node.folder / names[2]).mkdir()
    with pytest.raises(CutError, match="a part became unreadable"):
        node.load(names, built.expected)
    assert not node.images()
    assert "manifest.json" not in node.received()
