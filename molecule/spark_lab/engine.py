"""The container engine and lxcfs of this machine: used when they run, started when they do not."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from spark_lab.process import LabError, answers, run, say, wait_for

STATE = Path("/run/spark-lab")
LXCFS = STATE / "lxcfs"
LABEL = "spark-lab.name"
# A node's systemd and its services hold about ten; the kernel's 128 are one sum for all of root's.
INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_INOTIFY_INSTANCES = 1024


def start_engine() -> None:
    """Make the engine answer on its default socket.

    Raises:
        LabError: not root, or the engine does not answer within a minute.
    """
    if answers(["docker", "version"]):
        return
    if os.geteuid() != 0:
        msg = "no Docker Engine answers, and only root can start one"
        raise LabError(msg)
    say("starting the Docker Engine")
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "docker"])
    else:
        # Left behind by an engine that was killed; dockerd refuses to start over it.
        _remove_stale(Path("/var/run/docker.pid"))
        _spawn("dockerd", ["dockerd"])
    wait_for(
        "the Docker Engine",
        lambda: answers(["docker", "version"]),
        timeout_s=60,
        remedy=f"Its log is {STATE / 'dockerd.log'}",
    )


def mount_lxcfs() -> bool:
    """Mount the file system that shows each container its own memory, when it is absent.

    Returns:
        Whether it was mounted now.

    Raises:
        LabError: it does not come within 10 s.
    """
    if _shows_memory():
        return False
    say("mounting lxcfs")
    # A mount whose process died answers every access with an error until it is taken away.
    _unmount_lxcfs()
    LXCFS.mkdir(parents=True, exist_ok=True)
    _spawn("lxcfs", ["lxcfs", "-f", "-p", str(STATE / "lxcfs-own.pid"), str(LXCFS)])
    wait_for(
        "lxcfs",
        _shows_memory,
        timeout_s=10,
        remedy=f"Its log is {STATE / 'lxcfs.log'}; it needs /dev/fuse",
    )
    return True


def raise_limits() -> None:
    """Let enough systemd instances run side by side; `stop_what_was_started` puts it back."""
    now = int(INOTIFY_INSTANCES.read_text(encoding="ascii"))
    if now < ENOUGH_INOTIFY_INSTANCES:
        say(f"raising fs.inotify.max_user_instances from {now} to {ENOUGH_INOTIFY_INSTANCES}")
        (STATE / "inotify").write_text(f"{now}\n", encoding="ascii")
        INOTIFY_INSTANCES.write_text(f"{ENOUGH_INOTIFY_INSTANCES}\n", encoding="ascii")


def stop_what_was_started() -> None:
    """Stop lxcfs and the engine if this program started them and no lab is left."""
    if answers(["docker", "version"]) and run(
        ["docker", "ps", "-aq", "--filter", f"label={LABEL}"]
    ):
        say("another lab still runs: lxcfs and the engine stay")
        return
    saved = STATE / "inotify"
    if saved.exists():
        INOTIFY_INSTANCES.write_text(saved.read_text(encoding="ascii"), encoding="ascii")
        saved.unlink()
    _unmount_lxcfs()
    _kill("lxcfs")
    if _pid("dockerd") is not None and answers(["docker", "version"]):
        if run(["docker", "ps", "-q"]):
            say("containers that are not the lab's still run: the engine stays")
            return
        say("stopping the Docker Engine that the lab started")
    _kill("dockerd")


def _shows_memory() -> bool:
    try:
        return "MemTotal" in (LXCFS / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return False


def _unmount_lxcfs() -> None:
    while answers(["umount", "-l", str(LXCFS)]):
        continue


def _spawn(name: str, argv: list[str]) -> None:
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (STATE / f"{name}.pid").write_text(f"{process.pid}\n", encoding="ascii")


def _pid(name: str) -> int | None:
    """Return the process started under `name` if it still is that program."""
    try:
        pid = int((STATE / f"{name}.pid").read_text(encoding="ascii"))
        running = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return pid if running == name else None


def _kill(name: str) -> None:
    pid = _pid(name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_for(f"the end of {name}", lambda: _pid(name) is None, timeout_s=30, remedy="")
    (STATE / f"{name}.pid").unlink(missing_ok=True)


def _remove_stale(pidfile: Path) -> None:
    try:
        pid = int(pidfile.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if not Path(f"/proc/{pid}").exists():
        pidfile.unlink(missing_ok=True)
