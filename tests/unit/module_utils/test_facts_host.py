# SPDX-License-Identifier: Apache-2.0
"""The door to a live system: bounded commands, a bounded Docker socket, a bounded gathering."""

from __future__ import annotations

import os
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts import gather, host
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Command, Unknown
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request


def _script(folder: Path, body: str, mode: int = 0o755) -> Command:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(mode)
    return Command("tool", (str(path),), timeout_s=1.0)


def test_output_and_exit_status_are_returned(tmp_path: Path) -> None:
    told = host.execute(_script(tmp_path, "echo out; echo err >&2; exit 3"))
    assert told == host.Output(3, "out\n", "err\n")


def test_ans_14_the_locale_is_c_whatever_the_caller_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "zh")
    told = host.execute(_script(tmp_path, 'echo "$LC_ALL $LANG [$LANGUAGE] $PAGER"'))
    assert told.stdout == "C C [] cat\n"


@pytest.mark.parametrize(
    "body",
    ["sleep 60", "sleep 60 & wait", "(sleep 60 &) ; exit 0", "exec 1>&- 2>&-; sleep 60"],
    ids=["sleeps", "child-sleeps", "orphan-holds-the-pipe", "closes-its-pipes"],
)
def test_a_command_that_hangs_is_ended(body: str, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(Unknown, match="not finished after 1 s"):
        host.execute(_script(tmp_path, body))
    assert time.monotonic() - started < 5


def test_endless_output_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="printed more than"):
        host.execute(_script(tmp_path, "yes 2>/dev/null | head -c 20000000"))


def test_binary_output_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="binary"):
        host.execute(_script(tmp_path, r"printf 'a\000b'"))


def test_a_missing_tool_is_unknown() -> None:
    with pytest.raises(Unknown, match="not installed"):
        host.execute(Command("x", ("/nonexistent/tool",)))


def test_a_tool_that_is_no_program_is_unknown(tmp_path: Path) -> None:
    command = _script(tmp_path, "exit 0", mode=0o644)
    with pytest.raises(Unknown, match="Permission denied"):
        host.execute(command)


def test_a_command_runs_once_for_several_sections(tmp_path: Path) -> None:
    runs: list[str] = []

    def count(command: Command) -> host.Output:
        runs.append(command.name)
        time.sleep(0.05)
        return host.Output(0, "text\n", "")

    counted = host.Host(tmp_path, count, lambda _name, _path: b"")
    command = Command("once", ("once",))
    told = host.concurrently([lambda: counted.ask(command)] * 8)
    assert told == ["text\n"] * 8
    assert runs == ["once"]


def test_a_gathering_ends_when_a_section_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()
    monkeypatch.setitem(gather.SECTIONS, "rdma", lambda _host, _request: forever.wait(30))
    started = time.monotonic()
    told = gather.gather(host.open_host(str(tmp_path)), Request(), deadline_s=0.5)
    forever.set()
    assert time.monotonic() - started < 5
    assert told["sections"]["rdma"] == {"ok": False, "reason": "not finished after 0.5 s"}
    assert told["sections"].keys() == gather.SECTIONS.keys()


def test_an_empty_tree_is_unknown_and_never_fine(tmp_path: Path) -> None:
    told = gather.gather(host.open_host(str(tmp_path)), Request())["sections"]
    known = {name for name, section in told.items() if section["ok"]}
    # These say that something is absent, which an empty tree really shows.
    assert known == {"firewall", "rdma", "files", "launch", "weights"}


def test_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="not a directory"):
        host.open_host(str(tmp_path / "nothing"))


# Every tool that a live node is asked with, and what its hanging leaves unknown.
LIVE_TOOLS = (
    "df", "dpkg-query", "ip", "journalctl", "last", "netplan", "nvidia-smi", "ss", "systemctl",
    "timedatectl", "uname",
)  # fmt: skip
LIVE_SECTIONS = {
    "avahi", "connections", "disk", "display", "gpu", "identity", "kernel_log", "listeners",
    "memory", "network", "packages", "power", "time", "units",
}  # fmt: skip


def _live(folder: Path, monkeypatch: pytest.MonkeyPatch) -> host.Host:
    """Return this machine, seen through the tools in ``folder``, with little patience."""
    monkeypatch.setitem(host.ENVIRONMENT, "PATH", str(folder))
    monkeypatch.setenv("PATH", str(folder))
    return host.Host(
        Path("/"), lambda command: host.execute(replace(command, timeout_s=1.0)), host.query_docker
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [("/bin/sleep 60 & wait", "not finished after 1 s"), ("echo cannot >&2; exit 1", "exit 1")],
    ids=["hanging", "failing"],
)
def test_a_live_node_whose_tools_are_broken_is_unknown_in_time(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LIVE_TOOLS:
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        tool.chmod(0o755)
    started = time.monotonic()
    told = gather.gather(_live(tmp_path, monkeypatch), Request())["sections"]
    assert time.monotonic() - started < gather.DEADLINE_S
    reasons = {name: section["reason"] for name, section in told.items() if not section["ok"]}
    assert reasons.keys() >= LIVE_SECTIONS
    for name in LIVE_SECTIONS:
        assert reason in reasons[name], name
    assert psutil.Process().children() == []


def test_a_live_node_without_tools_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = gather.gather(_live(tmp_path, monkeypatch), Request())["sections"]
    for name in LIVE_SECTIONS:
        assert told[name]["reason"].endswith(": not installed"), name


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/hang":
            time.sleep(1)
            return
        status = 500 if self.path == "/broken" else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"message": "text"}')

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def address_string(self) -> str:
        return "unix"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = str(tmp_path / "docker.sock")
    server = _Server(path, _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(host, "DOCKER_SOCKET", path)
    monkeypatch.setattr(host, "DOCKER_TIMEOUT_S", 0.5)
    yield path
    server.shutdown()
    server.server_close()


def test_the_engine_is_asked_over_its_socket(engine: str) -> None:
    del engine
    assert host.query_docker("x", "/info") == b'{"message": "text"}'


@pytest.mark.parametrize(("path", "reason"), [("/broken", "HTTP 500"), ("/hang", "TimeoutError")])
def test_an_engine_that_fails_is_unknown(engine: str, path: str, reason: str) -> None:
    del engine
    with pytest.raises(Unknown, match=reason):
        host.query_docker("x", path)


def test_dkr_06_a_socket_without_permission_is_unknown(engine: str) -> None:
    os.chmod(engine, 0)  # noqa: PTH101 -- a path as text, as the module has it
    as_root = os.geteuid() == 0
    if as_root:
        # Root may connect whatever the modes of socket and folders say.
        os.seteuid(65534)
    try:
        with pytest.raises(Unknown, match="Permission denied"):
            host.query_docker("x", "/info")
    finally:
        if as_root:
            os.seteuid(0)


def test_an_engine_that_is_not_there_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "DOCKER_SOCKET", str(tmp_path / "nothing.sock"))
    with pytest.raises(Unknown, match="no engine listens"):
        host.query_docker("x", "/info")


def test_links_in_a_recording_stay_inside_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("recorded\n", encoding="utf-8")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "climbing").symlink_to("../../../../etc/passwd")
    recorded = host.open_host(str(tmp_path))
    assert recorded.text("/absolute") == "recorded\n"
    assert recorded.text("/climbing") == "recorded\n"


def test_the_session_is_found_through_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.5 1 198.51.100.11 22")
    assert host.session_connection() == "198.51.100.5 1 198.51.100.11 22"
    assert os.environ["SSH_CONNECTION"]
