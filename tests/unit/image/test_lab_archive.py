"""The image archive: reproducible bytes that the strict reader of the supply accepts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import (
    Expected,
    stream_archive,
)

from image.lab.archive import ImageConfig, image_config, write_archive
from image.lab.layer import EPOCH_S, Entry, Layer, write_entries, write_layer

REFERENCE = "spark-appliance-lab:0123456789ab"
LONG = "/usr/lib/" + "deep/" * 30 + "module.py"


def layers(directory: Path) -> list[Layer]:
    """Write two small layers."""
    directory.mkdir(exist_ok=True)
    program = directory / "program"
    program.write_bytes(b"#!/bin/sh\n")
    return [
        write_layer(directory / "a.tar", [Entry("/bin/program", program, 0o755)], "base"),
        write_layer(
            directory / "b.tar",
            [Entry(LONG, b"x = 1\n"), Entry("/bin/sh", target="program")],
            "top",
        ),
    ]


def packed(directory: Path) -> tuple[bytes, ImageConfig, list[Layer]]:
    """Return a whole archive of the two layers."""
    written = layers(directory)
    config = image_config(written, "amd64", {"LANG": "C.UTF-8"}, {"a.label": "value"})
    sink = io.BytesIO()
    write_archive(sink, REFERENCE, config, written)
    return sink.getvalue(), config, written


def expected(config: ImageConfig, archive: bytes) -> Expected:
    """Return what a release says of the archive."""
    return Expected(REFERENCE, f"sha256:{config.sha256}", "amd64", "linux", len(archive))


def test_a_layer_does_not_depend_on_order_times_or_owners(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    entries = [Entry("/b/x", source), Entry("/a", b"1"), Entry("/b/l", target="x")]
    first = write_layer(tmp_path / "1.tar", entries, "")
    os.utime(source, (1, 1))
    again = write_layer(tmp_path / "2.tar", reversed(entries), "")
    assert first.sha256 == again.sha256
    assert first.sha256 == hashlib.sha256((tmp_path / "1.tar").read_bytes()).hexdigest()


def test_a_layer_holds_each_folder_once_and_before_its_files() -> None:
    sink = io.BytesIO()
    write_entries(sink, [Entry("/a/b/two", b"2"), Entry("/a/one", b"1"), Entry("/a/b/three", b"3")])
    sink.seek(0)
    with tarfile.open(fileobj=sink) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == ["a", "a/b", "a/b/three", "a/b/two", "a/one"]
    assert {member.mtime for member in members} == {EPOCH_S}
    assert {(member.uid, member.gid) for member in members} == {(0, 0)}
    assert [member.mode for member in members if member.isdir()] == [0o755, 0o755]


def test_the_archive_is_the_same_when_built_again(tmp_path: Path) -> None:
    assert packed(tmp_path / "1")[0] == packed(tmp_path / "2")[0]


def test_the_supply_proves_the_archive_and_passes_all_layers_on(tmp_path: Path) -> None:
    archive, config, written = packed(tmp_path)
    passed_on: list[bytes] = []
    diff_ids = stream_archive(
        io.BytesIO(archive), expected(config, archive), passed_on.append, lambda: None
    )
    assert diff_ids == tuple(layer.diff_id for layer in written)
    with tarfile.open(fileobj=io.BytesIO(b"".join(passed_on))) as passed:
        manifest = passed.extractfile("manifest.json")
        assert manifest is not None
        [image] = json.load(manifest)
    assert image["RepoTags"] == [REFERENCE]
    assert len(image["Layers"]) == len(written)


def test_the_supply_refuses_the_archive_under_another_digest(tmp_path: Path) -> None:
    archive, config, _ = packed(tmp_path)
    other = ImageConfig(config.raw + b" ")
    passed_on: list[bytes] = []
    with pytest.raises(RefusalError, match="config digest"):
        stream_archive(
            io.BytesIO(archive), expected(other, archive), passed_on.append, lambda: None
        )


def test_the_configuration_names_layers_environment_and_labels(tmp_path: Path) -> None:
    _, config, written = packed(tmp_path)
    document = json.loads(config.raw)
    assert document["rootfs"]["diff_ids"] == [layer.diff_id for layer in written]
    assert document["config"]["Env"] == ["LANG=C.UTF-8"]
    assert document["config"]["Labels"] == {"a.label": "value"}
    assert [entry["comment"] for entry in document["history"]] == ["base", "top"]
    assert document["created"] == "2026-01-01T00:00:00Z"
