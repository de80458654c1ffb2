"""What every role, playbook and module of this tree has in common."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
COLLECTION = ROOT / "collections/ansible_collections/spark/appliance"
MODULES = sorted(path.stem for path in (COLLECTION / "plugins/modules").glob("[!_]*.py"))
PACKAGE = "ansible_collections.spark.appliance.plugins.modules"
TASK_FILES = sorted(path for role in ROLES for path in role.glob("[th]a*/*.yml"))

# Keywords of a play that holds roles and nothing that a role should hold.
PLAY_KEYWORDS = {
    "any_errors_fatal", "become", "gather_facts", "hosts", "name", "order", "roles", "serial",
    "tags", "vars",
}  # fmt: skip
TASK_KEYWORDS = {
    "always", "args", "async", "become", "block", "changed_when", "check_mode", "delay",
    "delegate_to", "diff", "environment", "failed_when", "listen", "loop", "loop_control", "name",
    "no_log", "notify", "poll", "register", "rescue", "retries", "run_once", "tags", "throttle",
    "until", "vars", "when", "any_errors_fatal", "delegate_facts", "timeout",
}  # fmt: skip


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each_task(tasks: Any) -> Iterator[dict[str, Any]]:
    for task in tasks or []:
        yield task
        for nested in ("block", "rescue", "always"):
            yield from each_task(task.get(nested))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_are_those_of_the_argument_specs(role: Path) -> None:
    specs = load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    file = role / "defaults/main.yml"
    defaults = (load(file) or {}) if file.exists() else {}
    specified = {key: spec["default"] for key, spec in specs.items() if "default" in spec}
    assert defaults == specified
    for key, spec in specs.items():
        assert key.startswith(f"{role.name}_"), key
        assert "default" in spec or spec.get("required"), f"{key}: neither default nor required"
        assert spec.get("description"), key


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_says_what_it_is(role: Path) -> None:
    info = load(role / "meta/main.yml")["galaxy_info"]
    assert info["role_name"] == role.name
    assert load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["short_description"]
    assert (role / "README.md").read_text(encoding="utf-8").startswith(f"# {role.name}\n")


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_tasks_have_names_and_call_modules_by_their_full_names(path: Path) -> None:
    for task in each_task(load(path)):
        assert task.get("name"), task
        for key in task.keys() - TASK_KEYWORDS:
            assert key.count(".") == 2, f"{task['name']}: {key}"
        assert task.get("failed_when") is not False, task["name"]
        assert "ignore_errors" not in task, task["name"]


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_variables_that_a_role_makes_carry_its_name(path: Path) -> None:
    role = path.relative_to(ROOT / "roles").parts[0]
    for task in each_task(load(path)):
        made = [task.get("register"), (task.get("loop_control") or {}).get("loop_var")]
        for name in filter(None, made):
            assert name.startswith((f"__{role}_", f"{role}_")), f"{task['name']}: {name}"


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_a_playbook_is_hosts_and_roles(path: Path) -> None:
    for play in load(path):
        assert play["name"]
        if "ansible.builtin.import_playbook" in play:
            assert (path.parent / play["ansible.builtin.import_playbook"]).exists()
            continue
        assert play.keys() <= PLAY_KEYWORDS, play.keys() - PLAY_KEYWORDS
        for entry in play["roles"]:
            assert (ROOT / "roles" / entry["role"]).is_dir()


def test_the_site_imports_playbooks_and_nothing_else() -> None:
    imported = [play["ansible.builtin.import_playbook"] for play in load(ROOT / "site.yml")]
    assert all((ROOT / name).exists() for name in imported)
    assert len(imported) == len(set(imported))
    assert not (ROOT / "playbooks/group_vars").exists(), "would silently apply"


SPEC_KEYS = ("type", "required", "default", "choices", "elements", "aliases")


def shape(options: dict[str, Any], nested: str) -> dict[str, Any]:
    """Return documented options, or an argument spec, in one form for a comparison."""
    shaped = {}
    for name, option in options.items():
        entry = {"type": "str", **{key: option[key] for key in SPEC_KEYS if key in option}}
        if entry.get("required") is False:
            del entry["required"]
        if "choices" in entry:
            entry["choices"] = list(entry["choices"])
        if option.get(nested):
            entry["options"] = shape(option[nested], nested)
        shaped[name] = entry
    return shaped


class SpecTakenError(Exception):
    """Ends a module once it has said what it accepts."""


def accepted(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the argument spec that a module's main hands to Ansible."""
    taken: dict[str, Any] = {}

    def take(argument_spec: dict[str, Any], **_: Any) -> None:
        taken.update(argument_spec)
        raise SpecTakenError

    monkeypatch.setattr(module, "AnsibleModule", take)
    with pytest.raises(SpecTakenError):
        module.main()
    return taken


@pytest.mark.parametrize("name", MODULES)
def test_a_module_accepts_what_it_documents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["module"] == name
    assert yaml.safe_load(module.EXAMPLES)
    assert yaml.safe_load(module.RETURN)
    has_action = (COLLECTION / f"plugins/action/{name}.py").exists()
    if not hasattr(module, "main"):
        assert has_action, "neither a module nor the documentation of an action"
        return
    documented = shape(documentation.get("options", {}), "suboptions")
    spec = shape(accepted(module, monkeypatch), "options")
    assert {key: spec.get(key) for key in documented} == documented
    # An action plugin may pass its module more than a task may.
    assert has_action or spec.keys() == documented.keys()


@pytest.mark.parametrize(
    "path", sorted((COLLECTION / "plugins/module_utils").rglob("*.py")), ids=relative
)
def test_node_side_code_imports_nothing_of_the_control_side(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert ".plugin_utils" not in name, f"{path.name} imports {name}"
            assert name.partition(".")[0] not in {"ansible", "pydantic", "rich"}, name


@pytest.mark.parametrize(
    "path", sorted((COLLECTION / "plugins/plugin_utils").rglob("*.py")), ids=relative
)
def test_the_judge_imports_nothing_of_ansible(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("ansible."), f"{path.name}: {node.module}"
        elif isinstance(node, ast.Import):
            assert not any(alias.name.partition(".")[0] == "ansible" for alias in node.names)
