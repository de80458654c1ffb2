from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.image_judge import (
    judge_inside,
    probe_arguments,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release

SEALED = {"vllm/a.py": "a" * 64, "vllm/b.py": "b" * 64}


def release(mode: str = "enforce") -> Release:
    return Release.model_validate(
        {
            "schema": 1,
            "name": "test",
            "title": "test",
            "archive": "a.tar.zst",
            "archive_bytes": 10,
            "parts": {"count": 1},
            "image": {
                "reference": "test:1",
                "config_digest": f"sha256:{'0' * 64}",
                "size_bytes": 10,
                "architecture": "arm64",
            },
            "labels": {"required": {"r": "1"}, "contains": {"c": ["x", "y"]}, "informative": ["i"]},
            "sealed_manifest": {"file": "x.sha256", "base": "/base", "mode": mode},
            "probes": {
                "no_files": ["*.pt"],
                "allowed": ["*/vim/*"],
                "absent": ["/models"],
                "contains": {"/p": "k=v"},
            },
        }
    )


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "sealed": dict(SEALED),
        "matches": ["/usr/share/vim/x.pt"],
        "existing": [],
        "content": {"/p": "a=b\nk=v\n"},
        "labels": {"r": "1", "c": "x and y", "i": "never served"},
    } | changes


def test_the_release_s_own_image_has_no_findings() -> None:
    assert judge_inside(release(), SEALED, "alpha", seen()) == []


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"sealed": SEALED | {"vllm/b.py": "c" * 64}}, "image.sealed"),
        ({"sealed": SEALED | {"vllm/b.py": None}}, "image.sealed"),
        ({"sealed": {}}, "image.sealed"),
        ({"matches": ["/opt/x.pt"]}, "image.weights"),
        ({"existing": ["/models"]}, "image.path"),
        ({"content": {"/p": None}}, "image.provenance"),
        ({"content": {}}, "image.provenance"),
        ({"content": {"/p": "k=v2\nxk=v\n"}}, "image.provenance"),
        ({"labels": {"c": "x y"}}, "image.label"),
        ({"labels": {"r": "1", "c": "x"}}, "image.label"),
        ({"labels": {"r": "2", "c": "x y"}}, "image.label"),
    ],
)
def test_each_difference_is_a_refusal_of_its_own(changes: dict[str, Any], check: str) -> None:
    findings = judge_inside(release(), SEALED, "alpha", seen(**changes))
    assert {finding.check for finding in findings} == {check}
    assert all(finding.severity is Severity.ERROR for finding in findings)
    assert all(finding.node == "alpha" and finding.remedy for finding in findings)


def test_a_manifest_that_is_only_reported_warns() -> None:
    findings = judge_inside(release("report"), SEALED, "alpha", seen(sealed={}))
    assert [finding.severity for finding in findings] == [Severity.WARNING] * 2


def test_a_release_says_what_to_look_at() -> None:
    asked = probe_arguments(release(), SEALED)
    assert asked == {
        "reference": "test:1",
        "base": "/base",
        "sealed": ["vllm/a.py", "vllm/b.py"],
        "patterns": ["*.pt"],
        "absent": ["/models"],
        "read": ["/p"],
    }
    plain = release().model_dump(by_alias=True, exclude={"labels", "sealed_manifest", "probes"})
    assert probe_arguments(Release.model_validate(plain), {}) == {}
