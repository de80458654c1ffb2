"""The roles image and weights on real nodes: whole, bad and interrupted, each to its end.

They run on the lab, or on the nodes of the inventory that ``SUPPLY_INVENTORY`` names, where Docker
is killed, too. Images are made for each test and removed after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import testinfra
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.supply import (
    SupplyNode,
    SupplyPlan,
    plan_image,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release
from spark_lab.spec import NODES, current_lab
from testinfra.host import Host

from tests.system.conftest import connect
from tests.unit.module_utils.supply_archives import Built, oci
from tests.unit.module_utils.supply_server import Server, serving

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = os.environ.get("SUPPLY_INVENTORY", str(ROOT / "inventories" / "lab"))
ENVIRONMENT = os.environ | {
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_NOCOLOR": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
pytestmark = pytest.mark.lab
EXTRA_BYTES = 24 << 20


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes: inventory name → address that serves on the rail, and a way to run commands."""

    rails: dict[str, str]
    hosts: dict[str, Any]
    address: str

    @property
    def source(self) -> str:
        return next(iter(self.rails))

    def sh(self, node: str, command: str) -> str:
        shell = f"sh -c {shlex.quote(command)}"
        done = self.hosts[node].run(f"if [ $(id -u) = 0 ]; then {shell}; else sudo {shell}; fi")
        return str(done.stdout)

    def everywhere(self, command: str) -> dict[str, str]:
        return {node: self.sh(node, command) for node in self.rails}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        for key in ("ANSIBLE_CONFIG", "PATH"):
            patch.setenv(key, ENVIRONMENT[key])
        yield find_fleet()


def find_host(name: str) -> Host:
    """Return a node; testinfra would not resolve the variables in the lab's own inventory."""
    if "SUPPLY_INVENTORY" in os.environ:
        return testinfra.get_host(f"ansible://{name}", ansible_inventory=INVENTORY)
    return connect(current_lab(), next(node for node in NODES if node.name == name))


def find_fleet() -> Fleet:
    listed = subprocess.run(
        ["ansible-inventory", "-i", INVENTORY, "--list"],
        env=ENVIRONMENT,
        capture_output=True,
        check=True,
        text=True,
    )
    inventory = json.loads(listed.stdout)
    variables = inventory["_meta"]["hostvars"]
    members = [
        *inventory.get("head", {}).get("hosts", []),
        *inventory.get("workers", {}).get("hosts", []),
    ] or inventory["spark"]["hosts"]
    rails = {}
    for node in members:
        rail = variables[node].get("spark_rail_a", variables[node]["ansible_host"])
        rails[node] = str(rail).split("/")[0]
    hosts = {node: find_host(node) for node in members}
    for node, rail in rails.items():
        if rail not in hosts[node].run("ip -4 -brief address").stdout:
            rails[node] = variables[node]["ansible_host"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent: connecting chooses the address that nodes reach this machine at.
        probe.connect((variables[members[0]]["ansible_host"], 9))
        address = probe.getsockname()[0]
    return Fleet(rails, hosts, address)


@dataclass(slots=True)
class Case:
    """One image of this test, published by a server of this test."""

    fleet: Fleet
    server: Server
    built: Built
    packed: bytes
    release: Release
    folder: Path

    def plan(self) -> dict[str, SupplyPlan]:
        nodes = [SupplyNode(n, rail, NodeFacts(n, {})) for n, rail in self.fleet.rails.items()]
        plans = plan_image(self.release, self.server.url, nodes)
        return {node: replace(plan, release="") for node, plan in plans.items()}

    def command(self) -> list[str]:
        variables = {
            "image_reserve_bytes": 0,
            "plans": {node: plan.as_dict() for node, plan in self.plan().items()},
            "image_plan": "{{ plans[inventory_hostname] }}",
        }
        path = self.folder / "variables.json"
        path.write_text(json.dumps(variables))
        return ["ansible-playbook", "-i", INVENTORY, "tests/playbooks/supply.yml", "-e", f"@{path}"]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self) -> tuple[int, str]:
        process = self.start()
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def images(self) -> set[str]:
        found = self.fleet.everywhere(
            f"docker image inspect --format {{{{.Id}}}} {self.release.image.reference} 2>/dev/null"
        )
        return {node for node, text in found.items() if text.strip()}

    def left_behind(self) -> dict[str, str]:
        found = self.fleet.everywhere(
            "systemctl list-units --all --no-legend 'spark-supply-*'; "
            "ls -A /run/spark-appliance/supply 2>/dev/null | grep -v lock; "
            "ls -A /var/lib/docker/tmp"
        )
        return {node: text for node, text in found.items() if text.strip()}

    def assert_whole(self) -> None:
        assert self.images() == set(self.fleet.rails)
        assert self.left_behind() == {}


