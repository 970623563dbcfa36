"""The receiving side of an installation as a state machine: no input or output, no clock.

`step` takes what arrives (a message, or what became of an action) and returns the next state with messages to send and
actions to take, in their order. Messages may be lost, repeated and reordered: only the entry that follows the last one,
and the chunk that follows the last byte, are taken; everything else is answered with the progress that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from compaction.segments.install.messages import (
    Cancel,
    Chunk,
    Entries,
    FromReceiver,
    FromSender,
    Installed,
    Offer,
    Progress,
    Refusal,
    Refused,
    SentEntry,
)


class ReceiverStage(StrEnum):
    """The stage of a receiver."""

    IDLE = "Idle"
    OPENING = "Opening"
    """The log is asked to begin (`Begin`), and has not answered yet."""
    RECEIVING = "Receiving"
    FINISHING = "Finishing"
    """Everything has arrived; the log publishes it (`Finish`). Nothing stops that any more."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """`term`: the largest one known. `applied`: the last index that the owner's machine has applied; None: nothing.

    `offer`: what is being installed, entries up to `index` and bytes up to `offset` of it so far. `newest`: the largest
    transfer seen in this term. `installed`: the last transfer that was finished.
    """

    term: int
    applied: int | None
    stage: ReceiverStage = ReceiverStage.IDLE
    offer: Offer | None = None
    index: int | None = None
    offset: int = 0
    newest: int = -1
    installed: int | None = None


@dataclass(frozen=True, slots=True)
class InstallBegun:
    """The log has begun; it ends at `base` (None: it is empty), and larger live indexes are needed."""

    transfer: int
    base: int | None


@dataclass(frozen=True, slots=True)
class InstallFinished:
    """The snapshot is installed and durable."""

    transfer: int


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """The log refused an action."""

    transfer: int
    reason: Refusal
    detail: str


@dataclass(frozen=True, slots=True)
class TermKnown:
    """The owner has learned of this term elsewhere."""

    term: int


@dataclass(frozen=True, slots=True)
class InstallApplied:
    """The owner's machine has applied everything up to this index."""

    index: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin to install; answered by `InstallBegun` or `ActionFailed`."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Write:
    """Write these live entries, sparsely. No answer unless it fails."""

    transfer: int
    entries: tuple[SentEntry, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """Append these bytes to the partial snapshot. No answer unless it fails."""

    transfer: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    """Publish the snapshot; answered by `InstallFinished` or `ActionFailed`."""

    transfer: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Abort: drop the partial snapshot and the entries that were written for it."""

    transfer: int


@dataclass(frozen=True, slots=True)
class AdoptTerm:
    """A sender has a larger term: the owner remembers it, as after any message with one."""

    term: int


ReceiverEvent = FromSender | InstallBegun | InstallFinished | ActionFailed | TermKnown | InstallApplied
ReceiverAction = Begin | Write | Append | Finish | Drop | AdoptTerm
ReceiverOutput = FromReceiver | ReceiverAction
ReceiverStep = tuple[Receiver, tuple[ReceiverOutput, ...]]


def step(state: Receiver, event: ReceiverEvent) -> ReceiverStep:
    """The next state, and what is sent and done, in this order."""
    match event:
        case TermKnown(term):
            state, outputs = _adopt(state, term)
            return state, tuple(output for output in outputs if not isinstance(output, AdoptTerm))
        case InstallApplied(index):
            return replace(state, applied=index if state.applied is None else max(index, state.applied)), ()
        case InstallBegun() | InstallFinished() | ActionFailed():
            return _answered(state, event)
        case Offer() | Entries() | Chunk() | Cancel():
            if event.term < state.term:
                return state, (Refused(state.term, event.transfer, Refusal.NEWER_TERM),)
            state, first = _adopt(state, event.term)
            state, outputs = _offered(state, event) if isinstance(event, Offer) else _transferred(state, event)
            return state, (*first, *outputs)


def _adopt(state: Receiver, term: int) -> ReceiverStep:
    """A larger term ends whatever an older leader had begun."""
    if term <= state.term:
        return state, ()
    state, outputs = _dropped(state)
    return replace(state, term=term, newest=-1, installed=None), (*outputs, AdoptTerm(term))


def _dropped(state: Receiver) -> ReceiverStep:
    """Without the transfer that is under way; one that is being published ends by itself."""
    if state.offer is None or state.stage is ReceiverStage.FINISHING:
        return state, ()
    idle = replace(state, stage=ReceiverStage.IDLE, offer=None, index=None, offset=0)
    return idle, (Drop(state.offer.transfer),)


def _offered(state: Receiver, offer: Offer) -> ReceiverStep:
    if state.applied is not None and offer.index <= state.applied:
        return state, (Installed(state.term, offer.transfer, state.applied),)
    if offer == state.offer:
        return state, _progress(state)
    if offer.transfer <= state.newest:
        return state, (Refused(state.term, offer.transfer, Refusal.STALE_TRANSFER, at=state.newest),)
    if state.stage is ReceiverStage.FINISHING:
        # Answered when the offer comes again: by then, what is being published has been applied.
        return state, ()
    state, outputs = _dropped(state)
    state = replace(state, stage=ReceiverStage.OPENING, offer=offer, newest=offer.transfer)
    return state, (*outputs, Begin(offer))


def _transferred(state: Receiver, message: Entries | Chunk | Cancel) -> ReceiverStep:
    if state.offer is None or state.offer.transfer != message.transfer:
        if state.applied is not None and state.installed == message.transfer:
            return state, (Installed(state.term, message.transfer, state.applied),)
        unknown = Refused(state.term, message.transfer, Refusal.UNKNOWN_TRANSFER)
        return state, () if isinstance(message, Cancel) else (unknown,)
    if state.stage is not ReceiverStage.RECEIVING:
        return _dropped(state) if isinstance(message, Cancel) else (state, ())
    match message:
        case Cancel():
            return _dropped(state)
        case Entries(entries=entries):
            return _entries(state, state.offer, entries)
        case Chunk():
            return _chunk(state, state.offer, message)


def _entries(state: Receiver, offer: Offer, entries: tuple[SentEntry, ...]) -> ReceiverStep:
    """Those that follow the last one; none once the stream has begun."""
    taken: list[SentEntry] = []
    last = state.index
    for sent in entries if state.offset == 0 else ():
        index = sent.entry.index
        if index > offer.index:
            return _refused(state, Refusal.INVALID, f"entry {index} is above the snapshot's index {offer.index}")
        if last is not None and index <= last:
            continue
        if sent.previous != last:
            break
        taken.append(sent)
        last = index
    state = replace(state, index=last)
    return state, (*((Write(offer.transfer, tuple(taken)),) if taken else ()), *_progress(state))


def _chunk(state: Receiver, offer: Offer, chunk: Chunk) -> ReceiverStep:
    if chunk.offset != state.offset:
        return state, _progress(state)
    end = chunk.offset + len(chunk.data)
    if end > offer.size:
        return _refused(state, Refusal.INVALID, f"the stream has {end} bytes or more, {offer.size} were offered")
    state = replace(state, offset=end)
    append = Append(offer.transfer, chunk.data)
    if end < offer.size:
        return state, (append, *_progress(state))
    return replace(state, stage=ReceiverStage.FINISHING), (append, Finish(offer.transfer))


def _answered(state: Receiver, event: InstallBegun | InstallFinished | ActionFailed) -> ReceiverStep:
    """Apply the outcome of an action; of a transfer that was dropped meanwhile it does not count."""
    offer = state.offer
    if offer is None or offer.transfer != event.transfer:
        return state, ()
    match event:
        case InstallBegun(base=base):
            state = replace(state, stage=ReceiverStage.RECEIVING, index=base)
            return state, _progress(state)
        case InstallFinished(transfer):
            applied = max(offer.index, -1 if state.applied is None else state.applied)
            state = Receiver(state.term, applied, newest=state.newest, installed=transfer)
            return state, (Installed(state.term, transfer, applied),)
        case ActionFailed(reason=reason, detail=detail):
            return _refused(state, reason, detail)


def _refused(state: Receiver, reason: Refusal, detail: str) -> ReceiverStep:
    transfer = state.newest if state.offer is None else state.offer.transfer
    state, outputs = _dropped(replace(state, stage=ReceiverStage.RECEIVING))
    return state, (*outputs, Refused(state.term, transfer, reason, detail=detail))


def _progress(state: Receiver) -> tuple[Progress, ...]:
    if state.offer is None or state.stage is not ReceiverStage.RECEIVING:
        return ()
    return (Progress(state.term, state.offer.transfer, state.index, state.offset),)
