"""Targets of installations: messages between two members, the state machines behind them, the file of a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compaction.segments.errors import InstallMessageError, InvalidCutError
from compaction.segments.install import receiver as receiving
from compaction.segments.install import sender as sending
from compaction.segments.install.messages import (
    Cancel,
    Chunk,
    Entries,
    Installed,
    Message,
    Offer,
    Progress,
    Refusal,
    Refused,
    SentEntry,
    checksum,
    decode,
    encode,
)
from compaction.segments.install.sender import NeededEntries
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import LogCut, decode_cut, encode_cut
from fuzz.target import Target, refusing

HEAD: Final = 10
"""Bytes of a message before what its checksum covers."""
OFFER: Final = Offer(5, 7, index=40, snapshot_term=4, indexes_bytes=30, data_bytes=100)
MESSAGES: Final[tuple[Message, ...]] = (
    OFFER,
    Entries(5, 7, (SentEntry(3, LogEntry(10, 2, b"x" * 20)), SentEntry(10, LogEntry(11, 4, b"y")))),
    Entries(5, 7, (SentEntry(None, LogEntry(0, 0, b"first")),)),
    Chunk(5, 7, 30, b"z" * 50),
    Cancel(5, 7),
    Progress(5, 7, 11, 0),
    Progress(5, 7, None, 0),
    Installed(5, 7, 40),
    Refused(5, 7, Refusal.MISSING_ENTRIES, at=3, detail="index 9 is missing"),
)


def _message(data: bytes, _: Path) -> None:
    with refusing("install message", InstallMessageError):
        message = decode(data)
        assert encode(message) == data


def _conversation(data: bytes, _: Path) -> None:
    """As `install-message`, with the checksum made right; and what both sides do with it."""
    if not data:
        return
    body = data[1:]
    framed = b"CSIN\x01" + data[:1] + checksum(data[0], body).to_bytes(4, "big") + body
    with refusing("install message", InstallMessageError):
        message = decode(framed)
        if isinstance(message, Offer | Entries | Chunk | Cancel):
            _receive(message)
        else:
            _answer(message)


def _receive(message: Offer | Entries | Chunk | Cancel) -> None:
    """Entries are taken behind the last one only, bytes behind the last byte only, never more than were offered."""
    idle = receiving.Receiver(term=5, applied=3)
    receiving.step(idle, message)
    state, _ = receiving.step(idle, OFFER)
    state, _ = receiving.step(state, receiving.InstallBegun(OFFER.transfer, 3))
    after, outputs = receiving.step(state, message)
    last = 3
    for output in outputs:
        if isinstance(output, receiving.Write):
            for previous, entry in output.entries:
                assert previous == last
                assert last < entry.index <= OFFER.index
                last = entry.index
        if isinstance(output, receiving.Append):
            assert after.offset == len(output.data) <= OFFER.size
    assert after.stage is not receiving.ReceiverStage.RECEIVING or after.index == last


def _answer(message: Progress | Installed | Refused) -> None:
    """Whatever a receiver says, what is sent is live, above what it has, and within the stream."""
    plan = sending.SendPlan(40, 4, NeededEntries.of(LiveSet.parse("1-5,9,30-40")), 30, 100)
    state = sending.Sender(term=5, transfer=7, plan=plan)
    for event in (message, Progress(5, 7, 11, 0), message, sending.Resend()):
        state, outputs = sending.step(state, event)
        for output in outputs:
            if isinstance(output, sending.ReadEntries):
                assert set(output.indexes) <= set(LiveSet.parse("1-5,9,30-40"))
                assert output.previous is None or output.previous < output.indexes[0]
            if isinstance(output, sending.ReadChunk):
                assert output.size > 0
                assert output.offset + output.size <= 130


def _cut(data: bytes, _: Path) -> None:
    with refusing("/log/log.cut", InvalidCutError):
        cut = decode_cut(data, file="/log/log.cut")
        assert encode_cut(cut) == data


INSTALL_TARGETS: Final = (
    Target("install-message", _message, tuple(map(encode, MESSAGES)), (b"CSIN\x01", bytes(8), b"\xff" * 8)),
    Target(
        "install-conversation",
        _conversation,
        tuple(data[5:6] + data[HEAD:] for data in map(encode, MESSAGES)),
        (bytes(8), b"\xff" * 8, (7).to_bytes(8, "big"), (5).to_bytes(8, "big"), (31).to_bytes(8, "big")),
    ),
    Target("log-cut", _cut, (encode_cut(LogCut(7, None)), encode_cut(LogCut(0, 3))), (b"CCUT\x01", b"\xff" * 8)),
)
