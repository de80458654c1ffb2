"""A release server on loopback that can misbehave in the ways that real ones do."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Server:
    """Files by name, and how to serve them.

    Parameters:
        files: content by name.
        ranges: answer ranges; without, every answer is the whole file.
        etag: entity tag of every file.
        promised_extra: bytes that Content-Length promises beyond the file.
        sent_extra: bytes that are sent beyond the file, and promised.
        cut_after: bytes after which the connection is cut, once for each entry.
        statuses: statuses to answer with before serving, in order, for GET.
        head: answer HEAD.
        rate_bytes_s: send no faster than this, without a limit when 0.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"one"'
    promised_extra: int = 0
    sent_extra: int = 0
    cut_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    head: bool = True
    rate_bytes_s: int = 0
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    sent_bytes: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def gets(self, name: str) -> list[str]:
        """Ranges that were asked for, empty for a whole file."""
        return [span for method, path, span in self.requests if (method, path) == ("GET", name)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Server

    def log_message(self, *_: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _status(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _serve(self, *, body: bool) -> None:
        served, name = self.served, self.path.lstrip("/")
        asked = self.headers.get("Range", "")
        with served.lock:
            served.requests.append((self.command, name, asked))
            status = served.statuses.pop(0) if body and served.statuses else 0
            cut = served.cut_after.pop(0) if body and served.cut_after else None
        if status:
            self._status(status)
            return
        if not body and not served.head:
            self._status(405)
            return
        content = served.files.get(name)
        if content is None:
            self._status(404)
            return
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", asked)
        current = self.headers.get("If-Range", served.etag) == served.etag
        if match and served.ranges and current:
            start = int(match[1])
            if start >= len(content):
                self._status(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:] + b"x" * served.sent_extra
        self.send_header("Content-Length", str(len(rest) + served.promised_extra))
        self.send_header("ETag", served.etag)
        self.end_headers()
        if body:
            sent = rest if cut is None else rest[:cut]
            with contextlib.suppress(ConnectionError):
                self._send(sent)
        if body and (cut is not None or served.promised_extra):
            self.close_connection = True

    def _send(self, content: bytes) -> None:
        step = max(1, self.served.rate_bytes_s // 10) if self.served.rate_bytes_s else len(content)
        for start in range(0, len(content), max(1, step)):
            chunk = content[start : start + step]
            self.wfile.write(chunk)
            with self.served.lock:
                self.served.sent_bytes += len(chunk)
            if self.served.rate_bytes_s:
                time.sleep(0.1)


@contextlib.contextmanager
def serving(server: Server, address: str = "127.0.0.1") -> Iterator[Server]:
    class Handler(_Handler):
        served = server

    http = ThreadingHTTPServer((address, 0), Handler)
    http.daemon_threads = True
    server.url = f"http://{address}:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
