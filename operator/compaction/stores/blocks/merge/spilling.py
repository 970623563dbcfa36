"""Rows that were sorted by us: in memory while there is room for them, else in files in Arrow's own format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from compaction.stores.blocks.merge.columns import Columns, Rows
from compaction.stores.blocks.merge.footers import Bound


@dataclass(slots=True)
class HeldRun:
    """Rows in memory, in order; let go of when they have been handed out."""

    name: str
    rows: Rows
    size: int
    merged: int = 0
    group_rows: int = 0

    @property
    def least(self) -> Bound | None:
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
    """Rows that were sorted by us, in files in Arrow's own format, in order; mapped into memory, not copied."""

    name: str
    columns: Columns
    merged: int
    files: list[Path] = field(default_factory=list)
    size: int = 0

    @property
    def least(self) -> Bound | None:
        return None

    @property
    def cost(self) -> int:
        return 0

    @property
    def group_rows(self) -> int:
        return 0

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        """Files are mapped into memory: there are no row groups to read."""
        for path in self.files:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    for start in range(0, batch.num_rows, rows):
                        part = batch.slice(start, rows)
                        yield Rows(tuple(part.columns), part.num_rows)
            path.unlink()


class Spiller:
    """Writes runs into a directory that its owner removes; `bytes`: how much it has written."""

    def __init__(self, directory: Path, columns: Columns, batch_rows: int) -> None:
        self.bytes = 0
        self._directory = directory
        self._columns = columns
        self._batch_rows = batch_rows
        self._files = 0

    def spill(self, name: str, parts: Iterable[Rows], *, merged: int = 0) -> SpilledRun:
        """Write the rows of a run, which are in order. A file ends where a coded column becomes a plain one."""
        run = SpilledRun(name, self._columns, merged)
        kinds: list[pa.DataType] = []
        writer: pa.RecordBatchStreamWriter | None = None
        try:
            for rows in parts:
                if kinds != [column.type for column in rows.columns]:
                    if writer is not None:
                        writer.close()
                    kinds = [column.type for column in rows.columns]
                    writer = self._open(run, kinds)
                self._write(writer, rows)
        finally:
            if writer is not None:
                writer.close()
        run.size = sum(path.stat().st_size for path in run.files)
        self.bytes += run.size
        return run

    def _open(self, run: SpilledRun, kinds: Sequence[pa.DataType]) -> pa.RecordBatchStreamWriter:
        self._files += 1
        path = self._directory / f"{self._files:06d}.arrows"
        run.files.append(path)
        return pa.ipc.new_stream(str(path), pa.schema([pa.field(str(n), kind) for n, kind in enumerate(kinds)]))

    def _write(self, writer: pa.RecordBatchStreamWriter, rows: Rows) -> None:
        for start in range(0, rows.count, self._batch_rows):
            part = rows.slice(start, min(self._batch_rows, rows.count - start))
            writer.write_batch(pa.RecordBatch.from_arrays(list(part.columns), schema=writer_schema(part)))


def writer_schema(rows: Rows) -> pa.Schema:
    """Names of columns in a spilled file are their places."""
    return pa.schema([pa.field(str(place), column.type) for place, column in enumerate(rows.columns)])
