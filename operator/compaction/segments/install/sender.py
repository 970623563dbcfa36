"""The sending side of an installation as a state machine: no input or output, no clock.

`step` takes what arrives and returns the next state with messages to send and reads to make, in their order; a read
becomes one message or more. Up to `window` reads are on their way; after `Resend`, which the owner sends when nothing
has arrived for a while, everything behind the last acknowledgement is sent again.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from compaction.segments.install.messages import Cancel, FromReceiver, Installed, Offer, Progress, Refusal, Refused
from compaction.segments.snapshot.live_indexes import LiveSet

# Live entries that a receiver still needs, in ascending order, and their batches: pure.


@dataclass(frozen=True, slots=True)
class NeededEntries:
    """A live set as ranges, from which batches are taken at any place without walking through what is before."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @classmethod
    def of(cls, live: LiveSet) -> NeededEntries:
        lows, highs = live.bounds
        return cls(tuple(lows.tolist()), tuple(highs.tolist()))

    def after(self, index: int | None, count: int) -> tuple[int, ...]:
        """The first `count` indexes above `index` (None: from the first one on); fewer at the end."""
        following = 0 if index is None else index + 1
        position = bisect_left(self.highs, following)
        found: list[int] = []
        while position < len(self.lows) and len(found) < count:
            low = max(self.lows[position], following)
            found += range(low, min(self.highs[position], low + count - len(found) - 1) + 1)
            position += 1
        return tuple(found)


BATCH: Final = 16
"""Entries per message, as Ra's."""
CHUNK_BYTES: Final = 1 << 20
_ASK_AGAIN: Final = frozenset({Refusal.STALE_TRANSFER, Refusal.UNKNOWN_TRANSFER})
"""Refusals that a new transfer answers, whenever they come."""


class SenderPhase(StrEnum):
    """The phase of a sender."""

    OFFERING = "Offering"
    ENTRIES = "Entries"
    CHUNKS = "Chunks"
    INSTALLED = "Installed"
    STOPPED = "Stopped"


class StopReason(StrEnum):
    """The reason why a sender has given up."""

    NEWER_TERM = "NewerTerm"
    """A larger term is known: this sender is no leader any more."""
    REFUSED = "Refused"
    """The receiver refused each attempt."""
    UNREADABLE = "Unreadable"
    """The sender cannot read what it has to send."""
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The content of a transfer: the snapshot's index and term, its live indexes, the sizes of its two files."""

    index: int
    term: int
    live: NeededEntries
    indexes_bytes: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class SendLimits:
    """`batch` entries and `chunk_bytes` per message, `window` messages without acknowledgement, `attempts` that the
    receiver may refuse.
    """

    batch: int = BATCH
    chunk_bytes: int = CHUNK_BYTES
    window: int = 4
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class Sender:
    """`term`: the sender's. `transfer`: the number of this attempt. `stopped`, `detail`: why nothing more is sent.

    Entries up to `index` (None: none) and bytes up to `offset` are acknowledged; `sent_index` and `sent_offset` are
    sent; `unanswered` holds the last index of each batch in between. `heard`: the furthest acknowledgement since the
    last `Resend`. `applied`: what the receiver says in the end.
    """

    term: int
    transfer: int
    plan: SendPlan
    limits: SendLimits = field(default_factory=SendLimits)
    phase: SenderPhase = SenderPhase.OFFERING
    index: int | None = None
    offset: int = 0
    sent_index: int | None = None
    sent_offset: int = 0
    unanswered: tuple[int, ...] = ()
    heard: tuple[int, int] | None = None
    refusals: int = 0
    applied: int | None = None
    stopped: StopReason | None = None
    detail: str = ""

    @property
    def is_over(self) -> bool:
        return self.phase in (SenderPhase.INSTALLED, SenderPhase.STOPPED)


@dataclass(frozen=True, slots=True)
class Start:
    """Send the offer."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Nothing has arrived for a while."""


