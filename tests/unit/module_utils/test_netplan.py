from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.module_utils._netplan import (
    Completed,
    LiveRail,
    Rail,
    RailChangeError,
    Site,
    change,
    check_merged,
    confirm,
    live_differences,
    merged_differences,
    parse_live,
    read_live,
    refuse_armed,
    run,
    undo,
    way_back_script,
)

RAIL = Rail("enp1s0f1np1", "10.77.0.11/24", 9000)
BEFORE = LiveRail(1500, ("169.254.7.7/16", "192.168.100.10/24"))
AFTER = LiveRail(9000, ("10.77.0.11/24",))
OLD, NEW = "network: {version: 2}\n", "network: {version: 2, ethernets: {}}\n"


def printed(rail: LiveRail) -> str:
    entries = [
        {"family": "inet", "local": text.partition("/")[0], "prefixlen": int(text.split("/")[1])}
        for text in rail.addresses
    ]
    entries.append({"family": "inet6", "local": "fe80::1", "prefixlen": 64})
    return json.dumps([{"ifname": RAIL.interface, "mtu": rail.mtu, "addr_info": entries}, {}])


@dataclass
class MockNode:
    """Answers as a node's tools would; ``netplan apply`` makes the file's text come true."""

    path: Path
    live: LiveRail = BEFORE
    fails: set[str] = field(default_factory=set)
    applies: bool = True
    active: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> Completed:
        line = " ".join(argv)
        self.calls.append(line)
        if any(line.startswith(prefix) for prefix in self.fails):
            return Completed(78, "", "first line\nthe reason\n")
        if line == "netplan apply" and self.applies:
            self.live = AFTER
        if line.startswith("ip -json"):
            return Completed(0, printed(self.live), "")
        if line.startswith("systemctl is-active"):
            return Completed(0 if argv[-1] in self.active else 3, "", "")
        if line.startswith("/bin/sh"):
            self.live = BEFORE
            folder = Path(argv[1]).parent
            if (folder / "previous.yaml").exists():
                self.path.write_text((folder / "previous.yaml").read_text())
            else:
                self.path.unlink(missing_ok=True)
            (folder / "restored").touch()
        return Completed(0, "", "")


