# SPDX-License-Identifier: Apache-2.0
"""The only door to the system: files, commands and the Docker socket, live or from a recording."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

# Decoded JSON, whose shape the caller proves.
Json: TypeAlias = Any

FILE_LIMIT_BYTES = 2 << 20
OUTPUT_LIMIT_BYTES = 8 << 20
HASH_LIMIT_BYTES = 64 << 20
# sysfs values are at most one page, of 4 KiB or on some arm64 kernels 64 KiB.
ATTRIBUTE_LIMIT_BYTES = 64 << 10
DOCKER_SOCKET = "/var/run/docker.sock"
DOCKER_TIMEOUT_S = 12.0
# The kernel gives up after 40 links in one path (path_resolution(7)).
_LINK_LIMIT = 40
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV)

# Tool output is parsed, so the node's language, pager and colours must not reach it.
ENVIRONMENT = {
    "LC_ALL": "C",
    "LANG": "C",
    "LANGUAGE": "",
    "TZ": "UTC",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PAGER": "cat",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
    "NO_COLOR": "1",
    "HOME": "/root",
}


class Unknown(Exception):  # noqa: N818 -- a state of knowledge about the node, not an error in code
    """The question could not be answered; the message is the reason that the section reports."""


@dataclass(frozen=True, slots=True)
class Command:
    """One bounded, read-only command.

    Parameters:
        name: name of its recording, ``_commands/<name>.txt`` in a recorded tree.
        argv: argument list.
        timeout_s: seconds after which the command and its children are killed.
        empty_ok: success may print nothing.
    """

    name: str
    argv: tuple[str, ...]
    # Generous, since a busy node is no broken one; a tool that hangs never ends by itself anyway.
    timeout_s: float = 10.0
    empty_ok: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a command left: exit status and both streams."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Status of one path; ``kind`` is file, dir, link or other."""

    kind: str
    mode: int
    uid: int
    gid: int
    size_bytes: int


