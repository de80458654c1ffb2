from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply import room
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.fetch import (
    Fetched,
    Fetcher,
    Wanted,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import (
    HttpOrigin,
    open_origin,
    parse_offer,
    read_small,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import (
    MARKER,
    read_verified,
)

from tests.unit.module_utils.supply_server import Server, serving

CONTENT = bytes(range(256)) * 2000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server(files={"part": CONTENT})) as started:
        yield started


def fetch(
    folder: Path, server: Server, *files: Wanted, token: str = "", slept: list[float] | None = None
) -> Fetched:
    naps = slept if slept is not None else []
    fetcher = Fetcher(folder, open_origin(server.url, token), Progress(), sleep=naps.append)
    return fetcher.run(files or (Wanted("part", sha256(CONTENT)),))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_missing_file_is_fetched_and_remembered(tmp_path: Path, server: Server) -> None:
    done = fetch(tmp_path, server)
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert done.moved_bytes == len(CONTENT)
    assert names(tmp_path) == {"part", MARKER}


def test_a_verified_file_is_neither_fetched_nor_read_again(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(tmp_path, server)
    server.requests.clear()

    def never(*_: object) -> bytes:
        raise AssertionError("a verified file was read")

    monkeypatch.setattr(os, "pread", never)
    assert fetch(tmp_path, server).moved_bytes == 0
    assert not server.requests


def test_a_touched_file_is_hashed_again_and_kept_when_equal(tmp_path: Path, server: Server) -> None:
    fetch(tmp_path, server)
    os.utime(tmp_path / "part", (1, 1))
    assert fetch(tmp_path, server).moved_bytes == 0
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_changed_file_is_fetched_again(tmp_path: Path, server: Server) -> None:
    fetch(tmp_path, server)
    (tmp_path / "part").write_bytes(b"!" + CONTENT[1:])
    assert fetch(tmp_path, server).moved_bytes == len(CONTENT)
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_short_file_is_continued(tmp_path: Path, server: Server) -> None:
    (tmp_path / "part").write_bytes(CONTENT[:1000])
    done = fetch(tmp_path, server)
    assert done.moved_bytes == len(CONTENT) - 1000
    assert server.gets("part") == ["bytes=1000-"]


def test_a_cut_transfer_is_continued_in_the_same_run(tmp_path: Path, server: Server) -> None:
    server.cut_after = [100_000, 100_000]
    slept: list[float] = []
    assert fetch(tmp_path, server, slept=slept).moved_bytes == len(CONTENT)
    assert server.gets("part") == ["", "bytes=100000-", "bytes=200000-"]
    assert slept


def test_a_transfer_that_never_gets_further_stops_and_keeps_what_arrived(
    tmp_path: Path, server: Server
) -> None:
    server.cut_after = [1000] + [0] * 20
    slept: list[float] = []
    with pytest.raises(CutError, match="what arrived is kept"):
        fetch(tmp_path, server, slept=slept)
    assert slept == sorted(slept)
    assert (tmp_path / ".part.partial").read_bytes() == CONTENT[:1000]
    server.cut_after = []
    assert fetch(tmp_path, server).moved_bytes == len(CONTENT) - 1000
    assert names(tmp_path) == {"part", MARKER}


def test_a_busy_server_is_asked_again(tmp_path: Path, server: Server) -> None:
    server.statuses = [503, 429]
    assert fetch(tmp_path, server).moved_bytes == len(CONTENT)


def test_a_server_without_ranges_starts_over(tmp_path: Path, server: Server) -> None:
    server.ranges = False
    (tmp_path / ".part.partial").write_bytes(CONTENT[:1000])
    assert fetch(tmp_path, server).moved_bytes == len(CONTENT)
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_file_that_changed_between_two_runs_starts_over(tmp_path: Path, server: Server) -> None:
    server.files["part"] = b"old" + CONTENT[3:]
    server.cut_after = [1000] + [0] * 20
    with pytest.raises(CutError):
        fetch(tmp_path, server)
    server.files["part"], server.etag, server.cut_after = CONTENT, '"two"', []
    assert fetch(tmp_path, server).moved_bytes == len(CONTENT)
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_changed_file_without_a_new_tag_is_fetched_once_more(
    tmp_path: Path, server: Server
) -> None:
    (tmp_path / ".part.partial").write_bytes(b"old" + CONTENT[3:1000])
    assert fetch(tmp_path, server).moved_bytes == 2 * len(CONTENT) - 1000


def test_a_file_that_is_wrong_twice_is_refused_and_leaves_nothing(
    tmp_path: Path, server: Server
) -> None:
    server.files["part"] = b"!" + CONTENT[1:]
    with pytest.raises(RefusalError, match=r"expected sha256 .*, found .*, twice"):
        fetch(tmp_path, server)
    assert not names(tmp_path) - {MARKER}


@pytest.mark.parametrize("change", [b"", CONTENT[:-1], CONTENT + b"x"])
def test_a_part_of_another_length_is_refused(tmp_path: Path, server: Server, change: bytes) -> None:
    server.files["part"] = change
    with pytest.raises(RefusalError, match="twice"):
        fetch(tmp_path, server)
    assert not names(tmp_path) - {MARKER}


def test_swapped_parts_are_refused(tmp_path: Path, server: Server) -> None:
    server.files = {"a": b"bbb", "b": b"aaa"}
    with pytest.raises(RefusalError, match="expected sha256"):
        fetch(tmp_path, server, Wanted("a", sha256(b"aaa")), Wanted("b", sha256(b"bbb")))
    assert not {"a", "b"} & names(tmp_path)


def test_a_server_that_promises_too_much_is_seen_through(tmp_path: Path, server: Server) -> None:
    server.promised_extra = 50
    fetch(tmp_path, server)
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_server_that_sends_too_much_is_refused(tmp_path: Path, server: Server) -> None:
    server.sent_extra = 50
    with pytest.raises(RefusalError, match="twice"):
        fetch(tmp_path, server, Wanted("part", sha256(CONTENT), len(CONTENT)))
    assert not names(tmp_path) - {MARKER}


def test_a_server_without_head_serves_too(tmp_path: Path, server: Server) -> None:
    server.head = False
    fetch(tmp_path, server)


def test_a_missing_part_is_refused_by_name(tmp_path: Path, server: Server) -> None:
    with pytest.raises(RefusalError, match=r"/other: expected the file, found HTTP 404"):
        fetch(tmp_path, server, Wanted("other", "0" * 64))


def test_one_bad_part_keeps_the_good_ones(tmp_path: Path, server: Server) -> None:
    server.files["bad"] = b"bad"
    with pytest.raises(RefusalError, match="/bad: expected sha256"):
        fetch(tmp_path, server, Wanted("part", sha256(CONTENT)), Wanted("bad", sha256(b"good")))
    server.files["bad"] = b"good"
    server.requests.clear()
    fetch(tmp_path, server, Wanted("part", sha256(CONTENT)), Wanted("bad", sha256(b"good")))
    assert server.gets("part") in ([], [""])
    assert names(tmp_path) == {"part", "bad", MARKER}


def test_no_room_is_refused_before_anything_is_written(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda _: len(CONTENT) - 1)
    with pytest.raises(RefusalError, match=r"expected 512,000 bytes free .* found 511,999"):
        fetch(tmp_path, server)
    assert not names(tmp_path)


def test_what_is_stored_already_needs_no_room(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".part.partial").write_bytes(CONTENT[:1000])
    monkeypatch.setattr(room, "free_bytes", lambda _: len(CONTENT) - 1000)
    fetch(tmp_path, server)


def test_a_folder_on_the_same_disk_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = tmp_path / "store", tmp_path / "folder"
    store.mkdir()
    (store / "part").write_bytes(CONTENT)
    monkeypatch.setattr(room, "free_bytes", lambda _: 0)
    Fetcher(folder, open_origin(f"file://{store}"), Progress()).run(
        [Wanted("part", sha256(CONTENT), len(CONTENT))]
    )
    assert (folder / "part").stat().st_ino == (store / "part").stat().st_ino


def test_a_file_that_changes_while_it_is_fetched_starts_over(
    tmp_path: Path, server: Server
) -> None:
    """The tag of the first bytes is asked for again, so that two files are never joined."""
    server.files["part"] = b"old" + CONTENT[3:]
    server.cut_after = [100_000]

    def changed(_: float) -> None:
        server.files["part"], server.etag = CONTENT, '"two"'

    fetcher = Fetcher(tmp_path, open_origin(server.url), Progress(), sleep=changed)
    done = fetcher.run([Wanted("part", sha256(CONTENT))])
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert server.gets("part") == ["", "bytes=100000-", ""]
    assert done.moved_bytes <= 100_000 + len(CONTENT)
    assert names(tmp_path) == {"part", MARKER}


def test_a_refusal_without_a_byte_leaves_no_empty_file(tmp_path: Path, server: Server) -> None:
    server.statuses = [403]
    with pytest.raises(RefusalError, match="found HTTP 403"):
        fetch(tmp_path, server)
    assert not names(tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path, server: Server) -> None:
    (tmp_path / "part").mkdir()
    with pytest.raises(RefusalError, match="found something else"):
        fetch(tmp_path, server)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, server: Server) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "part").symlink_to(victim)
    with pytest.raises(RefusalError, match="found something else"):
        fetch(tmp_path / "folder", server)
    assert victim.read_bytes() == b""


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_an_unsafe_name_is_refused(tmp_path: Path, server: Server, name: str) -> None:
    with pytest.raises(RefusalError, match="correct the list of files"):
        fetch(tmp_path, server, Wanted(name, "0" * 64))


