"""Logs made to order, in Ra's format, for the demo, tests and benchmarks; and a way to damage one entry.

Same arguments, same bytes (the payloads come from a seeded generator). The snapshot covers every segment but the
newest, as after a compaction trigger in Ra, and says which indexes are live.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from compaction.segments.directory.owner import is_ra_directory
from compaction.segments.errors import InvalidEntryError, SegmentLogError
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.model import DEFAULT_MAX_SIZE, segment_name
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

# An Erlang binary as external term: version, tag, u32 length. Ra decodes what it reads, so payloads are real terms.
_BINARY_HEAD: Final = b"\x83m"
_HEAD_BYTES: Final = len(_BINARY_HEAD) + 4
_RUN: Final = 64


class Pattern(StrEnum):
    """The arrangement of live entries among dead ones."""

    STRIDED = "strided"
    RUNS = "runs"
    RANDOM = "random"
    OVERWRITTEN = "overwritten"


@dataclass(frozen=True, slots=True)
class GeneratedLog:
    """The log that was written: `entries` and `payload_bytes` count all records, overwritten ones included."""

    directory: Path
    snapshot_index: int
    live: LiveSet
    last_index: int
    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class CorruptedAt:
    """A damaged entry: segment file name, its index, and the absolute offset of the changed byte."""

    file: str
    index: int
    offset: int


def generate_log(
    directory: Path,
    *,
    pattern: Pattern | str = Pattern.STRIDED,
    segments: int = 16,
    entries_per_segment: int = 4096,
    payload_bytes: int = 1024,
    live_fraction: float = 0.25,
    seed: int = 0,
    sync: bool = True,
) -> GeneratedLog:
    """Write a log of `segments` full segments and its snapshot into a directory that holds no segment yet.

    `payload_bytes` is what each entry occupies in the data area (at least 7). Memory: one segment's payloads.
    """
    pattern = Pattern(pattern)
    if segments < 1 or payload_bytes <= _HEAD_BYTES or not 0 <= live_fraction <= 1:
        raise ValueError(f"a log needs segments >= 1, payload_bytes > {_HEAD_BYTES}, live_fraction 0..1")
    if directory.exists() and any(directory.glob("*.segment")):
        raise SegmentLogError(f"{directory}: it already holds segments; generate into an empty directory")
    if is_ra_directory(directory.parent):
        raise SegmentLogError(f"{directory}: it lies in the data directory of a Ra server; generate into another one")
    total = segments * entries_per_segment
    rng = np.random.default_rng(seed)
    # Large enough that each segment ends by its count of entries, not by its size.
    max_size = max(DEFAULT_MAX_SIZE, entries_per_segment * payload_bytes)
    with LogWriter(directory, max_count=entries_per_segment, max_size=max_size, sync=sync) as writer:
        steps = _steps(pattern, total=total, per_segment=entries_per_segment)
        for first, count, term in steps:
            writer.append_many(range(first, first + count), term, _payloads(rng, count, payload_bytes))
    refs = open_log(directory).refs
    # Below the newest segment, which no compaction touches: all others may be compacted.
    snapshot_index = refs[-1].first - 1
    live = _live_set(pattern, snapshot_index, live_fraction, rng)
    write_snapshot(directory, index=snapshot_index, term=max(1, _term_at(directory)), live=live, sync=sync)
    return GeneratedLog(
        directory=directory,
        snapshot_index=snapshot_index,
        live=live,
        last_index=refs[-1].last,
        entries=total,
        payload_bytes=total * payload_bytes,
    )


def _steps(pattern: Pattern, *, total: int, per_segment: int) -> Iterator[tuple[int, int, int]]:
    """(first index, count, term) of runs of appends that make `total` records."""
    if pattern is not Pattern.OVERWRITTEN:
        for written in range(0, total, per_segment):
            yield written + 1, min(per_segment, total - written), 1
        return
    # Runs of 3/4 segment; each new term goes back over a third of the run before, in the same file or across files.
    # Halfway one truncation goes back over two and a half segments: whole files become orphans.
    run = max(1, per_segment * 3 // 4)
    index, term, written, deep_done = 1, 1, 0, False
    while written < total:
        count = min(run, total - written)
        yield index, count, term
        written += count
        back = run // 3
        if not deep_done and written >= total // 2:
            back, deep_done = per_segment * 5 // 2, True
        index = max(1, index + count - back)
        term += 1


def _payloads(rng: np.random.Generator, count: int, size: int) -> list[bytes]:
    body = size - _HEAD_BYTES
    head = _BINARY_HEAD + body.to_bytes(4, "big")
    block = rng.bytes(count * body)
    return [head + block[at : at + body] for at in range(0, count * body, body)]


def _live_set(pattern: Pattern, snapshot_index: int, fraction: float, rng: np.random.Generator) -> LiveSet:
    """About `fraction` of the indexes 1..snapshot_index."""
    indexes = np.arange(1, snapshot_index + 1, dtype=np.uint64)
    if fraction <= 0:
        return LiveSet.empty()
    if pattern is Pattern.STRIDED:
        return LiveSet.from_indexes(indexes[:: max(1, round(1 / fraction))])
    if pattern is Pattern.RUNS:
        period = max(_RUN, round(_RUN / fraction))
        return LiveSet.from_indexes(indexes[(indexes - np.uint64(1)) % np.uint64(period) < np.uint64(_RUN)])
    return LiveSet.from_indexes(indexes[rng.random(indexes.size) < fraction])


def _term_at(directory: Path) -> int:
    """The term of the newest segment's first record: that of the snapshot's neighbour."""
    log = open_log(directory)
    return int(log.segment(log.newest).term[0])


def corrupt_entry(directory: Path, *, segment: int | str, record: int) -> CorruptedAt:
    """Invert one byte in the middle of a record's payload; `segment` is a number or a file name, `record` a position.

    InvalidEntryError when the record does not exist or stores no CRC (the damage could not be detected).
    """
    path = directory / (segment if isinstance(segment, str) else segment_name(segment))
    index = read_segment(path)
    if not 0 <= record < index.count or not index.crc[record] or not index.inside[record]:
        raise InvalidEntryError(f"{path}: record {record} does not exist, has no checksum or lies outside the file")
    offset = int(index.offset[record]) + int(index.length[record]) // 2
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes((byte[0] ^ 0xFF,)), offset)
        os.fsync(file.fileno())
    return CorruptedAt(file=path.name, index=int(index.idx[record]), offset=offset)
