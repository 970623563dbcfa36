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

from compaction.blocks.errors import UnreadableBlockError
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.thrift import decode_front
from compaction.blocks.format.thrift_edit import BINARY, STRUCT, parse
from compaction.blocks.format.thrift_edit import written as written_struct
from compaction.blocks.merge import output
from compaction.blocks.merge.columns import SteadyDictionaries, coded_texts, not_repeating
from compaction.blocks.merge.footers import MEBIBYTE, MergeInput, MergeSettings, OpenedFooter, read_footer
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.output import ColumnEncoding, choose
from compaction.blocks.merge.runs import RowsTooLargeError, decoded_row, paged_bytes
from compaction.blocks.registration.describe import describe
from compaction.storage.objects.store import open_objects
from support.blocks.block_shapes import KEY as OUTPUT_SIZE_KEY
from support.blocks.block_shapes import SHAPES, Arrangement, generate
from support.blocks.blocks import PATH, block, parquet_of
from support.blocks.parquet_types import (
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

# What comes out of a merge is read by others, every type and every encoding, value by value.
#
# Spark reads the same files in tests/worker/spark/test_blocks.py.


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


# What it takes to read a file page by page: told by the headers of its pages, never less than they say.

ROWS = 40_000


def lines(count: int = ROWS, *, file: int = 0) -> pa.Table:
    """Texts of 400 bytes that compress well."""
    numbers = range(file, count * 8, 8)
    return pa.table({"ts": pa.array(numbers, pa.int64()), "line": [f"{n:>400}" for n in numbers]})


def written(path: Path, table: pa.Table, **options: object) -> OpenedFooter:
    defaults = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 256}
    pq.write_table(table, path, **{**defaults, **options})
    return footer_of(path)


def footer_of(path: Path) -> OpenedFooter:
    return read_footer(MergeInput(name=path.name, open=lambda: str(path)), ("ts",))


def test_of_small_pages_few_are_counted(tmp_path: Path) -> None:
    footer = written(tmp_path / "a.parquet", lines())
    assert footer.reading_bytes > 15 * MEBIBYTE
    assert paged_bytes(footer) < 4 * MEBIBYTE


def test_a_page_of_a_whole_chunk_is_counted_whole(tmp_path: Path) -> None:
    footer = written(tmp_path / "a.parquet", lines(), data_page_size=1 << 30, max_rows_per_page=1 << 30)
    assert paged_bytes(footer) == footer.reading_bytes


def test_one_large_value_among_small_ones_is_counted(tmp_path: Path) -> None:
    """Its page is far behind the first, and the file is small."""
    table = pa.concat_tables([lines(), pa.table({"ts": pa.array([10**9], pa.int64()), "line": ["x" * 50_000_000]})])
    footer = written(tmp_path / "a.parquet", table)
    assert 50_000_000 < paged_bytes(footer) < 2 * 50_000_000 + 4 * MEBIBYTE


def test_a_dictionary_is_counted(tmp_path: Path) -> None:
    values = [f"{n:>4000}" for n in range(1000)]
    table = pa.table({"ts": pa.array(range(ROWS), pa.int64()), "line": [values[n % 1000] for n in range(ROWS)]})
    options = {"use_dictionary": ["line"], "dictionary_pagesize_limit": 1 << 30}
    assert paged_bytes(written(tmp_path / "a.parquet", table, **options)) > 4_000_000


@pytest.mark.parametrize("options", [{"data_page_version": "2.0"}, {"compression": "none"}, {"write_page_index": True}])
def test_every_kind_of_page_is_understood(options: dict[str, object], tmp_path: Path) -> None:
    footer = written(tmp_path / "a.parquet", lines(), **options)
    stored = sum(footer.metadata.row_group(0).column(leaf).total_compressed_size for leaf in range(2))
    assert paged_bytes(footer) < stored + 4 * MEBIBYTE


