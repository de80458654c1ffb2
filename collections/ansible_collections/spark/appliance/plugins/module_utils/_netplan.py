# SPDX-License-Identifier: Apache-2.0
"""Change rails through netplan so that an unconfirmed change undoes itself."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETPLAN_FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")
STATE_FOLDER = "/var/lib/spark-appliance/fabric"
WAY_BACK_UNIT = "spark-fabric-way-back"
COMMAND_TIMEOUT_S = 60.0
# NetworkManager takes seconds to bring a changed profile up.
LIVE_TIMEOUT_S = 20.0
_POLL_S = 0.25


class RailChangeError(Exception):
    """The change was refused or undone; the text says what was expected, found, and what to do."""


@dataclass(frozen=True, slots=True)
class Rail:
    """One rail as it shall be: netdev, IPv4 address with prefix length, MTU in bytes."""

    interface: str
    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class LiveRail:
    """One rail as it is: MTU in bytes, IPv4 addresses with prefix length in order of text."""

    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left: exit status, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last line that the command wrote about its failure."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1][:200] if lines else f"exit status {self.code}"


Runner = Callable[[Sequence[str]], Completed]


def run(argv: Sequence[str]) -> Completed:
    """Run a command in the C locale, bounded; a missing or hanging one is a failure like others."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return Completed(127, "", f"{argv[0]}: not installed")
    except subprocess.TimeoutExpired:
        return Completed(124, "", f"{argv[0]}: no answer in {COMMAND_TIMEOUT_S:g} s")
    return Completed(done.returncode, done.stdout, done.stderr)


def parse_live(text: str) -> dict[str, LiveRail]:
    """Return every interface of ``ip -json addr show`` by name.

    Raises:
        RailChangeError: the text is not what ip prints.
    """
    try:
        return {
            item["ifname"]: LiveRail(
                int(item["mtu"]),
                tuple(
                    sorted(
                        f"{entry['local']}/{entry['prefixlen']}"
                        for entry in item["addr_info"]
                        if entry["family"] == "inet"
                    )
                ),
            )
            for item in json.loads(text)
            if item
        }
    except (ValueError, KeyError, TypeError) as error:
        raise RailChangeError(f"ip: an answer that cannot be read: {error!r}") from error


def live_differences(rails: Sequence[Rail], live: Mapping[str, LiveRail]) -> list[str]:
    """Return how live rails differ from what they shall be, one text each."""
    differences = []
    for rail in rails:
        now = live.get(rail.interface)
        if now is None:
            differences.append(f"{rail.interface}: no such interface")
            continue
        if now.mtu != rail.mtu:
            differences.append(f"{rail.interface}: MTU {now.mtu} instead of {rail.mtu}")
        if now.addresses != (rail.address,):
            held = ", ".join(now.addresses) or "none"
            differences.append(f"{rail.interface}: address {held} instead of {rail.address}")
    return differences


def merged_differences(rails: Sequence[Rail], network: Mapping[str, Any]) -> list[str]:
    """Return how netplan's merged view would bring rails up otherwise than they shall be.

    Parameters:
        rails: the rails as they shall be.
        network: the ``network`` tree that ``netplan get`` prints.
    """
    ethernets = network.get("ethernets") or {}
    differences = []
    for rail in rails:
        entry = ethernets.get(rail.interface) or {}
        addresses = sorted(
            item if isinstance(item, str) else str(next(iter(item), ""))
            for item in entry.get("addresses") or []
        )
        if addresses != [rail.address]:
            listed = ", ".join(addresses) or "none"
            differences.append(f"{rail.interface}: addresses {listed} instead of {rail.address}")
        for key, wanted in (("mtu", rail.mtu), ("dhcp4", False), ("dhcp6", False)):
            if entry.get(key, False) != wanted:
                differences.append(f"{rail.interface}: {key} {entry.get(key)} instead of {wanted}")
    return differences


_WAY_BACK = """\
#!/bin/sh
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
now() {{
  addresses=$(ip -4 -o address show dev "$1" | awk '{{print $4}}' | sort)
  echo "$(cat "/sys/class/net/$1/mtu")" $addresses
}}
{restore_file}
status=0
netplan apply || status=$?
# The back end goes on after netplan apply returned; an address added meanwhile would make it fail.
for second in 1 2 3 4 5 6; do
  sleep 1
  [ "$second" -gt 1 ] && {as_it_was} && break
done
{repair}
touch {marker}
exit $status
"""


