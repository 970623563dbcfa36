"""Rows in no order become sorted runs, in memory while there is room, else in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.blocks.merge.columns import Columns, Rows
from compaction.blocks.merge.footers import Bound
from compaction.blocks.merge.rounds import key_numbers, sorting_order
from compaction.blocks.merge.runs import Run

# Rows that were sorted by us: in memory while there is room for them, else compressed in files of Arrow's format.

_MOST_TIMES: Final = 4
"""Batches that are so many times as large as was asked for hold values that are large themselves."""
_COMPRESSED: Final = ".lz4"
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING: Final = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(slots=True)
class HeldRun:
    """Rows in memory, in order; let go of when they have been handed out."""

    name: str
    rows: Rows
    size: int
    merged: int = 0
    group_rows: int = 0
    whole_cost: int = 0

    @property
    def least(self) -> Bound | None:
        return None

    @property
    def most(self) -> Bound | None:
        return None

    @property
    def cost(self) -> int:
        return self.size

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        """Views of the rows: nothing is read."""
        for start in range(0, self.rows.count, rows):
            yield self.rows.slice(start, min(rows, self.rows.count - start))


@dataclass(slots=True)
class SpilledRun:
    """Rows that were sorted by us, in files in Arrow's own format, in order. `cost`: bytes of the largest batch that is
    compressed; what is not is mapped into memory.
    """

    name: str
    columns: Columns
    merged: int
    files: list[Path] = field(default_factory=list)
    size: int = 0
    cost: int = 0
    whole_cost: int = 0

    @property
    def least(self) -> Bound | None:
        return None

    @property
    def most(self) -> Bound | None:
        return None

    @property
    def group_rows(self) -> int:
        return 0

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        """A batch at a time: there are no row groups to read."""
        for path in self.files:
            file = pa.OSFile(str(path)) if path.suffix == _COMPRESSED else pa.memory_map(str(path))
            with file as source, pa.ipc.open_stream(source, options=_READING) as stream:
                for batch in stream:
                    found = Rows(tuple(batch.columns), batch.num_rows)
                    step = found.count if path.suffix == _COMPRESSED else rows  # mapped ones may be of any size
                    for start in range(0, found.count, step):
                        yield found.slice(start, min(step, found.count - start))
            path.unlink()


class Spiller:
    """Writes runs into a directory that its owner removes, about `batch_bytes` at a time; `bytes`: how much it has
    written.
    """

    def __init__(self, directory: Path, columns: Columns, batch_bytes: int) -> None:
        self.bytes = 0
        self._directory = directory
        self._columns = columns
        self._batch_bytes = batch_bytes
        self._files = 0

    def spill(self, name: str, parts: Iterable[Rows], *, merged: int = 0) -> SpilledRun:
        """Write the rows of a run, which are in order. A file ends where a coded column becomes a plain one, and where
        values become so large that a batch of them had better not be decompressed into memory.
        """
        run = SpilledRun(name, self._columns, merged)
        before: tuple[list[pa.DataType], bool] | None = None
        schema = pa.schema([])
        writer: pa.RecordBatchStreamWriter | None = None
        try:
            for rows in (part for whole in parts for part in self._batches(whole)):
                size = rows.nbytes
                kinds, compressed = [column.type for column in rows.columns], size <= _MOST_TIMES * self._batch_bytes
                if writer is None or before != (kinds, compressed):
                    if writer is not None:
                        writer.close()
                    before, schema = (kinds, compressed), _numbered(kinds)
                    writer = self._open(run, schema, compressed=compressed)
                writer.write_batch(pa.RecordBatch.from_arrays(list(rows.columns), schema=schema))
                run.cost = max(run.cost, size if compressed else 0)
        finally:
            if writer is not None:
                writer.close()
        run.size = sum(path.stat().st_size for path in run.files)
        self.bytes += run.size
        return run

    def _batches(self, rows: Rows) -> Iterator[Rows]:
        step = max(1, rows.count * self._batch_bytes // max(1, rows.nbytes))
        if step >= rows.count:
            yield rows
            return
        for start in range(0, rows.count, step):
            yield rows.slice(start, min(step, rows.count - start))

    def _open(self, run: SpilledRun, schema: pa.Schema, *, compressed: bool) -> pa.RecordBatchStreamWriter:
        self._files += 1
        path = self._directory / f"{self._files:06d}{_COMPRESSED if compressed else '.arrows'}"
        run.files.append(path)
        return pa.ipc.new_stream(str(path), schema, options=_WRITING if compressed else None)


def _numbered(kinds: Sequence[pa.DataType]) -> pa.Schema:
    """Names of columns in a spilled file are their places."""
    return pa.schema([pa.field(str(place), kind) for place, kind in enumerate(kinds)])


# Rows in no order become sorted runs: as many at a time as the memory allows are sorted, and held or spilled.


def sorted_runs(
    run: Run, columns: Columns, spiller: Spiller, *, rows: int, chunk_bytes: int, room: int
) -> Iterator[HeldRun | SpilledRun]:
    """Read a run whose rows are in any order, at most `rows` at a time. The runs that come out hold about
    `chunk_bytes`, each is sorted (stable), and among equal keys an earlier run has the earlier rows. `room`: bytes of
    those that stay in memory together; the others are spilled.
    """
    parts: list[Rows] = []
    size = 0
    for part in run.batches(rows):
        parts.append(part)
        size += part.nbytes
        del part  # or the last would be there until the next is read
        if size >= chunk_bytes:
            made = _made(run.name, sorted_rows(parts, columns), spiller, room)
            room -= made.cost
            yield made
            size = 0
    if parts:
        yield _made(run.name, sorted_rows(parts, columns), spiller, room)


def _made(name: str, rows: Rows, spiller: Spiller, room: int) -> HeldRun | SpilledRun:
    size = rows.nbytes
    return HeldRun(name, rows, size) if size <= room else spiller.spill(name, [rows])


def sorted_rows(parts: list[Rows], columns: Columns) -> Rows:
    """The rows in order; takes them out of `parts`. One column at a time, so that only one is there twice.
    Besides, sorting takes two words for each.
    """
    left = [list(part.columns) for part in parts]
    count = sum(part.count for part in parts)
    parts.clear()

    def taken(place: int) -> pa.Array:
        return columns.joined(place, [part[place] for part in left])

    numbers = key_numbers(columns, [taken(place) for place in columns.keys])
    order = pa.array(sorting_order(numbers)) if np.any(numbers[1:] < numbers[:-1]) else None
    del numbers
    found = []
    for place in range(len(columns.schema)):
        column = taken(place)
        found.append(column if order is None else pc.take(column, order, boundscheck=False))
        for part in left:
            part[place] = None
    return Rows(tuple(found), count)
