from __future__ import annotations

import threading

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._ping import (
    Echo,
    Probe,
    Runner,
    parse_ping,
    ping_argv,
    prove,
    prove_all,
    run,
)

PROBE = Probe("alpha", "a", "enp1s0f1np1", "bravo", "10.77.0.12")
# Printed by iputils 20221126 on a veth pair, addresses replaced.
ANSWERED = """\
PING 10.77.0.12 (10.77.0.12) from 10.77.0.11 enp1s0f1np1: 8972(9000) bytes of data.
8980 bytes from 10.77.0.12: icmp_seq=1 ttl=64 time=0.070 ms

--- 10.77.0.12 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 404ms
rtt min/avg/max/mdev = 0.070/0.081/0.094/0.009 ms
"""
SILENT = "3 packets transmitted, 0 received, 100% packet loss, time 404ms\n"
TOO_LONG = """\
PING 10.77.0.12 (10.77.0.12) from 10.77.0.11 enp1s0f1np1: 8972(9000) bytes of data.
ping: local error: message too long, mtu: 1500
ping: local error: message too long, mtu: 1500

--- 10.77.0.12 ping statistics ---
3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 410ms
"""
ROUTER = (
    "From 10.77.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)\n"
    "3 packets transmitted, 0 received, +1 errors, 100% packet loss, time 410ms\n"
)


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        (ANSWERED, Echo(3, 3)),
        (SILENT, Echo(3, 0)),
        (TOO_LONG, Echo(3, 0, local_mtu=1500)),
        (TOO_LONG.replace("mtu: ", "mtu="), Echo(3, 0, local_mtu=1500)),
        (ROUTER, Echo(3, 0, path_mtu=1500)),
        ("", Echo(error="ping printed nothing")),
        ("ping: unknown iface x\n", Echo(error="ping: unknown iface x")),
        ("ping: not installed", Echo(error="ping: not installed")),
        ("BusyBox: invalid option -- 'M'\n\n", Echo(error="BusyBox: invalid option -- 'M'")),
        ("3 Pakete gesendet, 3 empfangen\n", Echo(error="3 Pakete gesendet, 3 empfangen")),
        ("\x00\xff", Echo(error="\x00\xff")),
    ],
)
def test_what_ping_prints_is_read_or_an_error(text: str, echo: Echo) -> None:
    assert parse_ping(text) == echo


def test_packets_are_not_fragmented_and_leave_by_the_rail() -> None:
    argv = ping_argv("enp1s0f1np1", "10.77.0.12", 8972)
    assert argv[argv.index("-M") + 1] == "do"
    assert argv[argv.index("-s") + 1] == "8972"
    assert argv[argv.index("-I") + 1] == "enp1s0f1np1"
    # With it ping goes on sending until the deadline, whatever the count.
    assert "-w" not in argv


def answers(large: str, small: str, asked: list[int]) -> Runner:
    def runner(interface: str, address: str, payload_bytes: int) -> str:
        assert (interface, address) == (PROBE.interface, PROBE.address)
        asked.append(payload_bytes)
        return large if payload_bytes == 8972 else small

    return runner


@pytest.mark.parametrize(
    ("large", "small", "sizes", "expected"),
    [
        (ANSWERED, "", [8972], {"received": 3, "small_received": None, "error": ""}),
        (TOO_LONG, "", [8972], {"local_mtu": 1500, "small_received": None, "error": ""}),
        (SILENT, ANSWERED, [8972, 56], {"received": 0, "small_received": 3, "error": ""}),
        (SILENT, SILENT, [8972, 56], {"received": 0, "small_received": 0, "error": ""}),
        (SILENT, "", [8972, 56], {"error": "ping printed nothing"}),
        ("", ANSWERED, [8972], {"error": "ping printed nothing"}),
        ("0 packets transmitted, 0 received", "", [8972], {"error": "ping sent nothing"}),
    ],
)
def test_small_packets_are_asked_for_only_where_they_tell_something(
    large: str, small: str, sizes: list[int], expected: dict[str, object]
) -> None:
    asked: list[int] = []
    result = prove(PROBE, 8972, answers(large, small, asked))
    assert asked == sizes
    assert expected.items() <= result.items()


def test_all_paths_are_proven_at_once_and_told_in_their_order() -> None:
    together = threading.Barrier(6, timeout=5)

    def runner(*_: object) -> str:
        together.wait()
        return ANSWERED

    probes = [Probe("alpha", rail, "x", peer, "y") for peer in "bcd" for rail in "ab"]
    results = prove_all(probes, 8972, runner)
    assert [(r["peer"], r["rail"]) for r in results] == [(p.peer, p.rail) for p in probes]


def test_a_real_ping_of_loopback_is_answered_or_says_why_not() -> None:
    echo = parse_ping(run("lo", "127.0.0.1", 56))
    assert echo.received == 3 or echo.error
