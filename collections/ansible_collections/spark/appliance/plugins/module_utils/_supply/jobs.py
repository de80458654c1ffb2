# SPDX-License-Identifier: Apache-2.0
"""Work that outlives a module call: one transient systemd unit a job, followed from outside.

A job belongs to one run of Ansible, which shows that it is alive by asking how far the job is.
A second run is refused while the first one asks; when the first is gone (its ssh session or its
control node died), the next run follows the same job to its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.spark.appliance.plugins.module_utils._supply import worker
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import replace_file

JOBS = Path("/run/spark-appliance/supply")
# A run asks every two seconds; one that was silent for this long is gone.
SILENCE_S = 20.0
_PREFIX = "ansible_collections.spark.appliance.plugins.module_utils"
_AGENT = "agent.pyz"


class Units(Protocol):
    """What a job needs of the service manager."""

    def active(self, unit: str) -> bool:
        """Tell whether a unit runs, or is about to run again."""

    def result(self, unit: str) -> str:
        """Return why a unit ended, in the manager's words."""

    def start(self, unit: str, argv: Sequence[str], deadline_s: int) -> None:
        """Start a transient unit that is started again when it dies without having finished."""

    def stop(self, unit: str) -> None:
        """Stop a unit and forget it."""


class Systemd:
    """Transient units of the system's systemd."""

    @staticmethod
    def _show(unit: str) -> dict[str, str]:
        done = subprocess.run(
            ["systemctl", "show", "--property=ActiveState,Result", unit],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"LC_ALL": "C"},
        )
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def active(self, unit: str) -> bool:
        return self._show(unit).get("ActiveState") in {"active", "activating", "deactivating"}

    def result(self, unit: str) -> str:
        return self._show(unit).get("Result", "unknown")

    def start(self, unit: str, argv: Sequence[str], deadline_s: int) -> None:
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
        done = subprocess.run(
            [
                "systemd-run",
                f"--unit={unit}",
                "--quiet",
                f"--description=Spark appliance supply: {unit.removesuffix('.service')}",
                "--collect",
                "--property=Type=exec",
                "--property=Restart=on-failure",
                "--property=RestartSec=1",
                "--property=StartLimitIntervalSec=120",
                "--property=StartLimitBurst=4",
                f"--property=RuntimeMaxSec={deadline_s}",
                "--property=NoNewPrivileges=yes",
                "--property=UMask=0022",
                # Under memory pressure a copy that can be repeated goes before the engine.
                "--property=OOMScoreAdjust=900",
                "--property=Nice=5",
                "--",
                *argv,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RefusalError(
                f"expected systemd to start {unit}, found: {' '.join(done.stderr.split())[:200]}"
            )

    def stop(self, unit: str) -> None:
        subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a job.

    Parameters:
        state: ``running``, ``done`` or ``failed``.
        progress: the job's counters.
        ready: what a serving job says once it serves.
        data: what a finished job returns.
        message: why it failed.
    """

    state: str
    progress: Mapping[str, Any]
    ready: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    message: str = ""


class Job:
    """One job of this node by its name, such as ``image-fetch``.

    Parameters:
        name: job's name; its unit is ``spark-supply-NAME.service``.
        units: the service manager.
        folder: where jobs keep their files, gone at a reboot.
    """

    def __init__(self, name: str, units: Units | None = None, folder: Path = JOBS) -> None:
        self._name = name
        self._units = units or Systemd()
        self._root = folder
        self._folder = folder / name
        self.unit = f"spark-supply-{name}.service"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._root / f"{self._name}.lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def start(self, request: Mapping[str, Any], run: str, deadline_s: int) -> None:
        """Start the job for a run, or follow the same work that a dead run left.

        Parameters:
            request: what to do; ``kind`` chooses from :data:`worker.KINDS`.
            run: the run that asks, as a random text.
            deadline_s: seconds after which systemd ends the job.

        Raises:
            RefusalError: another run is at it, or the unit does not start.
        """
        with self._locked():
            if self._units.active(self.unit):
                self._take_over(request, run)
                if self._units.active(self.unit):
                    return
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700)
            self._write(request, run)
            self._touch()
            agent = self._folder / _AGENT
            replace_file(agent, bundle(), 0o600)
            self._units.start(
                self.unit, [sys.executable, str(agent), str(self._folder)], deadline_s
            )

    def _take_over(self, request: Mapping[str, Any], run: str) -> None:
        silent_s = self._silent_s()
        if silent_s < SILENCE_S:
            raise RefusalError(
                f"expected no other run at work here, found {self.unit} followed by one "
                f"{silent_s:.0f} s ago; wait until it has ended"
            )
        before = self._read(worker.REQUEST) or {}
        if {**before, "run": ""} == {**request, "run": ""}:
            self._touch()
            self._write(request, run)
            return
        self._units.stop(self.unit)

    def look(self, run: str) -> Look:
        """Return how far the job is, and keep it ours.

        Raises:
            RefusalError: the job belongs to another run by now.
        """
        request = self._read(worker.REQUEST)
        if request is None or request.get("run") != run:
            raise RefusalError(
                f"expected {self.unit} to work for this run, found it "
                f"{'gone' if request is None else 'taken over by another run'}; run again"
            )
        self._touch()
        # Asked before the result is read: a job that ends in between has left it by then.
        active = self._units.active(self.unit)
        progress = self._read(worker.PROGRESS) or {}
        result = self._read(worker.RESULT)
        if result is not None:
            if result["ok"]:
                return Look("done", progress, data=result["data"])
            return Look("failed", progress, message=result["message"])
        if active:
            return Look("running", progress, ready=self._read(worker.READY))
        return Look(
            "failed",
            progress,
            message=(
                f"{self.unit} died before it had finished ({self._units.result(self.unit)}); what "
                f"was verified is kept: see journalctl -u {self.unit}, then run again"
            ),
        )

    def stop(self) -> bool:
        """End the job and remove its files; tell whether it was running."""
        with self._locked():
            was = self._units.active(self.unit)
            self._units.stop(self.unit)
            shutil.rmtree(self._folder, ignore_errors=True)
            return was

    def forget(self) -> None:
        """Remove the files of a job that has left its result; it does nothing after that."""
        with self._locked():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, request: Mapping[str, Any], run: str) -> None:
        content = json.dumps({**request, "run": run}).encode()
        replace_file(self._folder / worker.REQUEST, content, 0o600)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self._folder / name).read_bytes())
        except (OSError, ValueError):
            return None
        return content

    def _touch(self) -> None:
        (self._folder / "asked").touch()

    def _silent_s(self) -> float:
        try:
            return max(0.0, time.time() - (self._folder / "asked").stat().st_mtime)
        except OSError:
            return SILENCE_S


def bundle() -> bytes:
    """Return this package and what it imports of its kind as one Python zip application.

    The module that runs now lives in a temporary archive that Ansible removes; the job needs a
    copy that stays.
    """
    names = sorted(name for name in sys.modules if name.startswith(f"{_PREFIX}."))
    packages = {_PREFIX.rsplit(".", depth)[0] for depth in range(_PREFIX.count(".") + 1)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in sorted(packages):
            archive.writestr(f"{package.replace('.', '/')}/__init__.py", "")
        for name in names:
            module = importlib.import_module(name)
            spec = module.__spec__
            source = getattr(spec and spec.loader, "get_source", lambda _: None)(name)
            if source is None:
                raise RuntimeError(f"{name}: its source is not at hand")
            path = name.replace(".", "/")
            suffix = "/__init__.py" if hasattr(module, "__path__") else ".py"
            archive.writestr(f"{path}{suffix}", source)
        archive.writestr("__main__.py", f"from {_PREFIX}._supply.worker import main\n\nmain()\n")
    return buffer.getvalue()
