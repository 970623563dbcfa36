"""What was written is proved by reading it again."""

from __future__ import annotations

import io
import pickle
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.errors import BlockVerificationError, UnreadableBlockError
from compaction.blocks.fingerprint.proof import read_back, verify
from compaction.blocks.fingerprint.row_hashes import fingerprint
from support.stores.block_rows import parquet

ROWS = pa.table({"service": ["a", "b", None], "value": [1.5, None, 2.0], "list": [[1], None, [2, 3]]})


@pytest.mark.parametrize("dictionary", [True, False])
def test_file_reads_back_as_its_rows(dictionary: bool) -> None:
    data = parquet(ROWS, use_dictionary=dictionary, row_group_size=2)
    assert read_back("block", lambda: io.BytesIO(data)) == fingerprint(ROWS)


def test_parts_add_up() -> None:
    verify("job", [fingerprint(ROWS.slice(0, 1)), fingerprint(ROWS.slice(1))], expected=fingerprint(ROWS))


@pytest.mark.parametrize("change", ["lost", "twice", "changed"])
def test_any_difference_is_an_error_with_both_fingerprints(change: str) -> None:
    rows = {
        "lost": ROWS.slice(1),
        "twice": pa.concat_tables([ROWS, ROWS.slice(0, 1)]),
        "changed": ROWS.set_column(1, "value", pa.array([1.5, None, 2.5])),
    }[change]
    with pytest.raises(BlockVerificationError) as caught:
        verify("job", [fingerprint(rows)], expected=fingerprint(ROWS))
    assert str(fingerprint(ROWS)) in str(caught.value)
    assert str(fingerprint(rows)) in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_bit_that_flipped_in_a_page_is_found() -> None:
    data = bytearray(parquet(ROWS, use_dictionary=False, write_statistics=False, compression="none"))
    data[data.index(struct.pack("<d", 1.5))] ^= 1
    with pytest.raises(BlockVerificationError):
        verify("block", [read_back("block", lambda: io.BytesIO(bytes(data)))], expected=fingerprint(ROWS))


def nested(count: int, *, values: int) -> pa.Table:
    """Lists of structs of texts; `values`: different ones."""
    entries = [
        [{"key": f"k{n % 7}", "value": f"value-{(n * 7919 + k) % values}"} for k in range(n % 4)] for n in range(count)
    ]
    return pa.table({"ts": pa.array(range(count), pa.int64()), "attributes": entries})


@pytest.mark.parametrize("values", [50, 1 << 30])
@pytest.mark.parametrize("limit", [1 << 20, 2_000])
def test_nested_texts_read_back_whatever_became_of_their_dictionaries(values: int, limit: int) -> None:
    """Of few values, of many, and given up half way; each row group has dictionaries of its own."""
    table = nested(20_000, values=values)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=6_000, dictionary_pagesize_limit=limit, write_batch_size=100)
    assert read_back("block", lambda: io.BytesIO(sink.getvalue())) == fingerprint(table)


def test_a_nested_page_that_is_damaged_is_an_error_all_the_same() -> None:
    sink = io.BytesIO()
    pq.write_table(nested(5_000, values=50), sink, write_page_checksum=True)
    chunk = pq.read_metadata(sink).row_group(0).column(2)
    data = bytearray(sink.getvalue())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x55
    with pytest.raises(UnreadableBlockError, match="block"):
        read_back("block", lambda: io.BytesIO(bytes(data)))
