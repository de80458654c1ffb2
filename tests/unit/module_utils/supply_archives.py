"""Image archives of a few kB, made as ``docker save`` lays them out, whole or with one fault."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import Expected

REFERENCE = "spark-test:1"


OCI = "application/vnd.oci.image"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": f"{OCI}.{kind}",
        "digest": f"sha256:{digest(content)}",
        "size": len(content),
    }


def layer(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@dataclass(slots=True)
class Archive:
    """An archive as a list of members, so that a test can change any of them."""

    members: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)

    def add(self, path: str, content: bytes, **fields: Any) -> None:
        info = tarfile.TarInfo(path)
        info.size = len(content)
        for key, value in fields.items():
            setattr(info, key, value)
        self.members.append((info, content))

    def index(self, path: str) -> int:
        return next(i for i, (info, _) in enumerate(self.members) if info.name == path)

    def replace(self, path: str, content: bytes) -> None:
        at = self.index(path)
        info, _ = self.members[at]
        info.size = len(content)
        self.members[at] = (info, content)

    def content(self, path: str) -> bytes:
        return self.members[self.index(path)][1]

    def remove(self, path: str) -> None:
        del self.members[self.index(path)]

    def tar(self, format: int = tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002 -- tarfile's own name
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
            for info, content in self.members:
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Built:
    archive: Archive
    expected: Expected
    config_path: str
    layer_paths: tuple[str, ...]


def config_of(layers: list[bytes], architecture: str = "amd64") -> bytes:
    return json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Labels": {"test": "yes"}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(one)}" for one in layers]},
        }
    ).encode()


def _layers() -> list[bytes]:
    return [layer("a", b"a" * 9000), layer("b", b"b" * 1234)]


def _expected(
    config: bytes, layers: list[bytes], architecture: str, reference: str = REFERENCE
) -> Expected:
    return Expected(
        reference=reference,
        config_digest=f"sha256:{digest(config)}",
        architecture=architecture,
        os="linux",
        size_bytes=sum(map(len, layers)),
    )


def classic(architecture: str = "amd64") -> Built:
    """Return an archive as engines before 25 save it: a folder a layer, names last."""
    layers = _layers()
    config = config_of(layers, architecture)
    archive = Archive()
    config_path = f"{digest(config)}.json"
    archive.add(config_path, config)
    paths = []
    for one in layers:
        folder = digest(one)
        archive.add(folder, b"", type=tarfile.DIRTYPE)
        archive.add(f"{folder}/VERSION", b"1.0")
        archive.add(f"{folder}/json", b"{}")
        archive.add(f"{folder}/layer.tar", one)
        paths.append(f"{folder}/layer.tar")
    manifest = [{"Config": config_path, "RepoTags": [REFERENCE], "Layers": paths}]
    archive.add("manifest.json", json.dumps(manifest).encode())
    archive.add("repositories", b'{"spark-test":{"1":"x"}}')
    return Built(archive, _expected(config, layers, architecture), config_path, tuple(paths))


def oci(
    architecture: str = "amd64",
    *,
    compressed: bool = False,
    names_first: bool = False,
    extra: bytes = b"",
    reference: str = REFERENCE,
) -> Built:
    """Return an archive as engines since 25 save it: blobs, and both kinds of names.

    Parameters:
        architecture: of the image.
        compressed: layers are gzip, as containerd's store saves them.
        names_first: documents that name the image come before its blobs.
        extra: content of a file in one more layer.
        reference: name of the image.
    """
    layers = _layers() + ([layer("extra", extra)] if extra else [])
    config = config_of(layers, architecture)
    stored = [gzip.compress(one, mtime=0) if compressed else one for one in layers]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": descriptor("config.v1+json", config),
            "layers": [
                descriptor("layer.v1.tar+gzip" if compressed else "layer.v1.tar", one)
                for one in stored
            ],
        }
    ).encode()
    index = {
        "schemaVersion": 2,
        "manifests": [
            descriptor("manifest.v1+json", manifest)
            | {
                "annotations": {"io.containerd.image.name": f"docker.io/library/{reference}"},
            }
        ],
    }
    paths = [f"blobs/sha256/{digest(one)}" for one in stored]
    config_path = f"blobs/sha256/{digest(config)}"
    names = {
        "index.json": json.dumps(index).encode(),
        "manifest.json": json.dumps(
            [{"Config": config_path, "RepoTags": [reference], "Layers": paths}]
        ).encode(),
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
    }
    blobs = dict(zip(paths, stored, strict=True)) | {
        config_path: config,
        f"blobs/sha256/{digest(manifest)}": manifest,
    }
    archive = Archive()
    archive.add("blobs", b"", type=tarfile.DIRTYPE)
    archive.add("blobs/sha256", b"", type=tarfile.DIRTYPE)
    for path, content in {**names, **blobs}.items() if names_first else {**blobs, **names}.items():
        archive.add(path, content)
    return Built(
        archive, _expected(config, layers, architecture, reference), config_path, tuple(paths)
    )