def way_back_script(path: str, folder: str, existed: bool, live: Mapping[str, LiveRail]) -> str:
    """Return the script that restores the netplan file and the live state of the rails.

    Netplan alone would leave addresses behind that no file describes any more, and would not
    bring back ones that were only in memory; hence the calls of ip where a difference is left.

    Parameters:
        path: the netplan file.
        folder: folder with the saved file.
        existed: whether there was a file to save.
        live: the rails as they were.
    """
    target = shlex.quote(path)
    saved = shlex.quote(f"{folder}/previous.yaml")
    tests, repairs = [], []
    for name, rail in live.items():
        device = shlex.quote(name)
        state = " ".join((str(rail.mtu), *rail.addresses))
        tests.append(f'[ "$(now {device})" = {shlex.quote(state)} ]')
        steps = [f"ip link set dev {device} mtu {rail.mtu}", f"ip -4 address flush dev {device}"]
        steps += [f"ip address add {address} dev {device}" for address in rail.addresses]
        repairs.append(f"{tests[-1]} || {{ {'; '.join(steps)}; }}")
    return _WAY_BACK.format(
        restore_file=f"cp --preserve=all {saved} {target}" if existed else f"rm -f {target}",
        as_it_was=" && ".join(tests),
        repair="\n".join(repairs),
        marker=shlex.quote(f"{folder}/restored"),
    )


@dataclass(frozen=True, slots=True)
class Site:
    """Where the change happens.

    Parameters:
        path: the netplan file that belongs to the appliance.
        folder: folder of the way back, readable by root only.
        root: root of the tree that holds netplan's folders.
        run: runs a command.
        sleep: waits between two looks at live rails.
        clock: monotonic seconds.
    """

    path: str
    folder: str = STATE_FOLDER
    root: str = "/"
    run: Runner = run
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def read_text(path: str) -> str | None:
    """Return a file's text; None where there is no file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def read_mode(path: str) -> str:
    """Return a file's mode as four octal digits; empty where there is no file."""
    try:
        return f"{Path(path).stat().st_mode & 0o7777:04o}"
    except FileNotFoundError:
        return ""


