"""Memory that is really taken on a node makes a roll refuse before the old service is touched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testinfra.host import Host

from tests.conftest import RunPlaybook

pytestmark = pytest.mark.lab

HOG = "memory-hog.service"
# With what the running service gives back, this is still too little for the role.
LEAVES_MIB = {"head": 200, "worker": 150}


def available_mib(host: Host) -> int:
    rows = dict(line.split(":") for line in host.file("/proc/meminfo").content_string.splitlines())
    return int(rows["MemAvailable"].split()[0]) >> 10


def served_since(host: Host) -> str:
    return str(
        host.check_output(
            "systemctl show --property=ActiveEnterTimestampMonotonic,MainPID spark-engine.service"
        )
    )


@contextmanager
def taken(host: Host, leaves_mib: int) -> Iterator[None]:
    """Hold so much memory that only some is left, until the block ends."""
    size_mib = available_mib(host) - leaves_mib
    program = f"import time; held = b'x' * ({size_mib} << 20); time.sleep(900)"
    host.check_output(f'systemd-run --quiet --collect --unit={HOG} /usr/bin/python3 -c "{program}"')
    try:
        give_up = time.monotonic() + 120
        while available_mib(host) > leaves_mib + 100:
            assert time.monotonic() < give_up, "the memory was not taken within 120 s"
            time.sleep(1)
        yield
    finally:
        host.run(f"systemctl stop {HOG}")


@pytest.mark.parametrize(("name", "role"), [("alpha", "head"), ("charlie", "worker")])
def test_roll_refuses_before_it_touches_the_service(
    hosts: dict[str, Host], run_playbook: RunPlaybook, name: str, role: str
) -> None:
    before = {node: served_since(host) for node, host in hosts.items()}
    with taken(hosts[name], LEAVES_MIB[role]):
        done = run_playbook(
            "playbooks/roll.yml", inventory="inventories/lab", extra={"profile": "fast"}
        )
    assert done.code != 0
    text = "\n".join(done.failures)
    assert f"{name}: fast would break the floor of the {role}" in text
    assert {node: served_since(host) for node, host in hosts.items()} == before
