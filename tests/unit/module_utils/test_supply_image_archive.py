from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import (
    CutError,
    RefusalError,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.image_archive import (
    Expected,
    stream_archive,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.module_utils.supply_archives import (
    REFERENCE,
    Built,
    classic,
    config_of,
    digest,
    layer,
    oci,
)

NAMES = ("manifest.json", "index.json", "oci-layout", "repositories")


class Sink:
    """Takes what would go to Docker, and can say how a tar reader understands it."""

    def __init__(self) -> None:
        self.raw = bytearray()

    def __call__(self, chunk: bytes) -> None:
        self.raw += chunk

    def paths(self) -> list[str]:
        """Members that a lenient reader finds, as an engine would after a cut."""
        found = []
        with tarfile.open(
            fileobj=io.BytesIO(bytes(self.raw)), mode="r:", ignore_zeros=False
        ) as tar:
            try:
                for member in tar:
                    found.append(member.name)  # noqa: PERF401 -- what came before the error counts
            except tarfile.TarError:
                pass
        return found


def run(
    raw: bytes, expected: Expected, before_release: Callable[[], None] = lambda: None
) -> tuple[Sink, tuple[str, ...]]:
    sink = Sink()
    return sink, stream_archive(io.BytesIO(raw), expected, sink, before_release)


def refused(raw: bytes, expected: Expected, message: str) -> None:
    sink = Sink()
    with pytest.raises(RefusalError, match=message):
        stream_archive(io.BytesIO(raw), expected, sink, lambda: None)
    if sink.raw:
        assert not set(NAMES) & set(sink.paths()), "a document that names an image reached Docker"


BUILDS = [
    pytest.param(classic, id="classic"),
    pytest.param(oci, id="oci"),
    pytest.param(lambda: oci(compressed=True), id="oci-gzip-layers"),
    pytest.param(lambda: oci(names_first=True), id="oci-names-first"),
]


@pytest.mark.parametrize("build", BUILDS)
def test_a_whole_archive_passes_and_its_names_come_last(build: Callable[[], Built]) -> None:
    built = build()
    sink, layers = run(built.archive.tar(), built.expected)
    paths = sink.paths()
    names = [path for path in paths if path in NAMES]
    assert layers == tuple(
        json.loads(built.archive.content(built.config_path))["rootfs"]["diff_ids"]
    )
    assert "manifest.json" in names
    assert paths[-len(names) :] == names
    assert set(built.layer_paths) <= set(paths)
    assert sink.raw.endswith(bytes(1024))


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_both_formats_pass(format_: int) -> None:
    built = classic()
    built.archive.add("x" * 70 + "/" + "y" * 120, b"content")
    sink, _ = run(built.archive.tar(format_), built.expected)
    assert "x" * 70 + "/" + "y" * 120 in sink.paths()


def test_links_of_repeated_layers_are_followed() -> None:
    built = classic()
    first, second = built.layer_paths
    built.archive.add("linked/layer.tar", b"", type=tarfile.SYMTYPE, linkname=f"../{second}")
    manifest = json.loads(built.archive.content("manifest.json"))
    manifest[0]["Layers"] = [first, "linked/layer.tar"]
    built.archive.replace("manifest.json", json.dumps(manifest).encode())
    run(built.archive.tar(), built.expected)


def test_nothing_is_released_before_the_feeder_has_spoken() -> None:
    built = classic()
    sink = Sink()

    def cut() -> None:
        raise CutError("the disk failed")

    with pytest.raises(CutError):
        stream_archive(io.BytesIO(built.archive.tar()), built.expected, sink, cut)
    assert not set(NAMES) & set(sink.paths())


@pytest.mark.parametrize("build", BUILDS)
def test_every_cut_of_the_archive_is_refused(build: Callable[[], Built]) -> None:
    built = build()
    raw = built.archive.tar()
    # The end mark is two blank blocks; tar pads the file beyond them.
    end = len(raw.rstrip(b"\0")) // 512 * 512 + 1024
    for length in (*range(0, end - 512, 512), 100, 700, end - 1):
        refused(raw[:length], built.expected, "cut off")


@pytest.mark.parametrize("build", BUILDS)
def test_a_flipped_bit_in_any_layer_is_refused(build: Callable[[], Built]) -> None:
    built = build()
    for path in built.layer_paths:
        copy = build()
        content = bytearray(copy.archive.content(path))
        content[len(content) // 2] ^= 1
        copy.archive.replace(path, bytes(content))
        refused(copy.archive.tar(), built.expected, "layer|blob")


@pytest.mark.parametrize("build", BUILDS)
def test_a_flipped_bit_in_the_config_is_refused(build: Callable[[], Built]) -> None:
    built = build()
    content = built.archive.content(built.config_path).replace(b'"yes"', b'"yet"')
    built.archive.replace(built.config_path, content)
    refused(built.archive.tar(), built.expected, "config digest|blob")


@pytest.mark.parametrize("build", [classic, oci])
def test_another_image_is_refused(build: Callable[[], Built]) -> None:
    built = build()
    other = replace(built.expected, config_digest=f"sha256:{'0' * 64}")
    refused(built.archive.tar(), other, "expected the image with config digest sha256:000")


@pytest.mark.parametrize("build", [classic, oci])
def test_another_architecture_is_refused(build: Callable[[str], Built]) -> None:
    built = build("amd64")
    wanted = replace(built.expected, architecture="arm64")
    refused(built.archive.tar(), wanted, "expected architecture arm64, found amd64")


@pytest.mark.parametrize("build", [classic, oci])
def test_another_name_is_refused(build: Callable[[], Built]) -> None:
    built = build()
    manifest = json.loads(built.archive.content("manifest.json"))
    manifest[0]["RepoTags"] = [REFERENCE, "debian:12"]
    built.archive.replace("manifest.json", json.dumps(manifest).encode())
    refused(built.archive.tar(), built.expected, "register only spark-test:1, found .*debian:12")


def test_an_index_that_names_another_image_is_refused() -> None:
    built = oci()
    other = json.dumps(
        {"config": {"digest": f"sha256:{'1' * 64}"}, "layers": [], "schemaVersion": 2}
    ).encode()
    built.archive.add(f"blobs/sha256/{digest(other)}", other)
    built.archive.replace(
        "index.json", json.dumps({"manifests": [{"digest": f"sha256:{digest(other)}"}]}).encode()
    )
    refused(built.archive.tar(), built.expected, "names another image than manifest.json")


def test_an_index_that_registers_another_name_is_refused() -> None:
    built = oci()
    index = json.loads(built.archive.content("index.json"))
    index["manifests"][0]["annotations"]["io.containerd.image.name"] = "docker.io/library/debian:12"
    built.archive.replace("index.json", json.dumps(index).encode())
    refused(built.archive.tar(), built.expected, "found docker.io/library/debian:12")


def test_two_images_are_refused() -> None:
    built = classic()
    manifest = json.loads(built.archive.content("manifest.json"))
    built.archive.replace("manifest.json", json.dumps(manifest * 2).encode())
    refused(built.archive.tar(), built.expected, "expected one image, found 2")


def test_an_archive_without_names_is_refused() -> None:
    built = classic()
    built.archive.remove("manifest.json")
    refused(built.archive.tar(), built.expected, "expected manifest.json")


def test_swapped_layers_are_refused() -> None:
    built = classic()
    manifest = json.loads(built.archive.content("manifest.json"))
    manifest[0]["Layers"].reverse()
    built.archive.replace("manifest.json", json.dumps(manifest).encode())
    refused(built.archive.tar(), built.expected, "layer 1 of 2: expected diff id")


def test_a_missing_layer_is_refused() -> None:
    built = oci()
    built.archive.remove(built.layer_paths[1])
    refused(built.archive.tar(), built.expected, "layer 2 of 2: .* found no such file")


def test_an_extra_layer_is_refused() -> None:
    built = classic()
    manifest = json.loads(built.archive.content("manifest.json"))
    manifest[0]["Layers"].append(built.layer_paths[0])
    built.archive.replace("manifest.json", json.dumps(manifest).encode())
    refused(built.archive.tar(), built.expected, "expected 2 layers as its config says, found 3")


def test_a_corrupt_gzip_layer_is_refused() -> None:
    built = oci(compressed=True)
    built.archive.replace(built.layer_paths[0], b"\x1f\x8b" + b"junk" * 40)
    refused(built.archive.tar(), built.expected, "a layer is corrupt")


def test_a_cut_gzip_layer_is_refused() -> None:
    built = oci(compressed=True)
    content = built.archive.content(built.layer_paths[0])
    built.archive.replace(built.layer_paths[0], content[:-10])
    refused(built.archive.tar(), built.expected, "a layer ends too early")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../evil", "climbs out"),
        ("a/../../evil", "climbs out"),
        ("/etc/passwd", "is not relative"),
        ("a//b", "not in its shortest form"),
        ("a\\b", "backslash"),
        ("a\nb", "control character"),
    ],
)
def test_an_unsafe_path_is_refused(path: str, message: str) -> None:
    built = classic()
    built.archive.add(path, b"x")
    refused(built.archive.tar(), built.expected, message)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "named pipe"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CONTTYPE, "entry of type"),
        (tarfile.GNUTYPE_SPARSE, "sparse file"),
        (tarfile.XGLTYPE, "global header"),
    ],
)
def test_an_unexpected_kind_of_member_is_refused(kind: bytes, message: str) -> None:
    built = classic()
    built.archive.add("odd", b"", type=kind, linkname="manifest.json")
    refused(built.archive.tar(tarfile.GNU_FORMAT), built.expected, message)


