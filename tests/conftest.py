from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner
import pytest
from spark_lab.spec import REPOSITORY, Lab, lab_from

ROOT = Path(__file__).resolve().parents[1]
# Ansible's commands are those of the environment that runs the tests.
COMMANDS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@dataclass(frozen=True, slots=True)
class Run:
    """One finished ansible-playbook run."""

    status: str
    code: int
    output: str
    changed: dict[str, int]
    failures: tuple[str, ...]
    contacted: tuple[str, ...]


RunPlaybook = Callable[..., Run]
LabCommand = Callable[[Lab, str], str]


@pytest.fixture
def run_playbook(tmp_path: Path) -> RunPlaybook:
    """Return a function that runs a playbook of this tree as a user would."""

    def run(
        playbook: str,
        *,
        inventory: Path | str,
        options: str = "",
        extra: dict[str, Any] | None = None,
    ) -> Run:
        # A folder of its own for each run: the runner would take an earlier run's variables over.
        private = tempfile.mkdtemp(prefix="runner-", dir=tmp_path)
        done = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(ROOT),
            inventory=str(ROOT / inventory),
            playbook=playbook,
            cmdline=options or None,
            extravars=extra or {},
            quiet=True,
            rotate_artifacts=3,
            envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": COMMANDS},
        )
        failures: list[str] = []
        contacted: set[str] = set()
        for event in done.events:
            data = event.get("event_data", {})
            if event["event"] == "runner_on_failed" and not data.get("ignore_errors"):
                failures.append(str(data["res"].get("msg", "")))
            if event["event"] == "runner_on_unreachable":
                failures.append(f"unreachable: {data['res'].get('msg', '')}")
                contacted.add(data["host"])
        stats = done.stats or {}
        with done.stdout as stream:
            output = stream.read()
        return Run(
            status=done.status,
            code=done.rc,
            output=output,
            changed=dict(stats.get("changed", {})),
            failures=tuple(failures),
            contacted=tuple(sorted(contacted)),
        )

    return run


@pytest.fixture(scope="session")
def lab_command() -> LabCommand:
    """A function that runs `up` or `down` for a lab and returns what it said."""

    def command(lab: Lab, verb: str) -> str:
        chosen = {
            "LAB_NAME": lab.name,
            "LAB_BLOCK": str(lab.block),
            "LAB_SUITE": lab.suite.name,
        }
        environment = os.environ | chosen | {"PYTHONPATH": str(REPOSITORY / "molecule")}
        argv = [sys.executable, "-m", "spark_lab", verb]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{lab.name} did not go {verb}:\n{done.stdout}{done.stderr}")
        return done.stdout

    return command


@pytest.fixture(scope="session")
def fresh_lab(lab_command: LabCommand) -> Iterator[Lab]:
    """A second lab beside the running one, of Debian 13, as delivered; removed afterwards."""
    chosen = {"LAB_NAME": "fresh", "LAB_BLOCK": "236", "LAB_SUITE": "trixie"}
    fresh = lab_from(os.environ | chosen)
    lab_command(fresh, "down")
    lab_command(fresh, "up")
    yield fresh
    lab_command(fresh, "down")