def test_pages_that_cannot_be_told_are_taken_whole_and_reading_them_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    footer = written(path, lines())
    chunk = footer.metadata.row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 200] = b"\xff" * 200
    path.write_bytes(data)
    assert paged_bytes(footer_of(path)) == footer.reading_bytes
    with pytest.raises(UnreadableBlockError, match=r"a\.parquet"):
        merge([footer.input], io.BytesIO(), MergeSettings(sort_key=("ts",), memory_bytes=64 * MEBIBYTE))


def with_header(path: Path, statistics: bytes) -> None:
    """A file of one page, whose header holds this as its largest value: pyarrow leaves out long ones, others do not."""
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = parse(data[-8 - size : -8])
    chunk = footer[4][1][1][0][1][1][1][0][3][1]
    start = chunk[9][1]
    _, taken = decode_front(data[start:])
    header = parse(data[start : start + taken])
    header[5][1][5] = (STRUCT, {1: (BINARY, statistics)})
    larger = written_struct(header)
    for field in (6, 7):
        chunk[field] = (chunk[field][0], chunk[field][1] + len(larger) - taken)
    raw = written_struct(footer)
    path.write_bytes(
        data[:start] + larger + data[start + taken : -8 - size] + raw + len(raw).to_bytes(4, "little") + b"PAR1"
    )


@pytest.mark.parametrize("size", [10, 20_000, 3_000_000])
def test_a_header_that_holds_a_long_text_is_read_to_its_end(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"ts": [[f"{n:>1000}" for n in range(1000)]] * 4})
    written(path, rows, compression="none", write_statistics=False, data_page_size=1 << 30)
    with_header(path, b"x" * size)
    footer = footer_of(path)
    with footer.opened(()) as file, footer.source() as source:
        assert file.read()["ts"].to_pylist() == rows["ts"].to_pylist()
        with pytest.raises(RowsTooLargeError, match="40160"):
            decoded_row(file, 0, source, room=MEBIBYTE)
    assert read_back("a", lambda: str(path)).rows == 4


def test_what_can_be_read_page_by_page_is_not_spilled(tmp_path: Path) -> None:
    """Eight row groups of 16 MB as they are decompressed, and a third of 64 MiB for pages."""
    inputs = [
        written(tmp_path / f"{n}.parquet", lines(file=n), sorting_columns=[pq.SortingColumn(0)]) for n in range(8)
    ]
    out = tmp_path / "out.parquet"
    settings = MergeSettings(sort_key=("ts",), memory_bytes=64 * MEBIBYTE)
    result = merge([item.input for item in inputs], str(out), settings)
    assert (result.passes, result.spilled, result.sorted_first) == (1, 0, ())
    assert np.array_equal(pq.read_table(out)["ts"].to_numpy(), np.arange(8 * ROWS))


# Equal dictionaries of successive batches are one; the rows stay as they are.


def batch(names: list[str], codes: list[int | None]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names))
    return pa.record_batch({"name": column, "value": pa.array(range(len(codes)))})


def test_rows_stay_and_equal_dictionaries_share_memory() -> None:
    steady = SteadyDictionaries()
    batches = [
        batch(["a", "b"], [0, 1, None]),
        batch(["a", "b"], [1, 1]),
        batch(["b", "a"], [0]),
        batch(["b", "a"], [1]),
    ]
    found = [steady.of(item) for item in batches]
    assert [item.to_pylist() for item in found] == [item.to_pylist() for item in batches]
    places = [item["name"].dictionary.buffers()[2].address for item in found]
    assert places[0] == places[1]
    assert places[2] == places[3] != places[0]


JSON_COLUMNS = """
    select timestamp '2026-01-01' + i * interval 1 second as ts, ('{"a":' || i % 3 || '}')::json as j,
           {'x': ('[' || i % 3 || ']')::json} as s, [('[' || i % 3 || ']')::json, null] as l
    from range(3000) r(i)
"""


