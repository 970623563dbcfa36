"""The map for a log's owner: what is written is read, and whatever is damaged is refused by name."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.clump.moves import (
    MoveReceipt,
    Moves,
    decode_moves,
    encode_moves,
    load_moves,
    read_moves,
    resolve,
)
from compaction.segments.errors import CorruptMovesError
from compaction.segments.format.names import moves_name, parse_moves
from compaction.segments.snapshot.live_indexes import LiveSet

RECEIPT = MoveReceipt(
    job="by-hand",
    token=3,
    holder="worker",
    snapshot_index=90,
    snapshot_term=2,
    first=101,
    last=105,
    term=4,
    entries=5,
    payload_bytes=50,
    ranges_before=9,
    ranges_after=5,
    fingerprint="ab",
    seconds=0.5,
    committed_at=1000.0,
)
OLD = LiveSet.parse("1,5-6,20,90")
GOLDEN = b"""[1,1,101]
[5,6,102]
[20,20,104]
[90,90,105]
{"crc32": "%s"}
"""


def _with_lines(lines: list[str]) -> bytes:
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + b'{"crc32": "%08x"}\n' % zlib.crc32(body)


def test_the_format_is_the_documented_one() -> None:
    data = encode_moves(Moves.contiguous(RECEIPT, OLD))
    head, _, rest = data.partition(b"\n")
    assert rest == GOLDEN % f"{zlib.crc32(data[: data.rindex(b'{')]):08x}".encode()
    header = json.loads(head)
    assert (header["format"], header["version"]) == ("compaction.moves", 1)
    assert header["receipt"]["first"] == 101


def test_every_index_is_resolved_and_no_other() -> None:
    moves = decode_moves(encode_moves(Moves.contiguous(RECEIPT, OLD)), file="x")
    assert {old: moves.resolve(old) for old in OLD} == dict(zip(OLD, range(101, 106), strict=True))
    assert [index for index in range(120) if moves.resolve(index) is not None] == list(OLD)
    assert (moves.old_set, str(moves.new_set), len(moves)) == (OLD, "101-105", 5)


def test_maps_apply_one_after_the_other() -> None:
    later = replace(RECEIPT, snapshot_index=150, first=201, last=202, entries=2)
    maps = [Moves.contiguous(RECEIPT, OLD), Moves.contiguous(later, LiveSet.parse("7,102"))]
    assert [resolve(maps, index) for index in (5, 7, 6, 8)] == [201 + 1, 201, 103, 8]


def test_moves_with_gaps_between_the_copies() -> None:
    """As a running owner appends them, with other entries in between."""
    new = np.array([101, 102, 104, 110, 111], dtype=np.uint64)
    receipt = replace(RECEIPT, last=111)
    moves = Moves.of_pairs(receipt, np.fromiter(OLD, dtype=np.uint64), new)
    again = decode_moves(encode_moves(moves), file="x")
    assert [again.resolve(old) for old in OLD] == new.tolist()
    assert again.new_set.ranges == ((101, 102), (104, 104), (110, 111))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head, runs: (head, runs[:-1]), "do not hold 5 entries"),
        (lambda head, runs: (head, []), "do not hold 5 entries"),
        (lambda head, runs: (head, [*runs[:-1], "[20,20,105]"]), "not ascending"),
        (lambda head, runs: (head, [*runs[:-1], "[90,90,104]"]), "not ascending"),
        (lambda head, runs: (head, ["[1,1,0]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, ["[2,1,101]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, [f"[1,1,{2**64}]", *runs[1:]]), "not a run of old indexes"),
        (lambda head, runs: (head, ["[1,1]", *runs[1:]]), "Field required|tuple"),
        (lambda head, runs: (head, ["nonsense", *runs[1:]]), "Invalid JSON"),
        (lambda head, runs: (head | {"version": 2}, runs), "version 2"),
        (lambda head, runs: (head | {"format": "other"}, runs), "'other' is not known"),
        (lambda head, runs: ({"format": "compaction.moves"}, runs), "Field required"),
        (lambda head, runs: (_receipt(head, snapshot_index=89), runs), "below snapshot 89"),
        (lambda head, runs: (_receipt(head, snapshot_index=101), runs), "below snapshot 101"),
        (lambda head, runs: (_receipt(head, first=100), runs), "begin at 100"),
        (lambda head, runs: (_receipt(head, last=106), runs), "end at 106"),
        (lambda head, runs: (_receipt(head, output="../../etc/passwd"), runs), "not the name of a segment"),
        (lambda head, runs: (_receipt(head, token=0), runs), "token or a time"),
        (lambda head, runs: (_receipt(head, committed_at=1e30), runs), "token or a time"),
    ],
)
def test_what_no_commit_can_have_written_is_refused(change: Any, says: str) -> None:
    head, *runs = encode_moves(Moves.contiguous(RECEIPT, OLD)).decode().splitlines()[:-1]
    header, lines = change(json.loads(head), runs)
    with pytest.raises(CorruptMovesError, match=says):
        decode_moves(_with_lines([json.dumps(header), *lines]), file="x.moves")


def _receipt(head: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return head | {"receipt": head["receipt"] | fields}


@given(st.data())
def test_any_change_of_the_bytes_is_noticed(data: st.DataObject) -> None:
    good = encode_moves(Moves.contiguous(RECEIPT, OLD))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(st.sampled_from([good[:at], good[:at] + bytes((good[at] ^ 0x20,)) + good[at + 1 :]]))
    with pytest.raises(CorruptMovesError):
        decode_moves(bad, file="x.moves")


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_named_error(data: bytes) -> None:
    with pytest.raises(CorruptMovesError, match=r"x\.moves"):
        decode_moves(data, file="x.moves")


@given(st.sets(st.integers(0, 2**40), min_size=1, max_size=40), st.integers(2**40 + 1, 2**63))
def test_round_trip(olds: set[int], first: int) -> None:
    old = LiveSet.from_indexes(olds)
    last = first + len(old) - 1
    receipt = replace(RECEIPT, snapshot_index=2**40, first=first, last=last, entries=len(old))
    moves = decode_moves(encode_moves(Moves.contiguous(receipt, old)), file="x")
    assert moves.receipt == receipt
    assert moves.old_set == old
    assert [moves.resolve(index) for index in old] == list(range(first, last + 1))


def test_files_are_found_in_the_order_they_were_made(tmp_path: Path) -> None:
    for first in (101, 20_000, 3_000):
        receipt = replace(RECEIPT, first=first, last=first + 4)
        (tmp_path / moves_name(first)).write_bytes(encode_moves(Moves.contiguous(receipt, OLD)))
    (tmp_path / "notes.moves").write_text("not ours")
    assert [moves.receipt.first for moves in read_moves(tmp_path)] == [101, 3_000, 20_000]
    assert (parse_moves("notes.moves"), parse_moves(moves_name(7))) == (None, 7)


def test_a_map_under_a_foreign_name_or_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / moves_name(102)
    path.write_bytes(encode_moves(Moves.contiguous(RECEIPT, OLD)))
    with pytest.raises(CorruptMovesError, match="from index 101 on"):
        load_moves(path)
    link = tmp_path / moves_name(101)
    link.symlink_to(path)
    with pytest.raises(Exception, match=link.name):
        load_moves(link)
    link.unlink()
    link.mkdir()
    with pytest.raises(CorruptMovesError, match="not a regular file"):
        load_moves(link)
