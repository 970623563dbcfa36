"""What a merge is asked for, what it is given, and what it says when it is done. Plain frozen data.

Units: bytes and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from compaction.blocks.model import RowFingerprint

MEBIBYTE: Final = 1 << 20
MIN_MEMORY: Final = 16 * MEBIBYTE
OWN_MEMORY: Final = 96 * MEBIBYTE
"""What a process takes for a merge besides `memory_bytes`, whatever these are: code, codecs, what allocators keep."""


Moved = Callable[[int], None]
"""Called with numbers of rows as work on them is done."""
OpenFile = Callable[[], str | IO[bytes] | RawIOBase]
"""Gives a file to read: its path, or an open one that we close."""


def nobody(rows: int) -> None:
    """A `Moved` that reports nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """How blocks are merged.

    `sort_key`: columns by which the output is sorted; at least one. `memory_bytes`: what the merge may hold at a time,
    of Arrow memory. `row_group_bytes`: of a row group in the output file, encoded; `max_group_rows` caps its rows.
    `deduplicate`: of rows with an equal sort key only the last is kept, that is of the latest input and the latest row
    in it. `compression_level`: of zstd. `scratch`: where runs are spilled; the system's temporary directory by default.
    """

    sort_key: tuple[str, ...]
    memory_bytes: int = 512 * MEBIBYTE
    row_group_bytes: int = 8 * MEBIBYTE
    max_group_rows: int = 1 << 20
    deduplicate: bool = False
    compression_level: int = 1
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if not self.sort_key or len(set(self.sort_key)) != len(self.sort_key):
            raise ValueError("a sort key names one or more columns, each once")
        if self.memory_bytes < MIN_MEMORY:
            raise ValueError(f"a merge takes at least {MIN_MEMORY} bytes of memory")
        if self.row_group_bytes < 1 or self.max_group_rows < 1:
            raise ValueError("row groups have at least one row")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """One Parquet file. `open` returns it again each time: a path, or a seekable binary file that we close.

    `sort_key`: by what its rows are known to be sorted, empty when they are not; None: what its footer says.
    `fingerprint`: of its rows, when it is known; else it is computed while merging. `first`, `last`: only the rows
    whose first key column is at least `first` and below `last` (strings and binaries: bytes; integers and times: the
    number), None is no bound; rows with a null there belong to the part without `last`.
    """

    name: str
    open: OpenFile
    sort_key: tuple[str, ...] | None = None
    fingerprint: RowFingerprint | None = None
    first: int | bytes | None = None
    last: int | bytes | None = None


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows that were dropped for a later one with the same key; `examples`: the keys of the first of them."""

    fingerprint: RowFingerprint = field(default_factory=RowFingerprint)
    examples: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What was merged into one file. `read`: all rows of the inputs; `written` is what the output must read back as.

    `sorted_first`: inputs that were not sorted; `spilled`: bytes written to scratch; `passes`: how often rows were
    merged, 1 unless there were too many inputs for the memory. `encodings`: of each column, as chosen.
    """

    schema: pa.Schema
    read: RowFingerprint
    duplicates: Duplicates
    row_groups: int
    sorted_first: tuple[str, ...]
    spilled: int
    passes: int
    encodings: Mapping[str, str]

    @property
    def written(self) -> RowFingerprint:
        """The rows of the output."""
        return self.read - self.duplicates.fingerprint
