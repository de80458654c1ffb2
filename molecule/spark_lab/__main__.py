from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from spark_lab import _access, _engine, _network, _nodes, _root
from spark_lab._run import LabError, run, say
from spark_lab._spec import NODES, REPOSITORY, Lab, current_lab


def main() -> int:
    """Run one command of the lab; return its exit status."""
    parser = argparse.ArgumentParser(prog="spark_lab", description="Four lab nodes on one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="create the lab, or what is missing of it")
    commands.add_parser("down", help="remove the lab and what was started for it")
    shell = commands.add_parser("shell", help="a root shell in a node, past the network")
    shell.add_argument("node", choices=[node.name for node in NODES], nargs="?", default="alpha")
    arguments = parser.parse_args()
    try:
        lab = current_lab()
        if arguments.command == "shell":
            return _shell(lab, arguments.node)
        if os.geteuid() != 0:
            msg = "the lab makes network namespaces and containers: run this as root"
            raise LabError(msg)
        with _one_at_a_time():
            up(lab) if arguments.command == "up" else down(lab)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def up(lab: Lab) -> None:
    """Make the lab what this tree says it is; what is right already is left alone."""
    subprocess.run([str(REPOSITORY / "molecule/host-packages.sh")], check=True)
    _engine.start_engine()
    _network.make_switch(lab)
    lxcfs = _engine.start_lxcfs()
    image = _root.node_image(lab)
    lab.release.mkdir(parents=True, exist_ok=True)
    wanted = _nodes.wanted_containers(lab, image, lxcfs, _access.public_key(lab))
    _nodes.remove_strangers(lab, wanted)
    _nodes.start(lab, wanted)
    say("waiting for the nodes")
    _nodes.wait_until_up(lab)
    _access.write_access(lab)
    say(f"up: {', '.join(node.name for node in NODES)}; ansible -i {_shown(lab)} all -m ping")


def down(lab: Lab) -> None:
    """Remove everything of the lab but keys and what the cache holds."""
    _engine.start_engine()
    _nodes.remove_all(lab)
    _network.remove_switch(lab)
    _engine.stop_what_was_started()
    say("down")


def _shell(lab: Lab, node: str) -> int:
    argv = ["docker", "exec", "-it", lab.container(node), "bash", "-l"]
    return subprocess.run(argv, check=False).returncode


def _shown(lab: Lab) -> Path:
    return lab.inventory.relative_to(REPOSITORY)


class _one_at_a_time:  # noqa: N801 - used as a function
    """Hold the machine's lab lock: two commands at once would build the same things twice."""

    def __enter__(self) -> None:
        _engine.STATE.mkdir(parents=True, exist_ok=True)
        self._file = (_engine.STATE / "lock").open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


if __name__ == "__main__":
    sys.exit(main())
