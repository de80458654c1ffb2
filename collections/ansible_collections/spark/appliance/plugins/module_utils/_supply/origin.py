# SPDX-License-Identifier: Apache-2.0
"""Where files come from: an HTTP folder, read by curl, or a folder of this node."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast
from urllib.parse import quote, urlsplit

from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)

CONNECT_TIMEOUT_S = 15
# A transfer slower than this for that long is taken as dead and begun again where it stopped.
STALL_BYTES_S = 1024
STALL_S = 30
_SEGMENT = 1 << 20

# Exit codes of curl(1).
_HTTP_ERROR = 22
_RANGE_ERROR = 33
_TRANSIENT = {5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92, 95}


class StartOver(Exception):  # noqa: N818 -- says what to do, and is always caught
    """The origin cannot continue at the wanted byte, or offers another file than before."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an origin says about one file; a size is None where it does not tell."""

    size_bytes: int | None
    etag: str


class Origin(Protocol):
    """A folder that files are read from."""

    def describe(self) -> str:
        """Return the origin's address without secrets."""

    def offer(self, name: str) -> Offer:
        """Return what the origin says about a file."""

    def stream(
        self, name: str, offset: int, etag: str
    ) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a file at ``offset``; ``etag`` is that of the bytes before it, where known."""


def open_origin(url: str, token: str = "", *, direct: bool = False) -> Origin:
    """Return the origin that a URL stands for.

    Parameters:
        url: ``http://``, ``https://`` or ``file://`` folder.
        token: bearer token that the server demands.
        direct: never use a proxy, as between nodes.

    Raises:
        RefusalError: another scheme, credentials in the URL, or a relative folder.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise RefusalError(
                f"{url}: expected file:// and an absolute folder of the node, such as "
                "file:///srv/release; correct the address"
            )
        return FolderOrigin(Path(parts.path))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise RefusalError(
            f"{url or 'an empty address'}: expected an http://, https:// or file:// folder; "
            "correct the address"
        )
    if parts.username or parts.password:
        raise RefusalError(
            f"{parts.scheme}://…@{parts.hostname}: expected no user or password in the address, "
            "since addresses are logged; use a token variable"
        )
    return HttpOrigin(url.rstrip("/"), token, direct)


