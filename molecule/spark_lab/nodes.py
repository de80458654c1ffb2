"""The containers: four nodes and the release server."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spark_lab.engine import LABEL
from spark_lab.network import Cable, node_cables, plug
from spark_lab.process import LabError, answers, run, say, wait_for
from spark_lab.spec import MANAGEMENT, NODES, RELEASE_NUMBER, REPOSITORY, SUITES, Lab

CLONE = "spark-lab.clone"
RECIPE = "spark-lab.recipe"
# A Spark gives half of its memory; ranks of one node exchange tensors here.
SHM_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container as it should be.

    Args:
        name: node name, or `release`.
        number: last octet of its addresses.
        cables: its network.
        options: of `docker create`.
        image: what it is made from.
        command: what it runs; empty for the image's own.
    """

    name: str
    number: int
    cables: tuple[Cable, ...]
    options: tuple[str, ...]
    image: str
    command: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """Return 12 hex digits that change with anything of the container."""
        cables = [str(cable) for cable in self.cables]
        text = json.dumps([self.number, cables, self.options, self.image, self.command])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def wanted_containers(lab: Lab, image: str, lxcfs: Path, public_key: str) -> list[Wanted]:
    """Return the release server and the nodes of a lab."""
    release = Wanted(
        name="release",
        number=RELEASE_NUMBER,
        cables=(Cable(MANAGEMENT, "release-mgmt", "mgmt"),),
        options=(
            *("--hostname", "release", "--network", "none", "--read-only", "--tmpfs", "/run"),
            *("--tmpfs", "/var/lib/nginx", "--tmpfs", "/var/log/nginx"),
            *("-v", f"{lab.release}:/srv/release:ro"),
        ),
        image=image,
        command=("nginx", "-c", "/etc/spark-lab/nginx-release.conf"),
    )
    nodes = [
        Wanted(
            name=node.name,
            number=node.number,
            cables=node_cables(node.name),
            options=(
                *("--hostname", node.name, "--network", "none", "--cgroupns", "private"),
                # All a host's root may do, but for what this machine itself may lack.
                *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE"),
                *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
                *("--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock"),
                *(
                    part
                    for folder in lab.suite.volumes
                    for part in ("-v", f"{_volume(lab, node.name, folder)}:{folder}")
                ),
                *("-v", f"{lxcfs}/proc/meminfo:/proc/meminfo:ro"),
                *("--memory", str(node.memory_bytes), "--memory-swap", str(node.memory_bytes)),
                *("--shm-size", str(SHM_BYTES), "--stop-signal", "SIGRTMIN+3"),
                *("-e", f"LAB_ADDRESS={lab.management(node.number)}/24"),
                *("-e", f"LAB_AUTHORIZED_KEY={public_key}"),
            ),
            image=image,
            command=(),
        )
        for node in NODES
    ]
    return [release, *nodes]


def _volume(lab: Lab, node: str, folder: str) -> str:
    return f"{lab.container(node)}-{Path(folder).name}"


def remove_strangers(lab: Lab, wanted: list[Wanted]) -> None:
    """Remove containers of this lab that another clone made or that no longer are as wanted."""
    recipes = {item.name: item.recipe for item in wanted}
    for name, labels in _existing(lab).items():
        container = lab.container(name)
        if labels[CLONE] != str(REPOSITORY):
            say(f"{container} belongs to {labels[CLONE]}: made anew for {REPOSITORY}")
        elif labels[RECIPE] != recipes.get(name):
            say(f"{container} is not as this tree wants it: made anew")
        else:
            continue
        _remove(lab, name)


