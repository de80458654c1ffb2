# SPDX-License-Identifier: Apache-2.0
"""Whether what is inside the image, and what its labels say, is what its release describes.

That the image is the release's at all is judged by its config digest, in ``checks/engine``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from ansible_collections.spark.appliance.plugins.plugin_utils.release import Release

_TAKE = "take the archive of the release again, or correct the release's description"
_COMPARE = "compare with the sources; once this release's own manifest is captured, pin it"


def probe_arguments(release: Release, sealed: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of module ``image_probe`` for a release; empty where it asks nothing."""
    manifest, probes, labels = release.sealed_manifest, release.probes, release.labels
    lists = (probes.no_files, probes.absent, probes.contains, labels.required, labels.contains)
    if manifest is None and not any(lists):
        return {}
    return {
        "reference": release.image.reference,
        "base": manifest.base if manifest else "/",
        "sealed": list(sealed),
        "patterns": probes.no_files,
        "absent": probes.absent,
        "read": list(probes.contains),
    }


def judge_inside(
    release: Release, sealed: Mapping[str, str], node: str, seen: Mapping[str, Any]
) -> list[Finding]:
    """Return what differs between the release and what a container of its image showed.

    Parameters:
        release: what is wanted.
        sealed: path → sha256 of the sealed files.
        node: inventory name.
        seen: result of module ``image_probe``.

    A difference in a sealed file is an error under ``enforce`` and a warning under ``report``.
    Informative labels are not judged.
    """
    return [
        Finding(
            check=check,
            node=node,
            severity=severity,
            title=title,
            expected=expected,
            found=found,
            remedy=_TAKE if severity is Severity.ERROR else _COMPARE,
        )
        for check, severity, title, expected, found in (
            *_sealed(release, sealed, seen["sealed"]),
            *_probes(release, seen),
            *_labels(release, seen["labels"]),
        )
    ]


_Difference = tuple[str, Severity, str, str, str]


def _sealed(
    release: Release, sealed: Mapping[str, str], seen: Mapping[str, str | None]
) -> Iterator[_Difference]:
    manifest = release.sealed_manifest
    if manifest is None:
        return
    severity = Severity.ERROR if manifest.mode == "enforce" else Severity.WARNING
    for path, digest in sealed.items():
        found = seen.get(path)
        if found != digest:
            yield "image.sealed", severity, f"file {path}", digest, found or "no such file"


def _probes(release: Release, seen: Mapping[str, Any]) -> Iterator[_Difference]:
    probes = release.probes
    for path in seen["matches"]:
        if not any(fnmatchcase(path, pattern) for pattern in probes.allowed):
            yield "image.weights", Severity.ERROR, "no weights in the image", "none", path
    for path in probes.absent:
        if path in seen["existing"]:
            yield "image.path", Severity.ERROR, f"path {path}", "absent", "there"
    for path, line in probes.contains.items():
        text = seen["content"].get(path)
        if text is None or line not in text.splitlines():
            found = "no such file" if text is None else f"{len(text.splitlines())} other lines"
            yield "image.provenance", Severity.ERROR, f"a line of {path}", line, found


def _labels(release: Release, seen: Mapping[str, str]) -> Iterator[_Difference]:
    for label, value in release.labels.required.items():
        if seen.get(label) != value:
            found = seen.get(label, "no label")
            yield "image.label", Severity.ERROR, f"label {label}", value, found
    for label, texts in release.labels.contains.items():
        held = seen.get(label, "")
        for text in texts:
            if text not in held:
                found = held[:200] or "no label"
                yield "image.label", Severity.ERROR, f"label {label}", f"text {text!r}", found
