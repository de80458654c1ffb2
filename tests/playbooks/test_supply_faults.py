"""The roles image and weights on real nodes: whole, bad and interrupted, each to its end.

Most run on the lab, whose Docker keeps images in its classic store. What depends on the store runs
on a second lab, too, whose Docker uses that of containerd; there Docker is killed and a rail is
cut. Images are made for each test and removed after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.supply import (
    SupplyNode,
    SupplyPlan,
    plan_image,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release
from spark_lab.spec import MANAGEMENT, NODES, RAIL_A, RELEASE_NUMBER, Lab, current_lab
from testinfra.host import Host

from tests.system.conftest import connect
from tests.unit.module_utils.supply_archives import Built, oci
from tests.unit.module_utils.supply_server import Server, serving

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = str(current_lab().inventory)
ENVIRONMENT = os.environ | {
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_NOCOLOR": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
pytestmark = pytest.mark.lab
EXTRA_BYTES = 24 << 20
LONG_LOAD_BYTES = 192 << 20
# From linux/sched.h; Python has it from 3.12 on.
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes: inventory name → address that serves on the rail, and a way to run commands."""

    lab: Lab
    rails: dict[str, str]
    hosts: dict[str, Host]
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
        yield find_fleet(current_lab())


@pytest.fixture(scope="module")
def second_fleet(fresh_lab: Lab) -> Iterator[Fleet]:
    """The nodes of a lab with containerd's store, rail A set up as a run of fabric leaves it."""
    for node in NODES:
        host, address = connect(fresh_lab, node), fresh_lab.rail("a", node.number)
        host.check_output(f"ip link set {RAIL_A} mtu 9000")
        host.check_output(f"ip address replace {address}/24 dev {RAIL_A}")
    yield find_fleet(fresh_lab)
    for node in NODES:
        host = connect(fresh_lab, node)
        host.check_output(f"ip -4 address flush dev {RAIL_A}")
        host.check_output(f"ip link set {RAIL_A} mtu 1500")


def find_fleet(lab: Lab) -> Fleet:
    hosts = {node.name: connect(lab, node) for node in NODES}
    rails = {}
    for node in NODES:
        rail = lab.rail("a", node.number)
        up = rail in hosts[node.name].run("ip -4 -brief address").stdout
        rails[node.name] = rail if up else lab.management(node.number)
    return Fleet(lab, rails, hosts, lab.management(1))


@dataclass(slots=True)
class Case:
    """One image of this test, published by a server of this test."""

    fleet: Fleet
    server: Server
    built: Built
    packed: bytes
    release: Release
    folder: Path
    planned: dict[str, SupplyPlan] | None = None

    def plan(self) -> dict[str, SupplyPlan]:
        nodes = [SupplyNode(n, rail, NodeFacts(n, {})) for n, rail in self.fleet.rails.items()]
        plans = plan_image(self.release, self.server.url, nodes)
        return {node: replace(plan, release="") for node, plan in plans.items()}

    def command(self) -> list[str]:
        variables = {
            "image_reserve_bytes": 0,
            "plans": {node: p.as_dict() for node, p in (self.planned or self.plan()).items()},
            "image_plan": "{{ plans[inventory_hostname] }}",
        }
        path = self.folder / "variables.json"
        path.write_text(json.dumps(variables))
        return [
            *("ansible-playbook", "-i", str(self.fleet.lab.inventory)),
            *("tests/playbooks/supply.yml", "-e", f"@{path}"),
        ]

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

    def held(self) -> dict[str, str]:
        """Return all images of every node, and what containerd holds of layers, begun ones, too."""
        return self.fleet.everywhere(
            "docker images --all --no-trunc --quiet | sort; docker images | sort; "
            "if command -v ctr >/dev/null; then for what in 'content ls -q' 'content active' "
            "'leases ls -q'; do ctr --namespace moby $what; done; fi"
        )

    def left_behind(self) -> dict[str, str]:
        found = self.fleet.everywhere(
            "systemctl list-units --all --no-legend 'spark-supply-*'; "
            "ls -A /run/spark-appliance/supply 2>/dev/null | grep -v lock; "
            "ls -A /var/lib/docker/tmp"
        )
        return {node: text for node, text in found.items() if text.strip()}

    def arrived_bytes(self, node: str) -> int:
        """Return how much of the parts a node holds, whole or partial."""
        digest = self.release.image.config_digest.removeprefix("sha256:")[:12]
        found = self.fleet.sh(
            node,
            f"find /var/lib/spark-appliance/parts/{self.release.name}-{digest} -type f "
            "\\( -name '*.bin' -o -name '.*.bin.partial' \\) -printf '%s\\n'",
        )
        return sum(map(int, found.split()))

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
    with made_case(fleet, fleet.address, os.urandom(EXTRA_BYTES), tmp_path) as made:
        yield made


