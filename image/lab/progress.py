"""Progress lines of a build: what, how long, how many bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PERIOD_S = 10.0
_LOG_TAIL_LINES = 30


def report(step: str, text: str, started_s: float | None = None) -> None:
    """Write one line to standard error.

    Parameters
    ----------
    step
        Name of the step.
    text
        What there is to say.
    started_s
        ``time.monotonic()`` at the step's start; the elapsed seconds are printed when given.
    """
    elapsed = "" if started_s is None else f" [{time.monotonic() - started_s:5.1f} s]"
    print(f"{step}:{elapsed} {text}", file=sys.stderr, flush=True)


def mebibytes(size_bytes: int) -> str:
    """Render a size in MiB."""
    return f"{size_bytes / 2**20:.0f} MiB"


def file_bytes(path: Path) -> int:
    """Return the size in bytes of a file that may not be there yet."""
    return path.stat().st_size if path.exists() else 0


def tree_bytes(root: Path) -> int:
    """Return the summed size in bytes of the regular files below a directory."""
    total_bytes = 0
    for path in root.rglob("*"):
        # A tree that is being written changes under the walk.
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total_bytes += path.stat().st_size
    return total_bytes


@contextmanager
def ticking(step: str, measure: Callable[[], int]) -> Iterator[None]:
    """Print a line at the start, every ten seconds and at the end of a step.

    Parameters
    ----------
    step
        Name of the step.
    measure
        Returns the bytes done so far.
    """
    started_s = time.monotonic()
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(_PERIOD_S):
            report(step, mebibytes(measure()), started_s)

    report(step, "begins")
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    report(step, f"done, {mebibytes(measure())}", started_s)


def run_logged(
    step: str,
    argv: Sequence[str],
    log: Path,
    measure: Callable[[], int],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a program with its output in a file and its progress on standard error.

    Parameters
    ----------
    step
        Name of the step.
    argv
        The program and its arguments.
    log
        File that takes the program's output, appended.
    measure
        Returns the bytes done so far.
    env
        Environment of the program; this process's own when None.
    cwd
        Working directory of the program; this process's own when None.

    Raises
    ------
    RuntimeError
        The program failed; the message ends with the last lines of its output.
    """
    with log.open("ab") as sink, ticking(step, measure):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env,
            cwd=cwd, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        raise RuntimeError(f"{step}: {argv[0]} ended with {done.returncode}\n{tail}")
