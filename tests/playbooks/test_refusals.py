"""What a user's mistake leads to: one clear message, a failure, and no node ever contacted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, RunPlaybook

EXAMPLE = Path("inventories/example")


GOOD: dict[str, Any] = {
    "appliance_root": str(ROOT),
    "appliance_recipe": "glm52-r13",
    "appliance_profile": "balanced",
    "appliance_api_bind": "10.9.0.1",
    "appliance_api_port": 8000,
    "appliance_api_key": "0123456789abcdef0123456789abcdef",
    "appliance_ray_port": 6379,
    "appliance_release_url": "http://10.9.0.9/release",
    "appliance_weights_source": "http://10.9.0.9/weights",
    "appliance_weights_dir": "/var/lib/spark-appliance/weights/glm",
    "appliance_fabric_mtu": 9000,
    "ansible_port": 9,
    "ansible_ssh_common_args": "-o ConnectTimeout=2",
}


def inventory(
    folder: Path, variables: dict[str, Any], hosts: dict[str, dict[str, Any]] | None = None
) -> Path:
    """Write an inventory of four nodes that is right but for what a test changes."""
    nodes = {
        name: {
            "ansible_host": f"127.0.0.{number}",
            "spark_rail_a": f"10.9.1.{number}/24",
            "spark_rail_b": f"10.9.2.{number}/24",
        }
        for number, name in enumerate(("alpha", "bravo", "charlie", "delta"), start=1)
    }
    for name, changes in (hosts or {}).items():
        nodes[name] |= changes
    workers = {name: nodes[name] for name in ("bravo", "charlie", "delta")}
    groups = {"head": {"hosts": {"alpha": nodes["alpha"]}}, "workers": {"hosts": workers}}
    content = {"spark": {"children": groups, "vars": GOOD | variables}}
    target = folder / "hosts.yml"
    target.write_text(yaml.safe_dump(content))
    return target


def test_the_example_says_what_to_fill_in_and_connects_to_nothing(
    run_playbook: RunPlaybook,
) -> None:
    done = run_playbook("site.yml", inventory=EXAMPLE, options="--check")
    assert done.code != 0
    assert done.contacted == ()
    text = "\n".join(done.failures)
    for variable in ("ansible_host", "spark_rail_a", "appliance_api_bind", "appliance_api_key"):
        assert variable in text
    assert "PLAY [Refuse nodes that cannot work]" not in done.output


@pytest.mark.parametrize(
    ("variables", "hosts", "said"),
    [
        ({"appliance_api_bind": "<head>"}, {}, "appliance_api_bind"),
        ({"appliance_api_bind": "8.8.8.8"}, {}, "appliance_api_bind"),
        ({"appliance_api_bind": "::"}, {}, "wildcard"),
        ({}, {"bravo": {"spark_rail_a": "10.9.1.1/24"}}, "bravo"),
        ({}, {"delta": {"ansible_host": "127.0.0.1"}}, "delta"),
        ({}, {"charlie": {"spark_rail_b": "10.9.2.03/24"}}, "charlie"),
        ({"appliance_profile": "turbo"}, {}, "-e profile=NAME"),
        ({"appliance_recipe": "nothing"}, {}, "appliance_recipe"),
    ],
    ids=[
        "placeholder",
        "public-bind",
        "wildcard-bind",
        "one-rail-address-twice",
        "one-login-twice",
        "leading-zero",
        "profile",
        "recipe",
    ],
)
def test_a_bad_inventory_is_refused_before_any_connection(
    run_playbook: RunPlaybook,
    tmp_path: Path,
    variables: dict[str, Any],
    hosts: dict[str, dict[str, Any]],
    said: str,
) -> None:
    done = run_playbook("site.yml", inventory=inventory(tmp_path, variables, hosts))
    assert done.code != 0
    assert len(done.failures) == 1
    assert "nothing was changed" in done.failures[0]
    assert said in done.failures[0]
    assert done.contacted == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("window: 32", "window: 08", "speculation.window"),
        ("ladder: [2, 4, 5]", "ladder: [2, 3, 5]", "speculation.ladder"),
        ("max_seqs: 4", "max_seqs: 3", "max_seqs"),
    ],
    ids=["window", "ladder", "seqs"],
)
def test_a_bad_recipe_is_refused_before_any_connection(
    run_playbook: RunPlaybook, tmp_path: Path, old: str, new: str, said: str
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "recipes", tree / "recipes")
    shutil.copytree(ROOT / "image" / "releases", tree / "image" / "releases")
    recipe = tree / "recipes" / "glm52-r13.yml"
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    hosts = inventory(tmp_path, {"appliance_root": str(tree)})
    done = run_playbook("site.yml", inventory=hosts)
    assert done.code != 0
    assert said in done.failures[0]
    assert done.contacted == ()


def test_a_node_that_cannot_be_reached_is_named_with_its_address(
    run_playbook: RunPlaybook, tmp_path: Path
) -> None:
    done = run_playbook("site.yml", inventory=inventory(tmp_path, {}))
    assert done.code != 0
    assert any(
        "alpha: expected an ssh login at 127.0.0.1 [ansible_host]" in failure
        for failure in done.failures
    )
    assert "PLAY [Free the nodes' memory" not in done.output
