"""The image archive: what ``docker save`` writes, without an engine.

Both namings are there: ``manifest.json`` of the Docker image specification v1.2 and ``index.json``
of the OCI image layout v1, over the same blobs. Layers are stored uncompressed, so a blob's digest
is its diff id; the whole archive is compressed afterwards.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from image.lab.layer import EPOCH_S, Layer, Writable, header, open_archive

_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The image's configuration, exactly as its digest covers it."""

    raw: bytes

    @property
    def sha256(self) -> str:
        """Digest in hexadecimal; with ``sha256:`` before it, the image's id."""
        return hashlib.sha256(self.raw).hexdigest()


def _dump(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def image_config(
    layers: Sequence[Layer], architecture: str, env: Mapping[str, str], labels: Mapping[str, str]
) -> ImageConfig:
    """Describe an image of some layers.

    Parameters
    ----------
    layers
        From the lowest to the topmost.
    architecture
        Go's name of the processor architecture: ``amd64`` or ``arm64``.
    env
        Environment of its containers.
    labels
        The image's labels.
    """
    created = datetime.fromtimestamp(EPOCH_S, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ImageConfig(
        _dump(
            {
                "architecture": architecture,
                "os": "linux",
                "created": created,
                "config": {
                    "Env": [f"{name}={value}" for name, value in env.items()],
                    "Cmd": ["/bin/bash"],
                    "WorkingDir": "/",
                    "Labels": dict(labels),
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
                "history": [{"created": created, "comment": layer.comment} for layer in layers],
            }
        )
    )


def write_archive(
    sink: Writable, reference: str, config: ImageConfig, layers: Sequence[Layer]
) -> None:
    """Write the archive, its naming documents first.

    Parameters
    ----------
    sink
        Takes the uncompressed tar.
    reference
        The ``name:tag`` that loading registers.
    config
        The image's configuration.
    layers
        Its layers, from the lowest to the topmost.
    """
    sizes_bytes = [layer.file.stat().st_size for layer in layers]
    manifest = _dump(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor(f"{_OCI}.config.v1+json", config.sha256, len(config.raw)),
            "layers": [
                _descriptor(f"{_OCI}.layer.v1.tar", layer.sha256, size_bytes)
                for layer, size_bytes in zip(layers, sizes_bytes, strict=True)
            ],
        }
    )
    manifest_sha256 = hashlib.sha256(manifest).hexdigest()
    named = _descriptor(f"{_OCI}.manifest.v1+json", manifest_sha256, len(manifest)) | {
        "annotations": {
            "io.containerd.image.name": f"docker.io/library/{reference}",
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
    }
    documents = {
        "oci-layout": _dump({"imageLayoutVersion": "1.0.0"}),
        "index.json": _dump(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.index.v1+json",
                "manifests": [named],
            }
        ),
        "manifest.json": _dump(
            [
                {
                    "Config": _blob(config.sha256),
                    "RepoTags": [reference],
                    "Layers": [_blob(layer.sha256) for layer in layers],
                }
            ]
        ),
        _blob(config.sha256): config.raw,
        _blob(manifest_sha256): manifest,
    }
    with open_archive(sink) as archive:
        for path, content in documents.items():
            archive.addfile(header(path, len(content)), io.BytesIO(content))
        for layer, size_bytes in zip(layers, sizes_bytes, strict=True):
            with layer.file.open("rb") as blob:
                archive.addfile(header(_blob(layer.sha256), size_bytes), blob)


def _blob(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def _descriptor(media_type: str, sha256: str, size_bytes: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size_bytes}
