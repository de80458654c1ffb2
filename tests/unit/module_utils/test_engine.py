from __future__ import annotations

from collections.abc import Sequence

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._engine import (
    Output,
    last_lines,
    ray_nodes,
    run,
    unit_states,
)

SHOWN = """LoadState=loaded
ActiveState=active
SubState=running
Result=success
ExecMainStatus=0
NRestarts=0

LoadState=not-found
ActiveState=inactive
SubState=dead
Result=success
ExecMainStatus=0
NRestarts=0
"""


class Runner:
    """Gives one recorded output and remembers the command."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.argv: list[str] = []

    def __call__(self, argv: Sequence[str], timeout_s: float) -> Output:
        assert timeout_s > 0
        self.argv = list(argv)
        return self.output


def test_units_are_matched_by_position() -> None:
    states = unit_states(["a.service", "b.service"], Runner(Output(0, SHOWN, "")))
    assert states["a.service"]["ActiveState"] == "active"
    assert states["b.service"]["LoadState"] == "not-found"


@pytest.mark.parametrize(
    "output",
    [Output(None, "", "no answer within 10 s"), Output(1, "", "no bus"), Output(0, "", "")],
)
def test_unreadable_units_are_an_error_not_a_state(output: Output) -> None:
    with pytest.raises(RuntimeError, match=r"systemctl show gave no state for a\.service"):
        unit_states(["a.service"], Runner(output))


def test_the_log_is_the_last_lines_without_blanks() -> None:
    assert last_lines("a.service", 2, Runner(Output(0, "one\n\ntwo\n", ""))) == ["one", "two"]


def test_ray_nodes_are_found_among_other_lines() -> None:
    text = 'INFO connecting\nSPARK_RAY_NODES [["10.77.0.11", true, 1.0]]\nbye\n'
    runner = Runner(Output(0, text, ""))
    nodes, error = ray_nodes("spark-engine", "10.77.0.11:6379", "python3", 20.0, runner)
    assert nodes == [{"address": "10.77.0.11", "alive": True, "gpus": 1.0}]
    assert error == ""
    assert runner.argv[:3] == ["docker", "exec", "spark-engine"]


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (Output(1, "", "Traceback\nConnectionError: no GCS"), "ConnectionError: no GCS"),
        (Output(None, "", "no answer within 25 s"), "no answer within 25 s"),
        (Output(0, "", ""), "no output"),
    ],
)
def test_no_ray_answer_says_why(output: Output, said: str) -> None:
    nodes, error = ray_nodes("c", "a:1", "python3", 20.0, Runner(output))
    assert nodes == []
    assert said in error


def test_run_bounds_and_reports() -> None:
    assert run(["true"], 5.0).code == 0
    assert run(["sleep", "5"], 0.1).code is None
    assert "no-such-command" in run(["no-such-command"], 1.0).stderr
