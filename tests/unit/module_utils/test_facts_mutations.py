# SPDX-License-Identifier: Apache-2.0
"""Every file and command that the facts rest on, made bad in every way: nothing passes by it."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._facts import host
from ansible_collections.spark.appliance.plugins.module_utils._facts.gather import (
    SECTIONS,
    gather,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.reach import (
    Reach,
    observe_reach,
)
from ansible_collections.spark.appliance.plugins.module_utils._facts.systemd import Request
from ansible_collections.spark.appliance.plugins.plugin_utils.checks import Phase, judge
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding

from tests.fixtures.nodes import edits as e
from tests.fixtures.nodes.compose import EPOCH_S, SERVING, WEIGHTS, Tree, tree
from tests.fixtures.nodes.fleet import context
from tests.unit.checks.test_cases import CASES, Case

NODE = "alpha"
# The bound of a gathering in which no command hangs; a loaded machine included.
BOUND_S = 5.0
NOBODY = 65534
JUNK = bytes(range(256)) * 64
NOT_UTF8 = b"\xff\xfe\xfa\xf0 \x80\x81\n" * 200
GERMAN = "Befehl nicht gefunden: Zugriff verweigert\nSpeicher:    gesamt   belegt\n"
ERROR_TEXT = "Failed to connect to bus: Host is down\n"
TEN_MB = b"all work and no play\n" * 500_000
# json looks for its encodings when it is given bytes; nobody may be unable to read them.
for _encoding in ("utf-8-sig", "utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
    codecs.lookup(_encoding)
PHASES = (Phase.PREFLIGHT, Phase.GATE, Phase.VERIFY)

# What a serving node need not have, so that every file that is ever read is there to be broken.
RICH = (
    e.ufw(
        "### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in_enp1s0f1np1\n"
        "### tuple ### allow any any 0.0.0.0/0 any 10.77.1.0/24 in_enP2p1s0f1np1\n"
    ),
    e.write(
        "/etc/apt/sources.list.d/cuda.list",
        "deb https://example.invalid/compute/cuda/repos/ubuntu2404/sbsa/ /\n",
    ),
    e.write("/etc/apt/preferences.d/driver", "Package: nvidia-driver-*\nPin-Priority: -1\n"),
    e.write(
        "/etc/cdi/nvidia.yaml", "- hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so.580.159.03\n"
    ),
    e.containerd_store(index=True),
)


def _put(composed: Tree, root: Path) -> Path:
    """Write a tree that belongs to nobody, so that nobody's own modes can deny it."""
    composed.put(root)
    if os.geteuid() == 0:
        for folder, names, files in os.walk(root):
            for name in (".", *names, *files):
                os.chown(Path(folder) / name, NOBODY, NOBODY, follow_symlinks=False)
    return root


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """Give up root for a while: root reads whatever the modes say."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _request(composed: Tree) -> Request:
    return Request(weights=(WEIGHTS,), reference_epoch_s=EPOCH_S, reach=Reach.of(composed.reach))


class _Spied(host.Host):
    """A node that remembers every path and command that it was asked for."""

    def __init__(self, root: Path) -> None:
        plain = host.open_host(str(root))
        super().__init__(root, self._spy(plain._execute), self._ask(plain._query), recorded=True)
        self.asked: set[str] = set()

    def _spy(self, execute: Callable[[host.Command], host.Output]) -> Any:
        def run(command: host.Command) -> host.Output:
            self.asked.add(f"/_commands/{command.name}.txt")
            return execute(command)

        return run

    def _ask(self, query: Callable[[str, str], bytes]) -> Any:
        def ask(name: str, path: str) -> bytes:
            self.asked.add(f"/_commands/{name}.json")
            return query(name, path)

        return ask

    def locate(self, path: str) -> Path:
        self.asked.add(path)
        return super().locate(path)


class Broken:
    """A composed tree on a disk, of which one path at a time is made bad and put back."""

    def __init__(self, composed: Tree, folder: Path) -> None:
        # The recording of systemctl is written from the units; a fault needs the file itself.
        composed.write("/_commands/systemctl-show.txt", composed.systemctl_show())
        self.composed = composed
        self.root = _put(composed, folder)
        self.request = _request(composed)

    def readers(self) -> dict[str, set[str]]:
        """Return every path that is read and is there, with the sections that read it."""
        read: dict[str, set[str]] = {}
        wanted = dict(SECTIONS)
        wanted["reach"] = lambda node, request: observe_reach(node, request.reach)  # type: ignore[arg-type]  # it was asked for
        for section, observe in wanted.items():
            spied = _Spied(self.root)
            observe(spied, self.request)
            for path in spied.asked:
                located = self.root / path.lstrip("/")
                if os.path.lexists(located):
                    read.setdefault(path, set()).add(section)
        return read

    def told(self) -> dict[str, Any]:
        """Return what the module says, which it must within its bound."""
        started = time.monotonic()
        with _unprivileged():
            facts = gather(host.open_host(str(self.root)), self.request, deadline_s=2 * BOUND_S)
        assert time.monotonic() - started < BOUND_S
        return json.loads(json.dumps(facts))  # type: ignore[no-any-return]  # an object, as gather returns

    @contextlib.contextmanager
    def fault(self, path: str, spoil: Callable[[Path], None]) -> Iterator[None]:
        """Make one path bad for a while."""
        target = self.root / path.lstrip("/")
        aside = self.root / "_aside"
        os.rename(target, aside)  # noqa: PTH104 -- also of a link, as it is
        try:
            spoil(target)
            if os.geteuid() == 0 and os.path.lexists(target):
                os.chown(target, NOBODY, NOBODY, follow_symlinks=False)
            yield
        finally:
            if target.is_dir() and not target.is_symlink():
                target.chmod(0o755)
                target.rmdir()
            else:
                target.unlink(missing_ok=True)
            os.rename(aside, target)  # noqa: PTH104 -- as above


def _write(body: bytes, target: Path) -> None:
    target.write_bytes(body)


def _denied(target: Path) -> None:
    target.write_bytes(b"secret\n")
    target.chmod(0)


def _loop(target: Path) -> None:
    target.symlink_to(target.name)


FILE_FAULTS: dict[str, Callable[[Path], None]] = {
    "empty": partial(_write, b""),
    "other-language": partial(_write, GERMAN.encode()),
    "error-text": partial(_write, ERROR_TEXT.encode()),
    "binary": partial(_write, JUNK),
    "not-utf8": partial(_write, NOT_UTF8),
    "ten-megabytes": partial(_write, TEN_MB),
    "loop": _loop,
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "no-permission": _denied,
}


# A recording stands for what a tool prints; what it is kept in is no part of a node.
ONLY_OF_FILES = frozenset({"loop", "directory", "fifo", "no-permission"})
ANY_TEXT = frozenset({"empty", "other-language", "error-text", "not-utf8"})
# Where a bad file is known, differs and is no finding: which, by what, and why that is right.
HARMLESS: dict[str, tuple[frozenset[str], str]] = {
    r"/_commands/nvidia-smi-apps\.txt": (frozenset({"empty"}), "no process on the GPU"),
    r"/_commands/ss-established\.txt": (frozenset({"empty"}), "nothing is asked of the head's"),
    r"/etc/apt/sources\.list\.d/.*": (frozenset({"empty"}), "an empty list names no source"),
    r"/etc/fstab": (frozenset({"empty"}), "an empty table mounts no swap"),
    r"/etc/fastos-release": (ANY_TEXT, "a name, of which a change is told as drift"),
    r"/sys/class/dmi/id/.*": (ANY_TEXT, "a name, of which a change is told as drift"),
    r"/sys/class/infiniband/.*/(fw_ver|rate)": (ANY_TEXT, "a name, told as drift"),
    r"/run/NetworkManager/.*": (ANY_TEXT, "NetworkManager loads no such profile either"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """Return a serving head with every file that is ever read."""
    with _folder(tmp_path_factory) as root:
        yield Broken(tree(NODE, SERVING, RICH), root)


@contextlib.contextmanager
def _folder(factory: pytest.TempPathFactory) -> Iterator[Path]:
    memory = Path("/dev/shm")  # noqa: S108 -- a new folder in it
    base = memory if memory.is_dir() else factory.mktemp("nodes")
    root = Path(tempfile.mkdtemp(dir=base))
    # Nobody has to get to its own files.
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _kind(path: str) -> str:
    return re.sub(r"\d+|(?<=-)[a-z0-9]+(?=np)", "#", path)


def _chosen(read: Mapping[str, set[str]], root: Path) -> list[str]:
    """Return one path of each kind that is read: of twenty ports one is as good as another."""
    kinds: dict[str, str] = {}
    for path in sorted(read):
        located = root / path.lstrip("/")
        if located.is_symlink() or not located.is_dir():
            kinds.setdefault(_kind(path), path)
    return list(kinds.values())


def _judged(told: Mapping[str, Any], phase: Phase = Phase.VERIFY) -> list[Finding]:
    whole = context()
    facts = {**whole.facts, NODE: NodeFacts.of(NODE, told)}
    return judge(replace(whole, facts=facts), phase)


def test_the_node_to_break_is_healthy_and_wholly_read(broken: Broken) -> None:
    told = broken.told()
    assert all(section["ok"] for section in told["sections"].values())
    for phase in PHASES:
        assert _judged(told, phase) == []
    assert len(_chosen(broken.readers(), broken.root)) > 70


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_no_file_that_is_bad_passes(fault: str, broken: Broken) -> None:
    read, healthy = broken.readers(), broken.told()["sections"]
    wrong = []
    for path in _chosen(read, broken.root):
        if path.startswith("/_commands/") and fault in ONLY_OF_FILES:
            continue
        with broken.fault(path, FILE_FAULTS[fault]):
            told = broken.told()
        sections = told["sections"]
        for name, section in sections.items():
            if name not in read[path] and section != healthy[name]:
                wrong.append(f"{path}: {name} does not read it and changed: {section}")
            if not section["ok"] and not 0 < len(section["reason"]) < 1000:
                wrong.append(f"{path}: {name} is unknown without a short reason")
        differs = [name for name in sections if sections[name] != healthy[name]]
        known = [name for name in differs if sections[name]["ok"]]
        harmless = any(
            re.fullmatch(pattern, path) and fault in faults
            for pattern, (faults, _) in HARMLESS.items()
        )
        if known and not harmless and not _judged(told):
            wrong.append(f"{path}: {known} differ, and the judgement is silent")
    assert wrong == []


def _broken_tool(kind: str, body: str) -> str:
    """Return a shell script; $1 is the good text."""
    return {
        "nothing": "exit 0",
        "nothing-and-fails": "exit 1",
        "other-language": f"printf '{GERMAN}'",
        "error-with-success": f"printf '{ERROR_TEXT}'",
        "error-on-stderr-with-success": f"printf '{ERROR_TEXT}' >&2",
        "good-text-with-failure": f"cat {body}; exit 1",
        "hangs": "sleep 60 & wait",
        "good-text-then-hangs": f"cat {body}; sleep 60",
        "binary": "head -c 20000 /dev/urandom; printf '\\000'",
        "not-utf8": "printf '\\377\\376\\372\\360 \\200\\n'",
        "ten-megabytes": "yes all work | head -c 10000000",
        "crlf": f"sed 's/$/\\r/' {body}",
        "noise-on-stderr": f"echo 'Warnung: veraltet' >&2; cat {body}",
    }[kind]


TOOL_FAULTS = (
    "nothing", "nothing-and-fails", "other-language", "error-with-success",
    "error-on-stderr-with-success", "good-text-with-failure", "hangs", "good-text-then-hangs",
    "binary", "not-utf8", "ten-megabytes", "crlf", "noise-on-stderr", "not-a-program", "missing",
)  # fmt: skip
# With these the answer is as good as ever.
GOOD = frozenset({"crlf", "noise-on-stderr"})
EMPTY = frozenset({"nothing", "error-on-stderr-with-success"})


@pytest.mark.parametrize("fault", TOOL_FAULTS)
def test_no_tool_that_is_bad_passes(fault: str, broken: Broken, tmp_path: Path) -> None:
    read, healthy = broken.readers(), broken.told()["sections"]
    plain = host.open_host(str(broken.root))
    wrong = []
    for path in _chosen(read, broken.root):
        if not path.startswith("/_commands/") or not path.endswith(".txt"):
            continue
        tool = Path(path).stem
        if tool in {"epoch", "ssh-connection"}:
            continue
        script = tmp_path / "tool"
        script.unlink(missing_ok=True)
        if fault != "missing":
            body = str(broken.root / path.lstrip("/"))
            said = "exit 0" if fault == "not-a-program" else _broken_tool(fault, body)
            script.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
            script.chmod(0o644 if fault == "not-a-program" else 0o755)

        def run(command: host.Command, tool: str = tool, script: Path = script) -> host.Output:
            if command.name != tool:
                return plain._execute(command)
            # Really started, as on a live node, and given up soon.
            asked = replace(command, argv=(str(script),), timeout_s=0.3 if "hangs" in fault else 5)
            return host.execute(asked)

        live = host.Host(broken.root, run, plain._query, recorded=True)
        started = time.monotonic()
        told = gather(live, broken.request, deadline_s=2 * BOUND_S)
        if time.monotonic() - started > BOUND_S:
            wrong.append(f"{tool}: took too long")
        sections = told["sections"]
        wrong += [
            f"{tool}: {name} changed: {sections[name]}"
            for name in sections.keys() - (set() if fault in GOOD else read[path])
            if sections[name] != healthy[name]
        ]
        known = [n for n in read[path] if sections[n]["ok"] and sections[n] != healthy[n]]
        if known and not (fault in EMPTY and path in MAY_BE_EMPTY) and not _judged(told):
            wrong.append(f"{tool}: {known} differ, and the judgement is silent")
        unknown = [name for name in read[path] if not sections[name]["ok"]]
        # ping ends with 1 where a packet is lost, so that its text counts and its status does not.
        good = fault in GOOD or (fault == "good-text-with-failure" and tool.startswith("ping-"))
        if not good and not known and not unknown and path not in MAY_BE_EMPTY:
            wrong.append(f"{tool}: nothing of it was noticed")
    assert wrong == []


MAY_BE_EMPTY = frozenset({"/_commands/nvidia-smi-apps.txt", "/_commands/ss-established.txt"})

# NetworkManager reads no such profile either, so that nothing asks for DHCP any more.
GONE_WITH_ITS_FILE = "/run/NetworkManager/"


def _sick() -> list[tuple[Case, str]]:
    return [
        (case, node)
        for case in CASES
        for node in case.edits
        if node in {name for _, name, _ in case.expected} | {""} and case.expected
    ]


def _accounted(findings: Sequence[Finding]) -> set[tuple[str, str]]:
    """Return (check, node) of every finding, and of every check that a node kept from judging."""
    told = {(finding.check, finding.node) for finding in findings}
    for finding in findings:
        if finding.check.startswith("observe."):
            blinded = finding.evidence.removeprefix("not judged: ").split(", ")
            told |= {(check, node) for check in blinded for node in (finding.node, "")}
    return told


@pytest.mark.parametrize("sick", _sick(), ids=lambda pair: f"{pair[0].id}-{pair[1]}")
def test_no_fault_vanishes_with_its_probe(
    sick: tuple[Case, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    case, node = sick
    plain = tree(node, case.layers)
    edited = tree(node, case.layers, case.edits[node])
    changed = [
        path
        for path in edited.files
        if not path.startswith(GONE_WITH_ITS_FILE)
        and (
            edited.files[path] != plain.files.get(path) or path in edited.modes.keys() - plain.modes
        )
    ]
    whole = context(case.layers, case.edits, **case.changes)
    wanted = {(check, name) for check, name, _ in case.expected if name in {node, ""}}
    wrong = []
    with _folder(tmp_path_factory) as root:
        faulty = Broken(edited, root)
        for path in changed:
            fault = "other-language" if path.startswith("/_commands/") else "no-permission"
            with faulty.fault(path, FILE_FAULTS[fault]):
                told = faulty.told()
            facts = {**whole.facts, node: NodeFacts.of(node, told)}
            findings = judge(replace(whole, facts=facts), case.phase)
            # A finding about the file itself is as good.
            named = any(path in finding.expected for finding in findings)
            lost = wanted - _accounted(findings)
            if lost and not named:
                wrong.append(f"{path} {fault}: {sorted(lost)} passed")
    assert wrong == []