def test_files_of_folders_below_are_fetched(tmp_path: Path, server: Server) -> None:
    server.files = {"deep/er/file": b"x"}
    fetch(tmp_path, server, Wanted("deep/er/file", sha256(b"x")))
    assert (tmp_path / "deep" / "er" / "file").read_bytes() == b"x"


def test_the_token_reaches_the_server_and_no_argument_list(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = HttpOrigin(server.url, "secret-of-this-test", direct=True)
    assert not any("secret-of-this-test" in word for word in origin._argv("--head"))
    assert b"secret-of-this-test" in origin._config("part")
    assert "secret-of-this-test" not in origin.describe()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert origin.offer("part").size_bytes == len(CONTENT)
    del tmp_path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "an empty address"),
        ("ftp://a/b", "expected an http"),
        ("/srv/release", "expected an http"),
        ("file://host/srv", "absolute folder of the node"),
        ("file:relative", "absolute folder of the node"),
        ("http://user:word@host/x", "no user or password"),
    ],
)
def test_a_bad_address_is_refused(url: str, message: str) -> None:
    with pytest.raises(RefusalError, match=message) as refused:
        open_origin(url)
    assert "word" not in str(refused.value).replace("password", "")


def test_nobody_listening_is_told_as_a_cut(tmp_path: Path, server: Server) -> None:
    server.url = "http://127.0.0.1:1"
    with pytest.raises(CutError, match="repair the way to it and run again"):
        fetch(tmp_path, server)