@dataclass(frozen=True, slots=True)
class SenderReplaced:
    """The sender's log has a newer snapshot, and entries of the older one may be gone."""

    plan: SendPlan


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A read failed."""

    detail: str


@dataclass(frozen=True, slots=True)
class NewTerm:
    """The owner has learned of a larger term."""

    term: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The owner ends the transfer."""


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read these entries and send them; the first one follows `previous` in the receiver's log."""

    transfer: int
    previous: int | None
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Read `size` bytes of the stream from `offset` on and send them."""

    transfer: int
    offset: int
    size: int


SenderEvent = Start | Resend | SenderReplaced | Unreadable | NewTerm | Stop | FromReceiver
SenderOutput = Offer | Cancel | ReadEntries | ReadChunk
SenderStep = tuple[Sender, tuple[SenderOutput, ...]]


def step(state: Sender, event: SenderEvent) -> SenderStep:
    """The next state, and what is sent and read, in this order. Once it is over, nothing happens any more."""
    if state.is_over:
        return state, ()
    match event:
        case Start():
            return state, (_offer(state),)
        case Resend():
            return _send_again(state)
        case SenderReplaced(plan):
            # The chunks are read from files that stay open: the older snapshot is as good as ever.
            return (state, ()) if state.phase is SenderPhase.CHUNKS else _restart(replace(state, plan=plan))
        case Unreadable(detail):
            return _stop(state, StopReason.UNREADABLE, detail)
        case NewTerm(term):
            return _stop(state, StopReason.NEWER_TERM, f"term {term}") if term > state.term else (state, ())
        case Stop():
            return _stop(state, StopReason.CANCELLED, "")
        case Progress() | Installed() | Refused():
            if event.term > state.term:
                stopped = replace(state, phase=SenderPhase.STOPPED, stopped=StopReason.NEWER_TERM)
                return replace(stopped, detail=f"term {event.term}"), ()
            # A receiver that has got anything of this transfer knows this term: the rest belongs to older ones.
            this = (event.term, event.transfer) == (state.term, state.transfer)
            return _answered(state, event) if this else (state, ())


def _offer(state: Sender) -> Offer:
    plan = state.plan
    return Offer(state.term, state.transfer, plan.index, plan.term, plan.indexes_bytes, plan.data_bytes)


def _stop(state: Sender, reason: StopReason, detail: str) -> SenderStep:
    stopped = replace(state, phase=SenderPhase.STOPPED, stopped=reason, detail=detail)
    return stopped, (Cancel(state.term, state.transfer),)


def _restart(state: Sender, *, above: int = -1) -> SenderStep:
    """A new transfer, with a number above all that are known."""
    transfer = max(state.transfer, above) + 1
    state = Sender(state.term, transfer, state.plan, state.limits, refusals=state.refusals)
    return state, (_offer(state),)


def _send_again(state: Sender) -> SenderStep:
    if state.phase is SenderPhase.OFFERING:
        return state, (_offer(state),)
    index, offset = state.index, state.offset
    if state.heard is not None and state.heard < (_place(index), offset):
        # A receiver that was restarted, and has got the offer a second time, begins at its base again.
        index, offset = None if state.heard[0] < 0 else state.heard[0], state.heard[1]
    again = replace(state, phase=SenderPhase.ENTRIES, index=index, offset=offset, heard=None)
    return _send(replace(again, sent_index=index, sent_offset=offset, unanswered=()))


def _answered(state: Sender, answer: FromReceiver) -> SenderStep:
    match answer:
        case Installed(index=index):
            return replace(state, phase=SenderPhase.INSTALLED, applied=index), ()
        case Refused(reason=Refusal.NEWER_TERM):
            return _stop(state, StopReason.NEWER_TERM, answer.detail)
        case Refused(reason=reason, at=at, detail=detail):
            if reason in _ASK_AGAIN:
                return _restart(state, above=at)
            if state.refusals + 1 >= state.limits.attempts:
                return _stop(state, StopReason.REFUSED, f"{reason}: {detail}")
            return _restart(replace(state, refusals=state.refusals + 1))
        case Progress(index=index, offset=offset):
            return _progressed(state, index, offset)


def _progressed(state: Sender, index: int | None, offset: int) -> SenderStep:
    """An acknowledgement. Older ones come late, and change nothing at once."""
    heard = (_place(index), offset)
    state = replace(state, heard=heard if state.heard is None else max(heard, state.heard))
    if state.phase is SenderPhase.OFFERING:
        state = replace(state, phase=SenderPhase.ENTRIES, index=index, sent_index=index, offset=offset)
        state = replace(state, sent_offset=offset)
    if _place(index) > _place(state.index):
        unanswered = tuple(last for last in state.unanswered if last > _place(index))
        sent = index if _place(index) > _place(state.sent_index) else state.sent_index
        state = replace(state, index=index, sent_index=sent, unanswered=unanswered)
    if offset > state.offset:
        state = replace(state, offset=offset, sent_offset=max(offset, state.sent_offset))
    return _send(state)


def _place(index: int | None) -> int:
    return -1 if index is None else index


def _send(state: Sender) -> SenderStep:
    """As much as the window takes. The stream begins when the last entry is acknowledged."""
    if state.phase is SenderPhase.ENTRIES and not state.plan.live.after(state.index, 1):
        state = replace(state, phase=SenderPhase.CHUNKS)
    if state.phase is SenderPhase.ENTRIES:
        return _send_entries(state)
    return _send_chunks(state)


def _send_entries(state: Sender) -> SenderStep:
    reads: list[SenderOutput] = []
    unanswered = list(state.unanswered)
    sent = state.sent_index
    while len(unanswered) < state.limits.window:
        batch = state.plan.live.after(sent, state.limits.batch)
        if not batch:
            break
        reads.append(ReadEntries(state.transfer, sent, batch))
        sent = batch[-1]
        unanswered.append(sent)
    return replace(state, sent_index=sent, unanswered=tuple(unanswered)), tuple(reads)


def _send_chunks(state: Sender) -> SenderStep:
    size, limits = state.plan.indexes_bytes + state.plan.data_bytes, state.limits
    reads: list[SenderOutput] = []
    sent = state.sent_offset
    while sent < size and sent - state.offset < limits.window * limits.chunk_bytes:
        length = min(limits.chunk_bytes, size - sent)
        reads.append(ReadChunk(state.transfer, sent, length))
        sent += length
    return replace(state, sent_offset=sent), tuple(reads)
