"""Everything Ra wrote is read as Ra reads it, and written again to the same bytes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import TermFormatError
from compaction.segments.format import etf
from compaction.segments.format.etf import Atom, Term
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.model import SegmentIndex
from compaction.segments.reading.reader import SegmentFile
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.live_indexes import LiveSet, decode_indexes, encode_indexes

Manifest = Callable[[str], dict[str, Any]]
Restored = Callable[[str, list[dict[str, Any]]], Path]
Readback = Callable[[LogState], list[dict[str, Any]]]

LOGS = [
    "01-contiguous",
    "01b-version1",
    "01c-max-size",
    "01d-no-checksums",
    "02a-overwrite-same-segment",
    "02b-overwrite-across-segments",
    "02d-overwrite-then-major",
]
DECODED = [
    *((name, "dir", "") for name in LOGS),
    ("01b-version1", "after", "after_"),
    ("02d-overwrite-then-major", "after", "after_"),
    ("03a-major-module", "before", ""),
    ("03a-major-module", "after", "after_"),
    ("03a-major-module", "after_minor", "minor_"),
]


def refs_of(log: LogState) -> list[dict[str, Any]]:
    return [{"first": ref.first, "last": ref.last, "file": ref.name} for ref in log.refs]


@pytest.mark.fixtures
@pytest.mark.parametrize(("name", "part", "prefix"), DECODED)
def test_log_view_is_what_ra_reads(
    restored: Restored, manifest: Manifest, readback: Readback, name: str, part: str, prefix: str
) -> None:
    expected = manifest(name)
    log = open_log(restored(f"{name}/{part}", expected[f"{prefix}files"]))
    assert refs_of(log) == expected[f"{prefix}ra_segrefs"]
    if f"{prefix}ra_readback" not in expected:
        return
    # After a compaction Ra was asked for what must survive; entries that merely still exist are not in its answer.
    entries = readback(log)
    asked = {entry["idx"] for entry in expected[f"{prefix}ra_readback"]}
    assert [entry for entry in entries if entry["idx"] in asked] == expected[f"{prefix}ra_readback"]
    if not prefix:
        assert len(entries) == len(asked)


@pytest.mark.fixtures
@pytest.mark.parametrize(("name", "part", "prefix"), [case for case in DECODED if case[2] != "minor_"])
def test_segment_facts_are_what_ra_reports(
    restored: Restored, manifest: Manifest, name: str, part: str, prefix: str
) -> None:
    expected = {info["file"]: info for info in manifest(name)[f"{prefix}ra_info"]}
    log = open_log(restored(f"{name}/{part}", manifest(name)[f"{prefix}files"]))
    assert [segment.name for segment in log.segments] == sorted(
        file for file, info in expected.items() if info["file_type"] == "regular"
    )
    assert set(log.links) == {file for file, info in expected.items() if info["file_type"] == "symlink"}
    for segment in log.segments:
        info = expected[segment.name]
        assert (segment.max_count, segment.count) == (info["max_count"], info["num_entries"])
        assert (segment.data_start, segment.end_of_data) == (info["data_start"], info["end_of_data"])
        assert int(segment.effective.sum()) == info["indexes_present"]
        if segment.count:
            assert [segment.first, segment.last] == info["range"]
        assert bool(segment.inside.all())


@pytest.mark.fixtures
def test_orphans_of_overwrites(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "02b-overwrite-across-segments" / "dir")
    assert log.orphans == ("0000000000000003.segment", "0000000000000004.segment")


@pytest.mark.fixtures
def test_symlinks_are_listed_with_their_targets_and_not_read(restored: Restored, manifest: Manifest) -> None:
    log = open_log(restored("03a-major-module/after", manifest("03a-major-module")["after_files"]))
    expected = {
        file["name"]: file["target"].rsplit("/", 1)[-1]
        for file in manifest("03a-major-module")["after_files"]
        if file["type"] == "symlink"
    }
    assert len(expected) == 6
    assert log.links == expected


@pytest.mark.fixtures
def test_header_only_segment_is_kept_but_holds_no_ref(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "01-contiguous" / "dir")
    assert log.newest == "0000000000000006.segment"
    assert log.segments[-1].count == 0
    assert len(log.refs) == 5


@pytest.mark.fixtures
def test_version_1_is_recognised(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "01b-version1" / "dir")
    assert [segment.version for segment in log.segments] == [1, 2]


@pytest.mark.fixtures
def test_snapshot_directory_written_by_ra(ra_fixtures: Path, manifest: Manifest) -> None:
    expected, log = manifest("03a-major-module"), open_log(ra_fixtures / "03a-major-module" / "before")
    assert log.snapshot is not None
    assert (log.snapshot.index, log.snapshot.term) == (expected["snapshot_index"], expected["snapshot_term"])
    assert log.snapshot_index == expected["snapshot_index"]
    assert log.live == LiveSet.from_indexes(expected["live_indexes"])


@pytest.mark.fixtures
def test_indexes_files_decode_and_encode_to_the_same_bytes(ra_fixtures: Path, manifest: Manifest) -> None:
    expected = manifest("03c-indexes-files")
    assert len(expected["cases"]) == 8
    for case in expected["cases"]:
        data = (ra_fixtures / "03c-indexes-files" / case["case_name"] / "indexes").read_bytes()
        assert data.hex() == case["file_hex"]
        live = decode_indexes(data, file=case["case_name"])
        assert list(live) == sorted(case["indexes"])
        assert encode_indexes(live) == data


@pytest.mark.fixtures
def test_legacy_indexes_file(ra_fixtures: Path, manifest: Manifest) -> None:
    data = (ra_fixtures / "03c-indexes-files" / "legacy" / "indexes").read_bytes()
    assert not data.startswith(b"RASI")
    assert list(decode_indexes(data)) == manifest("03c-indexes-files")["legacy"]["indexes"]


@pytest.mark.fixtures
@pytest.mark.parametrize("base", ["multi", "two", "single"])
def test_logs_before_the_crashes(ra_fixtures: Path, readback: Readback, base: str) -> None:
    root = ra_fixtures / "04-crashed-compaction"
    entries = readback(open_log(root / f"base-{base}"))
    for entry in entries:
        del entry["file"]
    assert entries == json.loads((root / f"entries-{base}.json").read_text())


def append_all(writer: LogWriter, segment: SegmentIndex) -> None:
    """Write every record of a segment again, dead ones included, in file order."""
    file = SegmentFile(segment)
    for batch in file.batches(np.arange(segment.count)):
        for row, payload in zip(batch.rows.tolist(), batch.payloads(), strict=True):
            writer.append(int(segment.idx[row]), int(segment.term[row]), bytes(payload))
    file.close()


@pytest.mark.fixtures
@pytest.mark.parametrize("name", [name for name in LOGS if name != "01b-version1"])
def test_writer_makes_ras_bytes(ra_fixtures: Path, manifest: Manifest, tmp_path: Path, name: str) -> None:
    expected = manifest(name)
    conf = expected["seg_conf"]
    log = open_log(ra_fixtures / name / "dir")
    with LogWriter(
        tmp_path,
        max_count=conf["max_count"],
        max_size=conf.get("max_size", 64_000_000),
        checksums=conf.get("compute_checksums", True),
    ) as writer:
        for segment in log.segments:
            append_all(writer, segment)
        if log.segments[-1].count == 0:
            writer.roll()
    assert digests(tmp_path) == {file["name"]: file["sha256"] for file in expected["files"]}


@pytest.mark.fixtures
def test_version_1_segment_is_continued_in_version_1(ra_fixtures: Path, manifest: Manifest, tmp_path: Path) -> None:
    source = open_log(ra_fixtures / "01b-version1" / "dir").segments[0]
    data = source.path.read_bytes()
    cut = 20
    start, end = source.data_start, int(source.offset[cut])
    index = data[8 : 8 + cut * source.slot_bytes].ljust(start - 8, b"\0")
    target = tmp_path / source.name
    target.write_bytes(data[:8] + index + data[start:end])
    file = SegmentFile(source)
    with LogWriter(tmp_path, max_count=7) as writer:
        for batch in file.batches(np.arange(cut, source.count)):
            for row, payload in zip(batch.rows.tolist(), batch.payloads(), strict=True):
                writer.append(int(source.idx[row]), int(source.term[row]), bytes(payload))
    file.close()
    assert digests(tmp_path) == {
        source.name: next(f["sha256"] for f in manifest("01b-version1")["files"] if f["name"] == source.name)
    }
    assert read_segment(target).version == 1


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("*.segment")
        if not path.is_symlink()
    }


def payload(idx: int, term: int, size: int) -> bytes:
    """payload(i, t, n) of fixture 06: the first n bytes of sha256('i:t:0') || sha256('i:t:1') || ..."""
    result = b""
    while len(result) < size:
        result += hashlib.sha256(f"{idx}:{term}:{len(result) // 32}".encode()).digest()
    return result[:size]


def size_of(seed: int, idx: int, term: int, modulus: int) -> int:
    return 1 + int.from_bytes(hashlib.sha256(f"z{seed}:{idx}:{term}".encode()).digest()[:4], "big") % modulus


@pytest.mark.fixtures
def test_random_histories_are_written_to_ras_bytes(manifest: Manifest, tmp_path: Path) -> None:
    """Fixture 06: each round appends to what is there; every file Ra did not compact must be ours, byte for byte."""
    compared = 0
    for case in manifest("06-random-cases")["cases"]:
        directory = tmp_path / str(case["id"])
        rewritten: set[str] = set()
        for step in case["rounds"]:
            with LogWriter(
                directory, max_count=case["seg_max_count"], max_size=case["seg_max_size"], sync=False
            ) as writer:
                for first, last, term in step["steps"]:
                    for idx in range(first, last + 1):
                        writer.append(idx, term, payload(idx, term, size_of(case["seed"], idx, term, case["size_mod"])))
            if step["result"]:
                rewritten |= {ref["file"] for ref in step["result"]["compacted"]}
            ours = digests(directory)
            for name, kind, *facts in step["files"]:
                if kind == "regular" and name not in rewritten:
                    assert (directory / name).stat().st_size == facts[0], (case["id"], name)
                    assert ours[name] == facts[1], (case["id"], name)
                    compared += 1
    assert compared > 1000


# The external term subset: known bytes, round trips, hostile bytes.

# As erlang:term_to_binary/1 of OTP 27 writes them.
KNOWN: list[tuple[Term, str]] = [
    (0, "836100"),
    (255, "8361ff"),
    (256, "836200000100"),
    (-1, "8362ffffffff"),
    (2**31 - 1, "83627fffffff"),
    (2**31, "836e040000000080"),
    (-(2**31), "836280000000"),
    (-(2**31) - 1, "836e040101000080"),
    (2**64 - 1, "836e0800ffffffffffffffff"),
    ([], "836a"),
    ([7], "836b000107"),
    ([0, 255], "836b000200ff"),
    ([256], "836c00000001620000010" + "06a"),
    ([Atom("a")], "836c000000017701616a"),
    ((1, [2]), "8368026101" + "6b000102"),
    ((), "836800"),
    (b"ab", "836d000000026162"),
    (Atom("index"), "837705696e646578"),
    ({Atom("a"): 1}, "8374000000017701616101"),
    (
        [b"0000000000000001.segment"],
        "836c000000016d00000018" + b"0000000000000001.segment".hex() + "6a",
    ),
]

scalars = st.integers(-(2**70), 2**70) | st.binary(max_size=10) | st.builds(Atom, st.text(max_size=20))
terms = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers(-5, 5) | st.builds(Atom, st.text(max_size=3)), inner, max_size=3)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(("term", "expected"), KNOWN)
def test_known_bytes(term: Term, expected: str) -> None:
    assert etf.encode(term).hex() == expected
    assert etf.decode(bytes.fromhex(expected)) == term


@given(terms)
def test_round_trip(term: Term) -> None:
    assert etf.decode(etf.encode(term)) == term


def test_long_forms() -> None:
    long_tuple = tuple(range(300))
    assert etf.encode(long_tuple)[1] == etf.LARGE_TUPLE
    assert etf.decode(etf.encode(long_tuple)) == long_tuple
    wide = Atom("ä" * 200)
    assert etf.encode(wide)[1] == etf.ATOM_UTF8
    assert etf.decode(etf.encode(wide)) == wide
    many: list[Term] = [1] * 70_000
    assert etf.encode(many)[1] == etf.LIST
    assert etf.decode(etf.encode(many)) == many
    assert etf.decode(b"\x83\x64\x00\x01\xe4") == Atom("ä")
    assert etf.decode(b"\x83\x73\x01\xe4") == Atom("ä")
    with pytest.raises(TermFormatError, match="255"):
        etf.encode(Atom("a" * 256))
    with pytest.raises(TermFormatError, match="larger than any index"):
        etf.encode(2**512)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (b"\x83", "cut off"),
        (b"\x00\x61\x01", "begins with byte 131"),
        (b"\x83\x61", "cut off"),
        (b"\x83\x62\x00", "cut off"),
        (b"\x83\x61\x01\x00", "follow"),
        (b"\x83\x6d\xff\xff\xff\xffab", "cut off"),
        (b"\x83\x6c\xff\xff\xff\xff", "claimed"),
        (b"\x83\x69\xff\xff\xff\xff", "claimed"),
        (b"\x83\x74\xff\xff\xff\xff", "claimed"),
        (b"\x83\x6c\x00\x00\x00\x01\x61\x01\x61\x02", "improper"),
        (b"\x83\x6f\xff\xff\xff\xff\x00", "larger than any index"),
        (b"\x83\x77\x02\xff\xff", "UTF-8"),
        (b"\x83\x74\x00\x00\x00\x01\x6a\x61\x01", "map key"),
        (b"\x83\x46" + bytes(8), "outside the supported subset"),
        (b"\x83\x50\x13\x88\x00\x00" + zlib.compress(b"\x6d" + bytes(100)), "outside the supported subset"),
        (b"\x83" + b"\x68\x01" * 100_000 + b"\x6a", "nested deeper"),
    ],
)
def test_bad_bytes(data: bytes, says: str) -> None:
    with pytest.raises(TermFormatError, match=says):
        etf.decode(data)


@given(st.binary(max_size=120))
def test_any_bytes_give_a_term_or_a_named_error(data: bytes) -> None:
    for attempt in (data, b"\x83" + data, b"\x83\x6c\x00\x00\x00\x03" + data, b"\x83\x74\x00\x00\x00\x02" + data):
        with suppress(TermFormatError):
            etf.decode(attempt)
