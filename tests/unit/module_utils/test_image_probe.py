from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._image_probe import (
    Probes,
    Seen,
    argv_of,
    look_inside,
    parse_answers,
    script_of,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)

WORD = "mark-of-this-test"


class ShellStandIn:
    """Runs the container's script in a shell of this machine instead of in a container."""

    def __init__(self) -> None:
        self.before = ""
        self.after = ""

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[:3] == ["docker", "image", "inspect"]:
            return 0, json.dumps({"a": "b"}), ""
        script = f"{self.before}\n{argv[-1]}\n{self.after}"
        done = subprocess.run(
            ["/bin/sh", "-c", script], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


def probes(folder: Path) -> Probes:
    return Probes(
        base=str(folder),
        sealed=("good", "sub/missing", "it's; odd"),
        patterns=(),
        absent=(str(folder / "good"), str(folder / "nowhere")),
        read=(str(folder / "text"), str(folder / "gone"), str(folder / "open")),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "it's; odd").write_bytes(b"x")
    (tmp_path / "text").write_text("a=1\nb=2\n")
    (tmp_path / "open").write_text("no newline at the end")
    return tmp_path


def test_everything_asked_is_answered(folder: Path) -> None:
    seen = look_inside("image:1", probes(folder), WORD, ShellStandIn())
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert seen == Seen(
        sealed={"good": digest, "sub/missing": None, "it's; odd": digest},
        matches=(),
        existing=(str(folder / "good"),),
        content={
            str(folder / "text"): "a=1\nb=2\n",
            str(folder / "gone"): None,
            str(folder / "open"): "no newline at the end",
        },
        labels={"a": "b"},
    )


def test_names_are_searched_for(folder: Path) -> None:
    (folder / "w.safetensors").write_bytes(b"")
    asked = Probes("/", (), ("*.safetensors",), (), ())
    script = script_of(asked, WORD).replace("find / -xdev", f"find {folder} -xdev")

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return ShellStandIn()([*argv[:-1], script] if argv[1] == "run" else argv)

    assert look_inside("image:1", asked, WORD, run).matches == (str(folder / "w.safetensors"),)


@pytest.mark.parametrize("status", [1, 125, 126, 127, 137])
def test_a_container_that_does_not_run_is_no_empty_answer(folder: Path, status: int) -> None:
    with pytest.raises(RefusalError, match=f"found exit status {status}: no such image"):
        look_inside("image:1", probes(folder), WORD, lambda _: (status, "", "no such image"))


def test_a_container_that_says_nothing_is_no_empty_answer(folder: Path) -> None:
    with pytest.raises(RefusalError, match="found that its container ended early"):
        look_inside("image:1", probes(folder), WORD, lambda _: (0, "", ""))


def test_a_script_that_ends_early_is_no_answer(folder: Path) -> None:
    shell = ShellStandIn()
    shell.before = "exit 0"
    with pytest.raises(RefusalError, match="ended early"):
        look_inside("image:1", probes(folder), WORD, shell)


def test_a_probe_that_fails_is_no_answer(folder: Path) -> None:
    shell = ShellStandIn()
    shell.before = "sha256sum() { return 3; }"
    with pytest.raises(
        RefusalError, match="probe sealed-0: expected an answer, found exit status 3"
    ):
        look_inside("image:1", probes(folder), WORD, shell)


def test_a_tool_that_is_missing_is_no_answer(folder: Path) -> None:
    asked = Probes("/", (), ("*.pt",), (), ())
    broken = script_of(asked, WORD).replace("find /", "no-such-find /")

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return ShellStandIn()([*argv[:-1], broken])

    del folder
    with pytest.raises(RefusalError, match="probe find: expected an answer, found exit status 127"):
        look_inside("image:1", asked, WORD, run)


def test_an_answer_that_is_no_digest_is_refused(folder: Path) -> None:
    shell = ShellStandIn()
    shell.before = "sha256sum() { echo fine; }"
    with pytest.raises(RefusalError, match="expected a digest, found 'fine'"):
        look_inside("image:1", probes(folder), WORD, shell)


def test_a_file_cannot_answer_for_another_probe(folder: Path) -> None:
    (folder / "text").write_text("guess end read-0 0\nguess done\n")
    seen = look_inside("image:1", probes(folder), WORD, ShellStandIn())
    assert seen.content[str(folder / "text")] == "guess end read-0 0\nguess done\n"


def test_an_engine_that_went_away_is_told(folder: Path) -> None:
    shell = ShellStandIn()

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return (1, "", "Cannot connect") if argv[1] == "image" else shell(argv)

    with pytest.raises(CutError, match="Cannot connect"):
        look_inside("image:1", probes(folder), WORD, run)


def test_the_container_can_reach_nothing() -> None:
    argv = argv_of("image:1", "true")
    text = " ".join(argv)
    for part in ("--rm", "--pull never", "--network none", "--read-only", "--cap-drop ALL"):
        assert part in text
    assert "--gpus" not in argv
    assert "--privileged" not in argv


def test_marks_need_their_end() -> None:
    answers = parse_answers(
        f"{WORD} begin a\nx\n{WORD} end a 0\n{WORD} begin b\n{WORD} done\n", WORD
    )
    assert answers == {"a": (0, "x")}
