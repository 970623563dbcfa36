"""Rows that are in no order become sorted runs: as many at a time as the memory allows are sorted and spilled."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from compaction.stores.blocks.merge.columns import Columns, Rows
from compaction.stores.blocks.merge.keys import key_numbers, sorting_order
from compaction.stores.blocks.merge.runs import Run, SpilledRun, Spiller


def sorted_runs(run: Run, columns: Columns, spiller: Spiller, *, rows: int, chunk_bytes: int) -> Iterator[SpilledRun]:
    """Read a run whose rows are in any order, at most `rows` at a time. The runs that come out hold about
    `chunk_bytes`, each is sorted (stable), and among equal keys an earlier run has the earlier rows.
    """
    parts: list[Rows] = []
    size = 0
    for part in run.batches(rows):
        parts.append(part)
        size += part.nbytes
        if size >= chunk_bytes:
            yield spiller.spill(run.name, [_sorted(parts, columns)])
            parts, size = [], 0
    if parts:
        yield spiller.spill(run.name, [_sorted(parts, columns)])


def _sorted(parts: list[Rows], columns: Columns) -> Rows:
    rows = columns.join(parts)
    parts.clear()
    order = sorting_order(key_numbers(columns, [rows.columns[place] for place in columns.keys]))
    return rows.take(pa.array(order))
