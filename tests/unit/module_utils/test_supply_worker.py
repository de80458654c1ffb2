from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply import verified, worker
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress

from tests.unit.module_utils.supply_server import Server, serving


def sums_of(files: dict[str, bytes]) -> bytes:
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    return "".join(lines).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as started:
        yield started


def publish(server: Server, files: dict[str, bytes]) -> None:
    server.files = {**files, "SHA256SUMS": sums_of(files)}


def request(server: Server, folder: Path, **more: Any) -> dict[str, Any]:
    return {"url": f"{server.url}/", "folder": str(folder), "checksums": "SHA256SUMS", **more}


def fetch(asked: dict[str, Any]) -> dict[str, Any]:
    return worker.fetch(Path("unused"), asked, Progress())


PARTS = {"archive": "a.tar.zst", "count": 2, "digits": 2}
PART_FILES = {"a.tar.zst.part-00.bin": b"one", "a.tar.zst.part-01.bin": b"two"}


def test_a_release_is_fetched_by_its_checksum_file_and_then_remembered(
    server: Server, tmp_path: Path
) -> None:
    publish(server, PART_FILES)
    server.files["SHA256SUMS"] += f"{'c' * 64}  a.tar.zst\n".encode()
    asked = request(server, tmp_path, parts=PARTS)
    assert worker.remembered(asked) is None
    done = fetch(asked)
    assert [file["name"] for file in done["files"]] == list(PART_FILES)
    assert done["archive_sha256"] == "c" * 64
    server.requests.clear()
    known = worker.remembered(asked)
    assert known is not None
    assert known.archive_sha256 == "c" * 64
    assert not server.requests


def test_a_receiver_remembers_where_the_files_came_from_at_first(
    server: Server, tmp_path: Path
) -> None:
    publish(server, PART_FILES)
    files = fetch(request(server, tmp_path / "a", parts=PARTS))["files"]
    asked = request(
        server, tmp_path / "b", files=files, label="http://outside/release/", parts=PARTS
    )
    fetch(asked)
    outside = {"url": "http://outside/release", "folder": str(tmp_path / "b"), "parts": PARTS}
    assert worker.remembered(outside) is not None
    assert worker.remembered(outside | {"url": "http://elsewhere"}) is None


def test_a_receiver_learns_the_new_address_of_the_same_files_without_a_byte(
    server: Server, tmp_path: Path
) -> None:
    """Else the judge would take its weights for those of another source, run after run."""
    publish(server, {"config.json": b"{}"})
    files = fetch(request(server, tmp_path, label="one"))["files"]
    asked = request(server, tmp_path, label="two", files=files, direct=True)
    assert worker.remembered(asked) is None
    assert fetch(asked)["moved_bytes"] == 0
    assert worker.remembered(asked) is not None
    seen = verified.read_verified(str(tmp_path))
    assert seen is not None
    assert (seen["source"], seen["whole"]) == ("two", True)


def test_a_shorter_list_is_another_set(server: Server, tmp_path: Path) -> None:
    publish(server, {"a": b"a", "b": b"b"})
    files = fetch(request(server, tmp_path))["files"]
    asked = request(server, tmp_path, files=files[:1])
    assert worker.remembered(asked) is None
    assert fetch(asked)["moved_bytes"] == 0
    assert not (tmp_path / "b").exists()


def test_what_changed_is_not_remembered(server: Server, tmp_path: Path) -> None:
    publish(server, {"config.json": b"{}", "model.safetensors": b"x"})
    asked = request(server, tmp_path)
    fetch(asked)
    assert worker.remembered(asked) is not None
    (tmp_path / "model.safetensors").write_bytes(b"y")
    assert worker.remembered(asked) is None


