from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply import jobs
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.jobs import Job, Look

from tests.unit.module_utils.supply_server import Server, serving

CONTENT = bytes(range(256)) * 4000


class ProcessUnitsStandIn:
    """Stands in for systemd: processes, started again at once when they are killed."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: dict[str, list[str]] = {}
        self.restarts = 0

    def active(self, unit: str) -> bool:
        process = self.processes.get(unit)
        if process is None:
            return False
        code = process.poll()
        if code is not None and code != 0 and self.restarts:
            self.restarts -= 1
            self.processes[unit] = subprocess.Popen(self.starts[unit])
            return True
        return code is None

    def result(self, unit: str) -> str:
        process = self.processes.get(unit)
        return "signal" if process and (process.poll() or 0) < 0 else "success"

    def start(self, unit: str, argv: Sequence[str], deadline_s: int) -> None:
        del deadline_s
        self.starts[unit] = list(argv)
        self.processes[unit] = subprocess.Popen(list(argv), stderr=subprocess.DEVNULL)

    def stop(self, unit: str) -> None:
        process = self.processes.pop(unit, None)
        if process is not None:
            process.terminate()
            process.wait()

    def kill(self, unit: str) -> None:
        os.kill(self.processes[unit].pid, signal.SIGKILL)
        self.processes[unit].wait()


@pytest.fixture
def units() -> Iterator[ProcessUnitsStandIn]:
    units = ProcessUnitsStandIn()
    yield units
    for unit in list(units.processes):
        units.stop(unit)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server(files={"part": CONTENT})) as started:
        yield started


def request(tmp_path: Path, server: Server) -> dict[str, Any]:
    return {
        "kind": "fetch",
        "url": server.url,
        "folder": str(tmp_path / "parts"),
        "files": [{"name": "part", "sha256": hashlib.sha256(CONTENT).hexdigest()}],
    }


def settle(job: Job, run: str, limit_s: float = 20.0) -> Look:
    ends = time.monotonic() + limit_s
    while (look := job.look(run)).state == "running" and time.monotonic() < ends:
        time.sleep(0.05)
    return look


def job_of(tmp_path: Path, units: ProcessUnitsStandIn) -> Job:
    return Job("image-fetch", units, tmp_path / "jobs")


def test_a_job_runs_by_itself_from_a_copy_of_this_code(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    look = settle(job, "run-1")
    assert look.state == "done", look.message
    assert look.data is not None
    assert look.data["moved_bytes"] == len(CONTENT)
    assert look.progress["total_bytes"] == len(CONTENT)
    job.forget()
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {"image-fetch.lock"}


def test_a_refusal_of_the_job_is_its_message(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    server.files.clear()
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    look = settle(job, "run-1")
    assert look.state == "failed"
    assert "found HTTP 404" in look.message


def slow(server: Server) -> None:
    """Make the transfer hang after its first bytes, as a dead line does."""
    server.cut_after = [1000] * 500


def test_a_second_run_is_refused_while_the_first_follows(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    slow(server)
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    with pytest.raises(RefusalError, match="expected no other run at work here"):
        job.start(request(tmp_path, server), "run-2", 60)
    assert job.look("run-1").state == "running"


def test_a_run_follows_the_work_of_a_dead_run(
    tmp_path: Path,
    server: Server,
    units: ProcessUnitsStandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow(server)
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    process = units.processes[job.unit]
    monkeypatch.setattr(jobs, "SILENCE_S", 0.0)
    job.start(request(tmp_path, server), "run-2", 60)
    assert units.processes[job.unit] is process
    assert job.look("run-2").state == "running"
    with pytest.raises(RefusalError, match="taken over by another run"):
        job.look("run-1")


def test_other_work_replaces_that_of_a_dead_run(
    tmp_path: Path,
    server: Server,
    units: ProcessUnitsStandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow(server)
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    process = units.processes[job.unit]
    server.cut_after = []
    monkeypatch.setattr(jobs, "SILENCE_S", 0.0)
    other = request(tmp_path, server) | {"folder": str(tmp_path / "elsewhere")}
    job.start(other, "run-2", 60)
    assert process.poll() is not None
    assert settle(job, "run-2").state == "done"


def test_a_killed_job_without_a_restart_is_told(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    slow(server)
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    units.kill(job.unit)
    look = job.look("run-1")
    assert look.state == "failed"
    assert "died before it had finished (signal)" in look.message


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6])
def test_a_job_killed_at_any_moment_comes_back_and_finishes(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn, delay_s: float
) -> None:
    server.cut_after = [100_000] * 3
    units.restarts = 1
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server), "run-1", 60)
    time.sleep(delay_s)
    units.kill(job.unit)
    look = settle(job, "run-1")
    assert look.state == "done", look.message
    assert (tmp_path / "parts" / "part").read_bytes() == CONTENT
    assert server.sent_bytes <= 2 * len(CONTENT)


def test_a_killed_sender_comes_back_on_its_port(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    fetched = job_of(tmp_path, units)
    fetched.start(request(tmp_path, server), "run-1", 60)
    assert settle(fetched, "run-1").state == "done"
    job = Job("image-share", units, tmp_path / "jobs")
    share = {
        "kind": "share",
        "folder": str(tmp_path / "parts"),
        "names": ["part"],
        "address": "127.0.0.1",
        "token": "t" * 40,
        "idle_limit_s": 30,
        "deadline_s": 60,
    }
    job.start(share, "run-1", 60)

    def port() -> int:
        ends = time.monotonic() + 15
        while (look := job.look("run-1")).ready is None and time.monotonic() < ends:
            assert look.state == "running", look.message
            time.sleep(0.05)
        assert look.ready is not None
        return int(look.ready["port"])

    before = port()
    units.restarts = 1
    units.kill(job.unit)
    assert job.look("run-1").state == "running"
    received = {
        "kind": "fetch",
        "url": f"http://127.0.0.1:{before}",
        "folder": str(tmp_path / "there"),
        "token": "t" * 40,
        "direct": True,
        "files": request(tmp_path, server)["files"],
    }
    receiver = Job("weights-fetch", units, tmp_path / "jobs")
    receiver.start(received, "run-1", 60)
    look = settle(receiver, "run-1")
    assert look.state == "done", look.message
    assert job.stop()
    assert not (tmp_path / "jobs" / "image-share").exists()


def test_the_token_is_readable_by_root_only(
    tmp_path: Path, server: Server, units: ProcessUnitsStandIn
) -> None:
    slow(server)
    job = job_of(tmp_path, units)
    job.start(request(tmp_path, server) | {"token": "t" * 40}, "run-1", 60)
    folder = tmp_path / "jobs" / "image-fetch"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "request.json").stat().st_mode & 0o777 == 0o600
    assert "t" * 40 not in " ".join(units.starts[job.unit])
    assert json.loads((folder / "request.json").read_bytes())["run"] == "run-1"
