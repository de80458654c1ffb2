# SPDX-License-Identifier: Apache-2.0
"""Prove an image archive while it streams into Docker.

The layers pass on as they come. What makes an image of them (``manifest.json``, ``index.json``
and their like) is held back, and with it the end mark, until the config's digest is the pinned
one and every layer has the diff id that the config names. Whatever kills the loader before that
leaves Docker with layers that nothing refers to.

Layout: the Docker image specification v1.2 (``manifest.json`` beside layers) and the OCI image
layout v1 (``index.json`` and ``blobs/``), as ``docker save`` writes them.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.tar_walk import (
    BLOCK_BYTES,
    Member,
    Readable,
    TarWalk,
)

# What names an image: these reach Docker last.
_NAMING = ("manifest.json", "index.json", "oci-layout")
# `docker save` writes it for engines before 1.10; no engine that reads manifest.json looks at it.
_DROPPED = ("repositories",)
# A config, with its history, has some hundred kB; a manifest has a hundred bytes a layer.
_DOCUMENT_LIMIT_BYTES = 4 << 20
_DOCUMENTS_LIMIT_BYTES = 32 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REMEDY = "take the archive from its publisher again; nothing was registered"
# The largest archive is the image itself plus headers; a tenth more is another archive.
_SLACK = 1.1
_SLACK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """What the release says of its image.

    Parameters:
        reference: the one ``name:tag`` that the archive may register.
        config_digest: ``sha256:…`` of the config.
        architecture: as in the config, ``arm64``.
        os: as in the config, ``linux``.
        size_bytes: unpacked size.
        archive_sha256: digest of the joined archive in hexadecimal, where the release lists it.
    """

    reference: str
    config_digest: str
    architecture: str
    os: str
    size_bytes: int
    archive_sha256: str | None = None

    @property
    def limit_bytes(self) -> int:
        """Most bytes that the unpacked stream may have."""
        return int(self.size_bytes * _SLACK) + _SLACK_BYTES


@dataclass(slots=True)
class _File:
    sha256: str
    content_sha256: str
    document: bytes | None


@dataclass(slots=True)
class Contents:
    """What an archive holds: files by path, links by path, and held-back bytes in order."""

    files: dict[str, _File] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    held: list[bytes] = field(default_factory=list)

    def resolve(self, path: str) -> str:
        """Follow links, as old ``docker save`` writes them for repeated layers."""
        for _ in range(8):
            if path not in self.links:
                return path
            path = self.links[path]
        raise RefusalError(f"archive: the link {path[:80]!r} leads nowhere; {_REMEDY}")

    def document(self, path: str) -> bytes:
        """Return a JSON file whole.

        Raises:
            RefusalError: it is not there, or too large to be one.
        """
        file = self.files.get(self.resolve(path))
        if file is None:
            raise RefusalError(f"archive: expected {path}, found no such file; {_REMEDY}")
        if file.document is None:
            raise RefusalError(f"archive: {path} is not a JSON document; {_REMEDY}")
        return file.document

    def parse(self, path: str) -> Any:  # noqa: ANN401 -- decoded JSON, proven by the caller
        """Return a JSON file decoded."""
        try:
            return json.loads(self.document(path))
        except ValueError as error:
            raise RefusalError(f"archive: {path} is not JSON; {_REMEDY}") from error


def stream_archive(
    source: Readable,
    expected: Expected,
    sink: Callable[[bytes], None],
    before_release: Callable[[], None],
) -> tuple[str, ...]:
    """Pass an archive on to ``sink``, releasing its end only when all is proven.

    Parameters:
        source: the archive, unpacked.
        expected: the image that it must hold.
        sink: takes the bytes for Docker.
        before_release: last word of whoever feeds ``source``, raising when that was not whole.

    Returns:
        The diff ids of the layers.

    Raises:
        RefusalError: anything is not as expected. ``sink`` has then got no document that names an
            image, and no end mark.
    """
    walk = TarWalk(source, expected.limit_bytes)
    contents = Contents()
    documents_bytes = 0
    for member, raw in walk.members():
        held = member.path in _NAMING
        dropped = member.path in _DROPPED
        send = _hold(contents) if held else _drop if dropped else sink
        send(raw)
        if member.kind == "link":
            contents.links[member.path] = member.target
        if member.kind != "file":
            continue
        file = _pass_file(walk, member, send)
        send(walk.padding())
        contents.files[member.path] = file
        documents_bytes += len(file.document or b"")
        if documents_bytes > _DOCUMENTS_LIMIT_BYTES:
            raise RefusalError(f"archive: more than 32 MiB of JSON documents; {_REMEDY}")
    layers = prove(contents, expected)
    before_release()
    for raw in contents.held:
        sink(raw)
    sink(bytes(2 * BLOCK_BYTES))
    return layers


def _hold(contents: Contents) -> Callable[[bytes], None]:
    return contents.held.append


def _drop(_: bytes) -> None:
    return


class _Gzip:
    """Digest of what a gzip file holds."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._inflater = zlib.decompressobj(wbits=31)

    def update(self, chunk: bytes) -> None:
        data = chunk
        while data:
            try:
                # Bounded, so that a small blob cannot unpack into all of a node's memory.
                self._hasher.update(self._inflater.decompress(data, 4 << 20))
            except zlib.error as error:
                raise RefusalError(f"archive: a layer is corrupt: {error}; {_REMEDY}") from error
            data = self._inflater.unconsumed_tail
            if self._inflater.eof and self._inflater.unused_data:
                data = self._inflater.unused_data
                self._inflater = zlib.decompressobj(wbits=31)

    def finish(self) -> str:
        if not self._inflater.eof:
            raise RefusalError(f"archive: a layer ends too early; {_REMEDY}")
        return self._hasher.hexdigest()


