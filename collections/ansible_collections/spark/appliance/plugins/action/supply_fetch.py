# SPDX-License-Identifier: Apache-2.0
"""Follow a supply job with a line of progress; see the module of the same name for its options."""

from __future__ import annotations

import contextlib
import queue
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import (
    LIMIT_BYTES,
    parse_checksums,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.share import (
    LOOPBACK,
    open_folder_server,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.handover import (
    OPTIONS,
    allocated_port,
    control_folder,
    tunnel_argv,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.supply_progress import progress_line

display = Display()

_FIRST_POLL_S = 0.3
_POLL_S = 2.0
# One line in this many seconds is enough to see life without burying the run's own output.
_LINE_S = 5.0
# A login and an answer; Ansible's own connection to the node stands by then.
_TUNNEL_LIMIT_S = 60.0


class ActionModule(ActionBase):
    """Begins the module's job on the node and looks at it until it ends."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        seen = self._call({"step": "begin"}, task_vars)
        if seen.get("state") != "closed":
            return self._follow(result, seen, task_vars, {})
        try:
            folder = _folder(str(self._task.args["url"]))
            names = _names(folder, str(self._task.args.get("checksums", "SHA256SUMS")))
            options = self._connection_options(host)
            with handed_over(folder, names, options) as way:
                extra = {"label": self._task.args.get("label") or self._task.args["url"], **way}
                began = self._call({"step": "begin", **extra}, task_vars)
                return self._follow(result, began, task_vars, extra)
        except RefusalError as refusal:
            raise AnsibleActionFail(f"{host}: {refusal}") from refusal

    def _follow(
        self,
        result: dict[str, Any],
        seen: dict[str, Any],
        task_vars: dict[str, Any],
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        host = task_vars["inventory_hostname"]
        outcome = {key: seen[key] for key in ("changed", "diff") if key in seen}
        run = seen.get("run", "")
        pause_s, last_line = _FIRST_POLL_S, time.monotonic()
        while not seen.get("failed") and seen["state"] == "running":
            time.sleep(pause_s)
            pause_s = min(_POLL_S, pause_s * 2)
            seen = self._call({"step": "look", "run": run, **extra}, task_vars)
            if time.monotonic() - last_line >= _LINE_S and not seen.get("failed"):
                display.display(f"    {host}: {progress_line(seen.get('progress') or {})}")
                last_line = time.monotonic()
        if seen.get("failed"):
            return {**result, **seen}
        if seen["state"] == "failed":
            return {**result, "failed": True, "msg": f"{host}: {seen['message']}"}
        return {**result, "changed": False, **outcome, **(seen["data"] or {})}

    def _call(self, extra: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=self._task.action,
            module_args={**self._task.args, **extra},
            task_vars=task_vars,
        )
        return answer

    def _connection_options(self, host: str) -> dict[str, Any]:
        if self._connection.transport != "ssh" or self._connection.get_option("password"):
            raise RefusalError(
                f"expected an ssh connection with a key to hand a folder of the control node over, "
                f"found {self._connection.transport} or a password; give {host} a key, or name the "
                "folder as file:/// on the head"
            )
        return {name: self._connection.get_option(name) for name in OPTIONS}


def _folder(url: str) -> Path:
    path = control_folder(url)
    if not path or not Path(path).is_dir():
        raise RefusalError(
            f"{url}: expected control:/// and an absolute folder of the control node, found none "
            "there; correct the address"
        )
    return Path(path)


def _names(folder: Path, checksums: str) -> list[str]:
    """Return what may be handed over: what the folder's checksum file lists, and that file."""
    path = folder / checksums
    try:
        with path.open("rb") as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise RefusalError(
            f"{path}: expected a checksum file on the control node, found: {error.strerror}; put "
            "the publisher's there, or make one with sha256sum"
        ) from error
    if len(content) > LIMIT_BYTES:
        raise RefusalError(f"{path}: expected at most {LIMIT_BYTES} bytes, found more")
    return [checksums, *parse_checksums(content, str(path))]


@contextlib.contextmanager
def handed_over(
    folder: Path, names: list[str], options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Let a node reach files of this machine while the context lasts.

    Parameters:
        folder: where the files lie.
        names: which may be read.
        options: the node's connection options.

    Yields:
        Options of the module: ``url``, ``token``, ``direct`` and ``tunnel``.

    Raises:
        RefusalError: ssh does not let the node reach this machine.
    """
    token = secrets.token_urlsafe(48)
    server, _ = open_folder_server(folder, names, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2})
    thread.start()
    try:
        with _tunnel(tunnel_argv(options, server.server_address[1])) as port:
            yield {
                "url": f"http://{LOOPBACK}:{port}",
                "token": token,
                "direct": True,
                "tunnel": port,
            }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _tunnel(argv: list[str]) -> Iterator[int]:
    process = subprocess.Popen(
        argv,
        # Held open for as long as the way is wanted; it closes with this process, too.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _port(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(_LINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[str]) -> int:
    lines: queue.Queue[str | None] = queue.Queue()
    stream = process.stderr
    assert stream is not None  # noqa: S101 -- opened as a pipe above

    def read(source: IO[str]) -> None:
        # To the end, so that ssh never waits for a reader.
        with source:
            for line in source:
                lines.put(line.strip())
        lines.put(None)

    threading.Thread(target=read, args=(stream,), daemon=True).start()
    ends, said = time.monotonic() + _TUNNEL_LIMIT_S, "nothing"
    while (left_s := ends - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left_s)
        except queue.Empty:
            break
        if line is None:
            break
        said = line or said
        port = allocated_port(line)
        if port is not None:
            return port
    raise RefusalError(
        f"expected ssh to lead the node back to the control node, found: {said[:200]}; allow "
        "AllowTcpForwarding remote in the node's sshd for Ansible's user, or name the folder as "
        "file:/// on the head"
    )
