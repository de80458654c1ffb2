# SPDX-License-Identifier: Apache-2.0
"""A release of the served image as data: its archive, its digest and what to find inside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from ansible_collections.spark.appliance.plugins.plugin_utils.findings import Finding, Severity
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

_NAME = r"^[a-z0-9][a-z0-9._-]{0,99}$"
_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_ABSOLUTE = r"^/[^\s]*$"
_SEALED_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<path>\S+)")

AbsolutePath = Annotated[str, Field(pattern=_ABSOLUTE)]


class ReleaseError(ValueError):
    """A release description or its sealed manifest that cannot be used; carries the findings."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(finding.message() for finding in findings))
        self.findings = findings


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Parts(_Model):
    """How the archive is split: ``<archive>.part-<number>.bin`` from 0, padded to ``digits``."""

    count: int = Field(ge=1, le=999)
    digits: int = Field(default=2, ge=1, le=3)

    @model_validator(mode="after")
    def _fits(self) -> Parts:
        if self.count > 10**self.digits:
            raise ValueError(f"{self.count} parts do not fit into {self.digits} digits")
        return self


class Image(_Model):
    """The image inside: the one name it has, and what its config must be.

    ``config_digest`` is where trust ends: whoever can change the checksum file cannot change it.
    ``size_bytes`` is the unpacked size as Docker reports it; ``layers`` the count, where known.
    """

    reference: str = Field(pattern=r"^[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
    config_digest: str = Field(pattern=_DIGEST)
    size_bytes: int = Field(gt=0)
    architecture: Literal["arm64", "amd64"]
    os: Literal["linux"] = "linux"
    layers: int | None = Field(default=None, ge=1)


class Labels(_Model):
    """Labels of the image.

    ``required`` must be equal and ``contains`` must hold each text, or the image is refused;
    ``informative`` ones were true when the image was built and are shown, never judged.
    """

    required: dict[str, str] = Field(default_factory=dict)
    contains: dict[str, list[str]] = Field(default_factory=dict)
    informative: list[str] = Field(default_factory=list)


class SealedManifest(_Model):
    """Digests of files inside the image: ``report`` shows differences, ``enforce`` refuses them.

    ``sha256`` pins the manifest's own bytes and ``entries`` its lines; only a manifest that is made
    together with its description goes without.
    """

    file: str = Field(pattern=_FILE_NAME)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    entries: int | None = Field(default=None, ge=1)
    base: AbsolutePath
    mode: Literal["report", "enforce"]


class Probes(_Model):
    """What a throw-away container without network must see: see role ``verify``'s deep checks.

    ``no_files`` are name patterns that must match nothing outside ``allowed``, ``absent`` are paths
    that must not exist, ``contains`` maps a file to a text that one of its lines must equal.
    """

    no_files: list[str] = Field(default_factory=list)
    allowed: list[str] = Field(default_factory=list)
    absent: list[AbsolutePath] = Field(default_factory=list)
    contains: dict[AbsolutePath, str] = Field(default_factory=dict)


class Release(_Model):
    """One release; ``archive_bytes`` is the size of all parts together, exact or rounded up."""

    # `schema` is taken in pydantic's base class, hence the alias.
    schema_version: Literal[1] = Field(alias="schema")
    name: str = Field(pattern=_NAME)
    title: str
    archive: str = Field(pattern=_FILE_NAME)
    archive_bytes: int = Field(gt=0)
    checksums: str = Field(default="SHA256SUMS", pattern=_FILE_NAME)
    parts: Parts
    image: Image
    labels: Labels = Field(default_factory=Labels)
    sealed_manifest: SealedManifest | None = None
    probes: Probes = Field(default_factory=Probes)

    def part_names(self) -> list[str]:
        """Return the names of the parts in joining order."""
        return [
            f"{self.archive}.part-{number:0{self.parts.digits}d}.bin"
            for number in range(self.parts.count)
        ]


def _finding(source: str, title: str, variable: str, expected: str, found: str) -> Finding:
    return Finding(
        check="image.release",
        node="",
        severity=Severity.ERROR,
        title=title,
        expected=expected,
        found=found,
        remedy=f"correct {source}",
        variable=variable,
    )


def load_release(text: str, source: str) -> Release:
    """Return the release that a YAML text describes.

    Parameters:
        text: the description.
        source: its path, for messages; the file's stem must be the release's name.

    Raises:
        ReleaseError: not YAML, or not of the schema; one finding a fault, naming the key.
    """
    try:
        content: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ReleaseError(
            [_finding(source, "release description", "", "YAML", " ".join(str(error).split()))]
        ) from error
    if not isinstance(content, Mapping):
        found = type(content).__name__
        raise ReleaseError([_finding(source, "release description", "", "a mapping", found)])
    try:
        release = Release.model_validate(content)
    except ValidationError as error:
        raise ReleaseError(
            [
                _finding(
                    source,
                    "release description",
                    ".".join(str(part) for part in fault["loc"]),
                    fault["msg"],
                    repr(fault["input"])[:80],
                )
                for fault in error.errors()
            ]
        ) from error
    stem = source.rpartition("/")[2].removesuffix(".yml")
    if stem != release.name:
        raise ReleaseError([_finding(source, "release name", "name", stem, release.name)])
    return release


def parse_sealed_manifest(text: str, sealed: SealedManifest, digest: str) -> dict[str, str]:
    """Return path → sha256 of the files sealed inside the image.

    Parameters:
        text: the manifest, lines of ``<64 hexadecimal digits>  <path>``.
        sealed: what the release says of it.
        digest: sha256 of the manifest's own bytes in hexadecimal.

    Raises:
        ReleaseError: another file than the pinned one, another number of lines, or a line that is
            malformed, absolute, climbing or repeated.
    """
    faults: list[tuple[str, str]] = []
    if sealed.sha256 is not None and digest != sealed.sha256:
        faults.append((f"sha256 {sealed.sha256}", digest))
    files: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _SEALED_LINE.fullmatch(line)
        if match is None:
            faults.append((f"line {number}: '<sha256>  <path>'", line[:80]))
            continue
        path = match["path"]
        if path.startswith("/") or ".." in path.split("/"):
            faults.append((f"line {number}: a path below {sealed.base}", path))
        if path in files:
            faults.append((f"line {number}: each path once", path))
        files[path] = match["digest"]
    if not files or (sealed.entries is not None and len(files) != sealed.entries):
        faults.append((f"{sealed.entries or 'some'} entries", str(len(files))))
    if faults:
        raise ReleaseError(
            [
                _finding(sealed.file, "sealed manifest", "sealed_manifest", expected, found)
                for expected, found in faults
            ]
        )
    return files
