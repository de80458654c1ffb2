from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._serving import (
    Answer,
    Smoke,
    http_transport,
    probe,
)

SMOKE = Smoke(prompt="say it", chat=True, max_tokens=8, seed=1, extra={})
GOOD: dict[str, Answer] = {
    "/health": Answer(200, None, "", 0.0),
    "/v1/models": Answer(200, {"data": [{"id": "glm", "max_model_len": 4096}]}, "", 0.0),
    "/tokenize": Answer(200, {"count": 5}, "", 0.0),
    "/v1/chat/completions": Answer(
        200,
        {
            "choices": [{"message": {"content": "it"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        },
        "",
        0.25,
    ),
}


class Server:
    """Answers from a table and remembers what it was asked."""

    def __init__(self, **changes: Answer) -> None:
        self.answers = GOOD | changes
        self.asked: list[tuple[str, dict[str, Any] | None]] = []

    def __call__(
        self, method: str, path: str, payload: dict[str, Any] | None, timeout_s: float
    ) -> Answer:
        assert method == ("GET" if payload is None else "POST")
        assert timeout_s == 3.0
        self.asked.append((path, payload))
        return self.answers[path]


def refuse(*_: Any) -> Answer:
    return Answer(401, {"error": "Unauthorized"}, "", 0.0)


def test_a_serving_model_is_described_and_completes() -> None:
    server = Server()
    found = probe(server, refuse, "glm", SMOKE, 3.0)
    assert found["error"] == ""
    assert found["without_key"] == 401
    assert found["models"] == [{"id": "glm", "max_model_len": 4096}]
    assert found["prompt_tokens"] == 5
    assert found["completion"]["text"] == "it"
    request = server.asked[-1][1]
    assert request is not None
    assert (request["temperature"], request["seed"], request["max_tokens"]) == (0, 1, 8)


def test_without_smoke_nothing_is_generated() -> None:
    server = Server()
    assert probe(server, refuse, "glm", None, 3.0)["completion"] is None
    assert [path for path, _ in server.asked] == ["/health", "/v1/models"]


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/health", Answer(503, None, "", 0.0), "/health: HTTP 503"),
        ("/health", Answer(0, None, "Connection refused", 0.0), "/health: Connection refused"),
        ("/v1/models", Answer(200, {"data": "none"}, "", 0.0), "/v1/models: HTTP 200"),
        ("/v1/models", Answer(200, None, "the answer is not JSON", 0.0), "not JSON"),
        ("/tokenize", Answer(200, {"count": "5"}, "", 0.0), "/tokenize: HTTP 200"),
        (
            "/v1/chat/completions",
            Answer(500, {"error": {"message": "EngineDeadError"}}, "", 0.0),
            "HTTP 500 EngineDeadError",
        ),
        ("/v1/chat/completions", Answer(200, {"choices": []}, "", 0.0), "HTTP 200"),
    ],
)
def test_each_step_that_fails_is_named(path: str, answer: Answer, said: str) -> None:
    found = probe(Server(**{path: answer}), refuse, "glm", SMOKE, 3.0)
    assert said in found["error"]
    assert found["completion"] is None


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"sent": self.headers.get("Authorization")}).encode()
        self.send_response(200 if self.path == "/good" else 404)
        self.end_headers()
        self.wfile.write(body if self.path != "/html" else b"<html>")

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_transport_sends_the_key_and_reports_status(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    send = http_transport(url, "key")
    assert send("GET", "/good", None, 3.0).body == {"sent": "Bearer key"}
    assert send("GET", "/absent", None, 3.0).status == 404
    assert send("GET", "/html", None, 3.0).error == "the answer is not JSON"
    assert http_transport(url, "")("GET", "/good", None, 3.0).body == {"sent": None}


def test_no_listener_is_a_result_not_an_exception() -> None:
    answer = http_transport("http://127.0.0.1:9", "")("GET", "/health", None, 1.0)
    assert answer.status == 0
    assert "refused" in answer.error
