"""Defects put into the writing side and the compactor, each of which loses, revives or blocks something.

B1 to B7 are the windows in which the reference loses data (docs/design/segment-commit.md#windows-of-the-reference).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from compaction.segments import model
from compaction.segments import writer as flush_module
from compaction.segments import writer as segment_writer
from compaction.segments.commit import commit, evidence, recovery
from compaction.segments.commit.evidence import Likeness
from compaction.segments.directory import fs
from compaction.segments.errors import MissingLiveIndexError, RecoveryBlockedError
from compaction.segments.format import names, segment_file
from compaction.segments.format import segment_file as segment_files
from compaction.segments.memtable import MemTable, Seq
from compaction.segments.reading import view
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot import directories
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import content
from compaction.segments.system import log as log_module
from compaction.segments.system import segments as segment_view
from compaction.segments.system.rules import LogRow
from compaction.segments.wal import wal_log
from support.faults.power_loss import Without
from support.segments.segment_logs import live_only_above, nothing_hides

Patch = tuple[Any, str, Any]


def _without(module: ModuleType, *names: str) -> Callable[[], list[Patch]]:
    return lambda: [(module, "fs", Without(*names))]


def _live_only_above() -> list[Patch]:
    return [(flush_module, "select", live_only_above)]


def _floor_too_high() -> list[Patch]:
    smallest = LogRow._smallest
    return [(LogRow, "_smallest", lambda self: smallest(self) + (1 if self.snapshot_index is not None else 0))]


def _overwritten_returns() -> list[Patch]:
    """The last dead entry of a table goes, although it hides what stands behind it in segments."""

    def remove_below(self: MemTable, index: int) -> None:
        self.remove(self.indexes.limit(index - 1) if index > 0 else Seq())

    return [(MemTable, "remove_below", remove_below), (flush_module, "select", nothing_hides)]


def _absence_commits() -> list[Patch]:
    """B1: the output is not there any more, so it must have been renamed."""
    return [(evidence, "_output", lambda *_: Likeness.SAME)]


def _missing_indexes_are_empty() -> list[Patch]:
    """B2: `indexes` is written after the snapshot is visible, and a snapshot without it has no live index."""
    publish, search = content.publish, directories._search

    def late(partial: Path, **snapshot_of: Any) -> Any:
        live = snapshot_of["live"]
        snapshot = publish(partial, **snapshot_of)
        fs.unlink(snapshot.path / directories.INDEXES_FILE)
        return content.write_indexes(snapshot, live)

    def taken_for_empty(*args: Any) -> Any:
        found = search(*args)
        newest = found.newest
        if newest is None or newest.live is not None:
            return found
        return replace(found, newest=replace(newest, live=LiveSet.parse(""), live_error=None))

    return [(log_module, "publish", late), (directories, "_search", taken_for_empty)]


def _attempts_share_a_name() -> list[Patch]:
    """B3: what a failed attempt left is in the way of every later one."""
    name = names.partial_name
    return [
        (kernel, "partial_name", lambda group, **_: name(group, job="job", token=1)),
        (kernel, "fs", Without("unlink_if_present")),
    ]


def _two_are_too_many() -> list[Patch]:
    """B4: two commits that a crash left half-done cannot be settled."""
    recover = recovery.recover_locked

    def refusing(directory: Path, **options: Any) -> Any:
        if len(list(directory.glob("*.compacting"))) > 1:
            raise RecoveryBlockedError(str(directory), "two commits are half-done")
        return recover(directory, **options)

    return [(recovery, "recover_locked", refusing)]


def _first_of_equal_indexes() -> list[Patch]:
    """B5: of an index that was written twice in a row, the first record counts."""

    def first(idx: Any) -> Any:
        mask = np.ones(idx.shape, dtype=np.bool_)
        if idx.size > 1:
            suffix_min = np.minimum.accumulate(idx[::-1])[::-1]
            mask[:-1] = idx[:-1] <= suffix_min[1:]
            mask[1:] &= idx[1:] != idx[:-1]
        return mask

    return [(model, "effective_records", first)]


def _checksums_are_not_compared() -> list[Patch]:
    """B6: damage is read, and copied into the compacted segment."""

    read = segment_file._read_index

    def unchecked(*args: Any, **kwargs: Any) -> Any:
        index = read(*args, **kwargs)
        return replace(index, crc=np.zeros_like(index.crc))

    return [(segment_file, "_read_index", unchecked)]


def _missing_entries_are_dead() -> list[Patch]:
    """B7, the other way round: a live index that its segment does not hold is left out."""
    pick = kernel._pick

    def lenient(path: Any, span: Any, live: Any, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return pick(path, span, live, *args, **kwargs)
            except MissingLiveIndexError as error:
                live = live.without(LiveSet.from_indexes([error.index]))

    def none(*_: Any) -> LiveSet:
        return LiveSet.empty()

    # What would keep such a segment from being rewritten at all.
    unseen = [(view, "in_no_segment", none), (segment_view, "in_no_segment", none)]
    return [(kernel, "_pick", lenient), *unseen, (model.SegmentIndex, "_find_damage", lambda _: "")]


def _nothing_is_cut() -> list[Patch]:
    return [(log_module.Log, "set_cut", lambda *_: None)]


DEFECTS: dict[str, Callable[[], list[Patch]]] = {
    "a batch is not synced": _without(wal_log, "sync_data"),
    "the name of a write-ahead log file is not synced": _without(wal_log, "sync_directory"),
    "segments are not synced": _without(segment_files, "sync"),
    "a directory of segments is not synced": _without(segment_files, "sync_directory"),
    "a write-ahead log file goes before its segments are durable": _without(segment_writer, "sync_directory"),
    "a snapshot is not synced": _without(content, "sync"),
    "the name of a snapshot is not synced": _without(content, "sync_directory"),
    "a commit is not synced": _without(commit, "sync_directory"),
    "live entries below the snapshot are not written": _live_only_above,
    "the smallest live index is one too high": _floor_too_high,
    "what was overwritten returns": _overwritten_returns,
    "entries of an interrupted installation count": _nothing_is_cut,
    "B1: absence is taken for a commit": _absence_commits,
    "B2: missing live indexes are taken for none": _missing_indexes_are_empty,
    "B3: a failed attempt is in the way of the next": _attempts_share_a_name,
    "B4: two half-done commits block a log": _two_are_too_many,
    "B5: of equal indexes the first record counts": _first_of_equal_indexes,
    "B6: checksums are not compared": _checksums_are_not_compared,
    "B7: missing entries are taken for dead": _missing_entries_are_dead,
}


FOUND_BY: dict[str, int] = {
    "the name of a write-ahead log file is not synced": 5,
    "a write-ahead log file goes before its segments are durable": 19,
    "a commit is not synced": 272,
    "what was overwritten returns": 37,
    "entries of an interrupted installation count": 6,
    "B1: absence is taken for a commit": 11,
    "B2: missing live indexes are taken for none": 3,
    "B4: two half-done commits block a log": 18,
    "B7: missing entries are taken for dead": 83,
}
"""The seed that found a defect before, with which the search begins; 0 where none is named."""


@contextmanager
def applied(what: str) -> Iterator[None]:
    """The defect is in the code for the block."""
    with ExitStack() as stack:
        for target, name, value in DEFECTS[what]():
            stack.enter_context(mock.patch.object(target, name, value))
        yield
