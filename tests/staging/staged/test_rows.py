"""Rows of staging tokens: by the column as one by one, damage with its token and key, rows of other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError, RangeRecordError
from compaction.staging.format.columns import RecordColumns, encode_varint
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import StagedEntryData, bytes_field, number_field
from compaction.staging.staged import rows as module
from compaction.staging.staged.rows import decode_row, decode_rows, encode_row, encode_rows

KEYS = st.binary(min_size=1, max_size=6) | st.binary(min_size=127, max_size=129)
DATA = st.binary(max_size=4) | st.binary(min_size=126, max_size=130) | st.just(bytes(20_000))
VALUES = st.just(b"") | st.builds(frame_value, st.binary(min_size=1, max_size=40), DATA)
CHANGES = st.dictionaries(KEYS, VALUES, max_size=12).map(lambda rows: sorted(rows.items()))


@pytest.fixture(autouse=True, scope="module", params=[1, module.FEW])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways for the few rows of these tests: by the column, and one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW", request.param)
        yield


@given(CHANGES)
def test_rows_are_those_of_single_changes_and_return(changes: list[tuple[bytes, bytes]]) -> None:
    rows = encode_rows(RecordColumns.of(changes))
    assert rows == [(key, encode_row(key, value)) for key, value in changes]
    assert decode_rows("t", rows).pairs() == changes
    assert [decode_row("t", key, row) for key, row in rows] == [value for _, value in changes]


FIELDS = st.sampled_from([
    bytes_field(1, b"k"), bytes_field(2, b"identity"), bytes_field(3, b"data"), bytes_field(2, b"", always=True),
    bytes_field(3, b"", always=True), number_field(4, 7), bytes_field(5, b"unknown"), b"\x12\x88\x80\x00identity",
    b"\x92\x00\x02id",
])  # fmt: skip


@given(st.lists(st.lists(FIELDS, max_size=6), min_size=1, max_size=6))
def test_fields_in_any_order(messages: list[list[bytes]]) -> None:
    """What a reader of Protocol Buffers sees: the last of several fields, whatever stands between."""
    rows = [(b"k", bytes_field(1, b"k") + b"".join(fields)) for fields in messages]
    entries = [StagedEntryData.decode(row) for _, row in rows]
    expected = [frame_value(entry.identity, entry.data) if entry.identity else b"" for entry in entries]
    assert decode_rows("t", rows).values.to_pylist() == expected


@given(CHANGES.filter(bool), st.data())
def test_damage_by_the_column_is_the_damage_of_the_row(changes: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    rows = [(key, encode_row(key, value)) for key, value in changes]
    at = data.draw(st.integers(0, len(rows) - 1))
    key, row = rows[at]
    place = data.draw(st.integers(0, len(row)))
    rows[at] = (key, data.draw(st.sampled_from([row[:place], row[:place] + b"\xff" + row[place + 1 :]])))
    assert outcome(lambda: decode_rows("t", rows).pairs()[at][1]) == outcome(lambda: decode_row("t", *rows[at]))


def outcome(call: Callable[[], bytes]) -> bytes | str:
    """What a call returns, or what its error says."""
    try:
        return call()
    except CorruptMessageError as error:
        return str(error)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"", "another key, b''"),
        (bytes_field(1, b"other"), "another key, b'other'"),
        (bytes_field(2, b"identity"), "another key, b''"),
        (bytes_field(1, b"k") + b"\x12\x05id", "claims 5 bytes of 2"),
        (bytes_field(1, b"k") + b"\x12", "cut off"),
        (bytes_field(1, b"k") + b"\x12" + b"\xff" * 9, "cut off"),
        (bytes_field(1, b"k") + b"\x12" + encode_varint(1 << 40) + b"x", "claims"),
        (number_field(1, 7), "no bytes"),
        (bytes(9), "field 0"),
    ],
)
def test_damage_names_token_and_key(row: bytes, reason: str) -> None:
    good = (b"a", encode_row(b"a", frame_value(b"id", b"")))
    with pytest.raises(CorruptMessageError, match="repo-main:7: row 'k': not a StagedEntryData") as caught:
        decode_rows("repo-main:7", [good, (b"k", row), (b"z", b"")])
    assert reason in str(caught.value)
    with pytest.raises(CorruptMessageError, match="repo-main:7: row 'k'"):
        decode_row("repo-main:7", b"k", row)


def test_an_identity_without_data_is_a_set() -> None:
    row = bytes_field(1, b"k") + bytes_field(2, b"id")
    assert decode_rows("t", [(b"k", row)]).pairs() == [(b"k", frame_value(b"id", b""))]
    assert encode_row(b"k", frame_value(b"id", b"")) == row


def test_data_without_an_identity_is_a_tombstone() -> None:
    row = bytes_field(1, b"k") + bytes_field(3, b"data")
    assert decode_rows("t", [(b"k", row)]).pairs() == [(b"k", b"")]


def test_a_value_without_an_identity_is_refused() -> None:
    nothing = frame_value(b"", b"data")
    with pytest.raises(KeyValueArgumentError, match="'k': a change without an identity"):
        encode_row(b"k", nothing)
    with pytest.raises(KeyValueArgumentError, match="'k': a change without an identity"):
        encode_rows(RecordColumns.of([(b"a", b""), (b"b", frame_value(b"1", b"")), (b"k", nothing)]))
    with pytest.raises(KeyValueArgumentError, match="'k': its value is not framed"):
        encode_row(b"k", b"\x09")
    with pytest.raises(RangeRecordError, match="'k'"):
        encode_rows(RecordColumns.of([(b"a", b""), (b"k", b"\x09")]))