def duckdb_file(path: Path, query: str) -> bytes:
    with duckdb.connect() as connection:
        connection.execute(f"copy ({query}) to '{path}' (format parquet)")
    return path.read_bytes()


def test_texts_that_never_come_as_dictionaries_are_read_as_they_come(tmp_path: Path) -> None:
    """JSON, of which the library makes an extension type: in a column, a struct and a list."""
    data = duckdb_file(tmp_path / "a.parquet", JSON_COLUMNS)
    file = pq.ParquetFile(io.BytesIO(data), read_dictionary=coded_texts(pq.read_metadata(io.BytesIO(data))))
    assert {"j", "s.x", "l.list.element"} <= set(coded_texts(file.metadata))
    assert not_repeating(file, 0, ["j", "no such column"]) == set()
    objects = open_objects(str(tmp_path / "objects"))
    objects.put(PATH, data)
    described = describe(objects, PATH, tenant="acme", shard=0, level=0)
    sink = io.BytesIO()
    merged = merge([block(data, "a"), block(data, "b")], sink, MergeSettings(sort_key=("ts",)))
    assert merged.read == described.fingerprint + described.fingerprint
    assert read_back("output", lambda: io.BytesIO(sink.getvalue())) == merged.read
    assert fingerprint(pq.read_table(io.BytesIO(data))) == described.fingerprint


def test_an_extension_type_over_other_storage_is_read_by_its_texts() -> None:
    """It has none of the kernels that its storage has."""
    texts = pa.array(["[1]", "[2]", None] * 400)
    tables = [pa.table({"k": range(1200), "c": texts.cast(pa.json_(kind()))}) for kind in (pa.string, pa.large_string)]
    sink = io.BytesIO()
    merged = merge([block(parquet_of(table, key=("k",))) for table in tables], sink, MergeSettings(sort_key=("k",)))
    assert merged.read == fingerprint(tables[0]) + fingerprint(tables[1])
    assert read_back("output", lambda: io.BytesIO(sink.getvalue())) == merged.read


# An output is never larger than what DuckDB makes of the same blocks with zstd, on any shape of data.


@pytest.mark.parametrize("shape", SHAPES)
def test_no_larger_than_duckdbs(shape: str, tmp_path: Path) -> None:
    generate(tmp_path / "files", shape, Arrangement.OVERLAPPING, files=4, megabytes=4)
    files = sorted(map(str, (tmp_path / "files").iterdir()))
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    inputs = [MergeInput(name=file, open=lambda file=file: file) for file in files]  # type: ignore[misc]
    merge(inputs, str(ours), MergeSettings(sort_key=OUTPUT_SIZE_KEY))
    rows = f"SELECT * FROM read_parquet({files!r}) ORDER BY ts"
    duckdb.connect().execute(f"COPY ({rows}) TO '{theirs}' (FORMAT parquet, COMPRESSION zstd)")
    assert ours.stat().st_size <= theirs.stat().st_size


def chosen(**columns: pa.Array) -> dict[str, ColumnEncoding]:
    table = pa.table(columns)
    return choose(table, table.schema, level=1)


RANDOM = np.random.default_rng(1)
NOISE = pa.array(RANDOM.lognormal(9, 2, 40_000))
"""Doubles that zstd makes smaller by a twentieth."""


def test_alone_nothing_is_larger_than_as_everybody_writes_it() -> None:
    assert str(chosen(value=NOISE)["value"]) == "PLAIN+ZSTD"


def test_where_others_make_room_what_is_hardly_smaller_is_not_paid_for() -> None:
    times = pa.array(np.sort(RANDOM.integers(0, 1 << 40, 40_000)))
    together = chosen(ts=times, value=NOISE)
    assert {name: str(item) for name, item in together.items()} == {"ts": "DELTA_BINARY_PACKED", "value": "PLAIN"}
