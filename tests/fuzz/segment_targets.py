"""Targets of the segment log store: every file that a log directory may hold, and the names in it."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import TypeAdapter

from compaction.segments.clump.moves import MoveReceipt, Moves, decode_moves, encode_moves
from compaction.segments.commit import fence
from compaction.segments.commit.records import (
    FenceRecord,
    GroupReceipt,
    JobClaim,
    PendingCommit,
    SegmentTombstone,
    TombstoneKind,
)
from compaction.segments.commit.recovery import settle_marker
from compaction.segments.directory import lock
from compaction.segments.errors import CorruptSegmentError, LiveSetSyntaxError, LockHeldError
from compaction.segments.format import etf, names
from compaction.segments.format.segment_file import LogWriter, decode_segment, encode_header, encode_records
from compaction.segments.generate import generate_log
from compaction.segments.model import HEADER_BYTES, FileIdentity, segment_name
from compaction.segments.snapshot.directories import encode_snapshot, read_snapshot_meta
from compaction.segments.snapshot.live_indexes import (
    LiveSet,
    decode_indexes,
    decode_sequence,
    encode_indexes,
    encode_sequence,
)
from fuzz.target import Target, check_error, refusing

IDENTITY: Final = FileIdentity(device=1, inode=2, size=1 << 40, mtime_ns=3)
FIRST: Final = segment_name(1)
LIVE: Final = LiveSet.parse("1-3,7,100-1000,5000000000")


def segment_bytes(indexes: list[int], *, version: int = 2, max_count: int = 4, payload: int = 20) -> bytes:
    """A segment file with these records, in this order."""
    payloads = [bytes([index % 256]) * payload for index in indexes]
    slot = 32 if version == 2 else 28
    start = HEADER_BYTES + max_count * slot
    records = encode_records(
        idx=np.array(indexes, dtype=np.uint64),
        term=np.ones(len(indexes), dtype=np.uint64),
        offset=np.array([start + payload * i for i in range(len(indexes))], dtype=np.uint64),
        length=np.full(len(indexes), payload, dtype=np.uint32),
        crc=np.array([zlib.crc32(each) for each in payloads], dtype=np.uint32),
        version=version,
    )
    head = encode_header(max_count=max_count, version=version) + records
    return head.ljust(start, b"\0") + b"".join(payloads)


SEGMENTS: Final = (
    segment_bytes([1, 2, 3]),
    segment_bytes([1, 2, 3, 4], version=1),
    segment_bytes([5, 6, 2, 3, 9], max_count=8),
    segment_bytes([2**64 - 2, 2**64 - 1]),
    segment_bytes([]),
)


def _segment(data: bytes, _: Path) -> None:
    path = Path("/log") / FIRST
    with refusing(str(path), CorruptSegmentError):
        index = decode_segment(data, path=path, identity=IDENTITY)
        again = encode_header(max_count=max(1, index.max_count), version=index.version) + encode_records(
            idx=index.idx,
            term=index.term,
            offset=index.offset,
            length=index.length,
            crc=index.crc,
            version=index.version,
        )
        assert again[HEADER_BYTES:] == data[HEADER_BYTES : len(again)]
        kept = index.idx[index.effective]
        assert bool(np.all(kept[1:] > kept[:-1]))


def _writer(data: bytes, directory: Path) -> None:
    """Appending to a damaged last segment: refused by name, or what is appended can be read and the rest is kept."""
    path = directory / FIRST
    path.write_bytes(data)
    with refusing(str(path)), LogWriter(directory, sync=False) as writer:
        writer.append(2**40, 1, b"appended")


def _term(data: bytes, _: Path) -> None:
    with refusing(""):
        term = etf.decode(data)
        assert etf.decode(etf.encode(term)) == term


def _sequence(data: bytes, _: Path) -> None:
    with refusing(""):
        live = decode_sequence(data)
        assert decode_sequence(encode_sequence(live)) == live if len(live) < 10**6 else len(live) > 0


def _indexes(data: bytes, _: Path) -> None:
    with refusing("/log/indexes"):
        live = decode_indexes(data, file="/log/indexes")
        assert decode_indexes(encode_indexes(live)) == live


def _sealed_indexes(data: bytes, _: Path) -> None:
    """As `indexes`, with the checksum made right: so that mutations reach what lies behind it."""
    _indexes(b"RASI\x01" + zlib.crc32(data).to_bytes(4, "big") + data, _)


def _snapshot(data: bytes, directory: Path) -> None:
    path = directory / "snapshot.dat"
    path.write_bytes(b"RASN\x01" + zlib.crc32(data).to_bytes(4, "big") + data)
    with refusing(str(path)):
        meta = read_snapshot_meta(path)
        path.write_bytes(encode_snapshot(index=meta.index, term=meta.term, state=b""))
        assert read_snapshot_meta(path) == meta


def _receipt() -> GroupReceipt:
    return GroupReceipt(
        job="job-a",
        token=2,
        holder="worker",
        group="0000000000000001-0000000000000002",
        sources=(segment_name(1), segment_name(2)),
        output=segment_name(1),
        linked=(segment_name(2),),
        entries=3,
        live_bytes=60,
        bytes_before=400,
        bytes_after=200,
        fingerprint_before="ab",
        fingerprint_after="ab",
        seconds=0.5,
        committed_at=1.7e9,
    )


def _fence_seeds() -> tuple[bytes, ...]:
    tombstone = SegmentTombstone(
        segment_name(2), TombstoneKind.LINKED, since=1.7e9, job="job-a", token=2, identity=IDENTITY
    )
    pending = PendingCommit(
        group="0000000000000001-0000000000000002",
        partial="0000000000000001-0000000000000002.job-a.2.partial",
        identity=IDENTITY,
        receipt=_receipt(),
    )
    claim = JobClaim(token=2, holder="worker", claimed_at=1.7e9, unreferenced=(tombstone,))
    full = FenceRecord(
        floor=1, jobs={"job-a": claim}, receipts=(_receipt(),), intents=(pending,), tombstones=(tombstone,)
    )
    return tuple(TypeAdapter(FenceRecord).dump_json(record) for record in (full, FenceRecord()))


def _fence(data: bytes, directory: Path) -> None:
    path = directory / fence.FENCE_FILE
    path.write_bytes(data)
    with refusing(str(path)):
        record = fence.read(directory)
        fence.write(directory, record)
        assert fence.read(directory) == record


def _moves_seeds() -> tuple[bytes, ...]:
    receipt = MoveReceipt(
        job="job-a",
        token=2,
        holder="worker",
        snapshot_index=2**33,
        snapshot_term=1,
        first=2**34,
        last=2**34 + len(LIVE) - 1,
        term=1,
        entries=len(LIVE),
        payload_bytes=60,
        ranges_before=4,
        ranges_after=1,
        fingerprint="ab",
        seconds=0.5,
        committed_at=1.7e9,
        output=segment_name(2),
    )
    return (encode_moves(Moves.contiguous(receipt, LIVE)).rsplit(b"\n", 2)[0] + b"\n",)


def _moves(data: bytes, _: Path) -> None:
    """With the checksum made right, so that mutations reach what lies behind it."""
    sealed = data + b'{"crc32": "%08x"}\n' % zlib.crc32(data)
    with refusing("/log/x.moves"):
        moves = decode_moves(sealed, file="/log/x.moves")
        again = decode_moves(encode_moves(moves), file="/log/x.moves")
        assert again.receipt == moves.receipt
        assert (again.old_set, again.new_set) == (moves.old_set, moves.new_set)
        assert moves.resolve(int(moves.old[0])) == moves.receipt.first


def _lock(data: bytes, directory: Path) -> None:
    """What a lock file says only serves a message; whatever it says, the message is one."""
    path = directory / lock.LOCK_FILE
    with lock.hold(directory, holder="first"):
        path.write_bytes(data)
        try:
            with lock.hold(directory, holder="second", timeout=0):
                raise AssertionError("two holders of one lock")
        except LockHeldError as error:
            check_error(error, names=str(path))


def _names(data: bytes, _: Path) -> None:
    """A name that is taken for one of ours is one: made again from its parts it is the same."""
    name = os.fsdecode(data)
    partial, group = names.parse_partial(name), names.parse_compacting(name)
    if partial is not None:
        assert "/" not in partial.group
        assert partial.token >= 0
    if group is not None:
        assert names.group_sources(group)
        assert name in {names.compacting_name(group), f"{group}.compacting"}
    first = names.parse_moves(name)
    assert first is None or names.moves_name(first) == name
    for parse in (names.parse_link, names.parse_ra_marker, names.parse_clump):
        segment = parse(name)
        assert segment is None or "/" not in segment
    with refusing(""):
        key = names.job_key(name)
        assert 0 < len(key) <= 64
        assert names.parse_partial(names.partial_name("0000000000000001", job=name, token=7)) is not None


def _marker(data: bytes, directory: Path) -> None:
    """Whatever a marker of Ra says: afterwards it is gone, and so is nothing else."""
    for number in (1, 2, 3):
        (directory / segment_name(number)).write_bytes(segment_bytes([number * 10, number * 10 + 1]))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    marker = "0000000000000001.compaction_group"
    (directory / marker).write_bytes(data)
    with refusing(str(directory)):
        settle_marker(directory, marker)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def _live_set(data: bytes, _: Path) -> None:
    with refusing("", LiveSetSyntaxError):
        live = LiveSet.parse(data.decode(errors="surrogateescape"))
        assert LiveSet.parse(str(live)) == live


_TERMS: Final = (
    etf.encode({etf.Atom("index"): 7, etf.Atom("cluster"): {(etf.Atom("a"), etf.Atom("n")): {}}}),
    etf.encode([b"0000000000000001.segment", b"0000000000000002.segment"]),
    etf.encode((1, [2**40, -5], b"", [], ())),
)
_TERM_TOKENS: Final = (
    b"\x6c\xff\xff\xff\xff",
    b"\x6d\xff\xff\xff\xff",
    b"\x74\xff\xff\xff\xff",
    b"\x68\x01" * 80,
    b"j",
)
_FENCE_TOKENS: Final = (b"null", b"1e400", b"NaN", b'"\\ud800"', b"[[[[[[[[", b'{"a":', b"-1", b"9" * 400, b"../x")

SEGMENT_TARGETS: Final = (
    Target("segment", _segment, SEGMENTS),
    Target("segment-writer", _writer, SEGMENTS),
    Target("erlang-term", _term, _TERMS, _TERM_TOKENS),
    Target("sequence", _sequence, (encode_sequence(LIVE), encode_sequence(LiveSet.parse("1-2,9"))), _TERM_TOKENS),
    Target("indexes", _indexes, (encode_indexes(LIVE), encode_sequence(LIVE)), _TERM_TOKENS),
    Target("indexes-sealed", _sealed_indexes, (encode_sequence(LIVE),), _TERM_TOKENS),
    Target("snapshot", _snapshot, (encode_snapshot(index=7, term=2, state=b"x")[9:],), _TERM_TOKENS),
    Target("fence", _fence, _fence_seeds(), _FENCE_TOKENS),
    Target("moves", _moves, _moves_seeds(), (*_FENCE_TOKENS, b"[1,1,9]", b"\n", b"]")),
    Target("lock", _lock, (b'{"holder":"a","job":"","pid":1,"host":"h","since":1.7e9}',), _FENCE_TOKENS),
    Target(
        "names",
        _names,
        (b"0000000000000001-0000000000000002.job.7.partial", b"0000000000000001.compacting", b"0000000000000002.clump"),
    ),
    Target("ra-marker", _marker, (_TERMS[1],), _TERM_TOKENS),
    Target("live-set", _live_set, (b"1-5,9,20-30", b"0-18446744073709551615"), (b"-", b",", b"99999999999999999999")),
)


# Very many files in a log's directory, and what a look at it costs.

ALLOWED_KIB = 4096
_LOOK = """
import resource, sys
from pathlib import Path
from compaction.segments.scan.find import LogFinder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(found,) = LogFinder(Path(sys.argv[1]), include=('**',), exclude=()).find()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def memory_of_a_look(root: Path, *, files: int) -> int:
    """KiB by which a fresh process grows while it finds the one log below `root`, beside whose segments so many empty
    files lie.
    """
    log = root / "log"
    generate_log(log, segments=4, entries_per_segment=8, payload_bytes=16, sync=False)
    for number in range(files):
        os.close(os.open(log / f"{number:07}", os.O_CREAT | os.O_WRONLY))
    answer = subprocess.run([sys.executable, "-c", _LOOK, str(root)], capture_output=True, check=True)
    return int(answer.stdout)
