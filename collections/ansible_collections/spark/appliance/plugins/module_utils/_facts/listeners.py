# SPDX-License-Identifier: Apache-2.0
"""Which addresses and TCP ports the node listens on."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
    excerpt,
)

SS = Command("ss-listen", ("ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes"))
SS_ESTABLISHED = Command(
    "ss-established",
    ("ss", "--no-header", "--tcp", "--numeric", "state", "established"),
    empty_ok=True,
)
_USER = re.compile(r'users:\(\("([^"]*)",pid=(\d+)')


def parse_listeners(text: str) -> list[dict[str, Any]]:
    """Return the listening sockets; a wildcard address is ``0.0.0.0`` or ``::``.

    Raises:
        Unknown: a row has no local address and port.
    """
    found = []
    for line in text.splitlines():
        fields = line.split()
        # "State" heads the table where an old ss ignores --no-header.
        if not fields or fields[0] == "State":
            continue
        if len(fields) < 5 or fields[0] != "LISTEN":
            raise Unknown(f"ss: a row is not as expected: {excerpt(line)}")
        host, separator, port = fields[3].rpartition(":")
        if not separator or not port.isdigit():
            raise Unknown(f"ss: no address and port: {excerpt(line)}")
        address = host.partition("%")[0].strip("[]")
        user = _USER.search(line)
        found.append(
            {
                # ss prints * for a socket that takes both families.
                "address": "::" if address == "*" else address,
                "port": int(port),
                "process": user.group(1) if user else None,
                "pid": int(user.group(2)) if user else None,
            }
        )
    return found


def observe_listeners(host: Host) -> list[dict[str, Any]]:
    """Return the ``listeners`` section; a node reached over ssh listens at least for ssh."""
    return parse_listeners(host.ask(SS))


def parse_connections(text: str) -> list[dict[str, Any]]:
    """Return the remote ends of established connections beyond loopback, each once.

    Raises:
        Unknown: a row has no peer address and port.
    """
    found: dict[tuple[str, int], None] = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0] in {"State", "Recv-Q"}:
            continue
        # With a state filter ss leaves the state's column out.
        host, separator, port = (fields[3] if len(fields) >= 4 else "").rpartition(":")
        if not separator or not port.isdigit():
            raise Unknown(f"ss: no peer address and port: {excerpt(line)}")
        address = host.partition("%")[0].strip("[]").removeprefix("::ffff:")
        if not address.startswith("127.") and address != "::1":
            found[(address, int(port))] = None
    return [{"address": address, "port": port} for address, port in found]


def observe_connections(host: Host) -> list[dict[str, Any]]:
    """Return the ``connections`` section."""
    return parse_connections(host.ask(SS_ESTABLISHED))