def test_another_release_behind_the_same_address_is_fetched_anew(
    server: Server, tmp_path: Path
) -> None:
    publish(server, PART_FILES)
    asked = request(server, tmp_path, parts=PARTS)
    fetch(asked | {"label": "address#one"})
    assert worker.remembered(asked | {"label": "address#one"}) is not None
    publish(server, {"a.tar.zst.part-00.bin": b"longer than one", "a.tar.zst.part-01.bin": b"two"})
    assert worker.remembered(asked | {"label": "address#two"}) is None
    assert fetch(asked | {"label": "address#two"})["moved_bytes"] <= 2 * len(b"longer than one")
    assert (tmp_path / "a.tar.zst.part-00.bin").read_bytes() == b"longer than one"


def test_what_a_former_set_brought_goes_and_what_others_put_there_stays(
    server: Server, tmp_path: Path
) -> None:
    publish(server, {"old.safetensors": b"old", "config.json": b"{}"})
    fetch(request(server, tmp_path, label="one"))
    (tmp_path / "note.txt").write_text("by hand")
    publish(server, {"new.safetensors": b"new", "config.json": b"{}"})
    fetch(request(server, tmp_path, label="two"))
    assert {path.name for path in tmp_path.iterdir()} == {
        ".verified.json",
        "config.json",
        "new.safetensors",
        "note.txt",
    }


def test_another_set_than_the_pinned_one_is_refused_before_a_file_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    publish(server, {"config.json": b"{}"})
    pinned = fetch(request(server, tmp_path / "a"))["manifest_sha256"]
    asked = request(server, tmp_path / "b", manifest_sha256=pinned)
    assert fetch(asked)["manifest_sha256"] == pinned
    publish(server, {"config.json": b"[]"})
    message = f"expected the set of files with digest {pinned}"
    with pytest.raises(RefusalError, match=message):
        fetch(request(server, tmp_path / "c", manifest_sha256=pinned))
    assert not (tmp_path / "c").exists()


def index_of(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(shards)}}).encode()


def test_a_whole_set_of_weights_passes(server: Server, tmp_path: Path) -> None:
    publish(server, {worker.INDEX: index_of("m-1", "m-2"), "m-1": b"1", "m-2": b"2"})
    assert len(fetch(request(server, tmp_path))["files"]) == 3


def test_a_set_without_one_of_its_shards_is_refused_before_a_shard_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    publish(server, {worker.INDEX: index_of("m-1", "m-2"), "m-1": b"1"})
    with pytest.raises(RefusalError, match="each of its 2 shards, found none for m-2"):
        fetch(request(server, tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"<html>"])