@pytest.mark.parametrize("target", ["../../etc/passwd", "/etc/passwd", ""])
def test_a_link_out_of_the_archive_is_refused(target: str) -> None:
    built = classic()
    built.archive.add("d/link", b"", type=tarfile.SYMTYPE, linkname=target)
    if target:
        refused(built.archive.tar(), built.expected, "leads out of the archive")


def test_a_repeated_name_is_refused() -> None:
    built = classic()
    built.archive.add("manifest.json", b"[]")
    refused(built.archive.tar(), built.expected, "'manifest.json' is there twice")


def test_data_after_the_end_mark_are_refused() -> None:
    built = classic()
    refused(built.archive.tar() + b"x" * 512, built.expected, "data follow its end mark")


def test_a_second_archive_after_the_end_mark_is_refused() -> None:
    built = classic()
    refused(built.archive.tar() + built.archive.tar(), built.expected, "data follow its end mark")


def test_an_archive_larger_than_its_release_says_is_refused() -> None:
    built = classic()
    small = replace(built.expected, size_bytes=1)
    built.archive.add("big", bytes(70 << 20))
    refused(built.archive.tar(), small, "expected at most .* bytes unpacked, found more")


def test_an_unknown_pax_record_is_refused() -> None:
    built = classic()
    info = tarfile.TarInfo("odd")
    info.pax_headers = {"GNU.sparse.major": "1"}
    built.archive.members.append((info, b""))
    refused(built.archive.tar(tarfile.PAX_FORMAT), built.expected, "unknown record")


