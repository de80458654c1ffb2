# SPDX-License-Identifier: Apache-2.0
"""Ask an OpenAI-compatible server what it is and whether it really generates (node side)."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A server answer is a few kB; anything larger is not the server we started.
_ANSWER_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP exchange: ``status`` 0 means that no HTTP answer came; ``error`` then says why."""

    status: int
    body: Any
    error: str
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Smoke:
    """The one completion that proves generation.

    Parameters:
        prompt: text sent as a user message (``chat``) or as a raw prompt.
        chat: use the chat endpoint, else the completions endpoint.
        max_tokens: output limit in tokens.
        seed: sampling seed; temperature is always 0.
        extra: further request fields, such as chat template arguments.
    """

    prompt: str
    chat: bool
    max_tokens: int
    seed: int
    extra: dict[str, Any]


Transport = Callable[[str, str, "dict[str, Any] | None", float], Answer]


def http_transport(base_url: str, api_key: str) -> Transport:
    """Return a transport that speaks JSON to ``base_url`` and never goes through a proxy.

    Parameters:
        base_url: scheme, address and port, without a trailing slash.
        api_key: bearer token; empty sends none.

    Returns:
        A callable of (method, path, payload, timeout in seconds) giving an :class:`Answer`;
        it does not raise for HTTP or socket errors.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(method: str, path: str, payload: dict[str, Any] | None, timeout_s: float) -> Answer:
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        data = None if payload is None else json.dumps(payload).encode()
        request = urllib.request.Request(  # noqa: S310 -- the scheme is http, set by the caller
            base_url + path, data=data, method=method, headers=headers
        )
        started = time.monotonic()
        try:
            with opener.open(request, timeout=timeout_s) as reply:
                raw, status, error = reply.read(_ANSWER_LIMIT_BYTES), reply.status, ""
        except urllib.error.HTTPError as refused:
            raw, status, error = refused.read(_ANSWER_LIMIT_BYTES), refused.code, ""
        except (OSError, ValueError) as broken:
            reason = getattr(broken, "reason", broken)
            return Answer(0, None, str(reason), time.monotonic() - started)
        elapsed_s = time.monotonic() - started
        try:
            body: Any = json.loads(raw) if raw else None
        except ValueError:
            body, error = None, "the answer is not JSON"
        return Answer(status, body, error, elapsed_s)

    return send


def probe(
    send: Transport,
    send_without_key: Transport,
    served_name: str,
    smoke: Smoke | None,
    timeout_s: float,
) -> dict[str, Any]:
    """Return what the server says of itself, stopping at the first step that got no good answer.

    Parameters:
        send: see :func:`http_transport`.
        send_without_key: the same without a key, to see whether the server demands one.
        served_name: model name used for tokenizing and completing.
        smoke: the completion to ask for; None asks for none.
        timeout_s: limit of one exchange in seconds.

    Returns:
        ``health`` (HTTP status, 0 when none came), ``without_key`` (HTTP status of
        ``/v1/models`` asked for without a key), ``models`` (id and ``max_model_len`` in tokens),
        ``prompt_tokens``, ``completion`` (text, finish reason, token counts, seconds) and
        ``error``, which names the step that failed or is empty.
    """
    found: dict[str, Any] = {
        "health": 0,
        "without_key": 0,
        "models": [],
        "prompt_tokens": None,
        "completion": None,
        "error": "",
    }
    health = send("GET", "/health", None, timeout_s)
    found["health"] = health.status
    if health.status != 200:
        found["error"] = f"/health: {_why(health)}"
        return found
    found["without_key"] = send_without_key("GET", "/v1/models", None, timeout_s).status
    models = send("GET", "/v1/models", None, timeout_s)
    entries = models.body.get("data") if isinstance(models.body, dict) else None
    if models.status != 200 or not isinstance(entries, list):
        found["error"] = f"/v1/models: {_why(models)}"
        return found
    found["models"] = [
        {"id": entry.get("id"), "max_model_len": entry.get("max_model_len")}
        for entry in entries
        if isinstance(entry, dict)
    ]
    if smoke is None:
        return found
    payload: dict[str, Any] = {"model": served_name}
    if smoke.chat:
        payload["messages"] = [{"role": "user", "content": smoke.prompt}]
    else:
        payload["prompt"] = smoke.prompt
    tokens = send("POST", "/tokenize", payload, timeout_s)
    count = tokens.body.get("count") if isinstance(tokens.body, dict) else None
    if tokens.status != 200 or not isinstance(count, int):
        found["error"] = f"/tokenize: {_why(tokens)}"
        return found
    found["prompt_tokens"] = count
    path = "/v1/chat/completions" if smoke.chat else "/v1/completions"
    payload |= {
        "temperature": 0,
        "top_p": 1,
        "seed": smoke.seed,
        "max_tokens": smoke.max_tokens,
        **smoke.extra,
    }
    completion = send("POST", path, payload, timeout_s)
    try:
        choice = completion.body["choices"][0]
        text = choice["message"]["content"] if smoke.chat else choice["text"]
        found["completion"] = {
            "text": text,
            "finish_reason": choice["finish_reason"],
            "prompt_tokens": completion.body["usage"]["prompt_tokens"],
            "completion_tokens": completion.body["usage"]["completion_tokens"],
            "elapsed_s": round(completion.elapsed_s, 3),
        }
    except (KeyError, IndexError, TypeError):
        found["error"] = f"{path}: {_why(completion)}"
    return found


def _why(answer: Answer) -> str:
    if answer.error:
        return answer.error
    message = ""
    if isinstance(answer.body, dict):
        error = answer.body.get("error")
        message = str(error.get("message", "") if isinstance(error, dict) else error or "")
    return f"HTTP {answer.status} {message}".strip()[:300]
