"""The containers: four nodes and the release server."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from spark_lab._engine import LABEL
from spark_lab._network import plug, plug_release
from spark_lab._run import answers, run, say, wait_for
from spark_lab._spec import MANAGEMENT, NODES, RELEASE_NUMBER, REPOSITORY, Lab, Node

CLONE = "spark-lab.clone"
RECIPE = "spark-lab.recipe"
# A Spark gives half of its memory; ranks of one node exchange tensors here.
SHM_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container as it should be: options and command of `docker create`. No node: the server."""

    name: str
    node: Node | None
    options: tuple[str, ...]
    image: str
    command: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """Return 12 hex digits that change with anything of the container."""
        text = json.dumps([self.options, self.image, self.command])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def wanted_containers(lab: Lab, image: str, lxcfs: Path, public_key: str) -> list[Wanted]:
    """Return the release server and the nodes of a lab."""
    release = Wanted(
        name="release",
        node=None,
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
            node=node,
            options=(
                *("--hostname", node.name, "--network", "none", "--cgroupns", "private"),
                # All a host's root may do, but for what this machine itself may lack.
                *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE"),
                *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
                *("--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock"),
                *("-v", f"{lab.container(node.name)}-docker:/var/lib/docker"),
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
            flags = [part for key, value in labels.items() for part in ("--label", f"{key}={value}")]
            run(
                ["docker", "create", "--name", container, *flags, *item.options, item.image]
                + list(item.command)
            )
        pid = _pid(container)
        if not pid:
            run(["docker", "start", container])
            pid = _pid(container)
        if item.node is None:
            plug_release(lab, pid, lab.management(RELEASE_NUMBER))
        else:
            plug(lab, item.node, pid)


def wait_until_up(lab: Lab) -> None:
    """Wait until every node has booted, holds its address and runs sshd.

    Raises:
        LabError: one has not within two minutes; the message says where to look.
    """
    for node in NODES:
        container = lab.container(node.name)
        booted = ["docker", "exec", container, "systemctl", "is-active", "-q"]
        booted += ["multi-user.target", "ssh.service", "docker.service"]
        remedy = f"Look with: docker exec {container} journalctl -b; then make lab-down lab-up"
        wait_for(
            f"boot of {container}", lambda argv=booted: answers(argv), timeout_s=120, remedy=remedy
        )
        address = ["docker", "exec", container, "ip", "-br", "address", "show", "dev", MANAGEMENT]
        wanted = lab.management(node.number)
        wait_for(
            f"address {wanted} of {container}",
            lambda argv=address, text=wanted: text in run(argv),
            timeout_s=30,
            remedy=remedy,
        )


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
    answers(["docker", "exec", container, "pkill", "-x", "sshd"])
    run(["docker", "rm", "-f", "-v", container])
    answers(["docker", "volume", "rm", f"{container}-docker"])