def _write(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file in one step, so that no reader sees half of it."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_live(site: Site, rails: Sequence[Rail]) -> dict[str, LiveRail]:
    """Return the rails as they are.

    Raises:
        RailChangeError: ip failed, or a rail is not there.
    """
    done = site.run(("ip", "-json", "address", "show"))
    if done.code:
        raise RailChangeError(f"ip: {done.complaint}")
    live = parse_live(done.out)
    missing = [rail.interface for rail in rails if rail.interface not in live]
    if missing:
        raise RailChangeError(
            f"expected the interfaces {', '.join(missing)}, found {', '.join(sorted(live))}; "
            "nothing is written for absent ports"
        )
    return {rail.interface: live[rail.interface] for rail in rails}


def check_merged(site: Site, content: str, rails: Sequence[Rail]) -> None:
    """Refuse content that netplan, with all its other files, would not turn into these rails.

    It works on a copy, so that a refusal leaves the node as it was.

    Raises:
        RailChangeError: netplan refuses the content, or another file says otherwise.
    """
    try:
        import yaml  # noqa: PLC0415 -- netplan.io brings it; only netplan's own nodes get here
    except ImportError as error:
        raise RailChangeError("netplan: python3-yaml is not installed") from error

    with tempfile.TemporaryDirectory(prefix="spark-netplan-") as scratch:
        for folder in NETPLAN_FOLDERS:
            copied = Path(scratch, folder)
            copied.mkdir(parents=True)
            for file in sorted(Path(site.root, folder).glob("*.yaml")):
                shutil.copy2(file, copied / file.name)
                (copied / file.name).chmod(0o600)
        _write(scratch + site.path, content)
        for verb in ("generate", "get"):
            done = site.run(("netplan", verb, "--root-dir", scratch))
            if done.code:
                raise RailChangeError(
                    f"netplan {verb} refuses the file {site.path}: {done.complaint}"
                )
        try:
            network = (yaml.safe_load(done.out) or {}).get("network") or {}
        except (yaml.YAMLError, AttributeError) as error:
            raise RailChangeError("netplan get: did not print a YAML mapping") from error
    if differences := merged_differences(rails, network):
        raise RailChangeError(
            f"another netplan file also describes the rails; with {site.path} netplan would give "
            f"{'; '.join(differences)}: take the rails out of the other file"
        )


def refuse_armed(site: Site) -> None:
    """Refuse to start while an earlier change waits for its confirmation.

    Raises:
        RailChangeError: a way back is armed or running.
    """
    for suffix in ("timer", "service"):
        done = site.run(("systemctl", "is-active", "--quiet", f"{WAY_BACK_UNIT}.{suffix}"))
        if done.code == 0:
            raise RailChangeError(
                f"expected no unconfirmed change, found {WAY_BACK_UNIT}.{suffix} active: an "
                "earlier change of the rails is about to be undone; run again when it is over"
            )


def _save(site: Site, live: Mapping[str, LiveRail]) -> None:
    """Save file and live state, with the script that brings them back."""
    folder = Path(site.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    existed = Path(site.path).exists()
    if existed:
        shutil.copy2(site.path, folder / "previous.yaml")
    script = way_back_script(site.path, site.folder, existed, live)
    _write(f"{site.folder}/way-back.sh", script, 0o700)


def _generate(site: Site) -> str:
    done = site.run(("netplan", "generate"))
    return done.complaint if done.code else ""


def write_file(site: Site, content: str) -> None:
    """Write the netplan file and have netplan generate from it; live rails stay as they are.

    Raises:
        RailChangeError: netplan refused it, and the old file is back.
    """
    before, mode = read_text(site.path), read_mode(site.path)
    _write(site.path, content)
    if complaint := _generate(site):
        if before is None:
            Path(site.path).unlink()
        else:
            _write(site.path, before, int(mode, 8))
        _generate(site)
        raise RailChangeError(f"netplan generate: {complaint}; {site.path} is as it was")


def _await_live(site: Site, rails: Sequence[Rail]) -> list[str]:
    deadline = site.clock() + LIVE_TIMEOUT_S
    while True:
        differences = live_differences(rails, read_live(site, rails))
        if not differences or site.clock() >= deadline:
            return differences
        site.sleep(_POLL_S)


def _undone(site: Site, why: str) -> RailChangeError:
    try:
        undo(site)
    except RailChangeError as error:
        return RailChangeError(f"{why}; {error}")
    return RailChangeError(f"{why}; the rails are as they were")


def change(
    site: Site, rails: Sequence[Rail], content: str | None, *, apply: bool, confirm_s: int
) -> None:
    """Bring file and live rails to what they shall be.

    With ``apply`` a timer is armed first that undoes everything after ``confirm_s`` seconds, even
    if this process or the control node is gone by then; :func:`confirm` disarms it.

    Parameters:
        site: where.
        rails: the rails as they shall be.
        content: new text of the netplan file; None leaves the file alone.
        apply: live rails change too.
        confirm_s: seconds until an unconfirmed change is undone.

    Raises:
        RailChangeError: refused before anything changed, or undone.
    """
    if apply:
        _save(site, read_live(site, rails))
    if content is not None:
        write_file(site, content)
    if not apply:
        return
    armed = site.run(
        (
            "systemd-run",
            "--collect",
            f"--unit={WAY_BACK_UNIT}",
            f"--on-active={confirm_s}s",
            "--timer-property=AccuracySec=1s",
            "/bin/sh",
            f"{site.folder}/way-back.sh",
        )
    )
    if armed.code:
        raise _undone(site, f"systemd-run: the way back cannot be armed: {armed.complaint}")
    done = site.run(("netplan", "apply"))
    if done.code:
        raise _undone(site, f"netplan apply: {done.complaint}")
    if differences := _await_live(site, rails):
        raise _undone(site, f"after netplan apply: {'; '.join(differences)}")


def undo(site: Site) -> bool:
    """Undo a change that waits for its confirmation, and return whether there was one.

    Raises:
        RailChangeError: the way back failed; its timer, if still armed, tries again.
    """
    folder = Path(site.folder)
    script = folder / "way-back.sh"
    if not script.exists() or (folder / "restored").exists():
        return False
    done = site.run(("/bin/sh", str(script)))
    if done.code:
        raise RailChangeError(f"going back: {done.complaint}")
    site.run(("systemctl", "stop", f"{WAY_BACK_UNIT}.timer"))
    shutil.rmtree(folder)
    return True


def confirm(site: Site, rails: Sequence[Rail]) -> None:
    """Keep a change: disarm its way back, after a look that it is still in force.

    Raises:
        RailChangeError: there is nothing to confirm, or the change was or will be undone.
    """
    folder = Path(site.folder)
    if not (folder / "way-back.sh").exists():
        raise RailChangeError("expected a change that waits for confirmation, found none")
    # The way back stays armed until the rails are seen to be right.
    differences = live_differences(rails, read_live(site, rails))
    if not differences:
        site.run(("systemctl", "stop", f"{WAY_BACK_UNIT}.timer"))
        running = site.run(("systemctl", "is-active", "--quiet", f"{WAY_BACK_UNIT}.service"))
        if running.code != 0 and not (folder / "restored").exists():
            shutil.rmtree(folder)
            return
    raise RailChangeError(
        "the change of the rails was not confirmed in time and is undone: "
        f"{'; '.join(differences) or 'its time had run out'}; run again, or raise "
        "fabric_confirm_s"
    )
