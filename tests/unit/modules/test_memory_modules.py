# SPDX-License-Identifier: Apache-2.0
"""The watch as a unit with little privilege, and the wait that names who holds memory."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.spark.appliance.plugins.module_utils import _memory_watch
from ansible_collections.spark.appliance.plugins.modules import memory_wait, memory_watch

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a module's entry with arguments and return its answer."""

    def call(main: Callable[[], None], **arguments: Any) -> dict[str, Any]:
        with patch_module_args(arguments), pytest.raises(SystemExit):
            main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return call


def test_program_is_sent_as_it_is_and_needs_the_standard_library_only() -> None:
    source = memory_watch.program_source()
    assert source == Path(_memory_watch.__file__).read_text(encoding="utf-8")
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "ansible_collections" not in imported
    assert "ansible" not in imported


def test_unit_has_little_privilege_and_dies_last() -> None:
    argv = memory_watch.watch_argv(
        launch="3f0c9a", period_s=0.2, metrics_url="http://10.77.0.11:8000/metrics"
    )
    command = argv.index("--")
    for setting in ("DynamicUser=yes", "NoNewPrivileges=yes", "OOMScoreAdjust=-900"):
        assert f"--property={setting}" in argv[:command]
    assert argv[command + 1 :] == [
        "/usr/bin/python3", "-I", "/run/spark-appliance/memory_watch.py",
        "--launch", "3f0c9a", "--state", "/run/spark-memory-watch/state.json", "--period", "0.2",
        "--metrics", "http://10.77.0.11:8000/metrics",
    ]  # fmt: skip
    quiet = memory_watch.watch_argv(launch="3f0c9a", period_s=0.2, metrics_url=None)
    assert "--metrics" not in quiet


def test_foreign_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert memory_watch.read_state(path) is None
    for text in ("{}", "[]", '{"schema": 2}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="not what this version"):
            memory_watch.read_state(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="property name"):
        memory_watch.read_state(path)


def test_started_needs_the_launch(run: Run) -> None:
    answer = run(memory_watch.main, state="started")
    assert answer["failed"]
    assert "launch" in answer["msg"]


def meminfo(tmp_path: Path, available_kib: int) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(
        f"MemTotal: 200000 kB\nMemFree: 100 kB\nMemAvailable: {available_kib} kB\n",
        encoding="ascii",
    )
    return path


def test_enough_memory_needs_no_wait(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "MEMINFO", meminfo(tmp_path, 1000))
    answer = run(memory_wait.main, available_bytes=1000 * 1024)
    assert (answer["available_bytes"], answer["holders"]) == (1000 * 1024, [])
    assert answer["changed"] is False


def test_memory_that_does_not_come_back_names_who_holds_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "MEMINFO", meminfo(tmp_path, 999))
    held = {
        "processes": [
            {"pid": 1, "name": "small", "container": None, "unit": None, "memory_bytes": 1},
            {"pid": 2, "name": "large", "container": "c1", "unit": None, "memory_bytes": 9 << 30},
            {"pid": 3, "name": "dark", "container": None, "unit": None, "memory_bytes": None},
        ]
    }
    monkeypatch.setattr(memory_wait, "observe_holders", lambda _: held)
    answer = run(memory_wait.main, available_bytes=1000 * 1024, timeout=0)
    assert answer["failed"]
    assert "large (process 2, c1): 9216 MiB, small" in answer["msg"]
    assert [holder["pid"] for holder in answer["holders"]] == [2, 1]


def test_memory_that_nobody_holds_is_the_drivers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "MEMINFO", meminfo(tmp_path, 999))
    monkeypatch.setattr(memory_wait, "observe_holders", lambda _: {"processes": []})
    answer = run(memory_wait.main, available_bytes=1000 * 1024, timeout=0)
    assert "held by no process" in answer["msg"]
    assert "reboot" in answer["msg"]


def test_foreign_meminfo_fails_the_wait(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meminfo"
    path.write_text("Mem: 121Gi\n", encoding="ascii")
    monkeypatch.setattr(memory_wait, "MEMINFO", path)
    answer = run(memory_wait.main, available_bytes=1)
    assert answer["failed"]
    assert "cannot be read" in answer["msg"]
