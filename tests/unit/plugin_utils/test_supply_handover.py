"""The way from a node to a folder of the control node, with a stand-in for ssh on this machine."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.action import supply_fetch
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.fetch import Fetcher, Wanted
from ansible_collections.spark.appliance.plugins.module_utils._supply.origin import open_origin
from ansible_collections.spark.appliance.plugins.module_utils._supply.progress import Progress
from ansible_collections.spark.appliance.plugins.module_utils._supply.share import wide_listeners
from ansible_collections.spark.appliance.plugins.plugin_utils.handover import (
    allocated_port,
    control_folder,
    tunnel_argv,
)

ROOT = Path(__file__).resolve().parents[3]
CONTENT = bytes(range(256)) * 500
# Tells the port that it was given as the one that a node's sshd picked, and waits as ssh does.
SSH = """#!/bin/sh
echo $$ > {folder}/pid
for word; do case $word in 127.0.0.1:0:*) port=${{word##*:}};; esac; done
echo "Warning: something else" >&2
echo "Allocated port $port for remote forward to 127.0.0.1:$port" >&2
exec cat > /dev/null
"""


def options(folder: Path, script: str = SSH) -> dict[str, Any]:
    ssh = folder / "ssh"
    ssh.write_text(script.format(folder=folder))
    ssh.chmod(0o755)
    return {
        "host": "198.51.100.11",
        "port": 2222,
        "remote_user": "ops",
        "private_key_file": "/keys/my key",
        "host_key_checking": True,
        "timeout": 15,
        "ssh_executable": str(ssh),
        "ssh_args": "-o ControlMaster=auto -o ControlPersist=120s",
        "ssh_common_args": "-o 'ProxyJump=gate'",
        "ssh_extra_args": None,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "0f").write_bytes(CONTENT)
    (folder / "part").symlink_to("blobs/0f")
    (folder / "private").write_bytes(b"not listed")
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  part\n")
    return folder


def status(port: int, path: str, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(what: Any) -> None:
    ends = time.monotonic() + 10
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("control:///srv/release", "/srv/release"),
        ("control:///srv/my%20release/", "/srv/my release/"),
        ("control://srv/release", ""),
        ("control:relative", ""),
        ("file:///srv/release", None),
        ("http://198.51.100.5/r", None),
    ],
)
def test_a_folder_of_the_control_node_is_told_apart(url: str, folder: str | None) -> None:
    assert control_folder(url) == folder


def test_ssh_is_called_as_ansible_does_but_shares_no_connection(tmp_path: Path) -> None:
    argv = tunnel_argv(options(tmp_path), 40123)
    settings = [argv[at + 1] for at, word in enumerate(argv) if word == "-o"]
    # The first value of a setting counts.
    first = {setting.partition("=")[0]: setting for setting in reversed(settings)}
    assert first["ControlMaster"] == "ControlMaster=no"
    assert first["ControlPath"] == "ControlPath=none"
    assert first["ExitOnForwardFailure"] == "ExitOnForwardFailure=yes"
    assert {"Port=2222", "User=ops", 'IdentityFile="/keys/my key"', "ProxyJump=gate"} <= set(
        settings
    )
    assert "StrictHostKeyChecking=no" not in settings
    assert argv[-4:-1] == ["-R", "127.0.0.1:0:127.0.0.1:40123", "198.51.100.11"]


def test_only_the_port_is_taken_from_what_ssh_says() -> None:
    said = "Allocated port 40567 for remote forward to 127.0.0.1:40123"
    assert allocated_port(said) == 40567
    assert allocated_port("Warning: remote port forwarding failed for listen port 0") is None


def test_a_node_reads_what_is_listed_for_as_long_as_the_copy_lasts(
    folder: Path, tmp_path: Path
) -> None:
    names = supply_fetch._names(folder, "SHA256SUMS")
    assert names == ["SHA256SUMS", "part"]
    with supply_fetch.handed_over(folder, names, options(tmp_path)) as way:
        port, token = way["tunnel"], way["token"]
        assert way["url"] == f"http://127.0.0.1:{port}"
        paths = {"/part": 200, "/SHA256SUMS": 200, "/private": 404, "/../source/private": 404}
        assert {path: status(port, path, token) for path in paths} == paths
        assert status(port, "/part", "x" * 40) == 401
        origin = open_origin(way["url"], token, direct=True)
        with pytest.raises(RefusalError, match="twice"):
            Fetcher(tmp_path / "node", origin, Progress()).run([Wanted("part", "0" * 64)])
        pid = int((tmp_path / "pid").read_text())
        assert not ended(pid)
    assert ended(pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_copy_that_was_cut_goes_on_and_a_changed_file_starts_over(
    folder: Path, tmp_path: Path
) -> None:
    def tag() -> str:
        with supply_fetch.handed_over(folder, ["part"], options(tmp_path)) as way:
            origin = open_origin(way["url"], way["token"], direct=True)
            return origin.offer("part").etag

    first = tag()
    assert first == tag()
    (folder / "blobs" / "0f").write_bytes(CONTENT[::-1])
    assert tag() != first


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\necho 'Error: remote port forwarding failed for listen port 0' >&2\nexit 255\n",
        "#!/bin/sh\nexit 255\n",
    ],
)
def test_an_sshd_that_forwards_nothing_is_refused_with_what_it_said(
    folder: Path, tmp_path: Path, script: str
) -> None:
    with (
        pytest.raises(RefusalError, match="AllowTcpForwarding remote in the node's sshd") as said,
        supply_fetch.handed_over(folder, ["part"], options(tmp_path, script)),
    ):
        raise AssertionError("there is no way")
    assert ("failed for listen port" in str(said.value)) == ("failed" in script)


def test_a_killed_control_node_takes_the_way_with_it(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, 'collections')\n"
        "from pathlib import Path\n"
        "from ansible_collections.spark.appliance.plugins.action import supply_fetch\n"
        f"with supply_fetch.handed_over(Path({str(folder)!r}), ['part'], {options(tmp_path)!r}):\n"
        "    print('open', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for(lambda: ended(pid))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "found: No such file"), (b"<!doctype html>", "found a web page"), (b"", "empty file")],
)
def test_a_folder_without_checksums_is_refused(
    folder: Path, content: bytes | None, message: str
) -> None:
    path = folder / "SHA256SUMS"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RefusalError, match=message):
        supply_fetch._names(folder, "SHA256SUMS")


@pytest.mark.parametrize("url", ["control://srv", "control:///nowhere/at/all"])
def test_a_folder_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RefusalError, match="absolute folder of the control node"):
        supply_fetch._folder(url)


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


@pytest.mark.parametrize(
    ("row", "wide"),
    [
        ("0: 0100007F:9C4B 00000000:0000 0A", []),
        ("0: 00000000:9C4B 00000000:0000 0A", ["0.0.0.0"]),  # noqa: S104 -- what is refused
        ("0: 0B0033C6:9C4B 00000000:0000 0A", ["198.51.0.11"]),
        ("0: 00000000:9C4C 00000000:0000 0A", []),
        # A connection, no listener.
        ("0: 0B0033C6:9C4B 0100007F:0016 01", []),
        (f"0: {'0' * 32}:9C4B {'0' * 32}:0000 0A", ["::"]),
        (f"0: {'0' * 24}01000000:9C4B {'0' * 32}:0000 0A", []),
    ],
)
def test_a_forwarding_that_others_could_use_is_seen(row: str, wide: list[str]) -> None:
    assert wide_listeners(0x9C4B, [HEADER + row + " 00000000:00000000 00:00000000\n"]) == wide
