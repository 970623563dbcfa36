"""What it takes to read a file page by page: told by the headers of its pages, never less than they say."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.errors import UnreadableBlockError
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.format.thrift import decode_front
from compaction.blocks.format.thrift_edit import BINARY, STRUCT, parse
from compaction.blocks.format.thrift_edit import written as written_struct
from compaction.blocks.merge.footers import MEBIBYTE, MergeInput, MergeSettings, OpenedFooter, read_footer
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.runs import RowsTooLargeError, decoded_row, paged_bytes

ROWS = 40_000


def lines(count: int = ROWS, *, file: int = 0) -> pa.Table:
    """Texts of 400 bytes that compress well."""
    numbers = range(file, count * 8, 8)
    return pa.table({"ts": pa.array(numbers, pa.int64()), "line": [f"{n:>400}" for n in numbers]})


def written(path: Path, table: pa.Table, **options: object) -> OpenedFooter:
    defaults = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 256}
    pq.write_table(table, path, **{**defaults, **options})  # type: ignore[arg-type]
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
