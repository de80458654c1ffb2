from __future__ import annotations

import re

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import FstabSwap
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity, refusals
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.harden import (
    PROTECTED_UNITS,
    HardenPlan,
    HardenPolicy,
    Link,
    Service,
    fstab_comment,
    plan_harden,
    swap_unit_name,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.nodes.compose import HARDENED, Edit
from tests.fixtures.nodes.edits import append, meminfo, remove, status, unit, write
from tests.unit.plugin_utils.plan_cases import node

OFF = HardenPolicy()
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"
FOLDER = "/etc/systemd/system"


def plan(*edits: Edit, layers: tuple[str, ...] | None = None) -> HardenPlan:
    facts = node(*edits) if layers is None else node(*edits, layers=layers)
    return plan_harden(facts, OFF)


def checks(made: HardenPlan) -> set[tuple[str, Severity]]:
    return {(finding.check, finding.severity) for finding in made.findings}


def test_a_factory_node_is_freed_of_desktop_and_swap_and_of_nothing_else() -> None:
    made = plan()
    assert made.links == (
        Link(f"{FOLDER}/gdm.service", "/dev/null"),
        Link(f"{FOLDER}/display-manager.service", "/dev/null"),
        Link(f"{FOLDER}/default.target", "/usr/lib/systemd/system/multi-user.target"),
        Link(f"{FOLDER}/swap.img.swap", "/dev/null"),
    )
    assert made.services == (
        Service("gdm.service", "stopped"),
        Service("swap.img.swap", "stopped"),
    )
    assert len(made.fstab) == 1
    assert made.findings == ()


def test_a_hardened_node_needs_nothing() -> None:
    assert plan(layers=HARDENED) == HardenPlan()


def test_gui01_masked_alias_leaves_the_real_unit_to_be_masked() -> None:
    made = plan(
        unit("gdm3.service", LoadState="masked", ActiveState="inactive", Names="gdm3.service"),
        unit("gdm.service", Names="gdm.service display-manager.service"),
    )
    assert Link(f"{FOLDER}/gdm.service", "/dev/null") in made.links
    assert Service("gdm.service", "stopped") in made.services
    assert not any("gdm3" in link.path for link in made.links)


def test_gui05_a_node_without_a_display_manager_needs_nothing() -> None:
    gone = {"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}
    names = ("gdm.service", "gdm3.service", "display-manager.service")
    made = plan(*(unit(name, **gone) for name in names), layers=HARDENED)
    assert made == HardenPlan()


def test_gui07_only_what_an_upgrade_brought_back_is_undone() -> None:
    made = plan(
        unit(
            "gdm.service",
            LoadState="loaded",
            ActiveState="active",
            UnitFileState="static",
            FragmentPath="/usr/lib/systemd/system/gdm.service",
        ),
        layers=HARDENED,
    )
    assert made.links == (Link(f"{FOLDER}/gdm.service", "/dev/null"),)
    assert made.services == (Service("gdm.service", "stopped"),)
    assert made.fstab == ()


def test_a_unit_file_of_the_admins_own_is_not_overwritten_by_a_mask() -> None:
    made = plan(unit("gdm.service", FragmentPath=f"{FOLDER}/gdm.service"))
    assert checks(made) == {("harden.unit_file", Severity.ERROR)}
    assert not made.needed


@pytest.mark.parametrize("name", sorted(PROTECTED_UNITS))
def test_gui06_no_alias_leads_the_plan_to_a_unit_that_must_stay(name: str) -> None:
    made = plan(
        unit("gdm.service", Names="gdm.service gdm3.service"),
        unit(name, Names=f"{name} display-manager.service", ActiveState="active"),
    )
    assert checks(made) == {("harden.protected", Severity.ERROR)}
    assert not made.needed


def test_gui03_avahi_is_never_touched_while_it_is_right() -> None:
    assert not any("avahi" in change for change in plan().changes)


@pytest.mark.parametrize(
    ("properties", "change"),
    [
        (
            {"LoadState": "masked", "UnitFileState": "masked", "ActiveState": "inactive"},
            "unmask, enable and start avahi-daemon.service",
        ),
        ({"UnitFileState": "disabled"}, "enable and start avahi-daemon.service"),
        ({"ActiveState": "inactive"}, "enable and start avahi-daemon.service"),
        ({"ActiveState": "failed"}, "enable and start avahi-daemon.service"),
    ],
)
def test_gui03_avahi_that_was_switched_off_comes_back(
    properties: dict[str, str], change: str
) -> None:
    made = plan(unit("avahi-daemon.service", **properties), layers=HARDENED)
    assert made.services == (
        Service("avahi-daemon.service", "started", enabled=True, masked=False),
    )
    assert made.changes == (change,)


def test_avahi_that_is_not_installed_is_told_and_hinders_nothing() -> None:
    made = plan(unit("avahi-daemon.service", LoadState="not-found", ActiveState="inactive"))
    assert checks(made) == {("harden.avahi", Severity.WARNING)}
    assert made.needed


def test_swap04_every_row_and_every_line_counts() -> None:
    made = plan(
        write(
            "/proc/swaps",
            SWAPS
            + "/swap.img file 16777212 0 -2\n/swapfile file 33554428 0 -3\n"
            + "/dev/nvme0n1p3 partition 1024 0 -4\n",
        ),
        append("/etc/fstab", "UUID=1234-abcd\tnone\tswap\tsw,pri=1\t0\t0"),
        unit("swapfile.swap", What="/swapfile", FragmentPath=""),
        unit(
            "dev-nvme0n1p3.swap",
            What="/dev/nvme0n1p3",
            FragmentPath="/run/systemd/generator.late/dev-nvme0n1p3.swap",
        ),
    )
    stopped = {service.name for service in made.services if service.state == "stopped"}
    assert {"swap.img.swap", "swapfile.swap", "dev-nvme0n1p3.swap"} <= stopped
    assert Link(f"{FOLDER}/dev-nvme0n1p3.swap", "/dev/null") in made.links
    # Turned on by hand, so that nothing brings it back and there is nothing to mask.
    assert not any("swapfile" in link.path for link in made.links)
    assert len(made.fstab) == 2
    assert made.findings == ()


def test_swap02_swap_off_by_hand_is_still_kept_from_coming_back() -> None:
    made = plan(
        write("/proc/swaps", SWAPS),
        unit("swap.img.swap", ActiveState="inactive"),
        layers=("founders-edition-recorded", "factory-constructed"),
    )
    assert len(made.fstab) == 1
    assert Link(f"{FOLDER}/swap.img.swap", "/dev/null") in made.links
    assert not any("swap" in service.name for service in made.services)


def test_swap07_swap_is_kept_where_the_inventory_says_so() -> None:
    made = plan_harden(node(), HardenPolicy(swap="keep"))
    assert not any("swap" in change for change in made.changes)
    assert made.needed


def test_the_desktop_is_kept_where_the_inventory_says_so() -> None:
    made = plan_harden(node(), HardenPolicy(display="keep"))
    assert {link.path for link in made.links} == {f"{FOLDER}/swap.img.swap"}


def test_an_enabled_swap_unit_of_the_admins_own_is_disabled_and_kept() -> None:
    own = {"FragmentPath": f"{FOLDER}/data.swap", "What": "/data"}
    made = plan(unit("data.swap", UnitFileState="enabled", **own), layers=HARDENED)
    assert made.services == (Service("data.swap", "stopped", enabled=False),)
    assert made.links == ()


def test_a_static_swap_unit_of_the_admins_own_is_refused() -> None:
    own = {"FragmentPath": f"{FOLDER}/data.swap", "What": "/data"}
    made = plan(unit("data.swap", UnitFileState="static", **own))
    assert checks(made) == {("harden.swap_unit", Severity.ERROR)}
    assert not made.needed


def test_swap_that_systemd_does_not_know_is_refused() -> None:
    made = plan(write("/proc/swaps", SWAPS + "/other file 1024 0 -2\n"))
    assert checks(made) == {("harden.swap_row", Severity.ERROR)}
    assert "swapoff /other" in made.as_dict()["refusals"][0]


@pytest.mark.parametrize(
    ("used_kb", "available_kb", "refused"),
    [
        (6580856, 3659708, True),  # a serving head as seen in the field
        (4294967, 3659708 + 4294967, False),
        (1024, 1024 * 1024 + 1023, True),
        (1024, 1024 * 1024 + 1024, False),
        (0, 1024, False),
    ],
)
def test_swap_is_only_ended_where_memory_has_room_for_what_is_in_it(
    used_kb: int, available_kb: int, refused: bool
) -> None:
    made = plan(
        write("/proc/swaps", SWAPS + f"/swap.img file 16777212 {used_kb} -2\n"),
        meminfo(MemAvailable=available_kb),
    )
    assert (checks(made) == {("harden.swap_room", Severity.ERROR)}) is refused
    assert made.needed is not refused


def test_zram_is_told_and_its_service_disabled() -> None:
    made = plan(
        write("/proc/swaps", SWAPS + "/dev/zram0 partition 8388604 0 100\n"),
        unit("dev-zram0.swap", What="/dev/zram0", FragmentPath=""),
        unit("zramswap.service", LoadState="loaded", ActiveState="active", UnitFileState="enabled"),
        layers=HARDENED,
    )
    assert checks(made) == {("harden.zram", Severity.WARNING)}
    assert made.services == (
        Service("dev-zram0.swap", "stopped"),
        Service("zramswap.service", "stopped", enabled=False),
    )


def test_swap_of_another_kernel_is_left_alone_but_not_what_the_node_itself_would_turn_on() -> None:
    made = plan(write("/run/systemd/container", "docker\n"))
    assert ("harden.shared_kernel", Severity.INFO) in checks(made)
    assert len(made.fstab) == 1


@pytest.mark.parametrize(
    ("edit", "section"),
    [
        (status("systemctl-show", "1"), "display"),
        (remove("/proc/swaps"), "memory"),
        (remove("/etc/systemd/system/default.target"), "display"),
    ],
)
def test_nothing_is_planned_for_a_node_that_cannot_be_read(edit: Edit, section: str) -> None:
    made = plan(edit)
    assert checks(made) == {("harden.facts", Severity.ERROR)}
    assert section in made.findings[0].expected
    assert not made.needed


def test_a_refusal_reads_as_what_where_and_what_to_do() -> None:
    made = plan(write("/proc/swaps", SWAPS + "/other file 1024 0 -2\n"))
    (finding,) = refusals(made.findings)
    assert finding.message() == (
        "alpha: systemd knows every swap that is on [harden_swap]: expected a swap unit for "
        "/other, found none; swapoff /other, then run again (harden.swap_row)"
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/swap.img", "swap.img.swap"),
        ("/dev/nvme0n1p3", "dev-nvme0n1p3.swap"),
        ("/dev/disk/by-uuid/a-b", "dev-disk-by\\x2duuid-a\\x2db.swap"),
        ("/mnt/my swap", "mnt-my\\x20swap.swap"),
        ("/.swap", "\\x2eswap.swap"),
        ("/größe", "gr\\xc3\\xb6\\xc3\\x9fe.swap"),
    ],
)
def test_swap_units_are_named_as_systemd_escape_names_them(path: str, name: str) -> None:
    assert swap_unit_name(path) == name


DIALECTS = st.sampled_from(
    [
        "/swap.img none swap sw 0 0",
        "/swap.img\tnone\tswap\tsw\t0\t0",
        "UUID=0f3e-(x)* none swap defaults,pri=5 0 0",
        "/dev/mapper/vg-swap_1 none swap sw 0 0   ",
        "  LABEL=swap none swap sw,noauto 0 0 # old",
    ]
)


@given(line=DIALECTS, ending=st.sampled_from(["\n", "\r\n"]))
def test_the_edit_of_fstab_matches_its_line_alone_and_only_once(line: str, ending: str) -> None:
    root = "/dev/nvme0n1p2 / ext4 defaults 0 1"
    before = ending.join([root, line, f"{line} x", ""])
    edit = fstab_comment(FstabSwap(line=line, number=2, spec="", active=True))
    after = re.sub(edit.regexp, edit.replace, before, flags=re.MULTILINE)
    lines = after.splitlines()
    assert lines[0] == root
    assert lines[1] == f"# spark-appliance: swap is off; was: {line.rstrip()}"
    assert lines[2] == f"{line} x"
    assert re.sub(edit.regexp, edit.replace, after, flags=re.MULTILINE) == after
