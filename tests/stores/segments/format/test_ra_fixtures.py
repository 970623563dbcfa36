"""Everything Ra wrote is read as Ra reads it, and written again to the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.model import SegmentIndex
from compaction.segments.reading.reader import SegmentFile
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.live_indexes import LiveSet, decode_indexes, encode_indexes

pytestmark = pytest.mark.fixtures

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


def test_orphans_of_overwrites(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "02b-overwrite-across-segments" / "dir")
    assert log.orphans == ("0000000000000003.segment", "0000000000000004.segment")


def test_symlinks_are_listed_with_their_targets_and_not_read(restored: Restored, manifest: Manifest) -> None:
    log = open_log(restored("03a-major-module/after", manifest("03a-major-module")["after_files"]))
    expected = {
        file["name"]: file["target"].rsplit("/", 1)[-1]
        for file in manifest("03a-major-module")["after_files"]
        if file["type"] == "symlink"
    }
    assert len(expected) == 6
    assert log.links == expected


def test_header_only_segment_is_kept_but_holds_no_ref(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "01-contiguous" / "dir")
    assert log.newest == "0000000000000006.segment"
    assert log.segments[-1].count == 0
    assert len(log.refs) == 5


def test_version_1_is_recognised(ra_fixtures: Path) -> None:
    log = open_log(ra_fixtures / "01b-version1" / "dir")
    assert [segment.version for segment in log.segments] == [1, 2]


def test_snapshot_directory_written_by_ra(ra_fixtures: Path, manifest: Manifest) -> None:
    expected, log = manifest("03a-major-module"), open_log(ra_fixtures / "03a-major-module" / "before")
    assert log.snapshot is not None
    assert (log.snapshot.index, log.snapshot.term) == (expected["snapshot_index"], expected["snapshot_term"])
    assert log.snapshot_index == expected["snapshot_index"]
    assert log.live == LiveSet.from_indexes(expected["live_indexes"])


def test_indexes_files_decode_and_encode_to_the_same_bytes(ra_fixtures: Path, manifest: Manifest) -> None:
    expected = manifest("03c-indexes-files")
    assert len(expected["cases"]) == 8
    for case in expected["cases"]:
        data = (ra_fixtures / "03c-indexes-files" / case["case_name"] / "indexes").read_bytes()
        assert data.hex() == case["file_hex"]
        live = decode_indexes(data, file=case["case_name"])
        assert list(live) == sorted(case["indexes"])
        assert encode_indexes(live) == data


def test_legacy_indexes_file(ra_fixtures: Path, manifest: Manifest) -> None:
    data = (ra_fixtures / "03c-indexes-files" / "legacy" / "indexes").read_bytes()
    assert not data.startswith(b"RASI")
    assert list(decode_indexes(data)) == manifest("03c-indexes-files")["legacy"]["indexes"]


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
