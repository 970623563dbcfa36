"""Merges sorted Parquet files into one: reads each input once, in bounded memory, and says what it has done.

Invariants (tests/stores/blocks/merge):

* The rows of the output are those of the inputs, each as often; with deduplication, minus exactly the rows that are
  counted as dropped.
* They are in the order of (sort key, input, row), whatever the inputs claim: a claim that does not hold is an error.
* An error leaves the output file of no use, and says which input it is about.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from compaction.blocks.format.int96 import has_other_timestamps
from compaction.blocks.freed import keep_freed
from compaction.blocks.merge.at_once import open_at_once
from compaction.blocks.merge.budget import Budget, budget_for
from compaction.blocks.merge.columns import Columns, MemoLimits, Rows
from compaction.blocks.merge.dedup import KeepLast
from compaction.blocks.merge.encodings import sample_rows
from compaction.blocks.merge.footers import OpenedFooter, bloom_columns, read_footer
from compaction.blocks.merge.meanings import Meanings
from compaction.blocks.merge.output import Declared, Output
from compaction.blocks.merge.pages import paged_bytes
from compaction.blocks.merge.repeating import most_values, repeating
from compaction.blocks.merge.rounds import MergeRounds
from compaction.blocks.merge.runs import ParquetRun, Run
from compaction.blocks.merge.schema import declared, unified
from compaction.blocks.merge.settings import Duplicates, MergeInput, MergeResult, MergeSettings, Moved, nobody
from compaction.blocks.merge.sorting import sorted_runs
from compaction.blocks.merge.spilling import Spiller
from compaction.blocks.model import RowFingerprint

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
    """Whether timestamps are stored as INT96: all that the inputs have are (the writer knows one way for a file)."""
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
        encodings = {name: str(one) for name, one in sink.layout.encodings.items()}
        return replace(result, schema=sink.schema(), row_groups=sink.row_groups, encodings=encodings)
