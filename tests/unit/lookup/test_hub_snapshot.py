from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible.errors import AnsibleError
from ansible_collections.spark.appliance.plugins.lookup.hub_snapshot import snapshot
from ansible_collections.spark.appliance.plugins.module_utils._supply.fetch import Fetcher, Wanted
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import open_origin
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress

pytest.importorskip("huggingface_hub", reason="the hub's client is an optional package")

REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCE = f"hub://owner/name@{REVISION}"
FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 100}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class HubStandIn(BaseHTTPRequestHandler):
    """Stands in for a hub: the two calls that its client makes, in the shapes of its public API."""

    protocol_version = "HTTP/1.1"
    sha = REVISION

    def log_message(self, *_: object) -> None:
        return

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == f"/api/models/owner/name/revision/{REVISION}":
            model = FILES["model.safetensors"]
            lfs = {"sha256": sha256(model), "size": len(model), "pointerSize": 134}
            siblings = [
                {"rfilename": "config.json", "size": 8, "blobId": "b" * 40},
                {"rfilename": "model.safetensors", "size": len(model), "blobId": "c", "lfs": lfs},
            ]
            body = {"id": "owner/name", "sha": self.sha, "siblings": siblings}
            self._answer(200, json.dumps(body).encode(), Content_Type="application/json")
            return
        prefix = f"/owner/name/resolve/{REVISION}/"
        name = path.removeprefix(prefix)
        if path.startswith(prefix) and name in FILES:
            self._answer(200, FILES[name], ETag=f'"{sha256(FILES[name])}"', X_Repo_Commit=REVISION)
            return
        self._answer(404, b"{}", X_Error_Code="RepoNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubStandIn)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_snapshot_lists_every_file_with_its_sha256(hub: str, tmp_path: Path) -> None:
    listed = snapshot(SOURCE, "", hub)
    assert listed["url"] == f"{hub}/owner/name/resolve/{REVISION}"
    assert {file["name"]: file["sha256"] for file in listed["files"]} == {
        name: sha256(content) for name, content in FILES.items()
    }
    wanted = [Wanted(**file) for file in listed["files"]]
    done = Fetcher(tmp_path / "weights", open_origin(listed["url"]), Progress()).run(wanted)
    assert done.moved_bytes == sum(map(len, FILES.values()))


@pytest.mark.parametrize(
    "source", ["hub://owner/name", "hub://owner/name@main", "hub://name@" + REVISION, "hub://"]
)
def test_a_source_that_may_change_is_refused(source: str) -> None:
    with pytest.raises(AnsibleError, match="a revision of 40 hexadecimal digits"):
        snapshot(source, "", "http://127.0.0.1:1")


def test_another_revision_is_refused(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubStandIn, "sha", "f" * 40)
    with pytest.raises(AnsibleError, match="expected this revision, found ffff"):
        snapshot(SOURCE, "", hub)


def test_an_unknown_repository_is_refused(hub: str) -> None:
    with pytest.raises(AnsibleError, match="expected the hub to list it"):
        snapshot(f"hub://owner/other@{REVISION}", "", hub)
