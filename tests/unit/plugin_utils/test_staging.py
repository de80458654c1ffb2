"""Files of a launch: systemd's own parser reads back exactly the argv that was rendered."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import (
    StagedFile,
    Start,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.staging import (
    stage,
    systemd_command,
    systemd_word,
)
from jinja2 import UndefinedError

from tests.unit.plugin_utils.launch_cases import PROFILES, R13, SITE, rendered, templates

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")

_WORD = re.compile(r'"(?:\\.|[^"\\])*"|[^\s"]+')

AWKWARD = (
    "plain",
    "",
    " ",
    "a b",
    '{"a":[1,2],"b":"c d"}',
    "it's",
    'quote"d',
    "back\\slash",
    "\\",
    '\\"',
    "100%",
    "%n %i %%",
    "$HOME",
    "${HOME}",
    "$$",
    '"$$"',
    "$",
    "-leading",
    "@leading",
    "+plus",
    "!bang",
    "a;b",
    ";",
    "#comment",
    "a=b",
    "~",
    "*?[x]",
    "ü→",
    "trailing\\",
)


def verify(folder: Path, units: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Have systemd load units; commands become /usr/bin/true and docker.service is a stub."""
    assert ANALYZE is not None
    stub = "[Service]\nExecStart=/usr/bin/true\n"
    for name, text in {"docker.service": stub, **units}.items():
        unit = text.replace("/usr/bin/docker", "/usr/bin/true")
        (folder / name).write_text(unit, encoding="utf-8")
    return subprocess.run(
        [ANALYZE, "verify", "--man=no", *(str(folder / name) for name in units)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], "SYSTEMD_LOG_LEVEL": "debug", "LC_ALL": "C.UTF-8"},
    )


def command_lines(dump: str) -> list[list[str]]:
    """Return every command that systemd loaded, as argv.

    The dump quotes as a shell does. ``$$`` stands for ``$`` until the command is executed.
    """
    argvs = []
    for line in dump.splitlines():
        quoted = _WORD.findall(line.partition("Command Line: ")[2])
        words = [word[1:-1] if word.startswith('"') else word for word in quoted]
        argvs.append([re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words])
    return argvs


def files(profile: str, node: str) -> dict[str, StagedFile]:
    launch = rendered(profile)[node]
    return {file.name: file for file in stage(launch, R13, Start(id="x"), templates())}


@needs_systemd
def test_systemd_reads_every_word_as_it_was_meant(tmp_path: Path) -> None:
    command = systemd_command(["/usr/bin/true", *AWKWARD])
    done = verify(tmp_path, {"words.service": f"[Service]\nExecStart={command}\n"})
    assert done.returncode == 0, done.stderr
    assert ["/usr/bin/true", *AWKWARD] in command_lines(done.stdout)


@needs_systemd
@pytest.mark.parametrize("profile", PROFILES)
def test_systemd_loads_the_units_and_finds_the_argv(profile: str, tmp_path: Path) -> None:
    launch = rendered(profile)["alpha"]
    staged = files(profile, "alpha")
    units = {name: file.content for name, file in staged.items() if name.endswith(".service")}
    assert set(units) == {"spark-engine.service", "spark-api.service"}
    done = verify(tmp_path, units)
    assert done.returncode == 0, done.stderr
    for unit in units:
        assert not [
            line for line in done.stderr.splitlines() if f"{unit}:" in line and "gnor" in line
        ]
    found = command_lines(done.stdout)

    def as_loaded(argv: Sequence[str]) -> list[str]:
        return ["/usr/bin/true", *argv[1:]]

    for argv in (launch.container_argv, launch.server_argv, launch.stop_argv):
        assert as_loaded(argv) in found


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "a\0b", "a\tb", "\x1b[0m", "\x7f"])
def test_what_no_unit_can_hold_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        systemd_word(word)


def test_a_worker_has_no_server_and_secrets_are_roots_alone() -> None:
    head, worker = files("fast", "alpha"), files("fast", "bravo")
    assert set(head) - set(worker) == {"spark-api.service"}
    assert head["engine.env"].mode == "0600"
    assert "VLLM_API_KEY" not in "".join(file.content for file in head.values())


def test_units_start_nothing_by_themselves() -> None:
    for name, file in files("fast", "alpha").items():
        if name.endswith(".service"):
            assert "[Install]" not in file.content


def test_only_rays_start_is_tried_again_and_not_for_ever() -> None:
    staged = files("fast", "alpha")
    engine = staged["spark-engine.service"].content
    assert "\nRestart=on-failure\n" in engine
    assert "\nStartLimitBurst=3\n" in engine
    assert "\nRestart=no\n" in staged["spark-api.service"].content


def test_launch_json_says_what_was_rendered() -> None:
    described = json.loads(files("fast", "bravo")["launch.json"].content)
    assert described["recipe_digest"] == R13.digest
    assert (described["profile"], described["rank"], described["role"]) == ("fast", 1, "worker")


def test_the_environment_file_holds_one_variable_a_line() -> None:
    lines = files("balanced", "alpha")["engine.env"].content.splitlines()
    assert dict(line.split("=", 1) for line in lines) == rendered("balanced")["alpha"].env
    assert f"VLLM_HOST_IP={SITE.rank_address('alpha')}" in lines


def test_a_template_that_asks_for_more_than_there_is_fails() -> None:
    broken = templates() | {"engine.env.j2": "{{ launch.secret }}"}
    with pytest.raises(UndefinedError):
        stage(rendered("fast")["alpha"], R13, Start(), broken)
