"""Shares of the memory limit of a merge, and the number of runs that are open at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa

from compaction.blocks.errors import MergeMemoryError
from compaction.blocks.merge.columns import has_width
from compaction.blocks.merge.footers import Bound, MergeSettings, OpenedFooter, reading
from compaction.blocks.merge.runs import ParquetRun, RowsTooLargeError, Run, decoded_row, expanded_bytes

# The amount that is open at once: runs whose keys do not overlap are read one after the other, however many there
# are.
#
# A run is open from the round in which its smallest key is next until its last row is emitted (`rounds`): two runs
# are open together only if neither ends before the other begins. A run whose bounds are not known is taken to be open
# all the time.


def most_at_once(runs: Sequence[Run], weight: Callable[[Run], int]) -> int:
    """The largest sum of the weights, none of which is negative, of runs that may be open at the same time."""
    now = sum(weight(run) for run in runs if run.least is None)
    known = [(run.least, number, run) for number, run in enumerate(runs) if run.least is not None]
    ends: list[tuple[Bound, int]] = []
    most = now
    for least, _, run in sorted(known, key=lambda item: item[:2]):
        while ends and ends[0][0] < least:  # type: ignore[operator]  # bounds of one column are of one type
            now -= heapq.heappop(ends)[1]
        weighed = weight(run)
        if run.most is not None:
            heapq.heappush(ends, (run.most, weighed))
        now += weighed
        most = max(most, now)
    return most


def open_at_once(runs: Sequence[Run]) -> int:
    """Return the number of the runs that may be open at the same time."""
    return most_at_once(runs, lambda _: 1)


# Shares of the memory limit. The parts add up to the limit; a test measures that they hold.
#
# 1/3  pages of the row groups that are being read, one for each open run: this caps the fan-in. Where the row groups
#      fit as rows, they are read whole and their pages at once let go of: this is several times as fast
#      (runs that do not overlap are not open together: `at_once`)
# 1/8  rows that were read and not yet emitted: two batches for each open run
# 1/6  the rows of a round, and one column of them twice
# 1/10 rows that wait for their row group to be full
# 1/6  one column of these as it is written, and footers: many columns make large ones
# 1/10 values of the coded columns
#
# Footers that take more than that part leave less for the rows and values that are held.

_MOST_ROWS: Final = 1 << 15
_LEAST_ROWS: Final = 256
_FEWEST_GOOD_ROWS: Final = 512
_LEAST_SPILLED, _MOST_SPILLED = 64 << 10, 8 << 20
_DECODER: Final = 64 << 10
"""What a codec keeps for each column of an open file, about, outside of Arrow's pool (measured: 300 columns, zstd)."""
_MOST_HELD: Final = 4
"""Rows that are so many times as large as what can be held are spilled, all of them."""
_CHUNK: Final = 1 << 10
"""Bytes of a footer in memory for each column of a row group, read or written, about (measured: 1,200 and 840)."""
_LOOKS: Final = 3
"""Row groups of a file whose rows are measured."""
_MOST_RUNS: Final = 512
"""More are merged in two levels anyway: each has an open file."""


