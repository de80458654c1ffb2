from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from spark_lab import root
from spark_lab.nodes import wanted_containers
from spark_lab.spec import SUITES, Lab, lab_from

COMMON_PACKAGES = set((root.SOURCE / "packages").read_text(encoding="ascii").split())


def test_each_suite_has_an_image_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_present", lambda _: True)
    images = {root.node_image(lab_from({"LAB_SUITE": name})) for name in SUITES}
    assert len(images) == len(SUITES)


@pytest.mark.parametrize("suite", SUITES)
def test_a_root_is_made_of_the_chosen_suite_and_its_packages(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: object) -> str:
        calls.append(argv)
        if argv[0] == "mmdebstrap":
            Path(argv[-1]).touch()
        return ""

    monkeypatch.setattr(root, "_present", lambda _: False)
    monkeypatch.setattr(root, "answers", lambda _: True)
    monkeypatch.setattr(root, "run", run)
    root.node_image(lab_from({"LAB_SUITE": suite, "XDG_CACHE_HOME": str(tmp_path)}))

    (bootstrap,) = [argv for argv in calls if argv[0] == "mmdebstrap"]
    (included,) = [part for part in bootstrap if part.startswith("--include=")]
    packages = set(included.removeprefix("--include=").split(","))
    assert bootstrap[-2] == suite
    assert packages >= COMMON_PACKAGES
    assert ("docker-cli" in packages) == (suite == "trixie")
    copied = [argv[2] for argv in calls if tuple(argv[:2]) == ("docker", "cp")]
    assert copied == ([f"{root.SOURCE}/suites/trixie/root/."] if suite == "trixie" else [])


def test_docker_of_trixie_keeps_images_in_containerds_store() -> None:
    settings = (root.SOURCE / "suites/trixie/root/etc/docker/daemon.json").read_bytes()
    assert json.loads(settings)["features"]["containerd-snapshotter"] is True


@pytest.mark.parametrize("suite", SUITES)
def test_what_overlays_are_laid_over_lies_on_volumes(suite: str) -> None:
    lab = Lab(name="second", suite=SUITES[suite])
    for wanted in wanted_containers(lab, "image", Path("/lxcfs"), "key")[1:]:
        volumes = [option for option in wanted.options if ":/var/lib/" in option]
        assert len(volumes) == len(lab.suite.volumes)
        assert f"second-{wanted.name}-docker:/var/lib/docker" in volumes
        containerd = f"second-{wanted.name}-containerd:/var/lib/containerd"
        assert (containerd in volumes) == (suite == "trixie")
