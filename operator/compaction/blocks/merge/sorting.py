"""Rows in no order become sorted runs: as many at a time as the memory allows are sorted, and held or spilled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.blocks.merge.columns import Columns, Rows
from compaction.blocks.merge.keys import key_numbers, sorting_order
from compaction.blocks.merge.runs import Run
from compaction.blocks.merge.spilling import HeldRun, SpilledRun, Spiller


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
