"""What comes out of a merge is read by others, every type and every encoding, value by value.

Spark reads the same files in tests/rewrite/spark/test_blocks.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.merge import output
from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from support.stores.parquet_types import (
    ENCODINGS,
    KEY,
    NOT_EXACT,
    NOT_READ,
    TYPES,
    expected,
    merged,
    plain,
    readable,
    table,
    values,
    written_as,
)


def _duckdb(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(f"from read_parquet('{path}')").to_arrow_table()


READERS: Final[Mapping[str, Callable[[Path], pa.Table]]] = {
    "pyarrow": pq.read_table,
    "duckdb": _duckdb,
    "polars": lambda path: polars.read_parquet(path).to_arrow(),
}
DATE64: Final = "date64"
"""pyarrow itself reads it as date32, so that is what the output says; values are the same days."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("encoding", ["", *ENCODINGS])
def test_every_type_is_read_back(reader: str, encoding: str, tmp_path: Path) -> None:
    rows = table(readable(reader))
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "plain.parquet"
    ours.write_bytes(merged(rows, encoding))
    theirs.write_bytes(plain(rows))
    found, simply = READERS[reader](ours), READERS[reader](theirs)
    for name in rows.column_names:
        if name != DATE64:
            assert found.schema.field(name).type == simply.schema.field(name).type, name
            assert values(found[name]) == values(simply[name]), name
        if name not in (*NOT_EXACT.get(reader, ()), KEY, DATE64):
            assert values(found[name]) == expected(reader, name), name
    assert [str(day)[:10] for day in values(found[DATE64])] == [str(day) for day in values(TYPES[DATE64])]
    assert found[KEY].to_pylist() == rows[KEY].to_pylist()


@pytest.mark.parametrize(("reader", "name"), [(reader, name) for reader in READERS for name in NOT_READ[reader]])
def test_what_a_reader_cannot_read_is_not_our_doing(reader: str, name: str, tmp_path: Path) -> None:
    """Once it can, this fails, and the exception goes."""
    path = tmp_path / "plain.parquet"
    path.write_bytes(plain(table((name,))))
    with pytest.raises((Exception, polars.exceptions.PanicException), match=NOT_READ[reader][name]):
        READERS[reader](path)


@pytest.mark.parametrize(("reader", "name"), [(reader, name) for reader in NOT_EXACT for name in NOT_EXACT[reader]])
def test_what_a_reader_makes_something_else_of_is_not_our_doing(reader: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    path.write_bytes(plain(table((name,))))
    assert values(READERS[reader](path)[name]) != expected(reader, name)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_type_is_written_in_each_of_its_encodings(encoding: str) -> None:
    """What is read back above has really been written so."""
    rows = table()
    data = merged(rows, encoding)
    known = pq.read_schema(io.BytesIO(data))
    checked = []
    for name in TYPES:
        found = written_as(data, name)
        if encoding in output.candidates_of(known.field(name), coded=False):
            wanted = "RLE_DICTIONARY" if encoding == output.DICTIONARY else encoding
            assert wanted in found, name
            assert encoding == output.DICTIONARY or "RLE_DICTIONARY" not in found, name
            checked.append(name)
    least = {output.DICTIONARY: 50, "PLAIN": 50, "DELTA_BINARY_PACKED": 30, "DELTA_BYTE_ARRAY": 6}
    assert len(checked) >= least[encoding]


COUNT: Final = 4000
_RANDOM: Final = np.random.default_rng(1)
_NOISE: Final = _RANDOM.integers(-(1 << 62), 1 << 62, COUNT)
CHOSEN: Final[Mapping[str, tuple[pa.Array, str]]] = {
    "few numbers": (pa.array(_NOISE % 5 << 40), "RLE_DICTIONARY"),
    "noisy numbers": (pa.array(_NOISE), "PLAIN"),
    "steady numbers": (pa.array([7 * n + n % 3 for n in range(COUNT)], pa.uint32()), "DELTA_BINARY_PACKED"),
    "steady times": (pa.array([1000 * n + n % 3 for n in range(COUNT)], pa.timestamp("us")), "DELTA_BINARY_PACKED"),
    "few floats": (pa.array(_NOISE % 5 / 3), "RLE_DICTIONARY"),
    "noisy floats": (pa.array(_NOISE / 3), "PLAIN"),
    "noisy decimals": (pa.array([Decimal(int(n)) for n in _NOISE], pa.decimal128(38, 4)), "PLAIN"),
    "few decimals": (pa.array([Decimal(int(n % 5)) for n in _NOISE], pa.decimal128(38, 4)), "RLE_DICTIONARY"),
    "noisy bytes": (pa.array([int(n).to_bytes(16, "little", signed=True) for n in _NOISE], pa.binary(16)), "PLAIN"),
    "few texts": (pa.array([f"text {n % 5}" for n in _NOISE]), "RLE_DICTIONARY"),
    "noisy texts": (pa.array([_RANDOM.bytes(300) for _ in _NOISE]), "PLAIN"),
    "texts in order": (pa.array([f"a common beginning of all {n:07d}" for n in range(COUNT)]), "DELTA_BYTE_ARRAY"),
}


def test_each_encoding_is_chosen_where_it_is_the_smallest(tmp_path: Path) -> None:
    rows = pa.table({KEY: pa.array(range(COUNT)), **{name: column for name, (column, _) in CHOSEN.items()}})
    data = plain(rows)
    path = tmp_path / "ours.parquet"
    inputs = [MergeInput(name="one", open=lambda: io.BytesIO(data), sort_key=(KEY,))]
    result = merge(inputs, str(path), MergeSettings(sort_key=(KEY,)))
    for name, (_, encoding) in CHOSEN.items():
        assert encoding in written_as(path.read_bytes(), name), (name, result.encodings[name])
    for reader, read in READERS.items():
        found = read(path)
        for name in rows.column_names:
            assert values(found[name]) == values(rows[name]), (reader, name)