@pytest.fixture
def second_case(second_fleet: Fleet, tmp_path: Path) -> Iterator[Case]:
    lab = second_fleet.lab
    address = lab.management(RELEASE_NUMBER)
    with (
        network_of(lab.container("release")) as enter,
        made_case(second_fleet, address, os.urandom(EXTRA_BYTES), tmp_path, enter) as made,
    ):
        yield made


@contextlib.contextmanager
def network_of(container: str) -> Iterator[Callable[[bool], None]]:
    """Give a way into the network of a container, and back, for this thread's new sockets."""
    libc = ctypes.CDLL(None, use_errno=True)
    inspect = ["docker", "inspect", "-f", "{{.State.Pid}}", container]
    pid = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()
    own, its = Path("/proc/thread-self/ns/net"), Path(f"/proc/{pid}/ns/net")
    with own.open() as home, its.open() as there:

        def enter(inside: bool) -> None:
            if libc.setns((there if inside else home).fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to the network of {container}")

        yield enter


@contextlib.contextmanager
def made_case(
    fleet: Fleet,
    address: str,
    extra: bytes,
    folder: Path,
    enter: Callable[[bool], None] = lambda _: None,
) -> Iterator[Case]:
    """Publish an image with ``extra`` in it; remove what it left on nodes afterwards."""
    reference = f"spark-test:{secrets.token_hex(6)}"
    built = oci(extra=extra, reference=reference)
    with contextlib.ExitStack() as stack:
        enter(True)
        try:
            server = stack.enter_context(serving(Server(), address))
        finally:
            enter(False)
        packed, release = publish(built, server)
        yield Case(fleet, server, built, packed, release, folder)
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
    # Waited for on the node: a short job can begin and end during one way there and back.
    command = (
        f"for n in $(seq 500); do if systemctl is-active --quiet {unit}; then "
        f"systemctl kill --kill-who=main --signal=KILL {unit} && echo killed; exit; fi; "
        "sleep 0.01; done"
    )

    def act() -> bool:
        return "killed" in fleet.sh(node, command)

    return act


@pytest.fixture(params=["case", "second_case"], ids=["classic", "containerd"])
def either_case(request: pytest.FixtureRequest) -> Case:
    """The same on both stores of Docker."""
    found: Case = request.getfixturevalue(request.param)
    return found


def test_the_second_lab_s_docker_uses_the_store_of_containerd(second_fleet: Fleet) -> None:
    stores = second_fleet.everywhere("docker info --format '{{json .DriverStatus}}'")
    assert all("io.containerd.snapshotter.v1" in store for store in stores.values()), stores


def test_one_download_reaches_all_nodes_and_a_second_run_changes_nothing(
    either_case: Case,
) -> None:
    case = either_case
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


def test_an_image_that_lost_its_protection_from_pruning_gets_it_back(either_case: Case) -> None:
    case = either_case
    keeper = f"spark-keep-{case.release.image.config_digest[7:19]}"
    assert case.run()[0] == 0
    case.fleet.sh(case.fleet.source, f"docker rm {keeper}")
    plan = {node: replace(plan, keep=True) for node, plan in case.plan().items()}
    case.planned = {node: replace(p, needed=False, source="") for node, p in plan.items()}
    code, output = case.run()
    assert code == 0, output
    kept = case.fleet.everywhere("docker image prune --all --force; docker ps -a")
    assert all(keeper in text for text in kept.values())
    assert output.count("changed=1") == 1
    assert output.count("changed=0") == len(case.fleet.rails) - 1
    case.assert_whole()


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


def damage_config(case: Case) -> str:
    other = oci(extra=b"another", reference=case.built.expected.reference)
    publish(other, case.server)
    return "expected the image with config digest"


@pytest.mark.parametrize("damage", [damage_checksums, damage_part, damage_missing, damage_path])
def test_bad_input_is_refused_with_its_own_message_and_leaves_no_image(
    case: Case, damage: Callable[[Case], str]
) -> None:
    assert_refused(case, damage)


@pytest.mark.parametrize("damage", [damage_layer, damage_config, damage_name])
def test_a_bad_archive_is_refused_by_both_stores_and_leaves_no_image(
    either_case: Case, damage: Callable[[Case], str]
) -> None:
    assert_refused(either_case, damage)


def assert_refused(case: Case, damage: Callable[[Case], str]) -> None:
    held = case.held()
    message = damage(case)
    code, output = case.run()
    assert code != 0
    assert message in output.replace("\n        ", " ")
    assert case.left_behind() == {}
    ends = time.monotonic() + 30
    # containerd collects the layers of a load that failed some seconds later.
    while case.held() != held and time.monotonic() < ends:
        time.sleep(1)
    assert case.held() == held


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


@pytest.fixture
def long_load(second_fleet: Fleet, tmp_path: Path) -> Iterator[Case]:
    """A small download that is a long stream into Docker."""
    extra = os.urandom(64 << 10) * (LONG_LOAD_BYTES >> 16)
    with made_case(second_fleet, second_fleet.address, extra, tmp_path) as made:
        yield made


# Looked for on the node: a way there and back takes as long as the load.
KILL_IN_MID_LOAD = """
for n in $(seq 12000); do
    if pid=$(pgrep -xf 'docker load --quiet'); then
        sent=$(awk '/^rchar/ {print $2}' /proc/$pid/io)
        if [ "${sent:-0}" -gt 1000000 ]; then
            systemctl kill --signal=KILL docker.service && echo $sent
            exit
        fi
    fi
    sleep 0.01
done
"""


def test_a_killed_engine_leaves_no_image_and_the_next_run_completes(long_load: Case) -> None:
    case = long_load
    source = case.fleet.source
    sent: list[int] = []

    def act() -> bool:
        sent.extend(map(int, case.fleet.sh(source, KILL_IN_MID_LOAD).split()))
        return True

    killed = meanwhile(act)
    code, output = case.run()
    assert killed.is_set()
    assert 1_000_000 < sent[0] < LONG_LOAD_BYTES
    assert code != 0
    assert f"[{source}]: FAILED!" in output
    assert "docker load: " in output
    case.fleet.sh(source, "systemctl reset-failed docker; systemctl start docker")
    assert source not in case.images()
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()


def switch(lab: Lab, *argv: str) -> None:
    subprocess.run([argv[0], "-n", lab.switch, *argv[1:]], check=True)


def pull(case: Case, port: str, node: str) -> threading.Event:
    """Pull a cable once half of the parts has reached a node; the event tells that it was."""

    def act() -> bool:
        if case.arrived_bytes(node) < len(case.packed) // 2:
            return False
        switch(case.fleet.lab, "ip", "link", "set", port, "down")
        return True

    return meanwhile(act)


def assert_cut(case: Case, node: str, address: str, pulled: threading.Event) -> int:
    """Run into the cut; return what the node has kept, in bytes."""
    code, output = case.run()
    assert pulled.is_set()
    said = " ".join(output.split())
    assert code != 0
    assert f"[{node}]: FAILED!" in said
    assert f"http://{address}:" in said
    assert "what arrived is kept" in said
    kept = case.arrived_bytes(node)
    assert len(case.packed) // 2 <= kept < len(case.packed)
    assert case.images() == set()
    assert case.left_behind() == {}
    rail = case.fleet.rails[case.fleet.source]
    assert case.fleet.sh(case.fleet.source, f"ss -Hltn src {rail}") == ""
    return kept


def test_a_rail_cut_in_mid_copy_costs_only_what_was_in_flight(second_case: Case) -> None:
    case, node, port = second_case, "bravo", "bravo-rail-a"
    lab = case.fleet.lab
    slow = ("root", "tbf", "rate", "16mbit", "burst", "64kb", "latency", "200ms")
    switch(lab, "tc", "qdisc", "add", "dev", port, *slow)
    try:
        source = case.fleet.rails[case.fleet.source]
        kept = assert_cut(case, node, source, pull(case, port, node))
    finally:
        switch(lab, "tc", "qdisc", "del", "dev", port, "root")
        switch(lab, "ip", "link", "set", port, "up")
    received = f"cat /sys/class/net/{RAIL_A}/statistics/rx_bytes"
    before = int(case.fleet.sh(node, received))
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()
    # Frames of 9000 bytes carry less than 2 % of headers; the rest is requests and neighbours.
    moved = int(case.fleet.sh(node, received)) - before
    assert moved <= 1.02 * (len(case.packed) - kept) + (256 << 10)
    assert case.server.sent_bytes <= 1.01 * len(case.packed)


def test_a_network_cut_outside_costs_only_what_was_in_flight(second_case: Case) -> None:
    case, port = second_case, "release-mgmt"
    lab, source = case.fleet.lab, case.fleet.source
    case.server.rate_bytes_s = 1 << 20
    try:
        kept = assert_cut(case, source, lab.management(RELEASE_NUMBER), pull(case, port, source))
    finally:
        switch(lab, "ip", "link", "set", port, "up")
    case.server.rate_bytes_s = 0
    received = f"cat /sys/class/net/{MANAGEMENT}/statistics/rx_bytes"
    before = int(case.fleet.sh(source, received))
    code, output = case.run()
    assert code == 0, output
    case.assert_whole()
    # Frames of 1500 bytes carry 4 % of headers; the rest is Ansible's own.
    moved = int(case.fleet.sh(source, received)) - before
    assert moved <= 1.05 * (len(case.packed) - kept) + (4 << 20)


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
