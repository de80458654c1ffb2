"""Parts of an archive: they join to it, and their checksum file is read as a release's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import (
    PartNaming,
    parse_checksums,
    select_parts,
)
from hypothesis import given
from hypothesis import strategies as st

from image.lab.split import CHECKSUMS, part_names, split_archive

ARCHIVE = "lab.oci.tar.zst"


def test_parts_are_named_as_a_release_names_them() -> None:
    assert part_names(ARCHIVE, 4) == PartNaming(ARCHIVE, 4, 2).names()


@given(content=st.binary(min_size=4, max_size=64))
def test_parts_join_to_the_archive_and_their_sums_hold(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("split")
    archive = directory / ARCHIVE
    archive.write_bytes(content)
    parts = directory / "parts"
    parts.mkdir()
    try:
        size_bytes = split_archive(archive, parts, 4)
    except ValueError:
        # 5 and 6 and 9 bytes leave nothing for the last of four equal parts.
        assert len(content) in {5, 6, 9}
        return
    assert size_bytes == len(content)
    sums = parse_checksums((parts / CHECKSUMS).read_bytes(), CHECKSUMS)
    selected, whole = select_parts(sums, PartNaming(ARCHIVE, 4, 2), CHECKSUMS)
    joined = b"".join((parts / name).read_bytes() for name, _ in selected)
    assert joined == content
    assert whole == hashlib.sha256(content).hexdigest()
    for name, digest in selected:
        assert hashlib.sha256((parts / name).read_bytes()).hexdigest() == digest


def test_an_archive_too_small_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVE
    archive.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be cut into 4 parts"):
        split_archive(archive, tmp_path, 4)