def test_a_corrupt_header_is_refused() -> None:
    built = classic()
    raw = bytearray(built.archive.tar())
    raw[10] ^= 1
    refused(bytes(raw), built.expected, "not a tar header")


def test_a_config_that_is_not_json_is_refused() -> None:
    layers = [layer("a", b"x")]
    built = classic()
    junk = b"{" + config_of(layers)[:-30]
    built.archive.replace(built.config_path, junk)
    expected = replace(built.expected, config_digest=f"sha256:{digest(junk)}")
    refused(built.archive.tar(), expected, "is not JSON")


def meaning(raw: bytes) -> tuple[Any, ...]:
    """What an engine takes from an archive: names, config and layers."""
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        files = {
            member.name: stream.read()
            for member in tar
            if (stream := tar.extractfile(member)) is not None
        }
    (image,) = json.loads(files["manifest.json"])
    return (
        image["RepoTags"],
        files[image["Config"]],
        [files[path] for path in image["Layers"]],
        json.loads(files["index.json"])["manifests"][0]["digest"],
    )


WHOLE = oci()
WHOLE_RAW = WHOLE.archive.tar()
WHOLE_MEANING = meaning(WHOLE_RAW)


@settings(deadline=None)
@given(st.integers(0, len(WHOLE_RAW) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing_that_matters(at: int, mask: int) -> None:
    raw = bytearray(WHOLE_RAW)
    raw[at] ^= mask
    try:
        sink, _ = run(bytes(raw), WHOLE.expected)
    except RefusalError:
        return
    assert meaning(bytes(sink.raw)) == WHOLE_MEANING
