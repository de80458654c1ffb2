# SPDX-License-Identifier: Apache-2.0
"""How a node reaches a folder of the control node: back through the ssh that Ansible uses.

The control node connects, as it always does, and asks the node's sshd to forward a port of the
node's loopback to one of its own loopback. So it works behind NAT and firewalls, nothing listens
on any network, and the way ends with that one ssh process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward")
# The first value that ssh meets counts, so these stand before the inventory's own.
_OWN = {
    # A shared connection would keep the forwarding after this process has ended.
    "ControlMaster": "no",
    "ControlPath": "none",
    "BatchMode": "yes",
    "ExitOnForwardFailure": "yes",
    # The port is told at this level and above.
    "LogLevel": "INFO",
    # What is handed over is compressed already.
    "Compression": "no",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "4",
}
# It ends when the control node's end of its standard input closes, however that came about.
_WAIT = "cat > /dev/null"
OPTIONS = (
    "host",
    "port",
    "remote_user",
    "private_key_file",
    "host_key_checking",
    "timeout",
    "ssh_executable",
    "ssh_args",
    "ssh_common_args",
    "ssh_extra_args",
)


def control_folder(url: str) -> str | None:
    """Return the folder that a ``control:///folder`` address names, None for another address."""
    parts = urlsplit(url)
    if parts.scheme != "control":
        return None
    path = unquote(parts.path)
    return path if not parts.netloc and path.startswith("/") else ""


def tunnel_argv(options: Mapping[str, Any], port: int) -> list[str]:
    """Return the ssh command that lets the node reach a port of the control node's loopback.

    Parameters:
        options: the node's connection options, those of :data:`OPTIONS`.
        port: port on the control node.
    """
    argv = [str(options["ssh_executable"]), "-T", "-x", "-a"]
    for key, value in _OWN.items():
        argv += ["-o", f"{key}={value}"]
    if options["host_key_checking"] is False:
        argv += ["-o", "StrictHostKeyChecking=no"]
    for key, name in (
        ("Port", "port"),
        ("User", "remote_user"),
        ("IdentityFile", "private_key_file"),
        ("ConnectTimeout", "timeout"),
    ):
        if options[name]:
            quoted = f'"{options[name]}"' if name == "private_key_file" else options[name]
            argv += ["-o", f"{key}={quoted}"]
    for name in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        argv += shlex.split(options[name] or "")
    return [*argv, "-R", f"127.0.0.1:0:127.0.0.1:{port}", str(options["host"]), _WAIT]


def allocated_port(line: str) -> int | None:
    """Return the node's port from a line of ssh's messages, None from any other line."""
    match = _ALLOCATED.search(line)
    return int(match[1]) if match else None