class _Needs(NamedTuple):
    """Of a run: bytes to have it open, bytes of its rows, how often they were merged."""

    cost: int
    size: int
    merged: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for each purpose. `row_bytes`: of one row as Arrow has it, about; the merge reacts to what it really is.
    `measured`: it is not more than that. `spills`: how many spilled runs there may be. `footers`: bytes of those of the
    inputs and of the output.
    """

    limit: int
    row_bytes: int
    measured: bool
    spills: int = _MOST_RUNS
    footers: int = 0

    @property
    def pages(self) -> int:
        return self.limit // 3

    @property
    def buffers(self) -> int:
        return self._shared // 8

    @property
    def pending(self) -> int:
        return self.limit // 10

    @property
    def memos(self) -> int:
        return self._shared // 10

    @property
    def spilled(self) -> int:
        """Of a spilled run that is decompressed at a time: half of the pages is enough for all that can be open."""
        return min(_MOST_SPILLED, max(_LEAST_SPILLED, self.pages // (2 * min(self.most_runs, max(1, self.spills)))))

    @property
    def round(self) -> int:
        """Of rows that are sorted or gathered at a time."""
        return self._shared // 6

    @property
    def _shared(self) -> int:
        """The bytes that buffers, rounds and memos are shares of, two fifths together: the limit, unless footers take
        of it.
        """
        return self.limit - max(0, self.footers - self.limit // 6) * 5 // 2

    def reads_whole(self, runs: Sequence[Run]) -> bool:
        """Return whether a row group of each run fits, as rows, with the memory to read one, and the rows that are left
        of those before them: half a batch of each.
        """
        rows = most_at_once(runs, lambda run: run.group_rows) * self.row_bytes
        held = sum(run.cost for run in runs if not run.group_rows)
        read = max((run.whole_cost for run in runs if run.group_rows), default=0)
        return self.measured and rows + held + read <= self.pages + self.buffers - self.buffers // 4

    def to_hold(self, in_order: Sequence[Run], others: Sequence[ParquetRun]) -> int:
        """Bytes of rows that were sorted and may stay in memory: while those in order are open, too, and before that
        while each of the others is read and sorted, when nothing is written yet; a column may be nearly all of a row,
        and then what is sorted is there twice. None where few of them would stay: of many runs some are merged once
        more to make place for these, which saves nothing.
        """
        if sum(run.footer.rows for run in others) * self.row_bytes > _MOST_HELD * self.pages:
            return 0
        reading = max((run.cost + _DECODER * run.columns_read for run in others), default=0)
        sorting = self.limit - self.memos - self.batch_bytes(1) - 2 * self.round - reading
        return max(0, min(sorting, self.pages - most_at_once(in_order, lambda run: run.cost)))

    def batch_bytes(self, runs: int) -> int:
        """Of one batch when so many runs are open."""
        return max(1, self.buffers // (2 * max(1, runs)))

    def batch_rows(self, runs: int) -> int:
        """Rows of one batch when so many runs are open."""
        fitting = self.batch_bytes(runs) // self.row_bytes
        least = max(1, min(_LEAST_ROWS, self.buffers // self.row_bytes))  # fewer where rows themselves are large
        return max(least, min(_MOST_ROWS, fitting))

    def rows_ahead(self, runs: Sequence[Run], *, whole: bool) -> int:
        """Rows of all runs together in the windows of a round: half a batch of each. Where row groups are read whole,
        and so are there anyway, a quarter of the buffers. Where all runs were sorted by us, a batch of each is there:
        all of it, up to what a round can hold.
        """
        at_once = max(1, open_at_once(runs))
        rows = 0
        if whole:
            rows = self.buffers // 4 // self.row_bytes
            if runs and not any(run.group_rows for run in runs):
                there = min(self.buffers // 2 // at_once, *(run.cost for run in runs))
                rows = max(rows, at_once * there // self.row_bytes)
        return at_once * max(1, self.batch_rows(at_once) // 2, min(_MOST_ROWS, rows // at_once))

    def to_spill(self, runs: Sequence[Run]) -> slice | None:
        """Return the neighbours to merge into a spilled run first, so that all can be merged at once; None when they
        can.

        The fewest bytes after which that is so, as long as they themselves can be merged at once; where no neighbours
        are enough, the most of them, from among those that were merged least often.

        Raises MergeMemoryError for a run that is too large by itself.
        """
        needs = [_Needs(run.cost, run.size, run.merged) for run in runs]  # a cost is added up from the whole footer
        for run, item in zip(runs, needs, strict=True):
            if item.cost > self.pages:
                raise MergeMemoryError(run.name, item.cost, self.pages)
        if most_at_once(runs, lambda run: run.cost) <= self.pages and open_at_once(runs) <= self.most_runs:
            return None
        excess = sum(need.cost for need in needs) - self.pages
        windows = [found for start in range(len(needs)) if (found := self._window(needs, start, excess)) is not None]
        return min(windows, key=lambda window: window[:2])[2]

    @property
    def most_runs(self) -> int:
        """The number of runs that can be merged at once, whatever they cost: each has rows that wait."""
        return max(2, min(_MOST_RUNS, self.buffers // (2 * _FEWEST_GOOD_ROWS * self.row_bytes)))

    def _window(self, needs: Sequence[_Needs], start: int, excess: int) -> tuple[int, int, slice] | None:
        """The fewest neighbours from there on that are enough, else as many as can be merged at once; before it what
        to choose by: how often they were merged (-1: they are enough), then bytes, or how few they are.
        """
        cost = size = merged = count = 0
        excess += self.spilled if excess > 0 else 0  # which takes the place of what is spilled
        for need in needs[start : start + self.most_runs]:
            if cost + need.cost > self.pages:
                break
            cost, size, merged, count = cost + need.cost, size + need.size, max(merged, need.merged), count + 1
            if (count > 1 or not merged) and cost >= excess and len(needs) - count < self.most_runs:
                return -1, size, slice(start, start + count)
        return (merged, -count, slice(start, start + count)) if count > 1 or (cost and not merged) else None


def budget_for(
    settings: MergeSettings, schema: pa.Schema, coded: Sequence[str], footers: Sequence[OpenedFooter]
) -> Budget:
    """The budget of a merge of these files. Sorted files that are spilled are a run each at most; unsorted ones are a
    run for each time that their rows fill a round.

    Raises MergeMemoryError where footers take more than half of the limit; it names the file with the most columns.
    """
    limit = settings.memory_bytes
    repeated = max((_decoded_row(footer, coded, limit // 3) for footer in footers), default=0)
    row = max(row_bytes(schema, coded, footers), repeated)
    budget = Budget(limit, row, is_measured(schema, coded, footers))
    budget = replace(budget, footers=_footer_bytes(budget, settings, footers))
    if budget.footers > limit // 2:
        widest = max(footers, key=lambda footer: int(footer.metadata.num_columns))
        raise MergeMemoryError(widest.input.name, budget.footers, limit // 2, "for footers")
    rows = sum(footer.rows for footer in footers if not footer.is_sorted_by(settings.sort_key))
    return replace(budget, spills=len(footers) + rows * budget.row_bytes // budget.round)


def _decoded_row(footer: OpenedFooter, coded: Sequence[str], room: int) -> int:
    """Bytes of a row of a file as it is read, by some of its row groups: what the footer says is too little where texts
    are stored in less than they are. Raises MergeMemoryError for rows of more than `room` bytes.
    """
    groups = footer.groups[:: max(1, -(-len(footer.groups) // _LOOKS))]
    present = [name for name in coded if footer.leaf(name) is not None]
    try:
        with reading(footer.input.name), footer.opened(present) as file, footer.source() as source:
            return max((decoded_row(file, group, source, room=room) for group in groups), default=0)
    except RowsTooLargeError as error:
        raise MergeMemoryError(
            footer.input.name, error.needed, room, f"for a row or page of column {error.column}"
        ) from None


def _footer_bytes(budget: Budget, settings: MergeSettings, footers: Sequence[OpenedFooter]) -> int:
    """Of the inputs, which stay, and of the output, whose row groups are as large as what may be pending, at most."""
    read = sum(int(footer.metadata.num_row_groups) * int(footer.metadata.num_columns) for footer in footers)
    rows, encoded = sum(footer.rows for footer in footers), sum(footer.stored_bytes for footer in footers)
    groups = max(rows * budget.row_bytes // budget.pending, encoded // settings.row_group_bytes)
    return _CHUNK * (read + groups * max(int(footer.metadata.num_columns) for footer in footers))


def is_measured(schema: pa.Schema, coded: Sequence[str], footers: Sequence[OpenedFooter]) -> bool:
    """Return whether no row can be much larger than `row_bytes`: values of fixed width, codes, or pages that say so."""
    return all(
        field.name in coded
        or (not pa.types.is_nested(field.type) and has_width(field.type))
        or all(footer.is_measured(field.name) for footer in footers if field.name in footer.schema.names)
        for field in schema
    )


def row_bytes(schema: pa.Schema, coded: Sequence[str], footers: Sequence[OpenedFooter]) -> int:
    """Bytes of a row in Arrow memory: exact for fixed widths, for others what the footers say."""
    return max(1, sum(_column_bytes(field, field.name in coded, footers) for field in schema))


def _column_bytes(field: pa.Field, coded: bool, footers: Sequence[OpenedFooter]) -> int:
    if coded:
        return 4
    try:
        return -(-int(field.type.bit_width) // 8)
    except ValueError:  # no fixed width
        chunks = [
            (
                max(
                    footer.metadata.row_group(group).column(leaf).total_uncompressed_size,
                    expanded_bytes(footer.metadata.schema.column(leaf), footer.metadata.row_group(group).column(leaf)),
                ),
                footer.metadata.row_group(group),
            )
            for footer in footers
            for group in footer.groups
            for leaf in range(footer.metadata.num_columns)
            if footer.metadata.schema.column(leaf).path.split(".")[0] == field.name
        ]
        return 8 + max((-(-size // max(1, group.num_rows)) for size, group in chunks), default=0)
