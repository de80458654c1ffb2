from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spark_lab import access, engine, network, nodes, root
from spark_lab.process import LabError, say
from spark_lab.spec import NODES, REPOSITORY, Lab, current_lab


def main() -> int:
    """Run one command of the lab; return its exit status."""
    parser = argparse.ArgumentParser(prog="spark_lab", description="Four lab nodes on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="judge LAB_NAME, LAB_BLOCK and LAB_SUITE")
    commands.add_parser("up", help="create the lab, or what is missing of it")
    commands.add_parser("down", help="remove the lab and what was started for it")
    shell = commands.add_parser("shell", help="a root shell in a node, past the network")
    shell.add_argument("node", choices=[node.name for node in NODES], nargs="?", default="alpha")
    arguments = parser.parse_args()
    try:
        lab = current_lab()
        if arguments.command == "check":
            return 0
        if arguments.command == "shell":
            return _shell(lab, arguments.node)
        if os.geteuid() != 0:
            msg = "the lab makes network namespaces and containers: run this as root"
            raise LabError(msg)
        with _one_at_a_time():
            down(lab) if arguments.command == "down" else _up_or_hint(lab)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _up_or_hint(lab: Lab) -> None:
    try:
        up(lab)
    except (LabError, KeyboardInterrupt):
        say("not up; what was made stays, and `make lab-up` goes on from there")
        raise


def up(lab: Lab) -> None:
    """Make the lab what this tree says it is; what is right already is left alone.

    Raises:
        LabError: a step failed; the message names it and what to do.
    """
    engine.start_engine()
    engine.raise_limits()
    network.make_switch(lab)
    if engine.mount_lxcfs():
        # A running container holds the mount that is gone, and would show no memory at all.
        nodes.stop_all(lab)
    image = root.node_image(lab)
    lab.release.mkdir(parents=True, exist_ok=True)
    wanted = nodes.wanted_containers(lab, image, engine.LXCFS, access.public_key(lab))
    nodes.remove_strangers(lab, wanted)
    nodes.start(lab, wanted)
    say("waiting for the nodes")
    nodes.wait_until_up(lab)
    access.write_access(lab)
    names = ", ".join(node.name for node in NODES)
    say(f"up: {names}; inventory {lab.inventory.relative_to(REPOSITORY)}")


def down(lab: Lab) -> None:
    """Remove everything of the lab but keys and what the cache holds."""
    engine.start_engine()
    nodes.remove_all(lab)
    network.remove_switch(lab)
    engine.stop_what_was_started()
    say("down")


def _shell(lab: Lab, node: str) -> int:
    terminal = ["-t"] if sys.stdin.isatty() else []
    argv = ["docker", "exec", "-i", *terminal, lab.container(node), "bash", "-l"]
    return subprocess.run(argv, check=False).returncode


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the machine's lab lock: two commands at once would build the same things twice."""
    engine.STATE.mkdir(parents=True, exist_ok=True)
    with (engine.STATE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another lab command on this machine")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
