# SPDX-License-Identifier: Apache-2.0
"""Prove paths with unfragmented packets, all of them at once."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

COUNT = 3
INTERVAL_S = 0.2
# An unanswered call ends a second after its last packet; ping's own -w would go on sending.
WAIT_S = 1
TIMEOUT_S = 10
SMALL_PAYLOAD_BYTES = 56
WORKERS = 32
# 20 bytes of IPv4 header and 8 of ICMP header share the MTU with the payload.
IPV4_ICMP_BYTES = 28

# iputils 20221126 and older releases write these with a colon and with an equals sign.
_LOCAL = re.compile(r"message too long, mtu[:=] ?(\d+)")
_ROUTER = re.compile(r"Frag(?:mentation)? needed.*?\(mtu ?= ?(\d+)\)")
_SUMMARY = re.compile(r"(\d+) packets transmitted, (\d+) received")


@dataclass(frozen=True, slots=True)
class Probe:
    """One path to prove, from a rail of this node to the same rail of a peer."""

    node: str
    rail: str
    interface: str
    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class Echo:
    """What one call of ping said.

    Parameters:
        sent: packets sent.
        received: packets answered.
        local_mtu: MTU that the own interface refused the packet with, in bytes.
        path_mtu: MTU that a router refused it with, in bytes.
        error: why nothing can be said, empty otherwise.
    """

    sent: int = 0
    received: int = 0
    local_mtu: int | None = None
    path_mtu: int | None = None
    error: str = ""


# Sends one probe: netdev, address, ICMP payload in bytes → everything that ping printed.
Runner = Callable[[str, str, int], str]


def ping_argv(interface: str, address: str, payload_bytes: int) -> list[str]:
    """Return the call of ping that forbids fragmentation and binds to the interface."""
    return [
        "ping", "-n", "-c", str(COUNT), "-i", str(INTERVAL_S), "-W", str(WAIT_S),
        "-M", "do", "-s", str(payload_bytes), "-I", interface, address,
    ]  # fmt: skip


def run(interface: str, address: str, payload_bytes: int) -> str:
    """Return stdout and stderr of a bounded call in the C locale, whatever its exit status."""
    argv = ping_argv(interface, address, payload_bytes)
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return f"{argv[0]}: not installed"
    except subprocess.TimeoutExpired:
        return f"{argv[0]}: no end after {TIMEOUT_S} s"
    return done.stdout


def parse_ping(text: str) -> Echo:
    """Return what ping said; without its summary nothing is known, whatever else it printed."""
    summary = _SUMMARY.search(text)
    if summary is None:
        lines = [line for line in text.splitlines() if line.strip()]
        return Echo(error=lines[-1][:200] if lines else "ping printed nothing")
    local, router = _LOCAL.search(text), _ROUTER.search(text)
    return Echo(
        sent=int(summary.group(1)),
        received=int(summary.group(2)),
        local_mtu=int(local.group(1)) if local else None,
        path_mtu=int(router.group(1)) if router else None,
    )


def answer(probe: Probe, payload_bytes: int, echo: Echo, small: int | None) -> dict[str, Any]:
    """Return a path's result as the judge reads it."""
    return {
        **asdict(probe),
        "payload_bytes": payload_bytes,
        "sent": echo.sent,
        "received": echo.received,
        "local_mtu": echo.local_mtu,
        "path_mtu": echo.path_mtu,
        "small_received": small,
        "error": echo.error,
    }


def prove(probe: Probe, payload_bytes: int, runner: Runner = run) -> dict[str, Any]:
    """Return what a path lets through; a small packet follows only where large ones are lost."""
    echo = parse_ping(runner(probe.interface, probe.address, payload_bytes))
    small: int | None = None
    error = echo.error
    if not error and echo.sent == 0 and echo.local_mtu is None:
        error = "ping sent nothing"
    if not error and echo.received == 0 and echo.local_mtu is None:
        second = parse_ping(runner(probe.interface, probe.address, SMALL_PAYLOAD_BYTES))
        small, error = second.received, second.error
    return answer(probe, payload_bytes, replace(echo, error=error), small)


def prove_all(
    probes: Sequence[Probe], payload_bytes: int, runner: Runner = run
) -> list[dict[str, Any]]:
    """Return every path's result in the order of the probes; they run at the same time."""
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        return list(pool.map(lambda probe: prove(probe, payload_bytes, runner), probes))
