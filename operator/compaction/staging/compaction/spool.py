"""The staged changes of a branch on the driver's disk: read from the key-value store once, given to tasks in parts.

Sealed tokens are not immutable: changes that no writer was acknowledged for may still arrive in them. So a compaction
reads them once, and what is written and what proves it come from the same changes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from compaction.staging.changes import tombstones
from compaction.staging.format.columns import BINARY, RecordColumns
from compaction.staging.tree.aligning import Upcoming
from compaction.staging.tree.stretches import Part

SCHEMA: Final[Any] = pa.schema([("key", BINARY), ("value", BINARY)])
_ZSTD: Final[Any] = pa.ipc.IpcWriteOptions(compression="zstd")


class ChangesSpool:
    """A temporary file of changes in order, compressed; gone when the context ends, or the process.

    Memory is one batch of changes while it is written, and the changes of one part while it is read. OSError when the
    disk is full.
    """

    def __init__(self) -> None:
        # Without a name from its beginning: a process that is killed leaves nothing.
        self._file = tempfile.TemporaryFile(prefix="compactor-changes-")  # noqa: SIM115  # closed by the context
        self._writer = pa.ipc.new_stream(self._file, SCHEMA, options=_ZSTD)
        self.nbytes = 0
        self.changes = 0
        self.tombstones = 0

    def through(self, batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
        """The same batches, each written down on its way."""
        for batch in batches:
            self._writer.write_batch(_batch_of(batch))
            self.nbytes += batch.nbytes
            self.changes += len(batch)
            self.tombstones += int(tombstones(batch).sum())
            yield batch

    def parts(self, parts: Sequence[Part]) -> Iterator[tuple[Part, bytes]]:
        """Each part with its changes, as `encode_changes` writes them. All changes were written, and they belong to the
        parts in their order.
        """
        upcoming = Upcoming(self.again())
        for part in parts:
            yield part, encode_changes(upcoming.until(part.until))

    def again(self) -> Iterator[RecordColumns]:
        """All changes, once more; nothing is written any more."""
        self._writer.close()
        self._file.flush()
        with _reopened(self._file) as source:
            for batch in pa.ipc.open_stream(source):
                yield RecordColumns(batch.column(0), batch.column(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def encode_changes(batches: Iterable[RecordColumns]) -> bytes:
    """Changes as they travel to a task."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_ZSTD) as writer:
        for batch in batches:
            writer.write_batch(_batch_of(batch))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_changes(data: bytes) -> Iterator[RecordColumns]:
    """What `encode_changes` has written."""
    for batch in pa.ipc.open_stream(pa.py_buffer(data)):
        yield RecordColumns(batch.column(0), batch.column(1))


def _batch_of(records: RecordColumns) -> Any:
    return pa.record_batch([records.keys, records.values], schema=SCHEMA)


def _reopened(file: Any) -> Any:
    """The file from its beginning, open for as long as the context lasts; the file itself stays open."""
    again = os.fdopen(os.dup(file.fileno()), "rb")
    again.seek(0)
    return again
