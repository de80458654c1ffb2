# SPDX-License-Identifier: Apache-2.0
"""What the rails really carry to each peer, asked with packets that must not be fragmented."""

from __future__ import annotations

from functools import partial
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Output,
    Unknown,
    concurrently,
    excerpt,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request

# IPv4 header (20) and ICMP header (8), which an MTU includes and ping's size does not.
HEADERS_BYTES = 28
# The smallest MTU that every Ethernet path carries.
SMALL_MTU = 1500


def ping_command(source: str, address: str, mtu: int) -> Command:
    """Return one ping of exactly ``mtu`` bytes that no router and no host may fragment."""
    size = str(mtu - HEADERS_BYTES)
    argv = ("ping", "-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", size, "-I", source, address)
    return Command(f"ping-{source}-{address}-{mtu}", argv, timeout_s=3.0, empty_ok=True)


def parse_ping(output: Output) -> tuple[bool, str]:
    """Return whether a reply came, and why not.

    Raises:
        Unknown: ping could not ask at all.
    """
    if output.rc == 0 and " 0% packet loss" in output.stdout:
        return True, ""
    text = f"{output.stdout}\n{output.stderr}"
    if "message too long" in text.lower():
        said = next(line for line in text.splitlines() if "too long" in line.lower())
        return False, excerpt(said)
    if output.rc == 1:
        return False, "no reply"
    if "unreachable" in text.lower() or "cannot assign" in text.lower():
        return False, excerpt(output.stderr or output.stdout)
    raise Unknown(f"ping: exit {output.rc}: {excerpt(output.stderr or output.stdout)}")


def _answer(host: Host, command: Command) -> tuple[bool, str]:
    return parse_ping(host.run(command))


def observe_reachability(host: Host, request: Request) -> list[dict[str, Any]]:
    """Return the ``reachability`` section: each peer with a large and with a small packet."""
    sizes = (request.peer_mtu, SMALL_MTU)
    commands = [
        ping_command(source, address, mtu) for source, address in request.peers for mtu in sizes
    ]
    answers = concurrently([partial(_answer, host, command) for command in commands])
    failed = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    if failed is not None:
        raise failed
    return [
        {
            "source": source,
            "address": address,
            "mtu": request.peer_mtu,
            "reached": answers[2 * index][0],
            "reached_small": answers[2 * index + 1][0],
            "reason": answers[2 * index][1],
        }
        for index, (source, address) in enumerate(request.peers)
    ]
