"""Merges sorted Parquet files into one, in bounded memory; cuts a merge into ranges that tasks share."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from compaction.blocks.fingerprint.row_hashes import fingerprint, keep_freed
from compaction.blocks.format.int96 import has_other_timestamps
from compaction.blocks.merge.budget import Budget, budget_for, open_at_once
from compaction.blocks.merge.columns import ROWS_PER_VALUE, Columns, MemoLimits, Rows, is_codable, not_repeating
from compaction.blocks.merge.footers import (
    Bound,
    Duplicates,
    MergeInput,
    MergeResult,
    MergeSettings,
    Moved,
    OpenedFooter,
    bloom_columns,
    nobody,
    read_footer,
    reading,
)
from compaction.blocks.merge.meanings import Meanings
from compaction.blocks.merge.output import Declared, Output, sample_rows
from compaction.blocks.merge.rounds import Emitted, MergeRounds, copy_of_last
from compaction.blocks.merge.runs import ParquetRun, Run, paged_bytes
from compaction.blocks.merge.schema import declared, unified, without_dictionary
from compaction.blocks.merge.sorting import Spiller, sorted_runs
from compaction.blocks.model import RowFingerprint

# The columns that are coded: those whose values repeat so often within a row group that a dictionary of all of them
# pays.
#
# The footer says which chunks have a dictionary at all; the dictionaries of a few row groups are read to see whether
# they are small (`dictionaries`). A wrong answer costs little: codes are given up when there are too many
# (`columns.Memo`), and plain columns are merged as they are.

_FEWEST_VALUES: Final = 1024
_LOOKS: Final = 3


def repeating(schema: pa.Schema, footers: Sequence[OpenedFooter]) -> list[str]:
    """Names of the columns that are coded. Raises UnreadableBlockError."""
    having = [footer for footer in footers if footer.groups]
    names = [field.name for field in schema if is_codable(field.type) and _in_dictionaries(field.name, having)]
    for footer in having[:: max(1, -(-len(having) // _LOOKS))]:
        names = _repeating_in(footer, names)
    return names


def most_values(footers: Sequence[OpenedFooter]) -> int:
    """Return the number of values that the dictionary of a coded column may have: to look up those of a row group in it
    must cost less than the row group's rows do without it.
    """
    groups = sum(len(footer.groups) for footer in footers)
    rows = sum(footer.rows for footer in footers)
    return max(_FEWEST_VALUES, rows // max(1, groups) // ROWS_PER_VALUE)


def _in_dictionaries(column: str, footers: Sequence[OpenedFooter]) -> bool:
    """Return whether every chunk of the column has a dictionary, and there is a chunk."""
    chunks = [chunk for footer in footers for chunk in footer.chunks(column)]
    return bool(chunks) and all(chunk.has_dictionary_page for chunk in chunks)


def _repeating_in(footer: OpenedFooter, names: Sequence[str]) -> list[str]:
    """Those whose dictionary is small in the footer's first row group, or that it does not have."""
    types = {field.name: without_dictionary(field.type) for field in footer.schema}
    present = [name for name in names if name in types and is_codable(types[name])]
    if not present:
        return list(names)
    with reading(footer.input.name), footer.opened(present) as file:
        many = not_repeating(file, footer.groups[0], present)
    return [name for name in names if name not in many]


# Of rows with an equal key only the last is kept; what is dropped is counted, hashed and named.
#
# Rows arrive in the order of (key, input, row), so the last is the one of the latest input.

EXAMPLES: Final = 10


