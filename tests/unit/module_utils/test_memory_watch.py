# SPDX-License-Identifier: Apache-2.0
"""The watch keeps the least memory, when it was seen and how full the KV pool was then."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils import _memory_watch
from ansible_collections.spark.appliance.plugins.module_utils._memory_watch import (
    ForeignMeminfoError,
    Look,
    Watch,
    parse_kv_share,
    parse_meminfo,
    write_state,
)

MEMINFO = """\
MemTotal:       127600748 kB
MemFree:        120114320 kB
MemAvailable:   118566368 kB
HugePages_Total:       0
"""


def test_meminfo() -> None:
    assert parse_meminfo(MEMINFO) == Look(130_663_165_952, 121_411_960_832, 122_997_063_680)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ("", "no MemAvailable, MemFree, MemTotal"),
        (MEMINFO.replace("MemAvailable", "MemAvail"), "no MemAvailable"),
        (MEMINFO.replace("118566368 kB", "118566368 MB"), "no MemAvailable"),
        (MEMINFO.replace("118566368 kB", "lots kB"), "no MemAvailable"),
        (MEMINFO.replace("118566368", "127600749"), "contradicts itself"),
        (MEMINFO.replace("120114320", "127600749"), "contradicts itself"),
        ("              total        used\nMem:           121Gi       2.7Gi\n", "in kB"),
    ],
)
def test_foreign_meminfo(spoilt: str, said: str) -> None:
    with pytest.raises(ForeignMeminfoError, match=said):
        parse_meminfo(spoilt)


@pytest.mark.parametrize(
    ("metrics", "share"),
    [
        (b'vllm:kv_cache_usage_perc{engine="0",model_name="glm-5.2"} 0.0411\n', 0.0411),
        (b"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 1e-05\n", 1e-05),
        (b'vllm:kv_cache_usage_perc{e="0"} 0.1\nvllm:kv_cache_usage_perc{e="1"} 0.3\n', 0.3),
        (b"vllm:kv_cache_usage_perc_total 0.4\n", None),
        (b"vllm:kv_cache_usage_perc NaN\n", None),
        (b"", None),
    ],
)  # fmt: skip
def test_kv_share(metrics: bytes, share: float | None) -> None:
    assert parse_kv_share(metrics) == share


def test_least_of_each_with_its_time_and_occupancy() -> None:
    watch = Watch("one", 0.2)
    assert watch.state()["min_available"] is None
    watch.see(Look(100, 90, 80), 0.0)
    watch.tell_kv(0.0411)
    watch.see(Look(100, 10, 50), 37.1)
    watch.tell_kv(0.95107)
    watch.see(Look(100, 20, 40), 900.0)
    watch.tell_kv(None)
    watch.see(Look(100, 95, 90), 972.4)
    state = watch.state()
    assert state["before"] == {"total_bytes": 100, "available_bytes": 90, "free_bytes": 80}
    assert state["min_available"] == {"bytes": 10, "at_s": 37.1, "kv_share": 0.0411}
    assert state["min_free"] == {"bytes": 40, "at_s": 900.0, "kv_share": 0.95107}
    assert (state["peak_kv_share"], state["samples"]) == (0.95107, 4)
    assert state["watched_s"] == 972.4


def test_state_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, {"a": 1})
    write_state(path, {"a": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


@pytest.fixture
def engine() -> Iterator[str]:
    """An engine's metrics endpoint on loopback."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'vllm:kv_cache_usage_perc{engine="0"} 0.25\n')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- name set by the base class
            del format, args

    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def wait_for(path: Path, seconds: float, least_samples: int) -> dict[str, Any]:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if path.exists():
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if state["samples"] >= least_samples:
                return state
        time.sleep(0.1)
    raise AssertionError(f"no state with {least_samples} samples after {seconds} s")


def test_the_program_watches_this_machine_for_little(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "state.json"
    program = _memory_watch.__file__
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            program,
            "--launch",
            "one",
            "--state",
            str(path),
            "--metrics",
            engine,
        ]
    )
    try:
        early = wait_for(path, 20, 1)
        late = wait_for(path, 30, 20)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    final = json.loads(path.read_text(encoding="utf-8"))
    assert final["samples"] >= late["samples"]
    assert final["faults"] == 0
    assert final["launch"] == "one"
    assert final["peak_kv_share"] == 0.25
    assert 0 < final["min_available"]["bytes"] <= final["before"]["available_bytes"]
    # Below one hundredth of a core once it runs; reading its own program takes longer than that.
    share = (final["cpu_s"] - early["cpu_s"]) / (final["watched_s"] - early["watched_s"])
    assert share < 0.01
