from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

_STARTED = time.monotonic()


class LabError(Exception):
    """The lab cannot be what was asked; the message says what to do."""


def say(text: str) -> None:
    """Print a progress line with the seconds since the program started."""
    print(f"lab: [{time.monotonic() - _STARTED:4.0f} s] {text}", flush=True)


def run(argv: Sequence[str], *, stdin: str | None = None, remedy: str = "") -> str:
    """Run a command to its end.

    Args:
        argv: the command and its arguments.
        stdin: text for its standard input.
        remedy: what the user can do when it fails.

    Returns:
        Its standard output, stripped.

    Raises:
        LabError: it is missing or its exit status was not 0.
    """
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        msg = f"{argv[0]} is not installed; run molecule/host-packages.sh"
        raise LabError(msg) from error
    if done.returncode != 0:
        detail = (done.stderr or done.stdout).strip()
        msg = f"{' '.join(argv)}\n  exit {done.returncode}: {detail}"
        raise LabError(f"{msg}\n  {remedy}" if remedy else msg)
    return done.stdout.strip()


def answers(argv: Sequence[str], *, timeout_s: float = 10) -> bool:
    """Say whether a command ends with status 0 within a time limit."""
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=timeout_s)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def wait_for(
    what: str, ready: Callable[[], bool], *, timeout_s: float, remedy: str, poll_s: float = 0.2
) -> None:
    """Poll until `ready` holds; raise LabError with `remedy` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            msg = f"{what}: not after {timeout_s:.0f} s. {remedy}"
            raise LabError(msg)
        time.sleep(poll_s)