def publish(built: Built, server: Server, parts: int = 4) -> tuple[bytes, Release]:
    archive = f"{built.expected.reference.replace(':', '-')}.tar.zst"
    raw = built.archive.tar()
    packed = subprocess.run(
        ["zstd", "--quiet", "--stdout", "-1"], input=raw, capture_output=True, check=True
    ).stdout
    size = -(-len(packed) // parts)
    server.files.clear()
    lines = []
    for number in range(parts):
        name = f"{archive}.part-{number:02d}.bin"
        content = packed[number * size : (number + 1) * size]
        server.files[name] = content
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    lines.append(f"{hashlib.sha256(packed).hexdigest()}  {archive}\n")
    server.files["SHA256SUMS"] = "".join(lines).encode()
    release = Release.model_validate(
        {
            "schema": 1,
            "name": archive.removesuffix(".tar.zst"),
            "title": "made by a test",
            "archive": archive,
            "archive_bytes": len(packed),
            "parts": {"count": parts},
            "image": {
                "reference": built.expected.reference,
                "config_digest": built.expected.config_digest,
                "size_bytes": built.expected.size_bytes,
                "architecture": built.expected.architecture,
            },
        }
    )
    return packed, release


@pytest.fixture
def case(fleet: Fleet, tmp_path: Path) -> Iterator[Case]:
    reference = f"spark-test:{secrets.token_hex(6)}"
    with serving(Server(), fleet.address) as server:
        built = oci(extra=os.urandom(EXTRA_BYTES), reference=reference)
        packed, release = publish(built, server)
        case = Case(fleet, server, built, packed, release, tmp_path)
        yield case
    keeper = f"spark-keep-{built.expected.config_digest[7:19]}"
    fleet.everywhere(
        "systemctl stop 'spark-supply-*'; rm -rf /run/spark-appliance/supply "
        f"/var/lib/spark-appliance/parts/{release.name}-*; systemctl start docker; "
        f"docker rm {keeper}; docker image rm {reference}; docker image prune --force"
    )


def meanwhile(act: Callable[[], bool], limit_s: float = 120.0) -> threading.Event:
    """Repeat ``act`` in the background until it says that it has acted; the event tells so."""
    acted = threading.Event()

    def watch() -> None:
        ends = time.monotonic() + limit_s
        while time.monotonic() < ends:
            if act():
                acted.set()
                return
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()
    return acted


def kill_unit(fleet: Fleet, node: str, unit: str) -> Callable[[], bool]:
    def act() -> bool:
        command = (
            f"systemctl is-active --quiet {unit} && "
            f"systemctl kill --kill-who=main --signal=KILL {unit} && echo killed"
        )
        return "killed" in fleet.sh(node, command)

    return act


def test_one_download_reaches_all_nodes_and_a_second_run_changes_nothing(case: Case) -> None:
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()
    assert case.server.sent_bytes <= 1.01 * len(case.packed)
    sent = case.server.sent_bytes
    code, output = case.run()
    assert code == 0, output
    assert "changed=0" in output
    assert not [
        line for line in output.splitlines() if "changed=" in line and "changed=0" not in line
    ]
    assert case.server.sent_bytes == sent


def test_check_mode_predicts_and_changes_nothing(case: Case) -> None:
    command = [*case.command(), "--check", "--diff"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert all(f"{node} " in done.stdout for node in case.fleet.rails)
    assert "changed=0" not in done.stdout
    assert case.images() == set()
    assert case.server.sent_bytes == 0


def flip(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


def damage_checksums(case: Case) -> str:
    case.server.files["SHA256SUMS"] = b"<!doctype html><html>Sign in</html>"
    return "found a web page"


def damage_part(case: Case) -> str:
    name = case.release.part_names()[1]
    case.server.files[name] = flip(case.server.files[name], 1000)
    return "expected sha256"


def damage_missing(case: Case) -> str:
    del case.server.files[case.release.part_names()[2]]
    return "found HTTP 404"


def damage_layer(case: Case) -> str:
    path = case.built.layer_paths[-1]
    case.built.archive.replace(path, flip(case.built.archive.content(path), 10_000))
    publish(case.built, case.server)
    return "holds bytes of sha256"


def damage_path(case: Case) -> str:
    case.built.archive.add("../evil", b"x")
    publish(case.built, case.server)
    return "climbs out of its folder"


def damage_name(case: Case) -> str:
    manifest = json.loads(case.built.archive.content("manifest.json"))
    manifest[0]["RepoTags"].append("debian:12")
    case.built.archive.replace("manifest.json", json.dumps(manifest).encode())
    publish(case.built, case.server)
    return "expected to register only"


@pytest.mark.parametrize(
    "damage",
    [damage_checksums, damage_part, damage_missing, damage_layer, damage_path, damage_name],
)
def test_bad_input_is_refused_with_its_own_message_and_leaves_no_image(
    case: Case, damage: Callable[[Case], str]
) -> None:
    message = damage(case)
    code, output = case.run()
    assert code != 0
    assert message in output.replace("\n        ", " ")
    assert case.images() == set()
    assert case.left_behind() == {}
    assert not any("debian" in text for text in case.fleet.everywhere("docker images").values())


def test_a_killed_download_goes_on_in_the_same_run(case: Case) -> None:
    case.server.rate_bytes_s = 2 << 20
    source = case.fleet.source
    killed = meanwhile(kill_unit(case.fleet, source, "spark-supply-image-fetch.service"))
    code, output = case.run()
    assert killed.is_set()
    assert code == 0, output
    case.assert_whole()
    assert case.server.sent_bytes < 1.5 * len(case.packed)


def test_a_killed_sender_comes_back_for_its_receivers(case: Case) -> None:
    source = case.fleet.source
    killed = meanwhile(kill_unit(case.fleet, source, "spark-supply-image-share.service"))
    code, output = case.run()
    assert killed.is_set()
    assert code == 0, output
    case.assert_whole()


def test_a_receiver_that_fails_closes_the_sender_s_listener(case: Case) -> None:
    last = list(case.fleet.rails)[-1]
    digest = case.release.image.config_digest.removeprefix("sha256:")[:12]
    folder = f"/var/lib/spark-appliance/parts/{case.release.name}-{digest}"
    part = f"{folder}/{case.release.part_names()[0]}"
    case.fleet.sh(last, f"mkdir -p {part}")
    code, output = case.run()
    assert code != 0
    assert "found something else" in output.replace("\n        ", " ")
    assert case.images() == set()
    assert case.left_behind() == {}
    case.fleet.sh(last, f"rmdir {part}")
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()
    assert case.server.sent_bytes <= 1.01 * len(case.packed)


@pytest.mark.skipif(
    "SUPPLY_INVENTORY" not in os.environ,
    reason="kills Docker, and with it what the lab serves: name nodes of a second lab",
)
def test_a_killed_engine_leaves_no_image_and_the_next_run_completes(case: Case) -> None:
    source = case.fleet.source

    def act() -> bool:
        command = (
            "systemctl is-active --quiet spark-supply-image-load.service && "
            "systemctl kill --signal=KILL docker.service && echo killed"
        )
        return "killed" in case.fleet.sh(source, command)

    killed = meanwhile(act)
    code, output = case.run()
    assert killed.is_set()
    if code != 0:
        assert source not in case.images()
        assert "docker" in output
    case.fleet.sh(source, "systemctl reset-failed docker; systemctl start docker")
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()


def test_a_dead_controller_s_work_is_followed_by_the_next_run(case: Case) -> None:
    case.server.rate_bytes_s = 1 << 20
    first = case.start()
    source = case.fleet.source
    unit = "spark-supply-image-fetch.service"
    ends = time.monotonic() + 60
    while case.fleet.sh(source, f"systemctl is-active {unit}").strip() != "active":
        assert time.monotonic() < ends, first.communicate()
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    code, output = case.run()
    assert code != 0
    assert "expected no other run at work here" in output.replace("\n        ", " ")
    case.server.rate_bytes_s = 0
    time.sleep(21)
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()
    assert case.server.sent_bytes <= 1.01 * len(case.packed)
