"""Messages of an installation as bytes: all kinds there and back, every damage found, sizes bounded."""

from __future__ import annotations

import pytest

from compaction.segments.errors import InstallMessageError, InstallStoppedError
from compaction.segments.install import messages
from compaction.segments.install.driver import in_messages
from compaction.segments.install.messages import (
    ENTRY_OVERHEAD,
    OVERHEAD,
    Chunk,
    Entries,
    Refusal,
    Refused,
    SentEntry,
    decode,
    encode,
)
from compaction.segments.memtable import LogEntry
from fuzz.install_targets import MESSAGES


def test_each_message_is_read_as_it_was_sent_and_no_change_of_it_is_missed() -> None:
    for message in MESSAGES:
        data = encode(message)
        assert decode(data) == message
        for at in range(len(data)):
            changed = data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
            with pytest.raises(InstallMessageError):
                decode(changed)
        for size in range(len(data)):
            with pytest.raises(InstallMessageError):
                decode(data[:size])
        with pytest.raises(InstallMessageError, match="checksum"):
            decode(data + b"\0")


def test_the_error_says_what_is_wrong() -> None:
    data = encode(MESSAGES[3])
    for bad, message in (
        (b"HTTP/1.1 400 Bad Request", r"at offset 0: it begins with b'HTTP'"),
        (data[:4] + b"\2" + data[5:], "offset 4: version 2 is not supported"),
        (data[:40], "offset 6: checksum"),
        (b"CSIN", "offset 0: 10 bytes are expected, 4 are left; it does not count"),
    ):
        with pytest.raises(InstallMessageError, match=message):
            decode(bad)


def test_a_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(InstallMessageError, match="larger than 100 bytes"):
        encode(Chunk(1, 1, 0, bytes(100)))
    with pytest.raises(InstallMessageError, match="larger than 100 bytes"):
        decode(bytes(101))
    monkeypatch.undo()
    long = decode(encode(Refused(1, 1, Refusal.FAILED, detail="é" * 5000)))
    assert isinstance(long, Refused)
    assert len(long.detail.encode()) <= messages.MAX_DETAIL_BYTES + 3


def test_entries_are_split_into_messages_that_fit() -> None:
    entries = [SentEntry(index - 1, LogEntry(index, 1, b"x" * size)) for index, size in enumerate((5, 5, 90, 1, 1), 1)]
    limit = OVERHEAD + ENTRY_OVERHEAD + 90
    batches = list(in_messages(entries, limit=limit))
    assert [sent for batch in batches for sent in batch] == entries
    assert len(batches) == 3
    assert all(len(encode(Entries(1, 1, batch))) <= limit for batch in batches)
    with pytest.raises(InstallStoppedError, match="the entry of index 3 needs a message of"):
        list(in_messages(entries, limit=limit - 1))
