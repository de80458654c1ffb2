from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.release import (
    Release,
    ReleaseError,
    SealedManifest,
    load_release,
    parse_sealed_manifest,
)

RELEASES = Path(__file__).resolve().parents[3] / "image" / "releases"
PUBLISHED = ["r13-balanced-fast-c4", "r9-adaptive-full-bae57bd"]


def published(name: str) -> Release:
    path = RELEASES / f"{name}.yml"
    return load_release(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_release_pins_its_image_and_its_manifest(name: str) -> None:
    release = published(name)
    sealed = release.sealed_manifest
    assert sealed is not None
    assert sealed.sha256 is not None
    raw = (RELEASES / sealed.file).read_bytes()
    files = parse_sealed_manifest(raw.decode(), sealed, hashlib.sha256(raw).hexdigest())
    assert len(files) == sealed.entries == 35
    assert sum(path.startswith("b12x/") for path in files) == 1


def test_r13_has_four_parts_and_r9_five() -> None:
    r13, r9 = (published(name) for name in PUBLISHED)
    assert r13.part_names()[-1] == "glm52-r13-balanced-fast-c4.oci.tar.zst.part-03.bin"
    assert len(r9.part_names()) == 5
    # Files of a release there are limited to 2 GiB each.
    for release in (r13, r9):
        assert release.archive_bytes / release.parts.count < 2 * 1024**3
        assert release.archive_bytes / (release.parts.count - 1) > 2 * 1024**3


def test_r13_reports_and_r9_enforces() -> None:
    modes = []
    for name in PUBLISHED:
        sealed = published(name).sealed_manifest
        assert sealed is not None
        modes.append(sealed.mode)
    assert modes == ["report", "enforce"]


def test_r13_builds_on_r9() -> None:
    r13, r9 = (published(name) for name in PUBLISHED)
    parent = r13.labels.required["org.glm52.exp1.parent_image_id"]
    assert parent == r9.image.config_digest


def content(**changes: Any) -> dict[str, Any]:
    path = RELEASES / "r9-adaptive-full-bae57bd.yml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded | changes


def load(document: object) -> Release:
    return load_release(yaml.safe_dump(document), "image/releases/r9-adaptive-full-bae57bd.yml")


@pytest.mark.parametrize(
    ("changes", "variable"),
    [
        ({"schema": 2}, "schema"),
        ({"unknown": 1}, "unknown"),
        ({"archive": "../x"}, "archive"),
        ({"archive_bytes": "9 GB"}, "archive_bytes"),
        ({"parts": {"count": 0}}, "parts.count"),
        ({"parts": {"count": 11, "digits": 1}}, "parts"),
        ({"parts": {"count": True}}, "parts.count"),
        ({"checksums": "a/b"}, "checksums"),
        ({"name": "other"}, "name"),
        ({"image": content()["image"] | {"reference": "repo"}}, "image.reference"),
        ({"image": content()["image"] | {"reference": "repo@sha256:1"}}, "image.reference"),
        ({"image": content()["image"] | {"config_digest": "50261a39"}}, "image.config_digest"),
        ({"image": content()["image"] | {"architecture": "aarch64"}}, "image.architecture"),
        ({"probes": {"absent": ["models"]}}, "probes.absent.0"),
        ({"sealed_manifest": {"file": "x", "base": "/", "mode": "warn"}}, "sealed_manifest.mode"),
    ],
)
def test_a_wrong_description_names_the_key(changes: dict[str, Any], variable: str) -> None:
    with pytest.raises(ReleaseError) as refused:
        load(content(**changes))
    assert [finding.variable for finding in refused.value.findings] == [variable]
    assert "r9-adaptive-full-bae57bd.yml" in str(refused.value)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "just text"])
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(ReleaseError, match=r"expected (a mapping|YAML)"):
        load_release(text, "image/releases/x.yml")


SEALED = SealedManifest(file="x.sha256", entries=2, base="/base", mode="enforce")
LINE = f"{'a' * 64}  vllm/a.py\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "2 entries"),
        (LINE, "2 entries"),
        (LINE + LINE, "each path once"),
        (LINE + f"{'b' * 64}  /etc/passwd\n", "a path below /base"),
        (LINE + f"{'b' * 64}  vllm/../../x\n", "a path below /base"),
        (LINE + f"{'b' * 63}  vllm/b.py\n", "line 2"),
        (LINE + f"{'b' * 64} vllm/b.py\n", "line 2"),
        (LINE + f"{'B' * 64}  vllm/b.py\n", "line 2"),
        (LINE + f"{'b' * 64}  vllm/b b.py\n", "line 2"),
    ],
)
def test_a_malformed_manifest_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        parse_sealed_manifest(text, SEALED, "")


def test_another_manifest_than_the_pinned_one_is_refused() -> None:
    pinned = SEALED.model_copy(update={"sha256": "1" * 64, "entries": 1})
    with pytest.raises(ReleaseError, match="expected sha256 1111"):
        parse_sealed_manifest(LINE, pinned, hashlib.sha256(LINE.encode()).hexdigest())