def _pass_file(walk: TarWalk, member: Member, send: Callable[[bytes], None]) -> _File:
    whole = hashlib.sha256()
    gzip: _Gzip | None = None
    document: bytearray | None = None
    for number, chunk in enumerate(walk.content()):
        if number == 0 and chunk[:2] == b"\x1f\x8b":
            gzip = _Gzip()
        if number == 0 and chunk[:1] in b"{[" and member.size_bytes <= _DOCUMENT_LIMIT_BYTES:
            document = bytearray()
        if document is not None:
            document += chunk
        whole.update(chunk)
        if gzip is not None:
            gzip.update(chunk)
        send(chunk)
    digest = whole.hexdigest()
    content = digest if gzip is None else gzip.finish()
    return _File(digest, content, bytes(document) if document is not None else None)


def prove(contents: Contents, expected: Expected) -> tuple[str, ...]:
    """Prove that an archive holds the expected image and no other; return its diff ids.

    Raises:
        RefusalError: with what differs.
    """
    for path, file in contents.files.items():
        name = path.removeprefix("blobs/sha256/")
        if name not in {path, file.sha256}:
            raise RefusalError(
                f"archive: the blob {name[:19]}… holds bytes of sha256 {file.sha256[:12]}…; "
                f"{_REMEDY}"
            )
    images = contents.parse("manifest.json")
    if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
        count = len(images) if isinstance(images, list) else 0
        raise RefusalError(f"archive: expected one image, found {count}; {_REMEDY}")
    image = images[0]
    _prove_reference(image.get("RepoTags") or [], expected)
    config_path = str(image.get("Config", ""))
    config_bytes = contents.document(config_path)
    found = f"sha256:{hashlib.sha256(config_bytes).hexdigest()}"
    if found != expected.config_digest:
        raise RefusalError(
            f"archive: expected the image with config digest {expected.config_digest}, found "
            f"{found}; this is another image: take the archive of this release, or the release "
            "of this image"
        )
    config = contents.parse(config_path)
    for key, wanted in (("architecture", expected.architecture), ("os", expected.os)):
        if config.get(key) != wanted:
            raise RefusalError(
                f"archive: expected {key} {wanted}, found {config.get(key)}; it cannot run on "
                "these nodes: choose a release built for them"
            )
    diff_ids = config.get("rootfs", {}).get("diff_ids")
    layers = image.get("Layers")
    if not isinstance(diff_ids, list) or not isinstance(layers, list) or not diff_ids:
        raise RefusalError(f"archive: the image names no layers; {_REMEDY}")
    _prove_layers(contents, [str(layer) for layer in layers], diff_ids)
    if "index.json" in contents.files:
        _prove_index(contents, expected, diff_ids)
    return tuple(diff_ids)


def _prove_reference(tags: list[Any], expected: Expected) -> None:
    if tags != [expected.reference]:
        raise RefusalError(
            f"archive: expected to register only {expected.reference}, found "
            f"{', '.join(map(str, tags)) or 'no name'}; {_REMEDY}"
        )


def _prove_layers(contents: Contents, layers: list[str], diff_ids: list[str]) -> None:
    if len(layers) != len(diff_ids):
        raise RefusalError(
            f"archive: expected {len(diff_ids)} layers as its config says, found {len(layers)}; "
            f"{_REMEDY}"
        )
    for number, (path, diff_id) in enumerate(zip(layers, diff_ids, strict=True), start=1):
        file = contents.files.get(contents.resolve(path))
        found = f"sha256:{file.content_sha256}" if file else "no such file"
        if found != diff_id:
            raise RefusalError(
                f"archive: layer {number} of {len(diff_ids)}: expected diff id {diff_id}, found "
                f"{found}; {_REMEDY}"
            )


def _blob_path(descriptor: Mapping[str, Any]) -> str:
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise RefusalError(f"archive: index.json names no digest; {_REMEDY}")
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _prove_index(contents: Contents, expected: Expected, diff_ids: list[str]) -> None:
    """Prove that what containerd's store reads names the same image as ``manifest.json``."""
    pending = [(entry, True) for entry in contents.parse("index.json").get("manifests", [])]
    images = 0
    while pending:
        entry, top = pending.pop()
        notes = entry.get("annotations") or {}
        name = notes.get("io.containerd.image.name")
        if name and name.removeprefix("docker.io/").removeprefix("library/") != expected.reference:
            raise RefusalError(
                f"archive: expected to register only {expected.reference}, found {name}; {_REMEDY}"
            )
        if notes.get("vnd.docker.reference.type") == "attestation-manifest":
            continue
        manifest = contents.parse(_blob_path(entry))
        if "manifests" in manifest and top:
            pending += [(inner, False) for inner in manifest["manifests"]]
            continue
        if (manifest.get("config") or {}).get("digest") != expected.config_digest:
            raise RefusalError(
                f"archive: index.json names another image than manifest.json; {_REMEDY}"
            )
        layers = [_blob_path(layer) for layer in manifest.get("layers", [])]
        _prove_layers(contents, layers, diff_ids)
        images += 1
    if images != 1:
        raise RefusalError(f"archive: expected one image in index.json, found {images}; {_REMEDY}")