class KeepLast:
    """Passes on the last row of each key. The very last row of a round is held back: the next may replace it."""

    def __init__(self, columns: Columns) -> None:
        self.dropped = Duplicates()
        self._columns = columns

    def of(self, rounds: Iterable[Emitted]) -> Iterator[Rows]:
        """The rows that are kept, in order."""
        held: Rows | None = None
        for emitted in rounds:
            if held is not None:
                if emitted.new[0]:
                    yield held
                else:
                    self._drop(held)
            last = np.append(emitted.new[1:], True)  # whether a row is the last of its key, as far as is known
            rows = emitted.rows
            if not last.all():
                self._drop(rows.take(pa.array(np.flatnonzero(~last))))
            held = copy_of_last(rows)
            last[-1] = False
            kept = np.flatnonzero(last)
            if len(kept) == rows.count - 1:
                yield rows.slice(0, rows.count - 1)
            elif len(kept):
                yield rows.take(pa.array(kept))
        if held is not None:
            yield held

    def _drop(self, rows: Rows) -> None:
        batch = self._columns.batch(rows)
        examples = self.dropped.examples
        if len(examples) < EXAMPLES:
            keys = batch.select(list(self._columns.keys)).slice(0, EXAMPLES - len(examples)).to_pylist()
            examples += tuple(tuple(key.values()) for key in keys)
        self.dropped = Duplicates(self.dropped.fingerprint + fingerprint(batch), examples)


# Merges sorted Parquet files into one: reads each input once, in bounded memory, and says what it has done.
#
# Invariants (tests/blocks/merge):
#
# * The rows of the output are those of the inputs, each as often; with deduplication, minus exactly the rows that are
#   counted as dropped.
# * They are in the order of (sort key, input, row), whatever the inputs claim: a claim that does not hold is an
#   error.
# * An error leaves the output file of no use, and says which input it is about.

Describe = Callable[[MergeResult], Mapping[str, str]]
"""What goes into the output's key-value metadata."""


