from __future__ import annotations

import hashlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.fetch import Fetcher, Wanted
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import open_origin
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.share import (
    open_server,
    serve_until,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import (
    Memory,
    look,
    save_memory,
)

CONTENT = bytes(range(256)) * 500
TOKEN = "t" * 40


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    files = {"part": CONTENT, "sub/two words": b"small", "private": b"not handed out"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    seen = {name: look(folder / name, sha256(content)) for name, content in files.items()}
    save_memory(folder, Memory("test", seen))
    return folder


class Shared:
    def __init__(self, folder: Path) -> None:
        names = ["part", "sub/two words"]
        self.server, self.sharing = open_server(folder, names, "127.0.0.1", 0, TOKEN)
        self.port = self.server.server_address[1]

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(
                method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
            )
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()


@pytest.fixture
def shared(folder: Path) -> Iterator[Shared]:
    shared = Shared(folder)
    thread = threading.Thread(
        target=shared.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    yield shared
    shared.server.shutdown()
    shared.server.server_close()
    thread.join()


AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


def test_a_receiver_gets_the_files_whole(shared: Shared, tmp_path: Path) -> None:
    origin = open_origin(f"http://127.0.0.1:{shared.port}", TOKEN, direct=True)
    wanted = [Wanted("part", sha256(CONTENT)), Wanted("sub/two words", sha256(b"small"))]
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / ".part.partial").write_bytes(CONTENT[:1000])
    done = Fetcher(tmp_path / "there", origin, Progress()).run(wanted)
    assert done.moved_bytes == len(CONTENT) - 1000 + len(b"small")
    assert (tmp_path / "there" / "part").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "é"},
    ],
)
def test_without_the_token_nothing_is_told(shared: Shared, headers: dict[str, str]) -> None:
    for path in ("/part", "/private", "/nothing"):
        status, _, body = shared.ask("GET", path, **headers)
        assert (status, body) == (401, b"")


@pytest.mark.parametrize(
    "path", ["/private", "/.verified.json", "/", "/../source/part", "/sub", "/%2e%2e/source/part"]
)
def test_only_listed_files_have_a_path(shared: Shared, path: str) -> None:
    assert shared.ask("GET", path, **AUTHORISED)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "OPTIONS"])
def test_only_reading_is_possible(shared: Shared, method: str) -> None:
    assert shared.ask(method, "/part", **AUTHORISED)[0] == 501


def test_ranges_follow_the_standard(shared: Shared) -> None:
    size = len(CONTENT)
    status, headers, body = shared.ask("GET", "/part", Range="bytes=10-19", **AUTHORISED)
    assert (status, body, headers["Content-Range"]) == (206, CONTENT[10:20], f"bytes 10-19/{size}")
    status, headers, body = shared.ask("GET", "/part", Range=f"bytes={size}-", **AUTHORISED)
    assert (status, headers["Content-Range"]) == (416, f"bytes */{size}")
    etag = shared.ask("HEAD", "/part", **AUTHORISED)[1]["ETag"]
    assert shared.ask("GET", "/part", Range="bytes=10-", If_Range=etag, **AUTHORISED)[0] == 206
    assert shared.ask("GET", "/part", Range="bytes=10-", If_Range='"x"', **AUTHORISED)[0] == 200


def test_nothing_unverified_is_handed_out(folder: Path) -> None:
    (folder / "part").write_bytes(b"changed")
    with pytest.raises(RefusalError, match="found part unverified"):
        open_server(folder, ["part"], "127.0.0.1", 0, TOKEN)
    with pytest.raises(RefusalError, match="found ghost unverified"):
        open_server(folder, ["ghost"], "127.0.0.1", 0, TOKEN)


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])  # noqa: S104 -- these must be refused
def test_a_wildcard_address_is_refused(folder: Path, address: str) -> None:
    with pytest.raises(RefusalError, match="spark_rail_a"):
        open_server(folder, ["part"], address, 0, TOKEN)


def test_an_address_of_another_machine_is_refused(folder: Path) -> None:
    with pytest.raises(RefusalError, match="expected an address of this node"):
        open_server(folder, ["part"], "198.51.100.7", 0, TOKEN)


def test_a_short_token_is_refused(folder: Path) -> None:
    with pytest.raises(RefusalError, match="at least 32 characters"):
        open_server(folder, ["part"], "127.0.0.1", 0, "short")


def listens(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()
    return True


@pytest.mark.parametrize(("idle_s", "deadline_s"), [(0.4, 60.0), (60.0, 0.4)])
def test_the_listener_ends_by_itself(folder: Path, idle_s: float, deadline_s: float) -> None:
    server, sharing = open_server(folder, ["part"], "127.0.0.1", 0, TOKEN)
    port = server.server_address[1]
    assert listens(port)
    began = time.monotonic()
    serve_until(server, sharing, idle_limit_s=idle_s, deadline_s=deadline_s, tell=lambda _: None)
    assert time.monotonic() - began < 10
    assert not listens(port)


def test_a_stopped_server_closes_and_drops_what_it_read(folder: Path) -> None:
    """The unit is stopped by a signal, which becomes an exception in the main thread."""
    server, sharing = open_server(folder, ["part"], "127.0.0.1", 0, TOKEN)
    port = server.server_address[1]
    evicted: list[Path] = []

    def stop(_: object) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sharing), "evict", lambda own: evicted.append(own.folder))
        with pytest.raises(SystemExit):
            serve_until(server, sharing, idle_limit_s=60, deadline_s=60, tell=stop)
    assert evicted == [folder]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
