"""Parquet files of every shape that people keep: what the columns hold, and how the files lie in time.

Each set is the same for the same seed. `ts` is the sort key; its values are microseconds of one day. Sizes are those of
the files together, about: rows are derived from what a row of the shape takes, zstd-compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY: Final = ("ts",)
DAY: Final = 86_400_000_000
START: Final = 1_700_000_000_000_000
GROUP_ROWS: Final = 1 << 17
LEVEL: Final = 3

Random = np.random.Generator
Columns = dict[str, pa.Array]


class Arrangement(StrEnum):
    """How the rows of a set are spread over its files."""

    OVERLAPPING = "overlapping"
    DISJOINT = "disjoint"
    HUGE = "one huge among small"
    UNDECLARED = "sorted, undeclared"
    UNSORTED = "unsorted"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the columns besides `ts` hold. `row_bytes`: what a row takes in the files, about."""

    row_bytes: float
    columns: Callable[[Random, int], Columns]


def _numbers(random: Random, rows: int) -> Columns:
    return {
        "value": pa.array(random.lognormal(9, 2, rows)),
        "size": pa.array(random.integers(0, 1 << 30, rows)),
        "status": pa.array(random.integers(0, 600, rows, dtype=np.int32)),
    }


def _words(prefix: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Texts of numbers, made without a Python object per row."""
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _few_labels(random: Random, rows: int) -> Columns:
    pods = pa.array([f"pod/namespace/production-{n * 2654435761 % 2**32:08x}" for n in range(2000)])
    names = pa.array([f"service-{n * 2654435761 % 2**32:08x}" for n in range(300)])
    return {
        "service": names.take(pa.array(random.zipf(1.3, rows) % 300)),
        "pod": pods.take(pa.array(random.integers(0, 2000, rows))),
        "value": pa.array(random.lognormal(9, 2, rows)),
    }


def _many_ids(random: Random, rows: int) -> Columns:
    return {
        "trace": _words("t", random.integers(0, 10_000_000, rows)),
        "duration": pa.array(random.integers(0, 1 << 24, rows)),
        "value": pa.array(random.integers(0, 1 << 16, rows)),
    }


def _half_repeated(random: Random, rows: int) -> Columns:
    known = _words("connection accepted from address 10.0.0.", random.integers(0, 1000, rows))
    fresh = _words("request finished with identifier ", random.integers(0, 1 << 40, rows))
    return {
        "message": pc.if_else(pa.array(random.integers(0, 2, rows) == 0), known, fresh),
        "level": pa.array(["debug", "info", "warning", "error"]).take(pa.array(random.zipf(1.7, rows) % 4)),
        "value": pa.array(random.integers(0, 1 << 20, rows)),
    }


def _long_lines(random: Random, rows: int) -> Columns:
    parts = [
        pa.scalar('10.1.2.3 - - "GET /api/v2/projects/'),
        pa.array(random.integers(0, 100_000, rows)).cast(pa.string()),
        pa.scalar('/items?page=1&sort=created HTTP/1.1" 200 '),
        pa.array(random.integers(0, 1 << 20, rows)).cast(pa.string()),
        pa.scalar(' "https://example.org/start" "Mozilla/5.0 (X11; Linux x86_64) request '),
        pa.array(random.integers(0, 1 << 24, rows)).cast(pa.string()),
    ]
    return {"line": pc.binary_join_element_wise(*parts, "")}


def _nested(random: Random, rows: int) -> Columns:
    counts = random.integers(0, 4, rows)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    many = int(offsets[-1])
    keys = pa.array([f"http.attribute-{n}" for n in range(40)]).take(pa.array(random.integers(0, 40, many)))
    values = _words("value-", random.integers(0, 5000, many))
    entries = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return {"attributes": pa.ListArray.from_arrays(pa.array(offsets), entries), "value": pa.array(random.random(rows))}


def _wide(random: Random, rows: int) -> Columns:
    columns: Columns = {}
    for place in range(300):
        if place % 3 == 0:
            columns[f"c{place}"] = pa.array(random.integers(0, 1 << 16, rows))
        elif place % 3 == 1:
            columns[f"c{place}"] = pa.array(random.integers(0, 1 << 8, rows) / 8)
        else:
            columns[f"c{place}"] = _words("label-", random.integers(0, 200, rows))
    return columns


def _exact(random: Random, rows: int) -> Columns:
    price = pa.array(random.integers(0, 10_000_000, rows)).cast(pa.decimal128(19, 0))
    when = pa.array(START + random.integers(0, DAY, rows))
    return {
        "price": pa.Array.from_buffers(pa.decimal128(19, 4), rows, price.buffers()),
        "created": when.cast(pa.timestamp("us", "UTC")),
        "updated": when.cast(pa.timestamp("us")).cast(pa.timestamp("ms"), safe=False),
        "day": when.cast(pa.timestamp("us")).cast(pa.date32(), safe=False),
    }


SHAPES: Final[Mapping[str, Shape]] = {
    "numbers": Shape(21.0, _numbers),
    "few labels": Shape(16.0, _few_labels),
    "many ids": Shape(16.0, _many_ids),
    "half repeated": Shape(14.0, _half_repeated),
    "long lines": Shape(16.0, _long_lines),
    "nested": Shape(15.0, _nested),
    "300 columns": Shape(560.0, _wide),
    "decimals and timestamps": Shape(20.0, _exact),
}


def generate(directory: Path, shape: str, arrangement: Arrangement, *, files: int, megabytes: float) -> int:
    """Write the set into `directory`, which is made; returns how many rows it has."""
    rows = max(files, int(megabytes * 1e6 / SHAPES[shape].row_bytes))
    directory.mkdir(parents=True)
    for number, count in enumerate(_shares(arrangement, files, rows)):
        write_file(directory / f"{number:03d}.parquet", shape, arrangement, number=number, of=files, rows=count)
    return rows


def _shares(arrangement: Arrangement, files: int, rows: int) -> list[int]:
    small = rows // (5 * (files - 1)) if arrangement is Arrangement.HUGE and files > 1 else rows // files
    return [rows - small * (files - 1)] + [small] * (files - 1)


def write_file(path: Path, shape: str, arrangement: Arrangement, *, number: int, of: int, rows: int) -> None:
    """One file of a set, at most a few row groups of it in memory at a time."""
    random = np.random.default_rng([number, of, rows])
    low, high = (number * DAY // of, (number + 1) * DAY // of) if arrangement is Arrangement.DISJOINT else (0, DAY)
    times = START + random.integers(low, high, rows)
    if arrangement is not Arrangement.UNSORTED:
        times.sort()
    declared = [pq.SortingColumn(0)] if arrangement not in (Arrangement.UNDECLARED, Arrangement.UNSORTED) else None
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, GROUP_ROWS):
        part = times[start : start + GROUP_ROWS]
        columns = {"ts": pa.array(part).cast(pa.timestamp("us", "UTC")), **SHAPES[shape].columns(random, len(part))}
        table = pa.table(columns)
        if writer is None:
            writer = pq.ParquetWriter(
                path, table.schema, compression="zstd", compression_level=LEVEL, sorting_columns=declared
            )
        writer.write_table(table, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()