@dataclass(frozen=True, slots=True)
class FolderOrigin:
    """A folder of this node; links, as in a hub's cache, are followed to the file itself."""

    folder: Path

    def describe(self) -> str:
        return f"file://{self.folder}"

    def locate(self, name: str) -> Path:
        """Return the real file behind a name.

        Raises:
            RefusalError: there is none.
        """
        path = Path(os.path.realpath(self.folder / name))
        if not path.is_file():
            raise RefusalError(
                f"{self.folder / name}: expected a file, found none; complete the folder or "
                "correct the address"
            )
        return path

    def offer(self, name: str) -> Offer:
        return Offer(self.locate(name).stat().st_size, "")

    @contextlib.contextmanager
    def stream(self, name: str, offset: int, etag: str) -> Iterator[IO[bytes]]:
        del etag
        with self.locate(name).open("rb", buffering=0) as stream:
            stream.seek(offset)
            yield stream


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """A folder behind HTTP. The token reaches curl on its standard input, never in its argv."""

    base_url: str
    token: str
    direct: bool

    def describe(self) -> str:
        return self.base_url

    def _url(self, name: str) -> str:
        return f"{self.base_url}/{quote(name)}"

    def _config(self, name: str, *headers: str) -> bytes:
        lines = [f'url = "{_quoted(self._url(name))}"']
        if self.token:
            lines.append(f'header = "Authorization: Bearer {_quoted(self.token)}"')
        lines += [f'header = "{_quoted(header)}"' for header in headers]
        return ("\n".join(lines) + "\n").encode()

    def _argv(self, *extra: str) -> list[str]:
        argv = [
            "curl",
            "--disable",
            "--silent",
            "--show-error",
            "--fail",
            "--location",
            "--proto",
            "=http,https",
            "--max-redirs",
            "8",
            "--connect-timeout",
            str(CONNECT_TIMEOUT_S),
            "--speed-limit",
            str(STALL_BYTES_S),
            "--speed-time",
            str(STALL_S),
            "--config",
            "-",
        ]
        return argv + (["--noproxy", "*"] if self.direct else []) + list(extra)

    def offer(self, name: str) -> Offer:
        done = subprocess.run(
            self._argv("--head"),
            input=self._config(name),
            capture_output=True,
            check=False,
            env=_environment(),
        )
        said = done.stderr.decode(errors="replace")
        if done.returncode == _HTTP_ERROR and _status(said) in {405, 501}:
            return Offer(None, "")
        self._judge(name, done.returncode, said)
        return parse_offer(done.stdout.decode("latin-1"))

    @contextlib.contextmanager
    def stream(self, name: str, offset: int, etag: str) -> Iterator[IO[bytes]]:
        headers = [f"If-Range: {etag}"] if offset and etag and not etag.startswith("W/") else []
        resume = ["--continue-at", str(offset)] if offset else []
        process = subprocess.Popen(
            self._argv(*resume, "--output", "-"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=_environment(),
        )
        stdin, stdout, stderr = (
            cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        try:
            stdin.write(self._config(name, *headers))
            stdin.close()
            yield stdout
            # Reached only when the caller read to the end; an exception there must not wait.
            said = stderr.read().decode(errors="replace")
            self._judge(name, process.wait(), said)
        finally:
            process.kill()
            process.wait()
            stdout.close()
            stderr.close()

    def _judge(self, name: str, code: int, said: str) -> None:
        if code == 0:
            return
        if code == _RANGE_ERROR:
            raise StartOver
        line = " ".join(said.split())[:200] or f"curl: exit {code}"
        status = _status(said) if code == _HTTP_ERROR else None
        if status == 416:
            raise StartOver
        where = f"{self._url(name)}"
        if status is not None and 400 <= status < 500 and status not in {408, 425, 429}:
            why = {
                401: "the server demands a token: set it",
                403: "the server refuses access: set a token that may read it",
                404: "the server does not have it: upload it or correct the address",
                410: "the server had it once: upload it or correct the address",
            }.get(status, "correct the address")
            raise RefusalError(f"{where}: expected the file, found HTTP {status}; {why}")
        if status is not None or code in _TRANSIENT:
            raise CutError(f"{where}: {line}")
        raise RefusalError(f"{where}: expected the file, found: {line}; correct the address")


def parse_offer(headers: str) -> Offer:
    """Return what the last response in curl's header output says about a file."""
    blocks = [block for block in re.split(r"\r?\n\r?\n", headers) if block.strip()]
    fields: dict[str, str] = {}
    for line in blocks[-1].splitlines()[1:] if blocks else []:
        key, _, value = line.partition(":")
        fields[key.strip().lower()] = value.strip()
    size = fields.get("content-length", "")
    return Offer(int(size) if size.isdigit() else None, fields.get("etag", ""))


def _status(said: str) -> int | None:
    match = re.search(r"returned error: (\d{3})", said)
    return int(match[1]) if match else None


def _quoted(value: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise RefusalError("an address or a token holds a control character; correct it")
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _environment() -> dict[str, str]:
    kept = ("PATH", "http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY")
    return {"LC_ALL": "C", "PATH": os.defpath} | {
        key: os.environ[key] for key in kept if key in os.environ
    }


def read_small(origin: Origin, name: str, limit_bytes: int) -> bytes:
    """Return a small file whole.

    Raises:
        RefusalError: it is not there, or larger than ``limit_bytes``.
        CutError: the way to it was cut.
    """
    content = bytearray()
    with origin.stream(name, 0, "") as stream:
        while chunk := stream.read(_SEGMENT):
            content += chunk
            if len(content) > limit_bytes:
                raise RefusalError(
                    f"{origin.describe()}/{name}: expected at most {limit_bytes} bytes, found "
                    "more: this is no checksum file; correct the address"
                )
    return bytes(content)
