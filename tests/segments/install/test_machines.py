"""Both sides of an installation as pure state machines: every message, in every order, at every place."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from compaction.segments.errors import InstallMessageError, InstallStoppedError
from compaction.segments.install import messages
from compaction.segments.install import receiver as receiving
from compaction.segments.install import sender as sending
from compaction.segments.install.driver import in_messages
from compaction.segments.install.messages import (
    ENTRY_OVERHEAD,
    OVERHEAD,
    Cancel,
    Chunk,
    Entries,
    Installed,
    Offer,
    Progress,
    Refusal,
    Refused,
    SentEntry,
    decode,
    encode,
)
from compaction.segments.install.receiver import InstallBegun, InstallFinished, Receiver, ReceiverStage
from compaction.segments.install.sender import (
    NeededEntries,
    ReadChunk,
    ReadEntries,
    Sender,
    SenderPhase,
    SendLimits,
    SendPlan,
    StopReason,
)
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from fuzz.install_targets import MESSAGES

OFFER = Offer(2, 7, index=1777, snapshot_term=1, indexes_bytes=4, data_bytes=6)
LIVE = LiveSet.from_indexes([100, 600, 1200, 1777])


def plan(live: LiveSet = LIVE, index: int = 1777) -> SendPlan:
    return SendPlan(index, 1, NeededEntries.of(live), 4, 6)


def sender(live: LiveSet = LIVE, **limits: int) -> Sender:
    return Sender(2, 7, plan(live), SendLimits(**limits))


def sent(previous: int | None, index: int) -> SentEntry:
    return SentEntry(previous, LogEntry(index, 1, b"x"))


def receiver(base: int | None = 1100) -> Receiver:
    """In the middle of a transfer."""
    state, outputs = receiving.step(Receiver(2, base), OFFER)
    assert outputs == (receiving.Begin(OFFER),)
    state, outputs = receiving.step(state, InstallBegun(7, base))
    assert outputs == (Progress(2, 7, base, 0),)
    return state


# --- which entries are sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("applied", "needed"),
    [(1500, [1777]), (1100, [1200, 1777]), (None, [100, 600, 1200, 1777]), (1777, []), (600, [1200, 1777])],
)
def test_live_entries_above_what_the_receiver_has_applied_are_needed(applied: int | None, needed: list[int]) -> None:
    state, _ = sending.step(sender(), sending.Start())
    _, outputs = sending.step(state, Progress(2, 7, applied, 0))
    assert list(chain(*(o.indexes for o in outputs if isinstance(o, ReadEntries)))) == needed
    assert isinstance(outputs[0], ReadEntries if needed else ReadChunk)


def test_sixteen_entries_per_message_each_behind_the_one_before() -> None:
    state, outputs = sending.step(sender(LiveSet.parse("1-20,30,40-70")), Progress(2, 7, 4, 0))
    found: list[int] = []
    for _ in range(9):
        later: list[sending.SenderOutput] = []
        for output in outputs:
            if isinstance(output, ReadEntries):
                assert output.previous == (found[-1] if found else 4)
                assert len(output.indexes) == 16 or output.indexes[-1] == 70
                found += output.indexes
                state, more = sending.step(state, Progress(2, 7, found[-1], 0))
                later += more
        outputs = tuple(later)
    assert found == [*range(5, 21), 30, *range(40, 71)]
    assert state.phase is SenderPhase.CHUNKS


def test_a_live_set_is_taken_in_parts_at_any_place() -> None:
    live = LiveSet.parse("0,3-5,9,11-40")
    needed = NeededEntries.of(live)
    for after in (None, *range(45)):
        for count in (1, 4, 50):
            expected = [index for index in live if after is None or index > after][:count]
            assert list(needed.after(after, count)) == expected


# --- the sender -----------------------------------------------------------------------------------------------------


def test_a_window_of_messages_is_on_its_way() -> None:
    state, outputs = sending.step(sender(batch=1, window=2, chunk_bytes=3), Progress(2, 7, None, 0))
    assert outputs == (ReadEntries(7, None, (100,)), ReadEntries(7, 100, (600,)))
    assert sending.step(state, Progress(2, 7, None, 0))[1] == ()
    state, outputs = sending.step(state, Progress(2, 7, 100, 0))
    assert outputs == (ReadEntries(7, 600, (1200,)),)
    # The first acknowledgement comes again, the second one got lost.
    state, outputs = sending.step(state, Progress(2, 7, 100, 0))
    assert outputs == ()
    state, outputs = sending.step(state, Progress(2, 7, 1200, 0))
    assert outputs == (ReadEntries(7, 1200, (1777,)),)
    # The stream begins when the last entry has arrived.
    state, outputs = sending.step(state, Progress(2, 7, 1777, 0))
    assert outputs == (ReadChunk(7, 0, 3), ReadChunk(7, 3, 3))
    state, outputs = sending.step(state, Progress(2, 7, 1777, 6))
    assert outputs == (ReadChunk(7, 6, 3), ReadChunk(7, 9, 1))
    state, outputs = sending.step(state, Installed(2, 7, 1777))
    assert (state.phase, state.applied, outputs) == (SenderPhase.INSTALLED, 1777, ())


def test_what_is_not_acknowledged_is_sent_again() -> None:
    state, outputs = sending.step(sender(batch=1, window=2, chunk_bytes=3), sending.Start())
    assert outputs == (OFFER,)
    assert sending.step(state, sending.Resend()) == (state, (OFFER,))
    state, _ = sending.step(state, Progress(2, 7, 600, 0))
    state, outputs = sending.step(state, sending.Resend())
    assert outputs == (ReadEntries(7, 600, (1200,)), ReadEntries(7, 1200, (1777,)))
    state, _ = sending.step(state, Progress(2, 7, 1777, 0))
    state, _ = sending.step(state, Progress(2, 7, 1777, 3))
    state, outputs = sending.step(state, sending.Resend())
    assert outputs == (ReadChunk(7, 3, 3), ReadChunk(7, 6, 3))


def test_a_receiver_that_begins_again_with_the_same_offer_is_followed() -> None:
    """It was restarted, and a copy of the offer came late: it does not have any more what it had acknowledged."""
    state, _ = sending.step(sender(batch=1, window=2, chunk_bytes=3), Progress(2, 7, 600, 0))
    for progress in (Progress(2, 7, 1777, 0), Progress(2, 7, 1777, 3)):
        state, _ = sending.step(state, progress)
    state, outputs = sending.step(state, sending.Resend())
    assert outputs[0] == ReadChunk(7, 3, 3)
    state, outputs = sending.step(state, Progress(2, 7, 600, 0))
    assert outputs == ()
    state, outputs = sending.step(state, sending.Resend())
    assert outputs == (ReadEntries(7, 600, (1200,)), ReadEntries(7, 1200, (1777,)))


@pytest.mark.parametrize("phase", [SenderPhase.OFFERING, SenderPhase.ENTRIES, SenderPhase.CHUNKS])
def test_at_every_place_a_refusal_a_term_or_a_stop_ends_the_attempt(phase: SenderPhase) -> None:
    state = sender(attempts=2)
    if phase is not SenderPhase.OFFERING:
        state, _ = sending.step(state, Progress(2, 7, 5 if phase is SenderPhase.ENTRIES else 1777, 0))
    assert state.phase is phase
    after, outputs = sending.step(state, Refused(2, 7, Refusal.UNKNOWN_TRANSFER))
    assert (after, outputs) == (replace(sender(attempts=2), transfer=8), (replace(OFFER, transfer=8),))
    after, _ = sending.step(state, Refused(2, 7, Refusal.STALE_TRANSFER, at=70))
    assert after.transfer == 71
    after, _ = sending.step(state, Refused(2, 7, Refusal.MISSING_ENTRIES))
    assert (after.transfer, after.phase) == (8, SenderPhase.OFFERING)
    after, outputs = sending.step(after, Refused(2, 8, Refusal.MISSING_ENTRIES, detail="index 9"))
    assert (after.stopped, after.detail, outputs) == (StopReason.REFUSED, "MissingEntries: index 9", (Cancel(2, 8),))
    for event in (Refused(3, 7, Refusal.NEWER_TERM), Progress(3, 7, None, 0), sending.NewTerm(3)):
        after, _ = sending.step(state, event)
        assert (after.stopped, after.detail) == (StopReason.NEWER_TERM, "term 3")
    after, outputs = sending.step(state, sending.Stop())
    assert (after.stopped, outputs) == (StopReason.CANCELLED, (Cancel(2, 7),))
    assert sending.step(after, sending.Start()) == (after, ())
    after, _ = sending.step(state, sending.Unreadable("no"))
    assert (after.stopped, after.detail) == (StopReason.UNREADABLE, "no")
    # Of another transfer, or an older term, nothing counts.
    for other in (Refused(2, 6, Refusal.INVALID), Installed(2, 8, 1777), Progress(1, 7, 1777, 9), sending.NewTerm(2)):
        assert sending.step(state, other) == (state, ())


def test_a_newer_snapshot_replaces_the_one_whose_entries_are_being_read() -> None:
    newer = plan(LiveSet.from_indexes([100, 2000]), index=2500)
    state, _ = sending.step(sender(), Progress(2, 7, 5, 0))
    after, outputs = sending.step(state, sending.SenderReplaced(newer))
    assert (after.plan, after.transfer, after.phase) == (newer, 8, SenderPhase.OFFERING)
    assert outputs == (Offer(2, 8, 2500, 1, 4, 6),)
    # Its chunks come from a file that stays open.
    state, _ = sending.step(state, Progress(2, 7, 1777, 0))
    assert sending.step(state, sending.SenderReplaced(newer)) == (state, ())


# --- the receiver ---------------------------------------------------------------------------------------------------


def test_entries_are_taken_behind_the_last_one_only() -> None:
    state = receiver()
    # A copy of what is there, what follows, and a gap.
    state, outputs = receiving.step(state, Entries(2, 7, (sent(600, 1100), sent(1100, 1200))))
    assert outputs == (receiving.Write(7, (sent(1100, 1200),)), Progress(2, 7, 1200, 0))
    for lost in ((sent(1300, 1777),), (sent(1100, 1200),), (sent(None, 1777),)):
        assert receiving.step(state, Entries(2, 7, lost)) == (state, (Progress(2, 7, 1200, 0),))
    state, outputs = receiving.step(state, Entries(2, 7, (sent(1200, 1300), sent(1400, 1500))))
    assert outputs == (receiving.Write(7, (sent(1200, 1300),)), Progress(2, 7, 1300, 0))
    after, outputs = receiving.step(state, Entries(2, 7, (sent(1300, 1778),)))
    assert after.stage is ReceiverStage.IDLE
    assert outputs[0] == receiving.Drop(7)
    assert isinstance(outputs[1], Refused)
    assert outputs[1].detail == "entry 1778 is above the snapshot's index 1777"


def test_chunks_are_taken_behind_the_last_byte_only() -> None:
    state, outputs = receiving.step(receiver(), Chunk(2, 7, 0, b"abcdef"))
    assert outputs == (receiving.Append(7, b"abcdef"), Progress(2, 7, 1100, 6))
    for chunk in (Chunk(2, 7, 0, b"abcdef"), Chunk(2, 7, 5, b"x"), Chunk(2, 7, 7, b"x")):
        assert receiving.step(state, chunk) == (state, (Progress(2, 7, 1100, 6),))
    assert receiving.step(state, Entries(2, 7, (sent(1100, 1200),))) == (state, (Progress(2, 7, 1100, 6),))
    after, outputs = receiving.step(state, Chunk(2, 7, 6, b"ghijk"))
    assert after.stage is ReceiverStage.IDLE
    assert [type(output) for output in outputs] == [receiving.Drop, Refused]
    state, outputs = receiving.step(state, Chunk(2, 7, 6, b"ghij"))
    assert outputs == (receiving.Append(7, b"ghij"), receiving.Finish(7))
    # Nothing stops it now; copies, aborts and newer offers wait.
    for message in (Chunk(2, 7, 6, b"ghij"), Cancel(2, 7), OFFER, replace(OFFER, transfer=8, index=2000)):
        assert receiving.step(state, message) == (state, ())
    later, outputs = receiving.step(state, receiving.TermKnown(9))
    assert (later.stage, later.term, outputs) == (ReceiverStage.FINISHING, 9, ())
    state, outputs = receiving.step(state, InstallFinished(7))
    assert (state.applied, state.stage, outputs) == (1777, ReceiverStage.IDLE, (Installed(2, 7, 1777),))
    # The answer got lost.
    for message in (Chunk(2, 7, 6, b"ghij"), OFFER, replace(OFFER, transfer=9)):
        _, outputs = receiving.step(state, message)
        assert outputs == (Installed(2, message.transfer, 1777),)


PLACES = {
    "before its first answer": receiving.step(Receiver(2, 1100), OFFER)[0],
    "begun": receiver(),
    "with entries": receiving.step(receiver(), Entries(2, 7, (sent(1100, 1200),)))[0],
    "with chunks": receiving.step(receiver(), Chunk(2, 7, 0, b"abc"))[0],
}


@pytest.mark.parametrize("place", PLACES)
def test_at_every_place_a_transfer_can_be_aborted_replaced_or_restarted(place: str) -> None:
    state = PLACES[place]
    idle = Receiver(2, 1100, newest=7)
    assert receiving.step(state, Cancel(2, 7)) == (idle, (receiving.Drop(7),))
    # The same offer again: not a new beginning.
    again, outputs = receiving.step(state, OFFER)
    assert again == state
    assert all(isinstance(output, Progress) for output in outputs)
    for newer in (replace(OFFER, transfer=8), replace(OFFER, transfer=9, index=5000)):
        after, outputs = receiving.step(state, newer)
        assert (after.stage, after.offer, after.offset) == (ReceiverStage.OPENING, newer, 0)
        assert outputs == (receiving.Drop(7), receiving.Begin(newer))
        # What the older one still sends does not count.
        assert receiving.step(after, Chunk(2, 7, 0, b"abc"))[1] == (Refused(2, 7, Refusal.UNKNOWN_TRANSFER),)
        assert receiving.step(after, InstallBegun(7, 5)) == (after, ())
        assert receiving.step(after, OFFER)[1] == (Refused(2, 7, Refusal.STALE_TRANSFER, at=newer.transfer),)
    leader = replace(OFFER, term=3, transfer=0)
    after, outputs = receiving.step(state, leader)
    assert (after.term, after.offer, after.newest) == (3, leader, 0)
    assert outputs == (receiving.Drop(7), receiving.AdoptTerm(3), receiving.Begin(leader))
    after, outputs = receiving.step(state, receiving.TermKnown(3))
    assert (after.stage, outputs) == (ReceiverStage.IDLE, (receiving.Drop(7),))
    assert receiving.step(after, OFFER) == (after, (Refused(3, 7, Refusal.NEWER_TERM),))
    failed = receiving.ActionFailed(7, Refusal.FAILED, "no space")
    assert receiving.step(state, failed) == (idle, (receiving.Drop(7), Refused(2, 7, Refusal.FAILED, 0, "no space")))


def test_an_offer_of_what_is_applied_is_answered_with_that() -> None:
    state = Receiver(2, 1777)
    assert receiving.step(state, OFFER) == (state, (Installed(2, 7, 1777),))
    state, _ = receiving.step(Receiver(2, None), receiving.InstallApplied(1800))
    assert receiving.step(state, OFFER)[1] == (Installed(2, 7, 1800),)
    assert receiving.step(state, receiving.InstallApplied(5)) == (state, ())


def test_a_receiver_that_was_restarted_does_not_know_the_transfer() -> None:
    state = Receiver(0, 5)
    for message in (Entries(2, 7, (sent(5, 6),)), Chunk(2, 7, 0, b"x")):
        after, outputs = receiving.step(state, message)
        assert after.term == 2
        assert outputs == (receiving.AdoptTerm(2), Refused(2, 7, Refusal.UNKNOWN_TRANSFER))
    assert receiving.step(replace(state, term=2), Cancel(2, 7))[1] == ()


# Messages of an installation as bytes: all kinds there and back, every damage found, sizes bounded.


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