Start = Callable[..., tuple[Site, MockNode]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that sets a node up with a netplan file of the given text."""

    def begin(text: str | None = OLD, **mock: Any) -> tuple[Site, MockNode]:
        path = tmp_path / "etc/netplan/60-spark-fabric.yaml"
        path.parent.mkdir(parents=True)
        if text is not None:
            path.write_text(text)
        node = MockNode(path, **mock)
        ticks = iter(range(1000))
        site = Site(
            path=str(path),
            folder=str(tmp_path / "state"),
            root=str(tmp_path),
            run=node,
            sleep=lambda _: None,
            clock=lambda: float(next(ticks)),
        )
        return site, node

    return begin


def test_a_written_file_leaves_live_rails_alone(start: Start) -> None:
    site, node = start(live=AFTER)
    change(site, [RAIL], NEW, apply=False, confirm_s=60)
    assert node.path.read_text() == NEW
    assert f"{node.path.stat().st_mode & 0o777:o}" == "600"
    assert node.calls == ["netplan generate"]


def test_the_way_back_is_armed_before_anything_live_changes(start: Start) -> None:
    site, node = start()
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    armed = next(i for i, call in enumerate(node.calls) if call.startswith("systemd-run"))
    assert "--on-active=60s" in node.calls[armed]
    assert node.calls.index("netplan generate") < armed < node.calls.index("netplan apply")
    assert node.live == AFTER


def test_a_confirmed_change_stays_and_leaves_nothing_behind(start: Start) -> None:
    site, node = start()
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    confirm(site, [RAIL])
    assert node.calls[-2] == "systemctl stop spark-fabric-way-back.timer"
    assert not Path(site.folder).exists()
    assert (node.live, node.path.read_text()) == (AFTER, NEW)


@pytest.mark.parametrize("text", [OLD, None])
def test_an_unconfirmed_change_can_be_undone(start: Start, text: str | None) -> None:
    site, node = start(text)
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    assert undo(site)
    assert node.live == BEFORE
    assert node.path.read_text() == text if text else not node.path.exists()
    assert not undo(site)


@pytest.mark.parametrize(
    ("fails", "applies", "why"),
    [
        ({"netplan apply"}, True, "netplan apply: the reason"),
        ({"systemd-run"}, True, "the way back cannot be armed: the reason"),
        (set(), False, "after netplan apply: enp1s0f1np1: MTU 1500 instead of 9000"),
    ],
)
def test_a_change_that_fails_is_undone_at_once(
    start: Start, fails: set[str], applies: bool, why: str
) -> None:
    site, node = start(fails=fails, applies=applies)
    with pytest.raises(RailChangeError) as error:
        change(site, [RAIL], NEW, apply=True, confirm_s=60)
    assert why in str(error.value)
    assert str(error.value).endswith("the rails are as they were")
    assert (node.live, node.path.read_text()) == (BEFORE, OLD)


def test_a_way_back_that_fails_is_told_and_its_timer_left_to_try_again(start: Start) -> None:
    site, node = start(fails={"netplan apply", "/bin/sh"})
    with pytest.raises(RailChangeError, match="going back: the reason"):
        change(site, [RAIL], NEW, apply=True, confirm_s=60)
    assert "systemctl stop spark-fabric-way-back.timer" not in node.calls
    assert Path(site.folder, "way-back.sh").exists()


@pytest.mark.parametrize("text", [OLD, None])
def test_net16_a_file_that_netplan_refuses_is_taken_back(start: Start, text: str | None) -> None:
    site, node = start(text, fails={"netplan generate"})
    if text:
        node.path.chmod(0o640)
    with pytest.raises(RailChangeError, match=r"netplan generate: the reason; .* is as it was"):
        change(site, [RAIL], NEW, apply=True, confirm_s=60)
    assert not any(call.startswith(("netplan apply", "systemd-run")) for call in node.calls)
    assert node.path.exists() is (text is not None)
    if text:
        assert (node.path.read_text(), node.path.stat().st_mode & 0o777) == (OLD, 0o640)


def test_a_change_that_was_undone_meanwhile_is_not_confirmed(start: Start) -> None:
    site, node = start()
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    node(("/bin/sh", f"{site.folder}/way-back.sh"))
    with pytest.raises(RailChangeError, match="MTU 1500 instead of 9000"):
        confirm(site, [RAIL])


def test_a_way_back_under_way_is_not_overtaken(start: Start) -> None:
    site, node = start()
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    node.active = {"spark-fabric-way-back.service"}
    with pytest.raises(RailChangeError, match="its time had run out"):
        confirm(site, [RAIL])
    assert Path(site.folder, "way-back.sh").exists()


def test_live_rails_that_changed_again_are_left_to_the_timer(start: Start) -> None:
    site, node = start()
    change(site, [RAIL], NEW, apply=True, confirm_s=60)
    node.live = BEFORE
    with pytest.raises(RailChangeError, match="not confirmed in time"):
        confirm(site, [RAIL])
    assert "systemctl stop spark-fabric-way-back.timer" not in node.calls


def test_there_must_be_something_to_confirm(start: Start) -> None:
    site, _ = start()
    with pytest.raises(RailChangeError, match="found none"):
        confirm(site, [RAIL])


@pytest.mark.parametrize("suffix", ["timer", "service"])
def test_a_change_is_not_begun_over_an_unconfirmed_one(start: Start, suffix: str) -> None:
    site, node = start(active={f"spark-fabric-way-back.{suffix}"})
    with pytest.raises(RailChangeError, match=f"{suffix} active"):
        refuse_armed(site)
    node.active = set()
    refuse_armed(site)


def test_an_interface_that_is_not_there_is_refused(start: Start) -> None:
    site, _ = start()
    with pytest.raises(RailChangeError, match=r"enP2p1s0f1np1.*absent ports"):
        read_live(site, [RAIL, Rail("enP2p1s0f1np1", "10.77.1.11/24", 9000)])


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"ifname": "a"}]', "[1]", "\x00"])
def test_what_ip_never_prints_is_refused(text: str) -> None:
    if text == "{}":
        assert parse_live(text) == {}
        return
    with pytest.raises(RailChangeError, match="cannot be read"):
        parse_live(text)


def test_live_rails_are_compared_whole() -> None:
    assert live_differences([RAIL], {RAIL.interface: AFTER}) == []
    assert live_differences([RAIL], {}) == ["enp1s0f1np1: no such interface"]
    both = LiveRail(9000, ("10.77.0.11/24", "192.168.100.10/24"))
    (difference,) = live_differences([RAIL], {RAIL.interface: both})
    assert "10.77.0.11/24, 192.168.100.10/24 instead of 10.77.0.11/24" in difference


@pytest.mark.parametrize(
    ("entry", "differs"),
    [
        ({"addresses": ["10.77.0.11/24"], "mtu": 9000}, ""),
        ({"addresses": [{"10.77.0.11/24": {"label": "x"}}], "mtu": 9000, "dhcp4": False}, ""),
        ({"addresses": ["10.77.0.11/24", "10.0.0.1/8"], "mtu": 9000}, "addresses"),
        ({"addresses": ["10.77.0.11/24"], "mtu": 1500}, "mtu 1500 instead of 9000"),
        ({"addresses": ["10.77.0.11/24"], "mtu": 9000, "dhcp4": True}, "dhcp4 True"),
        ({"addresses": ["10.77.0.11/24"], "mtu": 9000, "dhcp6": True}, "dhcp6 True"),
        (None, "addresses none"),
    ],
)
def test_netplans_merged_view_must_give_these_rails(entry: Any, differs: str) -> None:
    found = merged_differences([RAIL], {"ethernets": {RAIL.interface: entry}})
    assert bool(found) is bool(differs)
    assert differs in "; ".join(found)


def test_the_merged_view_is_taken_from_a_copy_of_all_files(tmp_path: Path, start: Start) -> None:
    _, node = start()
    other = tmp_path / "etc/netplan/99-other.yaml"
    other.write_text("network: {version: 2}\n")
    seen: dict[str, str] = {}

    def netplan(argv: Sequence[str]) -> Completed:
        scratch = Path(argv[-1])
        files = sorted(scratch.rglob("*.yaml"))
        seen.update({file.name: file.read_text() for file in files})
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)
        wanted = {"addresses": ["10.77.0.11/24"], "mtu": 9000}
        tree = {"network": {"ethernets": {RAIL.interface: wanted}}}
        return Completed(0, yaml.safe_dump(tree), "")

    check_merged(Site(path="/etc/netplan/60-x.yaml", root=str(tmp_path), run=netplan), NEW, [RAIL])
    assert seen["99-other.yaml"] == "network: {version: 2}\n"
    assert seen["60-x.yaml"] == NEW
    assert node.path.read_text() == OLD


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Completed(78, "", "Error in network definition\n"), "refuses the file"),
        (Completed(0, "[", ""), "did not print a YAML mapping"),
        (Completed(0, "- 1", ""), "did not print a YAML mapping"),
        (Completed(0, "", ""), "another netplan file"),
        (Completed(127, "", "netplan: not installed"), "not installed"),
    ],
)
def test_a_view_that_does_not_give_the_rails_is_refused(
    tmp_path: Path, answer: Completed, message: str
) -> None:
    site = Site(path="/etc/netplan/60-x.yaml", root=str(tmp_path), run=lambda _: answer)
    with pytest.raises(RailChangeError, match=message):
        check_merged(site, NEW, [RAIL])


def test_the_way_back_is_a_script_that_a_shell_accepts(tmp_path: Path) -> None:
    live = {RAIL.interface: BEFORE, "enP2p1s0f1np1": LiveRail(1500, ())}
    script = way_back_script("/etc/netplan/60 x.yaml", str(tmp_path / "a'b"), True, live)
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    assert "'/etc/netplan/60 x.yaml'" in script
    assert "1500 169.254.7.7/16 192.168.100.10/24" in script
    assert "ip address add 192.168.100.10/24 dev enp1s0f1np1" in script


def test_a_tool_that_is_missing_is_a_failure_with_its_name() -> None:
    done = run(["no-such-tool-anywhere"])
    assert (done.code, done.complaint) == (127, "no-such-tool-anywhere: not installed")
    assert run(["sh", "-c", "echo $LC_ALL; exit 3"]) == Completed(3, "C\n", "")
