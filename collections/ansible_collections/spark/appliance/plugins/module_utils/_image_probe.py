# SPDX-License-Identifier: Apache-2.0
"""Look inside an image with one throw-away container, and know when the look itself failed.

The container has no network, no GPU, no writable root and no capability. Each probe prints between
marks that hold a random word, with its exit status behind; an answer without its end mark is no
answer, so a container that did not start, or died, never passes for an empty result.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import ENVIRONMENT
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)

# Walking 20 GB of layers on a cold disk takes well below a minute.
TIMEOUT_S = 600
_OUTPUT_LIMIT_BYTES = 16 << 20
_FILE_LIMIT_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Probes:
    """What to look at.

    Parameters:
        base: folder that the sealed paths are relative to.
        sealed: paths to hash.
        patterns: names of files to look for on the image's own file system.
        absent: paths whose existence to tell.
        read: files to read, at most 64 KiB of each.
    """

    base: str
    sealed: tuple[str, ...]
    patterns: tuple[str, ...]
    absent: tuple[str, ...]
    read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen; a file that is not there has None.

    Parameters:
        sealed: sha256 in hexadecimal by path.
        matches: files with one of the patterns.
        existing: those of the asked paths that exist.
        content: text by file.
        labels: the image's labels.
    """

    sealed: dict[str, str | None]
    matches: tuple[str, ...]
    existing: tuple[str, ...]
    content: dict[str, str | None]
    labels: dict[str, str] = field(default_factory=dict)


def script_of(probes: Probes, word: str) -> str:
    """Return the shell script that answers all probes between marks with ``word``."""
    steps: list[tuple[str, str]] = []
    for number, path in enumerate(probes.sealed):
        file = shlex.quote(f"{probes.base}/{path}")
        steps.append((f"sealed-{number}", f"if [ -f {file} ]; then sha256sum < {file}; fi"))
    if probes.patterns:
        names = " -o ".join(f"-name {shlex.quote(pattern)}" for pattern in probes.patterns)
        steps.append(("find", f"find / -xdev -type f \\( {names} \\) -print"))
    for number, path in enumerate(probes.absent):
        file = shlex.quote(path)
        steps.append(
            (f"absent-{number}", f"if [ -e {file} ] || [ -L {file} ]; then echo there; fi")
        )
    for number, path in enumerate(probes.read):
        file = shlex.quote(path)
        steps.append(
            (
                f"read-{number}",
                f"if [ -f {file} ]; then head -c {_FILE_LIMIT_BYTES} {file}; else exit 44; fi",
            )
        )
    lines = ["export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    for name, command in steps:
        lines += [
            f"echo '{word} begin {name}'",
            f"( {command} )",
            "status=$?",
            f'echo; echo "{word} end {name} $status"',
        ]
    return "\n".join([*lines, f"echo '{word} done'"])


def argv_of(reference: str, script: str) -> list[str]:
    """Return the command that runs a script in a throw-away container of an image."""
    return [
        "docker",
        "run",
        "--rm",
        "--pull",
        "never",
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--cap-add",
        # The image's files belong to root, and some are readable by their owner only.
        "DAC_READ_SEARCH",
        "--security-opt",
        "no-new-privileges",
        "--memory",
        "512m",
        "--entrypoint",
        "/bin/sh",
        reference,
        "-c",
        script,
    ]


def parse_answers(text: str, word: str) -> dict[str, tuple[int, str]]:
    """Return each probe's exit status and output.

    Raises:
        RefusalError: the last mark is missing, so that not every probe ran to its end.
    """
    if f"{word} done\n" not in text:
        raise RefusalError(
            "image probe: expected an answer to every probe, found that its container ended early; "
            "an image that cannot be looked into is not accepted"
        )
    pattern = re.compile(
        rf"^{word} begin (?P<name>\S+)\n(?P<out>.*?)\n?^{word} end (?P=name) (?P<rc>\d+)$",
        re.DOTALL | re.MULTILINE,
    )
    return {found["name"]: (int(found["rc"]), found["out"]) for found in pattern.finditer(text)}


def understand(probes: Probes, answers: dict[str, tuple[int, str]]) -> Seen:
    """Return what the answers say.

    Raises:
        RefusalError: a probe has no answer, failed, or answered in another form.
    """

    def answer(name: str, *allowed: int) -> tuple[int, str]:
        if name not in answers or answers[name][0] not in {0, *allowed}:
            found = f"exit status {answers[name][0]}" if name in answers else "no answer"
            raise RefusalError(
                f"image probe {name}: expected an answer, found {found}; an image that cannot be "
                "looked into is not accepted"
            )
        return answers[name]

    sealed: dict[str, str | None] = {}
    for number, path in enumerate(probes.sealed):
        line = answer(f"sealed-{number}")[1].strip()
        digest = line.split()[0] if line else None
        if digest is not None and not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise RefusalError(f"image probe: {path}: expected a digest, found {digest[:80]!r}")
        sealed[path] = digest
    matches = answer("find")[1].split("\n") if probes.patterns else []
    content: dict[str, str | None] = {}
    for number, path in enumerate(probes.read):
        status, text = answer(f"read-{number}", 44)
        content[path] = None if status == 44 else text
    return Seen(
        sealed=sealed,
        matches=tuple(line for line in matches if line),
        existing=tuple(
            path
            for number, path in enumerate(probes.absent)
            if answer(f"absent-{number}")[1].strip()
        ),
        content=content,
    )


Run = Callable[[Sequence[str]], tuple[int, str, str]]


def run_container(argv: Sequence[str]) -> tuple[int, str, str]:
    """Run a command; return its exit status and both streams."""
    try:
        done = subprocess.run(
            list(argv), env=ENVIRONMENT, capture_output=True, check=False, timeout=TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise RefusalError("expected Docker, found no docker command; install it") from error
    except subprocess.TimeoutExpired as error:
        raise CutError(
            f"image probe: not finished after {TIMEOUT_S} s; see docker.service"
        ) from error
    out = done.stdout[:_OUTPUT_LIMIT_BYTES].decode(errors="replace")
    return done.returncode, out, done.stderr.decode(errors="replace")


def look_inside(reference: str, probes: Probes, word: str, run: Run = run_container) -> Seen:
    """Look inside an image.

    Parameters:
        reference: name of the image, which is never pulled.
        probes: what to look at.
        word: random word for the marks, so that nothing inside can answer for a probe.
        run: runs a command.

    Raises:
        RefusalError: the container did not run, or a probe has no answer.
        CutError: Docker went away.
    """
    status, out, err = run(argv_of(reference, script_of(probes, word)))
    if status:
        raise RefusalError(
            f"image probe: expected its container to run, found exit status {status}: "
            f"{' '.join(err.split())[:200]}; an image that cannot be looked into is not accepted"
        )
    seen = understand(probes, parse_answers(out, word))
    argv = ["docker", "image", "inspect", "--format", "{{json .Config.Labels}}", reference]
    status, out, err = run(argv)
    if status:
        raise CutError(f"docker image inspect: {' '.join(err.split())[:200]}")
    return replace(seen, labels=json.loads(out) or {})