def start(lab: Lab, wanted: list[Wanted]) -> None:
    """Create and start what does not run, and plug its cables."""
    existing = _existing(lab)
    for item in wanted:
        container = lab.container(item.name)
        if item.name not in existing:
            say(f"creating {container}")
            labels = {LABEL: lab.name, CLONE: str(REPOSITORY), RECIPE: item.recipe}
            flags = [
                part for key, value in labels.items() for part in ("--label", f"{key}={value}")
            ]
            name = ["--name", container]
            run(["docker", "create", *name, *flags, *item.options, item.image, *item.command])
        pid = _pid(container)
        if not pid:
            run(["docker", "start", container])
            pid = _pid(container)
        plug(lab, pid, item.number, item.cables)
    address = f"{lab.management(RELEASE_NUMBER)}/24"
    server = ["nsenter", "--net", "--target", str(_pid(lab.container("release")))]
    run([*server, "ip", "address", "replace", address, "dev", MANAGEMENT])


def wait_until_up(lab: Lab) -> None:
    """Wait until every node has booted, shows its own memory, holds its address and runs sshd.

    Raises:
        LabError: one has not within two minutes; the message says where to look.
    """
    for node in NODES:
        container = lab.container(node.name)
        wait_for(
            f"{container} to boot",
            partial(_is_up, container, lab.management(node.number), node.memory_bytes),
            timeout_s=120,
            remedy=f"Look with: docker exec {container} journalctl -b; make it anew with:"
            f" docker rm -f {container} && make lab-up",
        )


def _is_up(container: str, address: str, memory_bytes: int) -> bool:
    if not _pid(container):
        last = run(["docker", "logs", "--tail", "3", container])
        msg = f"{container} ended while booting: {last or 'without a word'}"
        raise LabError(msg)
    inside = ["docker", "exec", container]
    units = ["multi-user.target", "ssh.service", "docker.service"]
    if not answers([*inside, "systemctl", "is-active", "--quiet", *units]):
        return False
    memory = run([*inside, "head", "-n1", "/proc/meminfo"]).split()
    if int(memory[1]) * 1024 != memory_bytes:
        msg = f"{container} shows {memory[1]} kB of memory instead of {memory_bytes // 1024} kB"
        raise LabError(msg)
    return f" {address}/" in run([*inside, "ip", "-br", "address", "show", "dev", MANAGEMENT])


def stop_all(lab: Lab) -> None:
    """Stop the containers of a lab; `start` boots them again with what they hold."""
    for name in _existing(lab):
        run(["docker", "stop", "--time", "20", lab.container(name)])


def remove_all(lab: Lab) -> None:
    """Remove the containers of a lab, and their volumes."""
    for name in _existing(lab):
        say(f"removing {lab.container(name)}")
        _remove(lab, name)


def host_key(lab: Lab, node: str) -> str:
    """Return a node's public host key, read past the network."""
    path = "/etc/ssh/ssh_host_ed25519_key.pub"
    line = run(["docker", "exec", lab.container(node), "cat", path])
    return " ".join(line.split()[:2])


def _existing(lab: Lab) -> dict[str, dict[str, str]]:
    """Return the labels of this lab's containers by node name."""
    ids = run(["docker", "ps", "-aq", "--filter", f"label={LABEL}={lab.name}"]).split()
    if not ids:
        return {}
    found = json.loads(run(["docker", "inspect", *ids]))
    prefix = len(lab.container(""))
    return {item["Name"].lstrip("/")[prefix:]: item["Config"]["Labels"] for item in found}


def _pid(container: str) -> int:
    """Return the first process of a container on this machine, 0 when it does not run."""
    return int(run(["docker", "inspect", "-f", "{{.State.Pid}}", container]))


def _remove(lab: Lab, name: str) -> None:
    container = lab.container(name)
    # Ansible keeps ssh connections open; ended from this side they do not stall its next run.
    answers(["docker", "exec", container, "pkill", "-x", "sshd(-session)?"])
    run(["docker", "rm", "-f", "-v", container])
    # It may have been made of another suite than the one that is wanted now.
    for folder in {folder for suite in SUITES.values() for folder in suite.volumes}:
        answers(["docker", "volume", "rm", _volume(lab, name, folder)])
