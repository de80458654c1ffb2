"""A real vLLM API server of the pinned CPU environment, started on loopback for a test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARKER = "MTP_WINDOW_JSON "
_START_SECONDS = 600


def lay_tree(packages: Path, tree: Path) -> None:
    """Lay a vLLM that can be changed: Python files copied, everything else linked.

    Parameters:
        packages: the environment's packages, which stay as they are.
        tree: new folder that holds the package afterwards.
    """

    def copy(source: str, target: str) -> None:
        if source.endswith(".py"):
            shutil.copyfile(source, target)
        else:
            Path(target).symlink_to(source)

    shutil.copytree(
        packages / "vllm",
        tree / "vllm",
        copy_function=copy,
        ignore=shutil.ignore_patterns("__pycache__"),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    Parameters:
        url: where, without a path.
        log: file that takes its output.
    """

    url: str
    log: Path

    def complete(self, prompt: str, tokens: int) -> list[int]:
        """Return the ids of exactly ``tokens`` tokens after a prompt, at temperature 0."""
        body = {
            "model": "glm-5.2",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(  # noqa: S310 - loopback, plain http
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310 - loopback
            choice = json.load(answer)["choices"][0]
        ids: list[int] = choice["token_ids"]
        return ids

    def metrics(self) -> dict[str, float]:
        """Return the server's own counters of speculative decoding."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:  # noqa: S310 - loopback
            text = answer.read().decode()
        counters: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("vllm:spec_decode_") and "_created" not in line:
                name, value = line.rsplit(" ", 1)
                position = name.partition('position="')[2].partition('"')[0]
                counters[name.partition("{")[0] + position] = float(value)
        return counters

    def windows(self) -> list[dict[str, Any]]:
        """Return the telemetry records written so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line.split(MARKER, 1)[1]) for line in lines if MARKER in line]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started.

    Parameters:
        python: interpreter of the environment.
        tree: folder of the overlaid package; None for the environment's own.
        checkpoint: the lab's checkpoint.
        speculation: vLLM's speculative configuration; None without speculation.
        env: variables beyond the usual ones.
    """

    python: Path
    tree: Path | None
    checkpoint: Path
    speculation: dict[str, Any] | None
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, port: int) -> list[str]:
        """Return the server's command line."""
        argv = [
            *(str(self.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.checkpoint), "--served-model-name", "glm-5.2"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--distributed-executor-backend", "uni", "--max-model-len", "8192"),
            *("--kv-cache-memory-bytes", "134217728", "--max-num-seqs", "4"),
            *("--max-num-batched-tokens", "1024", "--async-scheduling"),
            *("--generation-config", "vllm", "--enforce-eager"),
        ]
        if self.speculation is not None:
            argv += ["--speculative-config", json.dumps(self.speculation)]
        return argv

    def environment(self) -> dict[str, str]:
        """Return the server's variables."""
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            **({"PYTHONPATH": str(self.tree)} if self.tree else {}),
            **self.env,
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def serving(launch: Launch, log: Path) -> Iterator[Server]:
    """Start a server, wait until it answers, and stop it afterwards.

    Raises:
        RuntimeError: it ended, or did not answer in time; with the end of its output.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.argv(port),
            env=launch.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the server did not come up (status {process.poll()}):\n{tail}")
            time.sleep(1)
        yield Server(url, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
