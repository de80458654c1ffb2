"""A lab node as delivered: everything that a run has to find and put right."""

from __future__ import annotations

import subprocess
import time

import pytest
from spark_lab.spec import NODES, RAIL_A, RAIL_B, Lab
from testinfra.host import Host

from tests.conftest import LabCommand
from tests.system.conftest import connect

pytestmark = pytest.mark.lab

MIB = 1 << 20


@pytest.fixture(scope="module")
def bravo(fresh_lab: Lab) -> Host:
    """One node of a lab that nothing has acted on."""
    return connect(fresh_lab, NODES[1])


def test_the_display_stack_is_arranged_as_on_dgx_os(bravo: Host) -> None:
    units = ("gdm.service", "gdm3.service", "display-manager.service")
    enabled = [bravo.run(f"systemctl is-enabled {unit}").stdout.strip() for unit in units]
    assert enabled == ["static", "alias", "alias"]
    assert bravo.check_output("systemctl get-default") == "graphical.target"
    names = bravo.check_output("systemctl show --value --property Names gdm.service").split()
    assert sorted(names) == sorted(units)
    assert bravo.service("gdm").is_running


def test_the_display_stack_holds_memory_until_it_is_stopped(bravo: Host) -> None:
    listed = bravo.check_output("ps -C Xorg,gnome-shell -o comm=,rss=").split()
    resident = dict(zip(listed[::2], (int(size) * 1024 for size in listed[1::2]), strict=True))
    assert resident.keys() == {"Xorg", "gnome-shell"}
    assert sum(resident.values()) > 300 * MIB

    before = _available_bytes(bravo)
    bravo.check_output("systemctl stop gdm")
    deadline = time.monotonic() + 20
    while _available_bytes(bravo) - before < 250 * MIB:
        assert time.monotonic() < deadline, "stopping gdm gave no memory back"
        time.sleep(0.5)
    bravo.check_output("systemctl start gdm")


def _available_bytes(host: Host) -> int:
    return int(host.check_output("grep MemAvailable: /proc/meminfo").split()[1]) * 1024


def test_a_swap_line_waits_for_the_next_boot(bravo: Host) -> None:
    assert bravo.file("/etc/fstab").content_string == "/swap.img none swap sw 0 0\n"
    assert bravo.file("/swap.img").mode == 0o600
    assert 'TYPE="swap"' in bravo.check_output("blkid -p /swap.img")


def test_the_rails_are_bare(bravo: Host) -> None:
    for rail in (RAIL_A, RAIL_B):
        interface = bravo.interface(rail)
        assert interface.exists
        assert bravo.check_output(f"ip -br -4 address show dev {rail}").split()[2:] == []
        assert bravo.file(f"/sys/class/net/{rail}/mtu").content_string.strip() == "1500"


def test_netplan_applies_what_is_written(fresh_lab: Lab, bravo: Host) -> None:
    bravo.check_output("netplan apply")
    assert fresh_lab.management(NODES[1].number) in bravo.check_output("ip -4 -br address")


def test_a_large_frame_passes_once_the_rails_are_set_up(fresh_lab: Lab) -> None:
    ends = [connect(fresh_lab, node) for node in NODES[2:4]]
    for host, node in zip(ends, NODES[2:4], strict=True):
        host.check_output(f"ip link set {RAIL_B} mtu 9000")
        host.check_output(f"ip address add {fresh_lab.rail('b', node.number)}/24 dev {RAIL_B}")
    peer = fresh_lab.rail("b", NODES[3].number)
    # 9000 less the headers of IPv4 (20) and ICMP (8).
    ends[0].check_output(f"ping -c 1 -W 2 -M do -s 8972 {peer}")


def test_a_node_names_itself_a_spark(bravo: Host) -> None:
    release = bravo.file("/etc/dgx-release").content_string
    assert 'DGX_NAME="DGX Spark"' in release
    assert release.count("DGX_OTA_VERSION=") == 2
    assert 'NAME="DGX SPARK FASTOS"' in bravo.file("/etc/fastos-release").content_string


def test_the_mock_of_nvidia_smi_answers_as_gb10_does(bravo: Host) -> None:
    query = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
    assert bravo.check_output(query) == "NVIDIA GB10, 580.178.04"
    memory = "nvidia-smi --query-gpu=memory.total,memory.used,utilization.gpu --format=csv"
    assert bravo.check_output(memory).splitlines() == [
        "memory.total [MiB], memory.used [MiB], utilization.gpu [%]",
        "[N/A], [N/A], 0 %",
    ]
    apps = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    assert bravo.check_output(f"nvidia-smi {apps} --format=csv,noheader,nounits") == ""
    assert bravo.run("nvidia-smi --query-gpu=nonsense --format=csv").rc != 0


def test_a_restart_is_a_boot(fresh_lab: Lab, lab_command: LabCommand) -> None:
    delta = NODES[3]
    host = connect(fresh_lab, delta)
    before = _boot_id(host)
    assert before != _boot_id(connect(fresh_lab, NODES[2]))
    host.check_output("sh -c 'echo vm.swappiness = 1 >/etc/sysctl.d/90-probe.conf'")
    host.check_output("sysctl -w vm.min_free_kbytes=70000")
    host.check_output("sh -c 'echo kept >/var/lib/docker/probe'")
    assert host.check_output("sysctl -n vm.swappiness") != "1"

    subprocess.run(["docker", "restart", fresh_lab.container(delta.name)], check=True)
    lab_command(fresh_lab, "up")

    host = connect(fresh_lab, delta)
    assert _boot_id(host) != before
    assert host.check_output("sysctl -n vm.swappiness") == "1"
    assert host.check_output("sysctl -n vm.min_free_kbytes") != "70000"
    assert host.check_output("cat /var/lib/docker/probe") == "kept"
    assert host.interface(RAIL_A).exists


def _boot_id(host: Host) -> str:
    return str(host.check_output("cat /proc/sys/kernel/random/boot_id"))


def test_a_lab_that_runs_is_left_alone(fresh_lab: Lab, lab_command: LabCommand) -> None:
    inspect = ["docker", "inspect", "-f", "{{.Id}} {{.State.StartedAt}}"]
    names = [fresh_lab.container(node.name) for node in NODES]
    before = subprocess.run([*inspect, *names], check=True, capture_output=True).stdout
    assert "creating" not in lab_command(fresh_lab, "up")
    assert subprocess.run([*inspect, *names], check=True, capture_output=True).stdout == before
