# SPDX-License-Identifier: Apache-2.0
"""The module as Ansible runs it: its documentation, its answer, what it needs on a node."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.spark.appliance.plugins.module_utils import _facts
from ansible_collections.spark.appliance.plugins.module_utils._facts import gather
from ansible_collections.spark.appliance.plugins.modules import node_facts
from ansible_collections.spark.appliance.plugins.plugin_utils.facts import NodeFacts

from tests.fixtures.nodes.compose import SERVING, WEIGHTS, tree

Run = Callable[..., dict[str, Any]]
PACKAGE = Path(_facts.__file__).parent


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the module's entry with arguments and return its answer."""

    def call(**arguments: Any) -> dict[str, Any]:
        with patch_module_args(arguments), pytest.raises(SystemExit):
            node_facts.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return call


def test_documentation_and_arguments_agree() -> None:
    documented = yaml.safe_load(node_facts.DOCUMENTATION)["options"]
    assert documented.keys() == node_facts.ARGUMENTS.keys()
    for name, argument in node_facts.ARGUMENTS.items():
        for key in ("type", "elements", "default"):
            assert documented[name].get(key) == argument.get(key), (name, key)
    described = yaml.safe_load(node_facts.RETURN)
    assert described.keys() == {"facts"}
    assert yaml.safe_load(node_facts.EXAMPLES)


def test_the_answer_has_every_section_and_nothing_changed(run: Run, tmp_path: Path) -> None:
    root = tree("alpha", SERVING).put(tmp_path)
    answer = run(root=str(root), weights=[WEIGHTS], paths=["/etc/fstab", "/etc", "/nothing"])
    assert answer["changed"] is False
    facts = answer["facts"]
    assert facts["schema"] == gather.SCHEMA
    assert facts["sections"].keys() == gather.SECTIONS.keys()
    assert all(section["ok"] for section in facts["sections"].values())
    files = facts["sections"]["files"]["data"]
    assert files["/etc/fstab"]["mode"] == "0644"
    assert len(files["/etc/fstab"]["sha256"]) == 64
    assert files["/etc"]["type"] == "dir"
    assert files["/nothing"] == {"exists": False}


def test_every_section_has_its_type_on_the_control_side(run: Run, tmp_path: Path) -> None:
    root = tree("alpha", SERVING).put(tmp_path)
    facts = NodeFacts.of("alpha", run(root=str(root), weights=[WEIGHTS])["facts"])
    typed = {name for name in gather.SECTIONS if hasattr(NodeFacts, name)}
    for name in typed:
        getattr(facts, name)
    # The envelope reads these itself.
    assert gather.SECTIONS.keys() - typed == {"holders", "guards"}


def test_names_that_are_not_utf_8_break_no_answer(run: Run, tmp_path: Path) -> None:
    root = tree("alpha", SERVING).put(tmp_path)
    container = root / "_commands/docker-container-aaaaaaaaaaaa.json"
    labels = container.read_text(encoding="utf-8")
    container.write_text(
        labels.replace('"Labels":{}', '"Labels":{"a":"\\ud800"}'), encoding="utf-8"
    )
    launches = f"{root}/etc/spark-appliance/launches".encode()
    for name in (
        f"{root}{WEIGHTS}".encode() + b"/\xff\x1b[31m.incomplete",
        f"{root}/etc/netplan".encode() + b"/\xfe\n.yaml",
        launches + b"/0123456789ab/\xfd",
    ):
        Path(os.fsdecode(name)).write_text("x", encoding="utf-8")
    answer = run(root=str(root), weights=[WEIGHTS])
    # Ansible refuses what is no UTF-8, and with it the whole node.
    json.dumps(answer, ensure_ascii=False).encode()
    sections = answer["facts"]["sections"]
    assert all(section["ok"] for section in sections.values())
    assert sections["weights"]["data"][WEIGHTS]["incomplete"] == [
        "\ufffd\ufffd\ufffd\x1b[31m.incomplete"
    ]
    assert sections["docker"]["data"]["containers"][0]["labels"] == {"a": "\ufffd\ufffd\ufffd"}


def test_check_mode_reads_the_same(run: Run, tmp_path: Path) -> None:
    root = str(tree("alpha", SERVING).put(tmp_path))
    told = run(root=root, _ansible_check_mode=True)["facts"]["sections"]
    assert told == run(root=root)["facts"]["sections"]


def test_a_root_that_is_none_fails_with_what_to_do(run: Run, tmp_path: Path) -> None:
    answer = run(root=str(tmp_path / "nothing"))
    assert answer["failed"]
    assert "must be / or a recorded tree" in answer["msg"]


def test_this_machine_can_be_read_whatever_it_is(run: Run) -> None:
    sections = run()["facts"]["sections"]
    assert sections["disk"]["ok"]
    assert sections["network"]["ok"]
    assert all(section["ok"] or section["reason"] for section in sections.values())


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_nodes_need_the_standard_library_only(path: Path) -> None:
    own = "ansible_collections.spark.appliance.plugins.module_utils."
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            # netplan.io itself depends on python3-yaml; without it the merged view is unknown.
            guarded = path.name == "network.py" and name == "yaml"
            known = name.split(".")[0] in sys.stdlib_module_names or name.startswith(own)
            assert known or guarded, name