def test_a_checksum_file_of_any_size_is_not_read_whole(server: Server) -> None:
    with pytest.raises(RefusalError, match="this is no checksum file"):
        read_small(open_origin(server.url), "part", 1000)


def test_a_folder_of_the_node_is_taken_without_a_copy(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "folder"
    store.mkdir()
    (store / "blob").write_bytes(CONTENT)
    (store / "part").symlink_to("blob")
    fetcher = Fetcher(folder, open_origin(f"file://{store}"), Progress())
    done = fetcher.run([Wanted("part", sha256(CONTENT))])
    assert done.moved_bytes == 0
    assert (folder / "part").stat().st_ino == (store / "blob").stat().st_ino
    assert not (folder / "part").is_symlink()


def test_a_wrong_file_of_a_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "folder"
    store.mkdir()
    (store / "part").write_bytes(CONTENT[:-1])
    fetcher = Fetcher(folder, open_origin(f"file://{store}"), Progress())
    with pytest.raises(RefusalError, match="replace the file in that folder"):
        fetcher.run([Wanted("part", sha256(CONTENT), len(CONTENT))])
    assert (store / "part").read_bytes() == CONTENT[:-1]
    assert not names(folder)


def test_a_file_shared_with_its_origin_is_never_written_to(tmp_path: Path, server: Server) -> None:
    store, folder = tmp_path / "store", tmp_path / "folder"
    store.mkdir()
    folder.mkdir()
    (store / "part").write_bytes(CONTENT[:1000])
    os.link(store / "part", folder / "part")
    fetch(folder, server)
    assert (folder / "part").read_bytes() == CONTENT
    assert (store / "part").read_bytes() == CONTENT[:1000]


def test_the_marker_tells_what_changed_by_status_alone(tmp_path: Path, server: Server) -> None:
    assert read_verified(str(tmp_path)) is None
    done = fetch(tmp_path, server)
    seen = read_verified(str(tmp_path))
    assert seen is not None
    assert (seen["changed"], seen["files"], seen["total_bytes"]) == ([], 1, len(CONTENT))
    assert seen["manifest_sha256"] == done.manifest_sha256
    (tmp_path / "part").unlink()
    changed = read_verified(str(tmp_path))
    assert changed is not None
    assert changed["changed"] == ["part"]


@pytest.mark.parametrize("marker", [b"", b"[]", b"{}", b'{"schema": 99}', b"\xff"])
def test_an_unreadable_marker_means_nothing_is_verified(
    tmp_path: Path, server: Server, marker: bytes
) -> None:
    fetch(tmp_path, server)
    (tmp_path / MARKER).write_bytes(marker)
    assert read_verified(str(tmp_path)) is None
    assert fetch(tmp_path, server).moved_bytes == 0
    assert json.loads((tmp_path / MARKER).read_bytes())["files"]


def test_the_last_response_of_a_redirect_counts() -> None:
    headers = (
        "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nETag: a\r\n\r\n"
        'HTTP/2 200\r\ncontent-length: 1850000000\r\netag: "b"\r\n\r\n'
    )
    offer = parse_offer(headers)
    assert (offer.size_bytes, offer.etag) == (1_850_000_000, '"b"')
