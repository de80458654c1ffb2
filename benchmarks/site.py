# SPDX-License-Identifier: Apache-2.0
"""What the playbooks cost on the lab, as ratios to ``ansible all -m ping`` in the same run.

Usage: python benchmarks/site.py [--inventory inventories/lab] [--repeats 5] [--json FILE]

The rounds are interleaved (ping, verify, site, ping, …), so that a busy machine slows all three
alike; medians and the spread of each are printed with n.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COMMANDS: dict[str, list[str]] = {
    "ping": ["ansible", "spark", "-m", "ansible.builtin.ping"],
    "verify": ["ansible-playbook", "site.yml", "--tags", "verify"],
    "site": ["ansible-playbook", "site.yml"],
}
AIMS = {"verify": 3.0, "site": 15.0}


@dataclass(frozen=True, slots=True)
class Cost:
    """One command's cost.

    Parameters:
        walls_s: wall time of each round in seconds.
        tasks: tasks that ran on at least one node, by play.
    """

    walls_s: tuple[float, ...]
    tasks: dict[str, int]

    @property
    def median_s(self) -> float:
        """Median wall time in seconds."""
        return statistics.median(self.walls_s)


def tasks_by_play(output: str) -> dict[str, int]:
    """Count, for each play, the tasks whose result the default callback printed."""
    counts: dict[str, int] = {}
    play = task = ""
    for line in output.splitlines():
        header = re.match(r"(PLAY|TASK) \[(.*?)\] \*", line)
        if header and header[1] == "PLAY":
            play, task = header[2], ""
        elif header:
            task = header[2]
        elif task and re.match(r"(ok|changed): \[", line):
            counts[play] = counts.get(play, 0) + 1
            task = ""
    return counts


def measure(inventory: str, repeats: int) -> dict[str, Cost]:
    """Run the commands in turn and return each one's cost.

    Parameters:
        inventory: the lab's inventory.
        repeats: rounds after one warm-up round that opens the ssh connections.

    Raises:
        SystemExit: a command failed or changed something, so its time would mean nothing.
    """
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    walls: dict[str, list[float]] = {name: [] for name in COMMANDS}
    tasks: dict[str, dict[str, int]] = {}
    for turn in range(repeats + 1):
        for name, command in COMMANDS.items():
            started = time.monotonic()
            done = subprocess.run(
                [*command, "--inventory", inventory],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            wall_s = time.monotonic() - started
            if done.returncode != 0 or re.search(r"changed=[1-9]", done.stdout):
                sys.exit(f"{' '.join(command)} failed or changed something:\n{done.stdout[-3000:]}")
            if turn:
                walls[name].append(wall_s)
                tasks[name] = tasks_by_play(done.stdout)
            print(f"round {turn}/{repeats} {name}: {wall_s:.2f} s", flush=True)
    return {name: Cost(tuple(walls[name]), tasks[name]) for name in COMMANDS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inventory", default="inventories/lab")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    costs = measure(asked.inventory, asked.repeats)
    ping_s = costs["ping"].median_s
    for name, cost in costs.items():
        spread = f"{min(cost.walls_s):.2f}–{max(cost.walls_s):.2f}"
        aim = f" (aim ≤ {AIMS[name]:g})" if name in AIMS else ""
        print(
            f"{name}: median {cost.median_s:.2f} s, range {spread} s, n = {len(cost.walls_s)}; "
            f"{cost.median_s / ping_s:.2f} × ping{aim}"
        )
        for play, count in cost.tasks.items():
            print(f"    {count:3d} tasks  {play}")
    if asked.json:
        record = {name: asdict(cost) for name, cost in costs.items()}
        asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
