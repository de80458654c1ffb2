"""The lab is what docs/lab.md says of it, in whatever state its nodes are."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest
from spark_lab.spec import RELEASE_NUMBER, RELEASE_PORT, UNPLUGGED, Lab, Node
from testinfra.host import Host

pytestmark = pytest.mark.lab

MIB = 1 << 20
HELD_BYTES = 400 * MIB
# Prints a line once the memory is resident, then holds it until its input closes.
HOLD = f"""
import sys
held = bytearray(b'1') * {HELD_BYTES}
print('held', flush=True)
sys.stdin.read()
"""


def meminfo(host: Host) -> dict[str, int]:
    """Return a node's /proc/meminfo in bytes."""
    lines = host.check_output("cat /proc/meminfo").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def settled_bytes(host: Host) -> int:
    """Return MemAvailable once it stands still.

    The kernel sums a group's page cache every 2 s: until then, fresh cache looks like used memory.
    """
    deadline = time.monotonic() + 60
    last = meminfo(host)["MemAvailable"]
    while time.monotonic() < deadline:
        time.sleep(2.5)
        now = meminfo(host)["MemAvailable"]
        if abs(now - last) < 16 * MIB:
            return now
        last = now
    pytest.fail("MemAvailable did not stand still for 60 s")


def test_a_node_is_a_booted_host(lab: Lab, host: Host, node: Node) -> None:
    assert host.process.get(pid=1).comm == "systemd"
    assert host.check_output("hostname") == node.name
    assert host.service("ssh").is_running
    assert host.service("avahi-daemon").is_running
    driver = {"bookworm": "overlay2", "trixie": "overlayfs"}[lab.suite.name]
    assert host.check_output("docker info --format '{{.Driver}}'") == driver


def test_a_node_has_memory_of_its_own(host: Host, node: Node) -> None:
    assert meminfo(host)["MemTotal"] == node.memory_bytes


@pytest.fixture
def inner_image(hosts: dict[str, Host]) -> Iterator[str]:
    """A container image inside bravo, made of bravo's own Python."""
    name = "lab-probe:1"
    paths = "bin lib lib64 usr/bin usr/lib/python3.* usr/lib/x86_64-linux-gnu usr/lib64"
    bravo = hosts["bravo"]
    bravo.check_output(f"sh -c 'cd / && tar -cf - {paths} | docker import - {name}'")
    yield name
    bravo.check_output(f"docker rmi --force {name}")


def test_memory_held_on_a_node_is_missing_from_that_node_alone(
    lab: Lab, hosts: dict[str, Host]
) -> None:
    argv = ["docker", "exec", "-i", lab.container("bravo"), "python3", "-c", HOLD]
    _assert_costs_memory(argv, hosts)


def test_memory_held_by_a_container_counts_as_its_nodes(
    lab: Lab, hosts: dict[str, Host], inner_image: str
) -> None:
    options = ["--network", "host", "--ipc", "host", "--cap-add", "IPC_LOCK"]
    inner = ["docker", "run", "--rm", "-i", *options, inner_image, "python3", "-c", HOLD]
    _assert_costs_memory(["docker", "exec", "-i", lab.container("bravo"), *inner], hosts)


def _assert_costs_memory(argv: list[str], hosts: dict[str, Host]) -> None:
    bravo, charlie = hosts["bravo"], hosts["charlie"]
    before, elsewhere = settled_bytes(bravo), meminfo(charlie)["MemAvailable"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        held = before - settled_bytes(bravo)
        held_elsewhere = elsewhere - meminfo(charlie)["MemAvailable"]
        holder.communicate()
    assert held > 0.9 * HELD_BYTES
    # What the other node does of its own in these seconds is far less than what was held.
    assert held_elsewhere < 0.5 * HELD_BYTES
    assert before - settled_bytes(bravo) < 0.1 * HELD_BYTES


def test_the_rails_of_one_cage_are_plugged_in(host: Host) -> None:
    carrier = {
        name: host.check_output(f"cat /sys/class/net/{name}/carrier")
        for name in (*UNPLUGGED, "enp1s0f1np1", "enP2p1s0f1np1", "enP7s7")
    }
    assert carrier == dict.fromkeys(UNPLUGGED, "0") | dict.fromkeys(
        ("enp1s0f1np1", "enP2p1s0f1np1", "enP7s7"), "1"
    )


def test_the_management_address_outlives_a_network_restart(
    lab: Lab, hosts: dict[str, Host], node: Node
) -> None:
    host = hosts[node.name]
    host.check_output("systemctl restart systemd-networkd")
    host.check_output("netplan apply")
    address = f"{lab.management(node.number)}/24"
    assert address in host.check_output("ip -br -4 address show dev enP7s7")


def test_a_node_reaches_nothing_but_the_lab(host: Host) -> None:
    assert host.check_output("ip route show default") == ""


def test_the_release_server_serves_ranges_of_the_built_release(lab: Lab) -> None:
    sums = lab.release / "lab/SHA256SUMS"
    assert sums.exists(), f"{sums} is missing; run make lab first"
    part = sums.read_text(encoding="ascii").split()[1]
    base = f"http://{lab.management(RELEASE_NUMBER)}:{RELEASE_PORT}/lab"
    with urllib.request.urlopen(f"{base}/SHA256SUMS", timeout=10) as answer:  # noqa: S310 - the lab's own server
        served = answer.read()
    assert served == sums.read_bytes(), "another build is served; make lab-up follows the new one"
    ranged = urllib.request.Request(f"{base}/{part}", headers={"Range": "bytes=1000-1999"})  # noqa: S310 - as above
    with urllib.request.urlopen(ranged, timeout=10) as answer:  # noqa: S310 - as above
        assert answer.status == 206
        with (lab.release / "lab" / part).open("rb") as local:
            local.seek(1000)
            assert answer.read() == local.read(1000)
