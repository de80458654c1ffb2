# SPDX-License-Identifier: Apache-2.0
"""Hand files over for as long as a copy takes: a node its verified ones to the others over one
rail address, the control node those of a folder through a tunnel that begins at its loopback.

HTTP with ranges and a random token of this run, bound to the rail address alone, on a port that
the kernel picks. What is served is a fixed list of files; nothing else has a path. On a node the
process is a transient unit with a deadline and ends by itself when nobody asks any more.
No encryption: the files are public or proven by their digests at the receiver, and one core's
AES would cap a 200 Gb/s rail.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.verified import (
    load_memory,
    untouched,
)

# A receiver that stalls holds a thread and a descriptor no longer than this.
SOCKET_TIMEOUT_S = 60
LOOPBACK = "127.0.0.1"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_SEND_BYTES = 64 << 20


@dataclass(slots=True)
class Sharing:
    """What a server hands out, by name with its entity tag, and what it has handed out so far."""

    folder: Path
    files: dict[str, str]
    token: str
    sent_bytes: int = 0
    last_request: float = 0.0
    open_requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        with self.lock:
            self.open_requests += 1

    def end(self, sent_bytes: int) -> None:
        with self.lock:
            self.open_requests -= 1
            self.sent_bytes += sent_bytes
            self.last_request = time.monotonic()

    def evict(self) -> None:
        """Drop the files from the page cache: at its end a transfer's last pages were in use."""
        for name in self.files:
            with contextlib.suppress(OSError), (self.folder / name).open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def idle_s(self) -> float:
        """Seconds since the last request ended, 0 while one is open."""
        with self.lock:
            return 0.0 if self.open_requests else time.monotonic() - self.last_request


def open_server(
    folder: Path, names: list[str], address: str, port: int, token: str
) -> tuple[ThreadingHTTPServer, Sharing]:
    """Bind a server for verified files.

    Parameters:
        folder: where the files lie.
        names: files to hand out.
        address: rail address to bind to; never a wildcard.
        port: port, 0 for one that the kernel picks.
        token: what a receiver must show.

    Raises:
        RefusalError: a file is not verified, the token is too short, or the address is not ours.
    """
    if len(token) < 32:
        raise RefusalError("expected a token of at least 32 characters for the copy between nodes")
    if address in {"", "0.0.0.0", "::"}:  # noqa: S104 -- this is the refusal of binding to all
        raise RefusalError(
            f"expected one rail address to share on, found {address or 'none'!r}; "
            "set spark_rail_a of the node"
        )
    memory = load_memory(folder)
    stale = [
        name
        for name in names
        if name not in memory.files or not untouched(folder, name, memory.files[name])
    ]
    if stale:
        raise RefusalError(
            f"{folder}: expected verified files to share, found {', '.join(stale[:4])} unverified; "
            "run again to fetch them"
        )
    return _bind(Sharing(folder, {n: memory.files[n].sha256 for n in names}, token), address, port)


def open_folder_server(
    folder: Path, names: Iterable[str], token: str
) -> tuple[ThreadingHTTPServer, Sharing]:
    """Bind a server for files of this machine that nobody has verified yet to its loopback.

    Parameters:
        folder: where the files lie; links are followed to the file itself.
        names: files to hand out; one that is not there has no path.
        token: what a receiver must show.
    """
    files = {}
    for name in names:
        with contextlib.suppress(OSError):
            status = (folder / name).stat()
            if stat.S_ISREG(status.st_mode):
                # A receiver joins what it has to the rest only while the file is the same.
                files[name] = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"
    return _bind(Sharing(folder, files, token), LOOPBACK, 0)


def _bind(sharing: Sharing, address: str, port: int) -> tuple[ThreadingHTTPServer, Sharing]:
    sharing.last_request = time.monotonic()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    class Handler(_Handler):
        shared = sharing

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of a receiver that went away before it had asked."""

    try:
        return Server((address, port), Handler), sharing
    except OSError as error:
        raise RefusalError(
            f"{address}: expected an address of this node to share on, found: {error.strerror}; "
            "bring up the rail or correct spark_rail_a"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "spark-appliance"
    sys_version = ""
    timeout = SOCKET_TIMEOUT_S
    shared: Sharing

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- name set by the base class
        """Say nothing: addresses and paths are of no use in the journal."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _refuse(self, status: HTTPStatus, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def _answer(self, *, body: bool) -> None:
        shown = self.headers.get("Authorization", "")
        if not hmac.compare_digest(shown.encode(), f"Bearer {self.shared.token}".encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED)
            return
        name = unquote(self.path).lstrip("/")
        tag = self.shared.files.get(name)
        if tag is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        sent = 0
        self.shared.begin()
        try:
            with (self.shared.folder / name).open("rb", buffering=0) as stream:
                size = os.fstat(stream.fileno()).st_size
                span = self._span(size, f'"{tag}"')
                if span is None:
                    self._refuse(
                        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, Content_Range=f"bytes */{size}"
                    )
                    return
                start, stop = span
                whole = (start, stop) == (0, size)
                self.send_response(HTTPStatus.OK if whole else HTTPStatus.PARTIAL_CONTENT)
                self.send_header("Content-Length", str(stop - start))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{tag}"')
                if not whole:
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
                self.end_headers()
                while body and start < stop:
                    count = self.connection.sendfile(stream, start, min(_SEND_BYTES, stop - start))
                    if not count:
                        break
                    start += count
                    sent += count
                    os.posix_fadvise(stream.fileno(), 0, start, os.POSIX_FADV_DONTNEED)
        except OSError:
            # The receiver went away, or stalled; it asks again for the rest.
            self.close_connection = True
        finally:
            self.shared.end(sent)

    def _span(self, size: int, etag: str) -> tuple[int, int] | None:
        asked = self.headers.get("Range")
        if asked is None or self.headers.get("If-Range", etag) != etag:
            return 0, size
        match = _RANGE.fullmatch(asked.strip())
        if match is None:
            return 0, size
        start = int(match[1])
        stop = min(size, int(match[2]) + 1) if match[2] else size
        return (start, stop) if start < stop else None


def wide_listeners(port: int, tables: Iterable[str]) -> list[str]:
    """Return the addresses beyond loopback that something listens at on a port.

    Parameters:
        port: TCP port.
        tables: contents of ``/proc/net/tcp`` and ``/proc/net/tcp6``.
    """
    found = []
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            # State 0A is LISTEN; each group of four bytes stands in this machine's byte order.
            if fields[3] != "0A" or int(number, 16) != port:
                continue
            raw = b"".join(
                int(address[at : at + 8], 16).to_bytes(4, sys.byteorder)
                for at in range(0, len(address), 8)
            )
            shown = ipaddress.ip_address(raw)
            mapped = getattr(shown, "ipv4_mapped", None) or shown
            if not mapped.is_loopback:
                found.append(str(mapped))
    return found


def serve_until(
    server: ThreadingHTTPServer,
    sharing: Sharing,
    *,
    idle_limit_s: float,
    deadline_s: float,
    tell: Callable[[Sharing], None],
) -> None:
    """Serve until nobody asked for ``idle_limit_s``, or ``deadline_s`` are over; then close.

    An exception, such as that of a signal, closes as well.
    """
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2})
    thread.start()
    ends = time.monotonic() + deadline_s
    try:
        while time.monotonic() < ends and sharing.idle_s() < idle_limit_s:
            tell(sharing)
            time.sleep(0.5)
    finally:
        with contextlib.suppress(OSError):
            server.shutdown()
        server.server_close()
        thread.join()
        sharing.evict()