def excerpt(text: str, limit: int = 160) -> str:
    """Return ``text`` as one short printable line for a reason."""
    line = re.sub(r"[^\x20-\x7e]+", " ", text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _open(path: Path) -> int:
    # Not blocking, because a FIFO in place of a file must not hang the node's only probe.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class Host:
    """A node, seen through ``root``: ``/`` is the live node, anything else a recorded tree.

    Parameters:
        root: directory that stands for ``/``.
        execute: runs a command; injected for recordings.
        query: asks the Docker API; takes a recording name and a path, returns the body.
        recorded: this is a recording, whose clock and session come from its files.
    """

    def __init__(
        self,
        root: Path,
        execute: Callable[[Command], Output],
        query: Callable[[str, str], bytes],
        recorded: bool = False,
    ) -> None:
        self.recorded = recorded
        self._root = root
        self._execute = execute
        self._query = query
        self._lock = threading.Lock()
        self._once: dict[str, threading.Lock] = {}
        self._results: dict[str, Output | Unknown] = {}

    def locate(self, path: str) -> Path:
        """Return where ``path`` lies, resolving links inside a recorded tree as ``/`` would.

        Raises:
            Unknown: the path goes through more links than the kernel follows.
        """
        if self._root == Path("/"):
            return Path(path)
        pending = [part for part in path.split("/") if part]
        here: list[str] = []
        links = 0
        while pending:
            part = pending.pop(0)
            if part == ".":
                continue
            if part == "..":
                here = here[:-1]
                continue
            there = self._root.joinpath(*here, part)
            # The last part is kept as it is: lstat and readlink must see the link itself.
            if pending and there.is_symlink():
                links += 1
                if links > _LINK_LIMIT:
                    raise Unknown(f"{path}: too many levels of symbolic links")
                target = str(there.readlink())
                if target.startswith("/"):
                    here = []
                pending = [piece for piece in target.split("/") if piece] + pending
                continue
            here.append(part)
        return self._root.joinpath(*here)

    def _follow(self, path: str) -> Path:
        located = self.locate(path)
        if self._root == Path("/"):
            return located
        for _ in range(_LINK_LIMIT):
            if not located.is_symlink():
                return located
            target = str(located.readlink())
            base = "/" + str(located.parent.relative_to(self._root))
            located = self.locate(target if target.startswith("/") else f"{base}/{target}")
        raise Unknown(f"{path}: too many levels of symbolic links")

    def read_bytes(self, path: str, limit_bytes: int = FILE_LIMIT_BYTES) -> bytes | None:
        """Return the content of a regular file, or None when nothing is there.

        Raises:
            Unknown: it exists but is unreadable, no regular file or larger than ``limit_bytes``.
        """
        try:
            handle = _open(self._follow(path))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise Unknown(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unknown(f"{path}: not a regular file")
            chunks: list[bytes] = []
            size = 0
            while chunk := os.read(handle, 1 << 16):
                size += len(chunk)
                if size > limit_bytes:
                    raise Unknown(f"{path}: larger than {limit_bytes} bytes")
                chunks.append(chunk)
        except OSError as error:
            # A process that ends between opening and reading leaves nothing to read.
            if error.errno == errno.ESRCH:
                return None
            raise Unknown(f"{path}: {error.strerror}") from error
        finally:
            os.close(handle)
        return b"".join(chunks)

    def text(self, path: str, limit_bytes: int = FILE_LIMIT_BYTES) -> str | None:
        """Return a text file with ``\\n`` line ends, or None when nothing is there.

        Raises:
            Unknown: see :meth:`read_bytes`; also when the file is not text.
        """
        raw = self.read_bytes(path, limit_bytes)
        return None if raw is None else plain(raw, path)

    def need(self, path: str, limit_bytes: int = FILE_LIMIT_BYTES) -> str:
        """Return a text file that every node has; its absence is unknown, not empty."""
        content = self.text(path, limit_bytes)
        if content is None:
            raise Unknown(f"{path}: does not exist")
        return content

    def attribute(self, path: str) -> str | None:
        """Return one sysfs value, or None when the kernel has none (absent, or EINVAL).

        Raises:
            Unknown: it is unreadable, no regular file, no text or longer than sysfs allows.
        """
        try:
            handle = _open(self._follow(path))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise Unknown(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unknown(f"{path}: not a regular file")
            raw = os.read(handle, ATTRIBUTE_LIMIT_BYTES + 1)
        except OSError as error:
            if error.errno in (*_ABSENT, errno.EINVAL, errno.EOPNOTSUPP):
                return None
            raise Unknown(f"{path}: {error.strerror}") from error
        finally:
            os.close(handle)
        if len(raw) > ATTRIBUTE_LIMIT_BYTES:
            raise Unknown(f"{path}: larger than {ATTRIBUTE_LIMIT_BYTES} bytes")
        return plain(raw, path).strip()

    def names(self, path: str) -> list[str] | None:
        """Return the sorted names in a directory, or None when there is no directory."""
        try:
            return sorted(os.listdir(self._follow(path)))  # noqa: PTH208 -- only names are wanted
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise Unknown(f"{path}: {error.strerror}") from error

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link, or None when there is no link."""
        try:
            return str(self.locate(path).readlink())
        except OSError as error:
            if error.errno in (*_ABSENT, errno.EINVAL):
                return None
            raise Unknown(f"{path}: {error.strerror}") from error

    def entry(self, path: str) -> Entry | None:
        """Return the status of a path without following a last link, or None when absent."""
        try:
            found = self.locate(path).lstat()
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise Unknown(f"{path}: {error.strerror}") from error
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "dir"), (stat.S_ISLNK, "link"))
        kind = next((name for test, name in kinds if test(found.st_mode)), "other")
        mode = stat.S_IMODE(found.st_mode)
        return Entry(kind, mode, found.st_uid, found.st_gid, found.st_size)

    def sha256(self, path: str) -> str | None:
        """Return the digest of a regular file up to 64 MiB, or None for anything else."""
        try:
            with os.fdopen(_open(self._follow(path)), "rb") as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > HASH_LIMIT_BYTES:
                    return None
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            # fdopen refuses a directory, of which there is no digest.
            if error.errno in (*_ABSENT, errno.EISDIR):
                return None
            raise Unknown(f"{path}: {error.strerror}") from error

    def run(self, command: Command) -> Output:
        """Run a command once per gathering, whatever its exit status.

        Raises:
            Unknown: no such tool, not finished in time, or more output than can be meant.
        """
        with self._lock:
            once = self._once.setdefault(command.name, threading.Lock())
        with once:
            if command.name not in self._results:
                try:
                    self._results[command.name] = self._execute(command)
                except Unknown as reason:
                    self._results[command.name] = reason
        result = self._results[command.name]
        if isinstance(result, Unknown):
            raise Unknown(str(result))
        return result

    def ask(self, command: Command) -> str:
        """Return what a command printed, demanding success and, unless allowed, some output."""
        output = self.run(command)
        if output.rc != 0:
            said = excerpt(output.stderr or output.stdout) or "nothing printed"
            raise Unknown(f"{command.argv[0]}: exit {output.rc}: {said}")
        if not output.stdout.strip() and not command.empty_ok:
            said = excerpt(output.stderr)
            raise Unknown(f"{command.argv[0]}: printed nothing" + (f" ({said})" if said else ""))
        return output.stdout

    def ask_json(self, command: Command) -> Json:
        """Return the JSON that a command printed."""
        printed = self.ask(command)
        try:
            return json.loads(printed)
        except ValueError as error:
            said = excerpt(printed)
            raise Unknown(f"{command.argv[0]}: did not print JSON: {said}") from error

    def session_connection(self) -> str:
        """Return ``SSH_CONNECTION`` of the session that asks, or nothing without ssh."""
        if self.recorded:
            return (self.text("/_commands/ssh-connection.txt") or "").strip()
        return session_connection()

    def docker(self, name: str, path: str) -> Json:
        """Return the JSON that the Docker Engine answers to GET ``path``.

        Raises:
            Unknown: no engine, no permission, no answer in time, or no JSON.
        """
        raw = self._query(name, path)
        try:
            return json.loads(raw)
        except ValueError as error:
            said = excerpt(raw[:400].decode(errors="replace"))
            raise Unknown(f"docker: {path}: not JSON: {said}") from error


def plain(raw: bytes, source: str) -> str:
    """Return bytes as text with ``\\n`` line ends; NUL bytes mean that this is no text."""
    if b"\0" in raw:
        raise Unknown(f"{source}: binary, not text")
    text = raw.decode("utf-8", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def execute(command: Command) -> Output:
    """Run a command on this node, bounded in time and output, in the C locale.

    Raises:
        Unknown: the tool is missing or not executable, ran past its time limit or printed more
            than 8 MiB.
    """
    tool = command.argv[0]
    try:
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
            # An own session, so that children that hold the pipes can be killed with it.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Unknown(f"{tool}: not installed") from error
    except OSError as error:
        raise Unknown(f"{tool}: {error.strerror}") from error
    try:
        streams = _collect(process, command)
        deadline_s = max(0.1, command.timeout_s)
        rc = process.wait(timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        raise Unknown(f"{tool}: not finished after {command.timeout_s:g} s") from error
    finally:
        _end(process)
    return Output(rc, plain(streams[0], tool), plain(streams[1], tool))


def _collect(process: subprocess.Popen[bytes], command: Command) -> tuple[bytes, bytes]:
    tool = command.argv[0]
    deadline = time.monotonic() + command.timeout_s
    buffers = {"out": bytearray(), "err": bytearray()}
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, "out")  # type: ignore[arg-type]  # PIPE was asked for, so the streams exist
        selector.register(process.stderr, selectors.EVENT_READ, "err")  # type: ignore[arg-type]  # as above
        while selector.get_map():
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                raise Unknown(f"{tool}: not finished after {command.timeout_s:g} s")
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                buffers[key.data] += chunk
                if len(buffers[key.data]) > OUTPUT_LIMIT_BYTES:
                    raise Unknown(f"{tool}: printed more than {OUTPUT_LIMIT_BYTES} bytes")
    return bytes(buffers["out"]), bytes(buffers["err"])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()
        # A process asleep in the kernel cannot be killed, and the gathering must not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the Docker Engine's socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


def query_docker(name: str, path: str) -> bytes:
    """Return the body of GET ``path`` on this node's Docker Engine; ``name`` is for recordings.

    Raises:
        Unknown: the engine did not answer 200 in time.
    """
    del name
    connection = _UnixConnection(DOCKER_SOCKET, DOCKER_TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read(OUTPUT_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        raise Unknown(f"docker: no engine listens on {DOCKER_SOCKET}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unknown(
            f"docker: {path}: {error.__class__.__name__}: {excerpt(str(error))}"
        ) from error
    finally:
        connection.close()
    if len(body) > OUTPUT_LIMIT_BYTES:
        raise Unknown(f"docker: {path}: answered more than {OUTPUT_LIMIT_BYTES} bytes")
    if reply.status != 200:
        said = excerpt(body.decode(errors="replace"))
        raise Unknown(f"docker: {path}: HTTP {reply.status}: {said}")
    return body


def _replay(root: Path) -> Callable[[Command], Output]:
    folder = root / "_commands"

    def replay(command: Command) -> Output:
        def part(suffix: str) -> bytes | None:
            path = folder / f"{command.name}.{suffix}"
            return path.read_bytes() if path.exists() else None

        tool = command.argv[0]
        stdout, status = part("txt"), part("rc")
        if status is not None and status.strip() == b"timeout":
            raise Unknown(f"{tool}: not finished after {command.timeout_s:g} s")
        if stdout is None and status is None:
            raise Unknown(f"{tool}: not installed")
        if stdout is not None and len(stdout) > OUTPUT_LIMIT_BYTES:
            raise Unknown(f"{tool}: printed more than {OUTPUT_LIMIT_BYTES} bytes")
        rc = int(status) if status is not None else 0
        return Output(rc, plain(stdout or b"", tool), plain(part("err") or b"", tool))

    return replay


def _replay_docker(root: Path) -> Callable[[str, str], bytes]:
    def replay(name: str, path: str) -> bytes:
        recorded = root / "_commands" / f"{name}.json"
        if not recorded.exists():
            raise Unknown(f"docker: {path}: no engine listens on {DOCKER_SOCKET}")
        return recorded.read_bytes()

    return replay


def open_host(root: str) -> Host:
    """Return the live node for ``/``, or the recording under any other directory.

    A recording holds files at their paths, and under ``_commands/`` for each command
    ``<name>.txt`` (standard output), ``<name>.err``, ``<name>.rc`` (exit status, or ``timeout``),
    and for each Docker answer ``<name>.json``. A command without a recording is not installed.

    Raises:
        Unknown: ``root`` is no directory.
    """
    path = Path(root).resolve()
    if not path.is_dir():
        raise Unknown(f"{root}: not a directory")
    if path == Path("/"):
        return Host(path, execute, query_docker)
    return Host(path, _replay(path), _replay_docker(path), recorded=True)


def session_connection() -> str:
    """Return ``SSH_CONNECTION`` of this process or of the nearest ancestor that has it.

    Privilege escalation drops the variable, the parent's environment still has it.
    """
    if value := os.environ.get("SSH_CONNECTION"):
        return value
    pid = os.getppid()
    for _ in range(12):
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:  # noqa: PTH123 -- procfs, one read
                for entry in stream.read().split(b"\0"):
                    if entry.startswith(b"SSH_CONNECTION="):
                        return entry.partition(b"=")[2].decode(errors="replace")
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 -- as above
                pid = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return ""
        if pid <= 1:
            return ""
    return ""


def concurrently(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run ``tasks`` in threads; return their results in order, an :class:`Unknown` where raised.

    Any other exception becomes an :class:`Unknown` too: in a thread it would be lost, and with it
    the reason.
    """
    results: list[Any] = [None] * len(tasks)

    def work(index: int) -> None:
        try:
            results[index] = tasks[index]()
        except Unknown as reason:
            results[index] = reason
        except Exception as error:  # noqa: BLE001 -- see above
            results[index] = Unknown(f"{type(error).__name__}: {excerpt(str(error))}")

    threads = [
        threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(tasks))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
