"""Tables byte for byte as Pebble writes them, whatever the batches they come in."""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compaction.staging.errors import RangeRecordError
from compaction.staging.format import table_writer
from compaction.staging.format.columns import BINARY, RecordColumns
from compaction.staging.format.table_writer import MAX_KEY_BYTES, TableWriter
from support.depth import examples
from support.stores.plain_tables import PlainTableWriter, write_plain
from support.stores.staging_tables import ANY_RECORDS, SHAPES, Record, numbered, properties, table

GOLDEN = {
    0: (883, 8, "601a00fbac0a35b5020cefb2c92ac1873ba95ea1f9525a8f6ee1507e3653dee4"),
    1: (960, 67, "e418bdb0e0a96c85e048a47719de1a97c0e13e0a5b7e122dde6101df20f0a81b"),
    17: (2098, 2469, "2b815485a43346fb921539d6c81c0f6fec4bc5bcd85e8971d715ead364504523"),
    100: (7571, 8190, "9079c96b946e14cf8d0d48fd20498c3a976dc56cb58b516db284db7f0fd526e6"),
    5000: (330445, 328132, "8c367a575e3482337e5bcd2b056df28a3471998164db1ee5c85de60cdcfec535"),
    40000: (2636209, 2616864, "819860db6d40f1ebaf02b0890f677ff7bfbc3bd4254e4b1027a72c54aaba0d56"),
}
"""What Pebble wrote for so many numbered records: bytes, the estimate before the end, SHA-256."""
GOLDEN_SHAPES = {
    "trailers": (1209, 12751, 12171, "a536fe1fed870ef7679891303f2e513ee09c4757e693e9168b6f458599253949"),
    "high": (1355, 48799, 48311, "a1fd14ed2b786c74ba3c7375ffad7dd90681214e4b6d0560f2f804bf88865583"),
    "long": (2000, 67712, 69553, "bf27a6469ca81900ade7e26a485b4beca99bd9321c760d70da61de06af5cfdd2"),
    "sizes": (1500, 214575, 211354, "0ead40a9e2e8987d83c7bd7ee2aaccad79c03475f4232ccf8a22f671fa353462"),
    "large": (12, 74204, 195332, "20da625a590a751b6e0c6f8e27ff3c901bb257b007ddd37821f98a9123a6f6b0"),
}


@pytest.mark.parametrize("count", GOLDEN)
def test_numbered_records_are_written_as_pebble_does(count: int) -> None:
    size, estimate, digest = GOLDEN[count]
    data = table(numbered(count), step=1 + count // 3)
    assert f"estimated_size_bytes{estimate}".encode() in data
    assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)


@pytest.mark.parametrize("shape", GOLDEN_SHAPES)
@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_records_of_every_shape_are_written_as_pebble_does(shape: str, step: int) -> None:
    count, size, estimate, digest = GOLDEN_SHAPES[shape]
    records = SHAPES[shape]
    data = table(records, step=step)
    assert len(records) == count
    assert f"estimated_size_bytes{estimate}".encode() in data
    assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)


@settings(max_examples=examples(300))
@given(ANY_RECORDS, st.integers(1, 70))
@example([(b"x", b""), (b"x\x01", b""), (b"x\x01\0\0", b""), (b"x\x01\0\0\0\0\0\0\0\0", b"")], 4)
def test_any_records_are_written_as_the_plain_codec_does(records: list[Record], step: int) -> None:
    assert table(records, {b"type": b"ranges"}, step=step) == write_plain(records, {b"type": b"ranges"})


def test_the_estimate_is_right_after_every_record() -> None:
    """Ranges end by it, so it is part of the format."""
    for records in (numbered(2000), SHAPES["sizes"][:500]):
        plain, ours = PlainTableWriter(), TableWriter(io.BytesIO())
        for key, value in records:
            plain.add(key, value)
            ours.add(RecordColumns.of([(key, value)]))
            assert ours.estimated_size == plain.estimate


@settings(max_examples=examples(100))
@given(ANY_RECORDS, st.integers(9, 20_000), st.integers(1, 70))
def test_a_limit_stops_after_the_first_record_that_reaches_it(records: list[Record], limit: int, step: int) -> None:
    writer, plain, taken = TableWriter(io.BytesIO()), PlainTableWriter(), 0
    while taken < len(records) and writer.estimated_size < limit:
        taken += writer.add(RecordColumns.of(records[taken : taken + step]), limit=limit)
    for key, value in records:
        plain.add(key, value)
        if plain.estimate >= limit:
            break
    assert taken == writer.records == plain.records
    data = write_plain(records[:taken], {})
    out = io.BytesIO()
    again = TableWriter(out)
    again.add(RecordColumns.of(records), limit=limit)
    again.finish({})
    assert out.getvalue() == data


def test_a_slice_of_a_large_batch_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever pieces end, the bytes are the same."""
    monkeypatch.setattr(table_writer, "PIECE_BYTES", 300_000)
    records = RecordColumns.of(numbered(60_000))
    out = io.BytesIO()
    writer = TableWriter(out)
    assert writer.add(records.slice(7, 60_000)) == 59_993
    writer.finish(properties(numbered(60_000)[7:], writer.estimated_size))
    assert out.getvalue() == table(numbered(60_000)[7:])


@pytest.mark.parametrize(
    ("keys", "culprit"),
    [([b"b", b"a"], b"a"), ([b"a", b"a"], b"a"), ([b"ab", b"a"], b"a"), ([b"a", b"b", b"\xff", b""], b"")],
)
@pytest.mark.parametrize("apart", [False, True])
def test_keys_that_do_not_ascend_are_refused(keys: list[bytes], culprit: bytes, apart: bool) -> None:
    writer = TableWriter(io.BytesIO())
    first = len(keys) - 1 if apart else 0
    writer.add(RecordColumns.of((key, b"") for key in keys[:first]))
    with pytest.raises(RangeRecordError, match="strictly ascending") as refused:
        writer.add(RecordColumns.of((key, b"") for key in keys[first:]))
    assert refused.value.key == culprit
    assert writer.records == first


def test_nulls_and_long_keys_are_refused() -> None:
    writer = TableWriter(io.BytesIO())
    with pytest.raises(RangeRecordError, match="null"):
        writer.add(RecordColumns(pa.array([b"a"], BINARY), pa.array([None], BINARY)))
    with pytest.raises(RangeRecordError, match=f"more than {MAX_KEY_BYTES}"):
        writer.add(RecordColumns.of([(b"x" * (MAX_KEY_BYTES + 1), b"")]))
    writer.add(RecordColumns.of([(b"x" * MAX_KEY_BYTES, b"")]))
    assert writer.records == 1