def test_an_index_that_is_none_is_refused(server: Server, tmp_path: Path, content: bytes) -> None:
    publish(server, {worker.INDEX: content, "m-1": b"1"})
    with pytest.raises(RefusalError, match="expected an index of weights"):
        fetch(request(server, tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<!doctype html>", "found a web page"), (b"", "found an empty file")],
)
def test_a_bad_checksum_file_is_refused_with_its_address(
    server: Server, tmp_path: Path, content: bytes, message: str
) -> None:
    server.files = {"SHA256SUMS": content}
    with pytest.raises(RefusalError, match=message) as refused:
        fetch(request(server, tmp_path))
    assert f"{server.url}/SHA256SUMS" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_broken_disk_is_a_result_not_a_crash(tmp_path: Path) -> None:
    def full(*_: object) -> dict[str, Any]:
        raise OSError(5, "Input/output error", "/var/lib/x")

    (tmp_path / worker.REQUEST).write_text(json.dumps({"kind": "fetch", "run": "r"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(worker.KINDS, "fetch", full)
        worker.work(tmp_path)
    result = json.loads((tmp_path / worker.RESULT).read_text())
    assert not result["ok"]
    assert result["message"] == "/var/lib/x: Input/output error; repair it and run again"


def test_a_full_disk_names_the_folder_and_keeps_what_was_verified(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills in the second file: the first stays, and of the second what arrived."""
    publish(server, {"a": b"a" * 1000, "b": b"b" * 1000})
    folder, job = tmp_path / "files", tmp_path / "job"
    job.mkdir()
    asked = request(server, folder, kind="fetch", run="r", connections=1)
    (job / worker.REQUEST).write_text(json.dumps(asked))
    written, real = [0], os.write

    def full(handle: int, data: Any) -> int:
        if not str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(str(folder)):
            return real(handle, data)
        if written[0] >= 1500:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(handle, bytes(data)[: 1500 - written[0]])
        written[0] += count
        return count

    monkeypatch.setattr(os, "write", full)
    worker.work(job)
    message = json.loads((job / worker.RESULT).read_text())["message"]
    assert message.startswith(f"{folder}: expected room on its disk, found it full; free space")
    assert {path.name for path in folder.iterdir()} == {
        ".b.partial",
        ".b.partial.etag",
        ".verified.json",
        "a",
    }
    assert worker.remembered(asked) is None
    monkeypatch.undo()
    server.requests.clear()
    worker.work(job)
    assert json.loads((job / worker.RESULT).read_text())["data"]["moved_bytes"] == 500
    assert server.gets("a") == []
    assert server.gets("b") == ["bytes=500-"]


def test_a_full_disk_at_the_marker_leaves_the_old_marker_and_no_draft(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, {"a": b"a", "b": b"b"})
    folder, job = tmp_path / "files", tmp_path / "job"
    job.mkdir()
    (job / worker.REQUEST).write_text(
        json.dumps(request(server, folder, kind="fetch", run="r", connections=1))
    )
    real, calls = os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 2 and not str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(
            str(job)
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    worker.work(job)
    message = json.loads((job / worker.RESULT).read_text())["message"]
    assert message.startswith(f"{folder / '.verified.json'}: expected room")
    assert {path.name for path in folder.iterdir()} == {".verified.json", "a", "b"}
    monkeypatch.undo()
    server.requests.clear()
    worker.work(job)
    # The file without a memory is hashed where it lies.
    assert json.loads((job / worker.RESULT).read_text())["data"]["moved_bytes"] == 0
    assert server.gets("b") == []


def test_a_set_that_was_given_up_is_not_whole(server: Server, tmp_path: Path) -> None:
    """Some files are there and verified, and nothing else says which there should be."""
    publish(server, {"a": b"a", "b": b"b"})
    right, server.files["b"] = server.files["b"], b"!"
    asked = request(server, tmp_path, connections=1)
    with pytest.raises(RefusalError, match="twice"):
        fetch(asked)
    seen = verified.read_verified(str(tmp_path))
    assert seen is not None
    assert (seen["files"], seen["whole"], seen["changed"]) == (1, False, [])
    assert worker.remembered(asked) is None
    server.files["b"] = right
    assert fetch(asked)["moved_bytes"] == 1
    seen = verified.read_verified(str(tmp_path))
    assert seen is not None
    assert seen["whole"]
    assert worker.remembered(asked) is not None


def test_a_former_set_goes_even_when_the_new_one_was_interrupted(
    server: Server, tmp_path: Path
) -> None:
    publish(server, {"old": b"old", "config.json": b"{}"})
    fetch(request(server, tmp_path, label="one"))
    publish(server, {"config.json": b"[]", "new": b"new"})
    right, server.files["new"] = server.files["new"], b"!!!"
    with pytest.raises(RefusalError, match="twice"):
        fetch(request(server, tmp_path, label="two", connections=1))
    assert (tmp_path / "old").exists()
    server.files["new"] = right
    fetch(request(server, tmp_path, label="two"))
    assert {path.name for path in tmp_path.iterdir()} == {".verified.json", "config.json", "new"}


def test_a_hub_s_list_must_be_whole_too(server: Server, tmp_path: Path) -> None:
    server.files = {worker.INDEX: index_of("m-1", "m-2"), "m-1": b"1"}
    listed = [
        {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in server.files.items()
    ]
    with pytest.raises(RefusalError, match="each of its 2 shards, found none for m-2"):
        fetch(request(server, tmp_path, files=listed))
    assert not list(tmp_path.iterdir())
