# SPDX-License-Identifier: Apache-2.0
"""How far an engine has come: its units, its log's end, its Ray nodes, its health (node side)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Printed by the snippet below so that the JSON is found among the library's own lines.
_MARK = "SPARK_RAY_NODES "

# Runs with the image's own Python: ray.nodes() is the public call that gives addresses.
_RAY_SNIPPET = (
    "import json, logging, ray; "
    "ray.init(address={address!r}, log_to_driver=False, logging_level=logging.ERROR); "
    "print({mark!r} + json.dumps([[n['NodeManagerAddress'], n['Alive'], "
    "n['Resources'].get('GPU', 0.0)] for n in ray.nodes()]))"
)

_UNIT_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")


@dataclass(frozen=True, slots=True)
class Output:
    """What a command gave; ``code`` is None when it could not run or ran out of time."""

    code: int | None
    stdout: str
    stderr: str


Run = Callable[[Sequence[str], float], Output]


def run(argv: Sequence[str], timeout_s: float) -> Output:
    """Run a command in the C locale within a time limit.

    Parameters:
        argv: the command and its arguments.
        timeout_s: limit in seconds.

    Returns:
        Its :class:`Output`; a missing command or an overrun is an ``Output`` with code None.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER": ""},
        )
    except subprocess.TimeoutExpired:
        return Output(None, "", f"no answer within {timeout_s:g} s")
    except OSError as missing:
        return Output(None, "", str(missing))
    return Output(done.returncode, done.stdout, done.stderr)


def parse_units(text: str) -> list[dict[str, str]]:
    """Return the property blocks that ``systemctl show`` prints, one dict a unit, in its order."""
    blocks = [block for block in text.strip().split("\n\n") if block.strip()]
    return [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks
    ]


def unit_states(units: Sequence[str], runner: Run = run) -> dict[str, dict[str, str]]:
    """Return the state of each unit.

    Parameters:
        units: unit names.
        runner: see :func:`run`.

    Returns:
        For each unit its load, active and sub state, result, exit status and restarts.

    Raises:
        RuntimeError: systemd gave no usable answer.
    """
    shown = runner(
        ["systemctl", "show", f"--property={','.join(_UNIT_PROPERTIES)}", "--", *units], 10.0
    )
    blocks = parse_units(shown.stdout)
    if shown.code != 0 or len(blocks) != len(units):
        msg = f"systemctl show gave no state for {', '.join(units)}: {shown.stderr.strip()}"
        raise RuntimeError(msg)
    return dict(zip(units, blocks, strict=True))


def last_lines(unit: str, count: int, runner: Run = run) -> list[str]:
    """Return the last lines that a unit wrote to the journal since its last start."""
    shown = runner(
        ["journalctl", "--unit", unit, "--lines", str(count), "--output", "cat", "--no-pager"], 10.0
    )
    return [line for line in shown.stdout.splitlines() if line.strip()]


def parse_ray_nodes(text: str) -> list[dict[str, Any]] | None:
    """Return address, liveness and GPU count of each Ray node, or None if the list is missing."""
    for line in text.splitlines():
        if line.startswith(_MARK):
            return [
                {"address": address, "alive": alive, "gpus": gpus}
                for address, alive, gpus in json.loads(line.removeprefix(_MARK))
            ]
    return None


def ray_nodes(
    container: str, address: str, python: str, timeout_s: float, runner: Run = run
) -> tuple[list[dict[str, Any]], str]:
    """Ask the Ray cluster, from inside the head's container, which nodes it has.

    Parameters:
        container: name of the running container.
        address: address and port of the cluster's control store.
        python: the image's Python.
        timeout_s: limit in seconds; a client that cannot connect would wait far longer.

    Returns:
        The nodes (address, alive, gpus), and why there are none, empty if there is a list.
    """
    snippet = _RAY_SNIPPET.format(address=address, mark=_MARK)
    asked = runner(
        ["docker", "exec", container, "timeout", f"{timeout_s:g}", python, "-c", snippet],
        timeout_s + 5,
    )
    nodes = parse_ray_nodes(asked.stdout)
    if nodes is None:
        tail = (asked.stderr.strip() or asked.stdout.strip() or "no output").splitlines()[-1]
        return [], f"Ray gave no node list: {tail[:200]}"
    return nodes, ""