def merge(
    inputs: Sequence[MergeInput],
    output: str | IO[bytes],
    settings: MergeSettings,
    *,
    describe: Describe = lambda _: {},
    moved: Moved = nobody,
) -> MergeResult:
    """Merge the inputs into `output`, a path or a binary file that the caller closes. `moved` counts each row twice:
    when it is read, and when it is merged.

    Raises:
        SchemaConflictError, SortKeyError: the inputs cannot be merged (by this key).
        UnreadableBlockError: an input is missing, damaged or no Parquet file.
        LogicalTypeLostError: a column would not mean what it does in an input.
        BlockNotSortedError: an input that is said to be sorted is not; give it with an empty sort key.
        MergeMemoryError: the memory limit is too small for a row group of an input, or for footers.
    """
    if not inputs:
        raise ValueError("nothing to merge")
    keep_freed(settings.memory_bytes // 16)
    footers = _read_footers(inputs, settings.sort_key)
    named = [footer.named_schema for footer in footers]
    schema = unified(named)
    coded = repeating(schema, footers)
    budget = budget_for(settings, schema, coded, footers)
    # The sizes in the footers are too much for the memory: those of single pages cost reads, and may fit.
    if sum(footer.reading_bytes for footer in footers) > budget.pages:
        footers = [replace(footer, reading_bytes=paged_bytes(footer)) for footer in footers]
    most = MemoLimits(budget.memos // max(1, len(coded)), most_values(footers))
    meanings = Meanings.of(footers, schema)
    meanings.check_order(settings.sort_key)
    columns = Columns.of(schema, settings.sort_key, coded=coded, most=most)
    with ExitStack() as resources:
        scratch = Path(tempfile.mkdtemp(prefix="merge-", dir=settings.scratch))
        resources.callback(shutil.rmtree, scratch, ignore_errors=True)
        spiller = Spiller(scratch, columns, budget.spilled)
        work = _Merge(footers, columns, settings, budget, spiller, moved)
        told = Declared(
            declared(named, schema), stored=any(footer.has_arrow_schema for footer in footers), int96=_as_int96(footers)
        )
        sink = Output(
            output,
            columns,
            settings,
            told,
            pending_bytes=budget.pending,
            sample_rows=sample_rows(sum(footer.rows for footer in footers)),
            bloom=bloom_columns(footers),
            meanings=meanings,
        )
        resources.callback(sink.abort)
        for rows in work.rows():
            sink.add(rows)
            moved(rows.count)
        return work.finish(sink, describe)


def _read_footers(inputs: Sequence[MergeInput], sort_key: Sequence[str]) -> list[OpenedFooter]:
    """Of all. Files of Spark are read for how exact their times are only where others have nanoseconds."""
    footers = [read_footer(block, sort_key) for block in inputs]
    if not any("ns" in footer.int96.columns.values() for footer in footers):
        return footers
    return [read_footer(footer.input, sort_key, look=True) if footer.int96.assumed else footer for footer in footers]


def _as_int96(footers: Sequence[OpenedFooter]) -> bool:
    """Return whether timestamps are stored as INT96: all that the inputs have are (the writer knows one way for a
    file).
    """
    return any(footer.int96.columns for footer in footers) and not any(
        has_other_timestamps(footer.metadata) for footer in footers
    )


@dataclass(slots=True)
class _Merge:
    """One merge under way."""

    footers: Sequence[OpenedFooter]
    columns: Columns
    settings: MergeSettings
    budget: Budget
    spiller: Spiller
    moved: Moved
    sources: tuple[ParquetRun, ...] = ()
    sorted_first: tuple[str, ...] = ()
    passes: int = 1
    deduplication: KeepLast | None = None

    def rows(self) -> Iterator[Rows]:
        """The merged rows, in order."""
        self.sources = tuple(self._source(number, footer) for number, footer in enumerate(self.footers))
        runs = self._runs()
        while (window := self.budget.to_spill(runs)) is not None:
            runs[window] = [self._spilled(runs[window])]
        self.passes += max((run.merged for run in runs), default=0)
        rounds = self._rounds(runs)
        if self.settings.deduplicate:
            self.deduplication = KeepLast(self.columns)
            return self.deduplication.of(rounds)
        return (emitted.rows for emitted in rounds)

    def _source(self, number: int, footer: OpenedFooter) -> ParquetRun:
        """Known fingerprints are of whole files: they say nothing about a part of one."""
        block = footer.input
        whole = block.first is None and block.last is None
        return ParquetRun(footer, self.columns, number, block.fingerprint if whole else None, self.moved)

    def _runs(self) -> list[Run]:
        """The inputs as sorted runs; those that are not sorted are sorted now."""
        runs: list[Run] = []
        in_order = {source.number for source in self.sources if source.footer.is_sorted_by(self.settings.sort_key)}
        room = self.budget.to_hold(
            [source for source in self.sources if source.number in in_order],
            [source for source in self.sources if source.number not in in_order],
        )
        for source in self.sources:
            if source.number in in_order:
                runs.append(source)
                continue
            self.sorted_first += (source.name,)
            found = sorted_runs(
                source,
                self.columns,
                self.spiller,
                rows=self.budget.batch_rows(1),
                chunk_bytes=self.budget.round,
                room=room,
            )
            for run in found:
                room -= run.cost
                runs.append(run)
        return [run for run in runs if not isinstance(run, ParquetRun) or run.footer.groups]

    def _spilled(self, runs: Sequence[Run]) -> Run:
        merged = 1 + max(run.merged for run in runs)
        return self.spiller.spill(runs[0].name, (emitted.rows for emitted in self._rounds(runs)), merged=merged)

    def _rounds(self, runs: Sequence[Run]) -> MergeRounds:
        at_once, whole = max(1, open_at_once(runs)), self.budget.reads_whole(runs)
        ahead = self.budget.rows_ahead(runs, whole=whole)
        return MergeRounds(
            self.columns,
            runs,
            batch=ahead // at_once,
            ahead=ahead,
            ahead_bytes=max(at_once * self.budget.batch_bytes(at_once) // 2, ahead * self.budget.row_bytes),
            round_bytes=self.budget.round,
            round_rows=max(1, self.budget.round // self.budget.row_bytes),
            whole=whole,
        )

    def finish(self, sink: Output, describe: Describe) -> MergeResult:
        """Close the output."""
        dropped = self.deduplication.dropped if self.deduplication is not None else Duplicates()
        result = MergeResult(
            schema=self.columns.schema,  # what its INT96 is only shows when all is written
            read=sum((source.seen for source in self.sources), RowFingerprint()),
            duplicates=dropped,
            row_groups=0,
            sorted_first=self.sorted_first,
            spilled=self.spiller.bytes,
            passes=self.passes,
            encodings={},
        )
        sink.close(describe(result))
        assert sink.layout is not None
        encodings = {name: str(item) for name, item in sink.layout.encodings.items()}
        return replace(result, schema=sink.schema(), row_groups=sink.row_groups, encodings=encodings)


# Cuts a merge into parts by ranges of the first key column, so that several tasks can share it.
#
# The cuts come from the statistics of row groups, so nothing is read: each has its rows spread evenly between its
# bounds, where these are numbers or times; of texts only the bounds themselves are cuts. Every row is in exactly one
# part; rows with a null in the column are in the last.


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose first key column is at least `first` and below `last`; None is no bound."""

    first: Bound | None = None
    last: Bound | None = None


WHOLE = KeyRange()


class _Group(NamedTuple):
    """A row group: smallest and largest key, rows."""

    least: Bound
    most: Bound
    rows: int


def key_ranges(footers: Sequence[OpenedFooter], column: str, *, parts: int) -> tuple[KeyRange, ...]:
    """At most so many ranges of about equal numbers of rows, ascending, which together hold every row once.

    Fewer when the column has few values, and only one when a row group does not say what is in it.
    """
    groups: list[_Group] = []
    for footer in footers:
        for group in footer.groups:
            bounds = footer.bounds(group, column)
            if bounds is None:
                return (WHOLE,)
            groups.append(_Group(*bounds, footer.metadata.row_group(group).num_rows))
    if not groups:
        return (WHOLE,)
    least, most = min(group.least for group in groups), max(group.most for group in groups)
    cuts = sorted({cut for cut in _cuts(groups, parts) if least < cut <= most})  # type: ignore[operator]
    edges = [None, *cuts, None]
    return tuple(KeyRange(first, last) for first, last in pairwise(edges))


def _cuts(groups: Sequence[_Group], parts: int) -> Iterator[Bound]:
    """Yield the bound at which each part but the first begins. Between two bounds the rows of the row groups around
    them lie evenly.
    """
    slopes: dict[Bound, float] = {}
    jumps: dict[Bound, float] = {}
    for least, most, rows in groups:
        if isinstance(least, int) and isinstance(most, int) and least < most:
            slopes[least] = slopes.get(least, 0.0) + rows / (most - least)
            slopes[most] = slopes.get(most, 0.0) - rows / (most - least)
        else:  # half of its rows at either end: exact for many row groups, harmless for few
            for bound in (least, most):
                jumps[bound] = jumps.get(bound, 0.0) + rows / 2
    part = sum(group.rows for group in groups) / parts
    passed = slope = 0.0
    before: Bound | None = None
    wanted = 1
    for bound in sorted({*slopes, *jumps}):
        here = passed + (slope * (bound - before) if isinstance(bound, int) and isinstance(before, int) else 0.0)
        while wanted < parts and slope > 0 and here >= wanted * part:
            assert isinstance(before, int)
            assert isinstance(bound, int)
            yield min(bound, before + math.ceil((wanted * part - passed) / slope))  # rounded, it may be behind it
            wanted += 1
        passed, before = here, bound
        slope += slopes.get(bound, 0.0)
        jump = jumps.get(bound, 0.0)
        while wanted < parts and jump and passed + jump >= wanted * part:
            yield bound
            wanted += 1
        passed += jump
