"""Where image and weights may come from, on the lab's nodes: control node, cache, server."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.supply import (
    SupplyNode,
    plan_weights,
)

from tests.playbooks.test_supply_faults import (
    ENVIRONMENT,
    INVENTORY,
    ROOT,
    Case,
    Fleet,
    case,
    fleet,
    kill_unit,
    meanwhile,
)
from tests.unit.lookup.test_hub_snapshot import FILES, REVISION, SOURCE, HubStandIn
from tests.unit.module_utils.supply_server import Server, serving

__all__ = ["case", "fleet"]

pytestmark = pytest.mark.lab
SHARD_BYTES = 24 << 20
INDEX = "model.safetensors.index.json"
# What a run must not leave: jobs, their files and processes, and forwarded ports.
LEFT = (
    "systemctl list-units --all --no-legend 'spark-supply-*'; "
    "ls -A /run/spark-appliance/supply 2>/dev/null | grep -v lock; "
    "ss -Hltnp 'src 127.0.0.1' | grep sshd; pgrep -af '[a]gent.pyz'"
)


@dataclass(slots=True)
class Weights:
    """A checkpoint of this test in a folder of the control node, and where nodes get it."""

    fleet: Fleet
    source: Path
    directory: str
    variables: Path

    def digests(self) -> dict[str, str]:
        """Return what ``sha256sum`` says on each node, without the memory beside the files."""
        return self.fleet.everywhere(
            f"cd {self.directory} && find . -type f ! -name .verified.json -printf '%P\\0' | "
            "sort -z | xargs -0 sha256sum"
        )

    def run(self, url: str, **environment: str) -> tuple[int, str]:
        nodes = [SupplyNode(n, rail, NodeFacts(n, {})) for n, rail in self.fleet.rails.items()]
        plans = plan_weights(url, self.directory, nodes)
        content = {
            "weights_reserve_bytes": 0,
            "plans": {node: plan.as_dict() for node, plan in plans.items()},
            "weights_plan": "{{ plans[inventory_hostname] }}",
        }
        self.variables.write_text(json.dumps(content))
        done = subprocess.run(
            [
                "ansible-playbook",
                "-i",
                INVENTORY,
                "tests/playbooks/supply.yml",
                "-e",
                f"@{self.variables}",
            ],
            cwd=ROOT,
            env=ENVIRONMENT | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    def expected(self) -> str:
        names = sorted(path.name for path in self.source.iterdir() if path.name != "SHA256SUMS")
        return "".join(
            f"{hashlib.sha256((self.source / name).read_bytes()).hexdigest()}  {name}\n"
            for name in names
        )

    def assert_whole(self) -> None:
        assert self.digests() == dict.fromkeys(self.fleet.rails, self.expected())
        assert {n: left for n, left in self.fleet.everywhere(LEFT).items() if left.strip()} == {}


@pytest.fixture
def weights(fleet: Fleet, tmp_path: Path) -> Iterator[Weights]:
    source = tmp_path / "checkpoint"
    source.mkdir()
    shards = [f"model-{n}-of-2.safetensors" for n in (1, 2)]
    for shard in shards:
        (source / shard).write_bytes(os.urandom(SHARD_BYTES))
    (source / "config.json").write_text("{}")
    (source / INDEX).write_text(json.dumps({"weight_map": dict(enumerate(shards))}))
    directory = f"/var/lib/spark-appliance/test-{secrets.token_hex(6)}"
    made = Weights(fleet, source, directory, tmp_path / "variables.json")
    (source / "SHA256SUMS").write_text(made.expected())
    yield made
    fleet.everywhere(
        f"systemctl stop 'spark-supply-*'; rm -rf {directory} {directory}-cache "
        "/run/spark-appliance/supply"
    )


def changes(output: str) -> list[str]:
    lines = [line for line in output.splitlines() if "changed=" in line]
    assert lines, output
    return [line for line in lines if "changed=0" not in line]


def test_the_image_comes_from_a_folder_of_the_control_node(case: Case) -> None:
    """Nothing is asked of the server of the test, and no way into the control node stays."""
    source = case.folder / "release"
    source.mkdir()
    for name, content in case.server.files.items():
        (source / name).write_bytes(content)
    plans = {
        node: replace(plan, url=f"control://{source}", label=f"control://{source}#1")
        for node, plan in case.plan().items()
    }
    variables = {
        "image_reserve_bytes": 0,
        "plans": {node: plan.as_dict() for node, plan in plans.items()},
        "image_plan": "{{ plans[inventory_hostname] }}",
    }
    path = case.folder / "control.json"
    path.write_text(json.dumps(variables))
    command = ["ansible-playbook", "-i", INVENTORY, "tests/playbooks/supply.yml", "-e", f"@{path}"]

    def run(*more: str) -> str:
        done = subprocess.run(
            [*command, *more],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert len(changes(run("--check"))) == len(case.fleet.rails)
    assert case.images() == set()
    run()
    case.assert_whole()
    assert {n: left for n, left in case.fleet.everywhere(LEFT).items() if left.strip()} == {}
    assert changes(run()) == []
    assert case.server.sent_bytes == 0
    # A prune of the test's own images only, by their label: what is kept survives it.
    prune = "docker image prune --all --force --filter label=test=yes"
    case.fleet.everywhere(prune)
    assert case.images() == set(case.fleet.rails)
    last = list(case.fleet.rails)[-1]
    case.fleet.sh(last, f"docker rm spark-keep-{case.release.image.config_digest[7:19]}; {prune}")
    assert case.images() == set(case.fleet.rails) - {last}
    assert not (source / ".verified.json").exists()


def test_a_killed_loader_starts_again_and_finishes(case: Case) -> None:
    source = case.fleet.source
    killed = meanwhile(kill_unit(case.fleet, source, "spark-supply-image-load.service"))
    code, output = case.run()
    assert killed.is_set()
    assert code == 0, output
    case.assert_whole()


def assert_evicted(weights: Weights) -> None:
    """Neither the sender nor a receiver keeps a page of what it copied."""
    cached = weights.fleet.everywhere(
        f"fincore --noheadings --bytes --output RES {weights.directory}/*.safetensors"
    )
    for node, text in cached.items():
        assert len(text.split()) == 2, (node, text)
        assert sum(map(int, text.split())) <= 0.02 * 2 * SHARD_BYTES, (node, text)


def test_weights_of_the_control_node_survive_a_killed_fetch(weights: Weights) -> None:
    unit = "spark-supply-weights-fetch.service"
    killed = meanwhile(kill_unit(weights.fleet, weights.fleet.source, unit))
    code, output = weights.run(f"control://{weights.source}")
    assert killed.is_set()
    assert code == 0, output
    assert_evicted(weights)
    weights.assert_whole()
    code, output = weights.run(f"control://{weights.source}")
    assert code == 0, output
    assert changes(output) == []


def test_a_hub_s_cache_on_the_head_is_reused_without_a_fetched_byte(weights: Weights) -> None:
    """Links of a snapshot lead to blobs; the files that nodes get are no links."""
    fleet, cache = weights.fleet, f"{weights.directory}-cache"
    code, output = weights.run(f"control://{weights.source}")
    assert code == 0, output
    snapshot = f"{cache}/snapshots/{'0a' * 20}"
    fleet.sh(
        fleet.source,
        f"mkdir -p {cache}/blobs {snapshot} && cd {weights.directory} && "
        f"for f in *; do mv $f {cache}/blobs/b-$f && ln -s ../../blobs/b-$f {snapshot}/$f; done && "
        f"cd {snapshot} && sha256sum * > SHA256SUMS",
    )
    fleet.everywhere(f"rm -rf {weights.directory}")
    code, output = weights.run(f"file://{snapshot}")
    assert code == 0, output
    weights.assert_whole()
    own, theirs = (
        fleet.sh(fleet.source, f"stat -c %i {folder}/{prefix}model-1-of-2.safetensors")
        for folder, prefix in ((weights.directory, ""), (f"{cache}/blobs", "b-"))
    )
    assert own == theirs != ""


def test_weights_that_were_given_up_half_way_are_completed_by_the_next_run(
    weights: Weights,
) -> None:
    with serving(Server(), weights.fleet.address) as server:
        server.files = {path.name: path.read_bytes() for path in weights.source.iterdir()}
        bad = "model-2-of-2.safetensors"
        right, server.files[bad] = server.files[bad], b"!" * SHARD_BYTES
        code, output = weights.run(server.url)
        assert code != 0
        assert "expected sha256" in output.replace("\n        ", " ")
        server.files[bad], server.sent_bytes = right, 0
        code, output = weights.run(server.url)
        assert code == 0, output
        weights.assert_whole()
        # The shard that was right is not fetched again, and nobody else asks outside.
        assert server.sent_bytes < 1.1 * SHARD_BYTES


def test_a_hub_s_snapshot_is_listed_by_its_client_and_fetched_by_the_head(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is a stand-in that answers as its public API does; its client is the real one."""
    pytest.importorskip("huggingface_hub", reason="the hub's client is an optional package")
    asked: list[str] = []

    answer = HubStandIn.do_GET

    def recorded(own: HubStandIn) -> None:
        asked.append(own.client_address[0])
        answer(own)

    monkeypatch.setattr(HubStandIn, "do_GET", recorded)
    monkeypatch.setattr(HubStandIn, "sha", REVISION)
    server = ThreadingHTTPServer((weights.fleet.address, 0), HubStandIn)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        endpoint = f"http://{weights.fleet.address}:{server.server_address[1]}"
        code, output = weights.run(
            SOURCE, HF_ENDPOINT=endpoint, HF_HOME=str(weights.variables.with_name("hub"))
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert code == 0, output
    listed = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()
    )
    assert weights.digests() == dict.fromkeys(weights.fleet.rails, listed)
    # The control node asks for the list, the head for the files, nobody else for anything.
    assert len(set(asked)) == 2
