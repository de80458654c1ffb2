# SPDX-License-Identifier: Apache-2.0
"""Processes are attributed to the innermost container or to their unit, wherever the node lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts.guards import (
    observe_guards,
    parse_managed,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.holders import (
    node_prefix,
    observe_holders,
    parse_cgroup,
    parse_held,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Unknown,
    open_host,
)

INNER = "a" * 64
OUTER = "b" * 64

BARE_V2 = "0::/init.scope\n"
NESTED_V1 = f"4:memory:/docker/{OUTER}/init.scope\n1:name=systemd:/docker/{OUTER}/init.scope\n"


@pytest.mark.parametrize(
    ("first", "text", "expected"),
    [
        (BARE_V2, f"0::/system.slice/docker-{INNER}.scope\n", (INNER, None)),
        (BARE_V2, "0::/system.slice/gdm.service\n", (None, "gdm.service")),
        (
            BARE_V2,
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n",
            (None, "user@1000.service"),
        ),
        (BARE_V2, "0::/\n", (None, None)),
        (NESTED_V1, f"4:memory:/docker/{OUTER}/docker/{INNER}\n", (INNER, None)),
        (NESTED_V1, f"4:memory:/docker/{OUTER}/system.slice/docker-{INNER}.scope\n", (INNER, None)),
        (
            NESTED_V1,
            f"4:memory:/docker/{OUTER}/a\n1:name=systemd:/docker/{OUTER}/a/gdm.service\n",
            (None, "gdm.service"),
        ),
        (NESTED_V1, f"4:memory:/docker/{OUTER}\n", (None, None)),
    ],
)
def test_cgroup(first: str, text: str, expected: tuple[str | None, str | None]) -> None:
    assert parse_cgroup(text, node_prefix(first)) == expected


ROLLUP = """\
Rss: 9 kB
Pss:  8 kB
Pss_Dirty: 1 kB
Pss_Anon:  100 kB
Pss_File: 70 kB
Pss_Shmem:  20 kB
"""
STATUS = """\
Name:	python3
VmRSS:	  300 kB
RssAnon:	  150 kB
RssFile:	  100 kB
RssShmem:	   50 kB
"""


def test_held() -> None:
    assert parse_held(ROLLUP, STATUS) == (120 * 1024, "anonymous and shared pages (Pss)")
    assert parse_held(None, STATUS) == (200 * 1024, "anonymous and shared pages (Rss)")
    assert parse_held("garbage", "VmRSS: 300 kB\n") == (None, "unreadable")


def node(root: Path, processes: dict[int, dict[str, str]]) -> Path:
    for pid, files in processes.items():
        folder = root / "proc" / str(pid)
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return root


def status(name: str, rss_kib: int) -> str:
    return f"Name:\t{name}\nVmRSS:\t{rss_kib} kB\nRssAnon:\t{rss_kib} kB\nRssShmem:\t0 kB\n"


def test_section(tmp_path: Path) -> None:
    root = node(
        tmp_path,
        {
            1: {"status": status("systemd", 9_000), "cgroup": BARE_V2},
            20: {"status": status("small", 1_000), "cgroup": "0::/system.slice/small.service\n"},
            30: {"status": status("gdm", 400_000), "cgroup": "0::/system.slice/gdm.service\n"},
            40: {
                "status": status("ray", 1_000),
                "cgroup": f"0::/system.slice/docker-{INNER}.scope\n",
                "smaps_rollup": ROLLUP,
            },
            50: {"status": status("gone", 900_000)},
        },
    )
    rows = observe_holders(open_host(str(root)))["processes"]
    assert [(row["pid"], row["container"], row["unit"], row["memory_bytes"]) for row in rows] == [
        (30, None, "gdm.service", 400_000 * 1024),
        (40, INNER, None, 120 * 1024),
    ]


def test_guards(tmp_path: Path) -> None:
    root = node(
        tmp_path,
        {
            7: {"status": status("earlyoom", 900), "cmdline": "/usr/bin/earlyoom\0-r\x003600\0"},
            8: {"status": status("systemd-oomd", 900)},
            9: {"status": status("nohang", 900)},
        },
    )
    commands = root / "_commands"
    commands.mkdir()
    (commands / "systemctl-oomd.txt").write_text(
        "Id=-.slice\nManagedOOMSwap=kill\nManagedOOMMemoryPressure=auto\n"
        "ManagedOOMMemoryPressureLimit=0\n\nId=system.slice\nManagedOOMSwap=auto\n"
        "ManagedOOMMemoryPressure=auto\nManagedOOMMemoryPressureLimit=0\n",
        encoding="utf-8",
    )
    assert observe_guards(open_host(str(root))) == {
        "earlyoom": {"running": True, "argv": ["/usr/bin/earlyoom", "-r", "3600"]},
        "oomd": {
            "running": True,
            "managed": {
                "-.slice": {"memory_pressure": "auto", "swap": "kill", "limit": "0"},
                "system.slice": {"memory_pressure": "auto", "swap": "auto", "limit": "0"},
            },
        },
        "others": ["nohang"],
    }


def test_oomd_that_does_not_say_what_it_watches_is_unknown(tmp_path: Path) -> None:
    root = node(tmp_path, {8: {"status": status("systemd-oomd", 900)}})
    with pytest.raises(Unknown):
        observe_guards(open_host(str(root)))
    assert parse_managed("") == {}


def test_quiet_node(tmp_path: Path) -> None:
    root = node(tmp_path, {2: {"status": status("sshd", 900)}})
    assert observe_guards(open_host(str(root))) == {
        "earlyoom": {"running": False, "argv": None},
        "oomd": {"running": False, "managed": {}},
        "others": [],
    }
