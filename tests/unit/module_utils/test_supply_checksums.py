from __future__ import annotations

import pytest
from ansible_collections.spark.appliance.plugins.module_utils._supply.checksums import (
    PartNaming,
    parse_checksums,
    select_parts,
    unsafe_path,
)
from ansible_collections.spark.appliance.plugins.module_utils._supply.errors import RefusalError
from hypothesis import given
from hypothesis import strategies as st

A, B, C = "a" * 64, "b" * 64, "c" * 64
NAMING = PartNaming("big.tar.zst", 2, 2)
GOOD = f"{A}  big.tar.zst.part-00.bin\n{B} *big.tar.zst.part-01.bin\n{C}  big.tar.zst\n".encode()


def select(content: bytes, naming: PartNaming = NAMING) -> tuple[list[tuple[str, str]], str | None]:
    return select_parts(parse_checksums(content, "SUMS"), naming, "SUMS")


def test_parts_and_archive_are_told_apart() -> None:
    parts, archive = select(GOOD)
    assert parts == [("big.tar.zst.part-00.bin", A), ("big.tar.zst.part-01.bin", B)]
    assert archive == C


def test_the_archive_need_not_be_listed() -> None:
    assert select(GOOD.rsplit(C.encode(), 1)[0])[1] is None


def test_parts_join_by_number_not_by_the_order_of_the_file() -> None:
    naming = PartNaming("x", 12, 1)
    with pytest.raises(RefusalError, match=r"without x\.part-10\.bin"):
        select("".join(f"{A}  x.part-{n}.bin\n" for n in range(10)).encode(), naming)
    lines = [f"{n:064x}  x.part-{n}.bin\n" for n in (10, 2, 11, 1, 0, 9, 3, 4, 5, 6, 7, 8)]
    parts, _ = select("".join(lines).encode(), naming)
    assert [int(digest, 16) for _, digest in parts] == list(range(12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b" \n\n", "found an empty file"),
        (b"<!DOCTYPE html><html>Sign in</html>", "found a web page"),
        (b"\n  <html>404</html>", "found a web page"),
        (b"<?xml version='1.0'?><Error/>", "found a web page"),
        (GOOD.replace(b"\n", b"\r\n"), "found carriage returns"),
        (GOOD + b"\xff\xfe  x\n", "found binary data"),
        (b"\x00" * 64, "line 1: expected"),
        (GOOD[: len(GOOD) // 2].rsplit(b"\n", 1)[0][:-80], "expected"),
        (GOOD.replace(b"a" * 64, b"A" * 64), "line 1: expected"),
        (GOOD.replace(b"a" * 64, b"a" * 63), "line 1: expected"),
        (GOOD.replace(b"  ", b" "), "line 1: expected"),
        (b"# comment\n" + GOOD, "line 1: expected"),
        (GOOD + b"\n" + GOOD, "line 4: expected"),
        (GOOD + GOOD, "line 4: .* is listed twice"),
        (f"{A}  ../evil\n".encode(), "climbs out"),
        (f"{A}  /evil\n".encode(), "line 1: expected"),
        (f"{A}  a//b\n".encode(), "shortest form"),
    ],
)
def test_a_bad_checksum_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(RefusalError, match=message) as refused:
        select(content)
    assert "SUMS" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.replace(b"part-01", b"part-02"), "without .*part-01.bin and with .*part-02.bin"),
        (GOOD + f"{A}  big.tar.zst.part-02.bin\n".encode(), "with big.tar.zst.part-02.bin"),
        (GOOD + f"{A}  README\n".encode(), "with README"),
        (f"{A}  other.tar.zst\n".encode(), "without .*part-00.bin"),
        (GOOD.replace(b"part-00", b"part-0"), "without .*part-00.bin"),
    ],
)
def test_a_list_of_other_parts_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(RefusalError, match=message):
        select(content)


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        sums = parse_checksums(content, "SUMS")
    except RefusalError:
        return
    assert sums
    assert not any(unsafe_path(name) for name in sums)


@given(st.text(max_size=60))
def test_a_safe_path_stays_in_its_folder(path: str) -> None:
    if unsafe_path(path):
        return
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/"))
