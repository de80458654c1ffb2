# SPDX-License-Identifier: Apache-2.0
"""Every tool and file that the facts rest on, broken in every way: unknown with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts import (
    clock,
    gpu,
    host,
    identity,
    kernel_log,
    listeners,
    network,
    packages,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.gather import SECTIONS

from tests.fixtures.nodes.compose import SERVING, Tree, observe, tree
from tests.fixtures.nodes.fleet import plain_facts

NODE = "bravo"
JUNK = bytes(range(256)) * 64
NOT_UTF8 = b"\xff\xfe\xfa\xf0 \x80\x81\n" * 200
GERMAN = "Befehl nicht gefunden: Zugriff verweigert\nSpeicher:    gesamt   belegt\n"
ERROR_TEXT = "Failed to connect to bus: Host is down\n"
TEN_MB = b"all work and no play\n" * 500_000

# Recording of each command, and the sections that rest on it.
TOOLS: dict[str, set[str]] = {
    identity.UNAME.name: {"identity"},
    "systemctl-show": {"memory", "display", "avahi", "units"},
    network.ADDR.name: {"network", "reach"},
    network.ROUTE.name: {"network"},
    gpu.GPU.name: {"gpu"},
    gpu.TENANTS.name: {"gpu"},
    gpu.CLOCKS.name: {"clocks"},
    "df": {"disk"},
    listeners.SS.name: {"listeners"},
    listeners.SS_ESTABLISHED.name: {"connections"},
    clock.TIMEDATECTL.name: {"time"},
    packages.DPKG.name: {"packages"},
    kernel_log.JOURNAL.name: {"kernel_log"},
}
# With these, printing nothing is an answer: no process on the GPU, no connection.
MAY_BE_EMPTY = {gpu.TENANTS.name, listeners.SS_ESTABLISHED.name}


def _missing(composed: Tree, tool: str) -> None:
    composed.remove(f"/_commands/{tool}.txt")
    if tool == "systemctl-show":
        composed.units.clear()


def _printing(body: str | bytes) -> Callable[[Tree, str], None]:
    return lambda composed, tool: composed.write(f"/_commands/{tool}.txt", body)


def _status(rc: str) -> Callable[[Tree, str], None]:
    return lambda composed, tool: composed.write(f"/_commands/{tool}.rc", rc)


FAULTS: dict[str, Callable[[Tree, str], None]] = {
    "missing": _missing,
    "empty": _printing(""),
    "blank": _printing("\n  \n"),
    "other-language": _printing(GERMAN),
    "error-with-success": _printing(ERROR_TEXT),
    "good-text-with-failure": _status("1"),
    "hanging": _status("timeout"),
    "binary": _printing(JUNK),
    "not-utf8": _printing(NOT_UTF8),
    "ten-megabytes": _printing(TEN_MB),
}


def _facts(edit: Callable[[Tree], None]) -> dict[str, Any]:
    composed = tree(NODE, SERVING)
    # The recording of systemctl is written from the units; a fault needs the file itself.
    composed.write("/_commands/systemctl-show.txt", composed.systemctl_show())
    edit(composed)
    told: dict[str, Any] = observe(composed)["sections"]
    return told


def _healthy() -> dict[str, Any]:
    told: dict[str, Any] = plain_facts(NODE, SERVING)["sections"]
    return told


def _unknown(told: dict[str, Any]) -> set[str]:
    for name, section in told.items():
        assert section["ok"] is True or section["reason"].strip(), name
        assert len(json.dumps(section)) < 100_000, f"{name} repeats what it could not read"
    return {name for name, section in told.items() if not section["ok"]}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_broken_tool_leaves_its_sections_unknown_and_the_others_alone(
    tool: str, fault: str
) -> None:
    told = _facts(lambda composed: FAULTS[fault](composed, tool))
    expected = TOOLS[tool]
    if fault in {"empty", "blank"} and tool in MAY_BE_EMPTY:
        expected = set()
    assert _unknown(told) == expected
    for name in SECTIONS.keys() - TOOLS[tool]:
        assert told[name] == _healthy()[name], name


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"empty", "blank"}))
def test_a_broken_netplan_hides_the_merged_view_only(fault: str) -> None:
    told = _facts(lambda composed: FAULTS[fault](composed, "netplan-get"))
    netplan = told["network"]["data"]["netplan"]
    assert netplan["merged"] in (None, {})
    assert netplan["merged"] == {} or netplan["reason"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_last_never_says_clean(fault: str) -> None:
    power = _facts(lambda composed: FAULTS[fault](composed, "last"))["power"]
    assert not power["ok"] or power["data"]["previous_run"] == "unknown"


DOCKER_ANSWERS = (
    "docker-info",
    "docker-images",
    "docker-containers",
    "docker-image-6d7b06b13f38",
    "docker-container-aaaaaaaaaaaa",
)
DOCKER_FAULTS: dict[str, str | bytes | None] = {
    "missing": None,
    "empty": "",
    "html": "<!doctype html><html></html>",
    "binary": JUNK,
    "wrong-shape": '{"message": "page not found"}',
    "list-of-nothing": "[{}]",
    "null": "null",
}


@pytest.mark.parametrize("fault", DOCKER_FAULTS)
@pytest.mark.parametrize("answer", DOCKER_ANSWERS)
def test_a_broken_docker_answer_leaves_docker_unknown(answer: str, fault: str) -> None:
    path = f"/_commands/{answer}.json"
    body = DOCKER_FAULTS[fault]
    told = _facts(lambda t: t.remove(path) if body is None else t.write(path, body))
    assert _unknown(told) == {"docker"}


# A file of every kind, and the section that is unknown when it cannot be believed.
FILES = {
    "/etc/os-release": "identity",
    "/etc/dgx-release": "identity",
    "/proc/cpuinfo": "identity",
    "/proc/meminfo": "memory",
    "/proc/swaps": "memory",
    "/proc/sys/vm/swappiness": "memory",
    "/proc/1/cgroup": "holders",
    "/sys/class/infiniband/rocep1s0f1/ports/1/state": "rdma",
    "/sys/class/infiniband/rocep1s0f1/ports/1/gids/3": "rdma",
    "/etc/spark-appliance/launches/0123456789ab/launch.json": "launch",
    "/var/lib/spark-appliance/weights/glm/model.safetensors.index.json": "weights",
}


# The kernel writes it in one language only.
KERNEL_ONLY = {"/proc/1/cgroup"}


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, JUNK) for path in FILES]
    + [(path, GERMAN.encode()) for path in FILES if path not in KERNEL_ONLY],
)
def test_a_file_that_is_not_what_it_should_be_is_unknown(path: str, body: bytes) -> None:
    told = _facts(lambda composed: composed.write(path, body))
    assert _unknown(told) == {FILES[path]}


@pytest.mark.parametrize("path", ["/proc/meminfo", "/etc/os-release", "/etc/fstab"])
def test_a_file_of_ten_megabytes_is_unknown(path: str) -> None:
    told = _facts(lambda composed: composed.write(path, TEN_MB))
    (section,) = _unknown(told)
    assert "larger than" in told[section]["reason"]


@pytest.mark.parametrize("path", ["/proc/meminfo", "/etc/fstab", "/etc/avahi/avahi-daemon.conf"])
def test_a_loop_of_links_is_unknown(path: str) -> None:
    def loop(composed: Tree) -> None:
        name = path.rpartition("/")[2]
        composed.link(path, f"{name}.other")
        composed.link(f"{path}.other", name)

    told = _facts(loop)
    (section,) = _unknown(told)
    assert "symbolic links" in told[section]["reason"]


def test_a_loop_of_folders_is_unknown() -> None:
    def loop(composed: Tree) -> None:
        composed.remove("/etc/spark-appliance")
        composed.link("/etc/spark-appliance", "spark-appliance")

    assert _unknown(_facts(loop)) == {"launch"}


@pytest.mark.parametrize("path", ["/proc/meminfo", "/etc/fstab", "/etc/ufw/ufw.conf"])
def test_a_file_without_permission_is_unknown(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(target: Any, *args: Any, **kwargs: Any) -> int:
        if str(target).endswith(path):
            raise PermissionError(13, "Permission denied", str(target))
        return opened(target, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    told = _facts(lambda composed: composed.write("/etc/ufw/ufw.conf", "ENABLED=no\n"))
    (section,) = _unknown(told)
    assert "Permission denied" in told[section]["reason"]


def test_a_fifo_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    root = tree(NODE, SERVING).put(tmp_path / "node")
    (root / "etc/fstab").unlink()
    os.mkfifo(root / "etc/fstab")
    with pytest.raises(host.Unknown, match="not a regular file"):
        host.open_host(str(root)).text("/etc/fstab")


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings_do_not_change_what_is_told(ending: str) -> None:
    def mix(composed: Tree) -> None:
        for path, body in list(composed.files.items()):
            lines = body.decode().split("\n")
            # With CRLF every other line keeps its own end; a lone CR before a LF would be one end.
            mixed = "".join(
                line + ("\n" if index % 2 and ending == "\r\n" else ending)
                for index, line in enumerate(lines[:-1])
            )
            composed.write(path, mixed + lines[-1])

    told = _facts(mix)
    healthy = _healthy()
    for name in SECTIONS.keys() - {"launch", "network", "weights"}:
        assert told[name] == healthy[name], name
    # These also tell digests and sizes, which differ.
    assert told["network"]["data"]["interfaces"] == healthy["network"]["data"]["interfaces"]
    assert told["launch"]["data"]["id"] == healthy["launch"]["data"]["id"]


def test_a_section_that_fails_in_its_code_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setitem(SECTIONS, "rdma", fail)
    told = _facts(lambda _: None)
    assert _unknown(told) == {"rdma"}
    assert told["rdma"]["reason"] == "RuntimeError: not foreseen"
