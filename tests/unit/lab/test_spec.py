from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from spark_lab import spec
from spark_lab.access import host_entries
from spark_lab.process import LabError
from spark_lab.spec import NODES, REPOSITORY, Lab, digest_of, lab_from


def test_without_choices_the_lab_is_the_one_of_the_inventory() -> None:
    lab = lab_from({})
    assert lab.state == REPOSITORY / ".lab"
    assert lab.inventory == REPOSITORY / "inventories/lab"


def test_the_committed_inventory_has_the_addresses_of_the_default_lab() -> None:
    lab = lab_from({})
    committed = yaml.safe_load((lab.inventory / "hosts.yml").read_text(encoding="ascii"))
    assert committed == yaml.safe_load(host_entries(lab))


def test_a_second_lab_shares_no_name_and_no_network_with_the_first() -> None:
    assert not _owned(lab_from({})) & _owned(lab_from({"LAB_NAME": "second", "LAB_BLOCK": "90"}))


def _owned(lab: Lab) -> set[str]:
    number = NODES[0].number
    paths = {str(lab.state), str(lab.inventory)}
    names = {lab.switch, lab.uplink, lab.container("alpha")}
    return paths | names | {lab.management(number), lab.rail("a", number), lab.rail("b", number)}


def test_interface_names_fit_the_kernel() -> None:
    longest = lab_from({"LAB_NAME": "a" * 10, "LAB_BLOCK": "90"})
    assert len(longest.uplink) <= 15


@pytest.mark.parametrize("name", ["Spark", "9lab", "a" * 11, "a/b", "a b", "-a"])
def test_a_name_that_no_interface_can_carry_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="LAB_NAME"):
        lab_from({"LAB_NAME": name, "LAB_BLOCK": "90"})


@pytest.mark.parametrize("block", ["0", "254", "10.9", "-1", "x", "²"])
def test_a_block_outside_the_private_network_is_refused(block: str) -> None:
    with pytest.raises(LabError, match="LAB_BLOCK"):
        lab_from({"LAB_NAME": "second", "LAB_BLOCK": block})


@pytest.mark.parametrize("block", ["75", "76", "77"])
def test_a_second_lab_on_the_networks_of_the_first_is_refused(block: str) -> None:
    with pytest.raises(LabError, match="LAB_BLOCK"):
        lab_from({"LAB_NAME": "second", "LAB_BLOCK": block})


@pytest.mark.parametrize("suite", ["sid", "Trixie", "trixie ", "../trixie"])
def test_a_suite_that_no_node_is_made_of_is_refused(suite: str) -> None:
    with pytest.raises(LabError, match=r"LAB_SUITE=.*: want one of bookworm, trixie$"):
        lab_from({"LAB_SUITE": suite})


@pytest.mark.parametrize("chosen", [{}, {"LAB_SUITE": ""}, {"LAB_SUITE": "bookworm"}])
def test_nodes_are_of_bookworm_unless_another_suite_is_chosen(chosen: dict[str, str]) -> None:
    assert lab_from(chosen).suite.name == "bookworm"


def test_the_digest_changes_with_content_mode_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "REPOSITORY", tmp_path)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("one", encoding="ascii")
    seen = [digest_of(tree)]
    (tree / "a").chmod(0o755)
    seen.append(digest_of(tree))
    (tree / "a").write_text("two", encoding="ascii")
    seen.append(digest_of(tree))
    (tree / "a").rename(tree / "b")
    seen.append(digest_of(tree))
    (tree / "link").symlink_to("b")
    seen.append(digest_of(tree))
    (tree / "link").unlink()
    (tree / "link").symlink_to("c")
    seen.append(digest_of(tree))
    assert len(set(seen)) == len(seen)
