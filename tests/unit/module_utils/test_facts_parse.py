# SPDX-License-Identifier: Apache-2.0
"""Parsers of the facts, on lines that real machines printed."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts import (
    clock,
    gpu,
    identity,
    kernel_log,
    listeners,
    memory,
    network,
    packages,
    processes,
    rdma,
    storage,
    systemd,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.host import Unknown, open_host
from hypothesis import given
from hypothesis import strategies as st

OTA = """DGX_NAME="DGX Spark"
DGX_SWBUILD_VERSION="7.2.3"
DGX_SERIAL_NUMBER="1700000000042"

DGX_OTA_VERSION="7.3.1"
DGX_OTA_DATE="Thu Jan 15 19:07:36 CET 2026"

DGX_OTA_VERSION="7.6.0"
DGX_OTA_DATE="mer. 16 sept. 2026 17:08:05 CEST"
"""


def test_the_last_update_runs_and_the_serial_stays_on_the_node() -> None:
    release = identity.parse_dgx_release(OTA)
    assert release["ota_version"] == "7.6.0"
    assert release["swbuild_version"] == "7.2.3"
    assert "1700000000042" not in str(release)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("DGX_NAME=DGX Spark\nDGX_SWBUILD_VERSION=7.2.3\n", "DGX Spark", None),
        ("DGX_NAME='DGX Spark'\nDGX_SWBUILD_VERSION='7.2.3'\nDGX_OTA_VERSION=7.5.0\n",
         "DGX Spark", "7.5.0"),
        ('DGX_NAME="DGX Spark"\r\nDGX_SWBUILD_VERSION="7.2.3"\r\nDGX_OTA_VERSION=""\r\n',
         "DGX Spark", None),
    ],
)  # fmt: skip
def test_dialects_of_the_release_file(text: str, name: str, version: str | None) -> None:
    release = identity.parse_dgx_release(text)
    assert (release["name"], release["ota_version"]) == (name, version)


def test_kernels_sort_by_number() -> None:
    versions = ["6.17.0-1026-nvidia", "6.17.0-1008-nvidia", "7.0.0-1019-nvidia", "6.9.0-1-nvidia"]
    assert sorted(versions, key=identity.version_key) == [
        "6.9.0-1-nvidia", "6.17.0-1008-nvidia", "6.17.0-1026-nvidia", "7.0.0-1019-nvidia",
    ]  # fmt: skip


@given(st.integers(min_value=0, max_value=2**40), st.integers(min_value=0, max_value=2**40))
def test_meminfo_is_in_bytes(total: int, available: int) -> None:
    text = (
        f"MemTotal: {total} kB\nMemAvailable: {available} kB\nSwapTotal: 0 kB\nHugePages_Free: 3\n"
    )
    values = memory.parse_meminfo(text)
    assert (values["MemTotal"], values["MemAvailable"]) == (total * 1024, available * 1024)
    assert values["HugePages_Free"] == 3


@given(st.text(max_size=200))
def test_no_text_is_taken_for_meminfo_by_accident(text: str) -> None:
    with pytest.raises(Unknown):
        memory.parse_meminfo(text)


def test_a_swap_with_a_space_in_its_name() -> None:
    text = "Filename Type Size Used Priority\n/my\\040swap file 8 4 -2\n"
    assert memory.parse_swaps(text) == [
        {"name": "/my swap", "type": "file", "size_bytes": 8192, "used_bytes": 4096}
    ]


@pytest.mark.parametrize(
    ("line", "active"),
    [
        ("/swap.img none swap sw 0 0", True),
        ("/swap.img\tnone\tswap\tsw\t0\t0", True),
        ("UUID=00000000-0000-4000-8000-000000000002 swap swap defaults,nofail", True),
        ("#/swap.img none swap sw 0 0", False),
        ("  # /swap.img none swap sw 0 0", False),
    ],
)
def test_swap_lines_of_fstab(line: str, active: bool) -> None:
    (row,) = memory.parse_fstab_swaps(f"# a comment\n{line}\n/dev/sda1 / ext4 defaults 0 1\n")
    assert (row["active"], row["number"], row["line"]) == (active, 2, line)


@pytest.mark.parametrize(
    "line", ["/dev/sda2 none", "Befehl nicht gefunden: Zugriff verweigert", "x"]
)
def test_a_line_that_is_none_of_fstab_is_unknown(line: str) -> None:
    with pytest.raises(Unknown, match="line 2 is none of fstab"):
        memory.parse_fstab_swaps(f"# a comment\n{line}\n")


def test_the_type_alone_makes_a_swap_line() -> None:
    (row,) = memory.parse_fstab_swaps("/swap.img sw swap defaults 0 0\n")
    assert row["active"]


def test_a_process_without_a_name_is_one(tmp_path: Path) -> None:
    for pid, name in ((1, "systemd"), (7, "")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\t{name}\n", encoding="utf-8")
    told = processes.processes(open_host(str(tmp_path)))
    assert [process.name for process in told] == ["systemd", ""]


def test_a_mount_named_swap_is_none() -> None:
    assert memory.parse_fstab_swaps("/dev/sdb1 /srv/swap ext4 defaults 0 2\n") == []


@pytest.mark.parametrize(
    "text", ["", "NVIDIA GB10\n", "[N/A], [N/A], [N/A]\n", "Failed to initialize NVML\n"]
)
def test_what_is_no_gpu_is_unknown(text: str) -> None:
    with pytest.raises(Unknown):
        gpu.parse_gpus(text)


def test_tenants_with_commas_and_without_memory() -> None:
    text = "114687, /opt/a, b/python, 19135\n2443, /usr/lib/xorg/Xorg, [N/A]\n"
    assert gpu.parse_tenants(text) == [
        {"pid": 114687, "name": "/opt/a, b/python", "used_bytes": 19135 << 20},
        {"pid": 2443, "name": "/usr/lib/xorg/Xorg", "used_bytes": None},
    ]


def test_listeners_of_both_families() -> None:
    text = (
        "State Recv-Q Send-Q Local Address:Port Peer\n"
        'LISTEN 0 128 *:8000 *:* users:(("python3",pid=7,fd=3),("python3",pid=8,fd=3))\n'
        "LISTEN 0 128 [::1]:631 [::]:*\n"
        "LISTEN 0 128 127.0.0.53%lo:53 0.0.0.0:*\n"
    )
    assert [(row["address"], row["port"], row["process"]) for row in
            listeners.parse_listeners(text)] == [
        ("::", 8000, "python3"), ("::1", 631, None), ("127.0.0.53", 53, None),
    ]  # fmt: skip


def test_connections_are_told_once_and_without_loopback() -> None:
    text = (
        "0 0 10.77.0.12:40022 10.77.0.11:6379\n0 0 10.77.0.12:40024 10.77.0.11:6379\n"
        "0 0 127.0.0.1:5 127.0.0.1:6\n0 0 [::ffff:10.77.0.12]:7 [::ffff:10.77.0.13]:8\n"
    )
    assert listeners.parse_connections(text) == [
        {"address": "10.77.0.11", "port": 6379},
        {"address": "10.77.0.13", "port": 8},
    ]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("10.77.0.11", "10.77.0.11"),
        ("fe80::20:ff:fe00:11", "fe80::"),
        ("2001:db8::20:ff:fe00:11", "2001:db8::"),
        ("2001:db8::5", "2001:db8::5"),
    ],
)
def test_addresses_lose_what_comes_from_hardware(address: str, public: str) -> None:
    assert network.public_address(address) == public


def test_gids_are_read_as_ipv4_where_they_are() -> None:
    assert rdma.parse_gid("0000:0000:0000:0000:0000:ffff:0a4d:000b") == "10.77.0.11"
    assert rdma.parse_gid("fe80:0000:0000:0000:0220:00ff:fe00:0011") == "fe80::"
    with pytest.raises(Unknown):
        rdma.parse_gid("no gid")


def test_netplan_keeps_what_is_judged_and_no_key_or_hardware_address() -> None:
    told = network.parse_netplan(
        "network:\n  version: 2\n  ethernets:\n    enp1s0f1np1:\n      mtu: 9000\n"
        "      match: {macaddress: '02:00:00:00:00:11'}\n      addresses: [10.77.0.11/24]\n"
        "    enx020000000099: {dhcp4: true}\n"
        "  wifis:\n    wlP9s9: {access-points: {home: {password: secret}}}\n"
    )
    assert told == {
        "version": 2,
        "ethernets": {
            "enp1s0f1np1": {"mtu": 9000, "addresses": ["10.77.0.11/24"]},
            "enx-usb": {"dhcp4": True},
        },
    }


def test_netplan_without_a_yaml_parser_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Unknown, match="python3-yaml"):
        network.parse_netplan("network: {}")


def test_the_control_interface_follows_the_session() -> None:
    interfaces = [
        {"name": "enP7s7", "addresses": [{"address": "198.51.100.11"}]},
        {"name": "enp1s0f1np1", "addresses": [{"address": "10.77.0.11"}]},
    ]
    routes = [{"dst": "default", "dev": "enP7s7"}]
    over = network.control_interface
    assert over(interfaces, "198.51.100.5 1 198.51.100.11 22", routes) == "enP7s7"
    assert over(interfaces, "10.77.0.5 1 10.77.0.11 22", routes) == "enp1s0f1np1"
    assert over(interfaces, "10.77.0.5 1 203.0.113.1 22", routes) is None
    assert over(interfaces, "", routes) == "enP7s7"
    local = [{"name": name, "addresses": [{"address": "fe80::"}]} for name in ("enP7s7", "rail")]
    assert over(local, "fe80::5%rail 1 fe80::ff:fe00:11%rail 22", routes) == "rail"


@pytest.mark.parametrize("said", ["10.77.0.5 1 10.77.0.11", "Befehl nicht gefunden", "a b c d"])
def test_a_session_that_cannot_be_read_is_unknown(said: str) -> None:
    with pytest.raises(Unknown):
        network.control_interface([], said, [])


def test_wireless_profiles_are_none_of_the_wired_ones() -> None:
    assert network.parse_profile("[connection]\nid=home\ntype=wifi\n") is None
    assert network.parse_profile("[connection]\nid=x\ntype=ethernet\nautoconnect=false\n") == {
        "id": "x", "interface": "", "autoconnect": False, "ipv4_method": "auto",
    }  # fmt: skip


def test_firewall_rules() -> None:
    told = network.parse_ufw(
        "ENABLED=yes\n",
        'DEFAULT_INPUT_POLICY="DROP"\n',
        "### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in\n"
        "### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in_enp1s0f1np1\nnoise\n",
    )
    assert told["enabled"]
    assert told["input_policy"] == "drop"
    assert [(rule["port"], rule["source"], rule["interface"]) for rule in told["rules"]] == [
        ("22", "0.0.0.0/0", ""), ("any", "10.77.0.0/24", "enp1s0f1np1"),
    ]  # fmt: skip


def test_holds_are_read_from_the_status() -> None:
    text = "linux-image-6.17\t6.17.0\thi \nold\t1\trc \nnew\t2\tii \n"
    assert packages.parse_dpkg(text) == [
        ("linux-image-6.17", "6.17.0", True, True),
        ("old", "1", False, False),
        ("new", "2", True, False),
    ]


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("reboot x still\nshutdown x\nreboot x\n", "clean"),
        ("reboot x still\nreboot x crash\nshutdown x\n", "unclean"),
        ("reboot x still\n\nwtmp begins Fri\n", "unknown"),
        ("\nwtmp begins Fri\n", "unknown"),
    ],
)
def test_how_the_previous_run_ended(text: str, run: str) -> None:
    assert clock.parse_last(text) == run


@pytest.mark.parametrize("text", ["", "last: kann nicht geöffnet werden\n"])
def test_a_record_that_was_not_printed_is_unknown(text: str) -> None:
    with pytest.raises(Unknown, match="printed no record"):
        clock.parse_last(text)


def test_markers_are_counted_with_their_last_time() -> None:
    text = (
        "[   10.5] node kernel: NVRM: Xid (PCI:000f:01:00): 119, Timeout\n"
        "[   20.5] node kernel: NVRM: Xid (PCI:000f:01:00): 119, Timeout\n"
        "[   30.0] node kernel: Out of memory: Killed process 7 (python3) total-vm:1kB\n"
    )
    assert kernel_log.parse_markers(text) == [
        {"kind": "gpu-xid", "count": 2, "last_s": 20.5, "detail": "119"},
        {"kind": "oom-kill", "count": 1, "last_s": 30.0, "detail": "python3"},
    ]


def test_df_with_a_space_in_the_mount_point() -> None:
    text = "Mounted on 1B-blocks Avail\n/mnt/a b 10 5\n"
    assert storage.parse_df(text) == [("/mnt/a b", 10, 5)]


def test_units_are_found_by_name_and_by_alias() -> None:
    blocks = systemd.parse_show("Id=gdm.service\nNames=gdm.service gdm3.service\n\nId=a.service\n")
    assert [block["Id"] for block in blocks] == ["gdm.service", "a.service"]
