"""Both sides of an installation, with their reads and writes: bytes in, bytes out, for any transport.

A transport carries whole messages between two members, and may lose, repeat and reorder them:

    sender = SnapshotSender(log, term=5, transfer=1)       receiver = SnapshotReceiver(log, term=5)
    send(sender.start())                                   send(receiver.receive(message, applied=machine.index))
    send(sender.receive(message))                          if receiver.installed: load the machine from it
    send(sender.resend())  # nothing arrived for a while

until `sender.state.is_over`. Neither is for several threads at once (docs/design/segment-install.md#driver).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from compaction.segments.directory.fs import storage_error
from compaction.segments.errors import (
    InstallIncompleteError,
    InstallStoppedError,
    InvalidInstallError,
    LiveSetUnknownError,
    LogChangedError,
    SegmentLogError,
    WriteRefusedError,
)
from compaction.segments.install import receiver as receiving
from compaction.segments.install import sender as sending
from compaction.segments.install.messages import (
    ENTRY_OVERHEAD,
    MAX_MESSAGE_BYTES,
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
from compaction.segments.install.receiver import Receiver
from compaction.segments.install.sender import NeededEntries, Sender, SendLimits, SendPlan
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.directories import DATA_FILE, LogSnapshot
from compaction.segments.snapshot.live_indexes import encode_indexes
from compaction.segments.system.installs import Install
from compaction.segments.system.log import Log

# Input of a sender: a log's newest snapshot as a stream of bytes, and the live entries beside it.

_LOOKS: Final = 20
"""Openings in a row before which the snapshot was replaced and deleted."""


class SnapshotReplaced(Exception):
    """The log has a newer snapshot, so entries of this one may be gone."""


class SnapshotSource:
    """One snapshot, whose file stays open: replacing and deleting it does not disturb the stream."""

    def __init__(self, log: Log) -> None:
        """The log's newest snapshot.

        InstallStoppedError: there is none. LiveSetUnknownError. StoreIOError and the like.
        """
        self._log = log
        self._file, self.snapshot = _open(log)
        if self.snapshot.live is None:
            os.close(self._file)
            raise LiveSetUnknownError(str(log.directory))
        self._indexes = encode_indexes(self.snapshot.live)
        self.plan = SendPlan(
            index=self.snapshot.index,
            term=self.snapshot.term,
            live=NeededEntries.of(self.snapshot.live),
            indexes_bytes=len(self._indexes),
            data_bytes=os.fstat(self._file).st_size,
        )

    def entries(self, indexes: Sequence[int]) -> list[LogEntry]:
        """All of these live entries, ascending. SnapshotReplaced; else errors as `Log.read`."""
        found = self._log.read(indexes)
        # Asked afterwards: what was read under an older snapshot is complete, unless the next one is being written.
        if self._log.row.snapshot_index != self.snapshot.index or len(found) < len(indexes):
            raise SnapshotReplaced
        return found

    def stream(self, offset: int, size: int) -> bytes:
        """Bytes of `indexes` and then of `snapshot.dat`. StoreIOError and the like."""
        head = self._indexes[offset : offset + size]
        behind = offset + len(head) - len(self._indexes)
        try:
            tail = os.pread(self._file, size - len(head), behind) if len(head) < size else b""
        except OSError as error:
            raise storage_error(error, self.snapshot.path) from error
        if len(head) + len(tail) < size:
            raise InstallStoppedError(str(self.snapshot.path / DATA_FILE), "the file has become shorter")
        return head + tail

    def close(self) -> None:
        os.close(self._file)


def _open(log: Log) -> tuple[int, LogSnapshot]:
    for _ in range(_LOOKS):
        snapshot = log.newest_snapshot
        if snapshot is None:
            raise InstallStoppedError(str(log.directory), "the log has no snapshot")
        try:
            return os.open(snapshot.path / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), snapshot
        except FileNotFoundError as error:
            # Replaced by a newer one, look again; the newest one itself without its data is damaged.
            if log.newest_snapshot == snapshot:
                raise storage_error(error, snapshot.path) from error
        except OSError as error:
            raise storage_error(error, snapshot.path) from error
    raise LogChangedError(str(log.directory))


class SnapshotSender:
    """Sends a log's newest snapshot and its live entries to one receiver. A context manager: leaving it closes."""

    def __init__(self, log: Log, *, term: int, transfer: int, limits: SendLimits | None = None) -> None:
        """`transfer`: larger than all numbers that this receiver was sent in this term; later attempts count on.

        InstallStoppedError: the log has no snapshot. LiveSetUnknownError: what is live is unknown. StoreIOError.
        """
        self._log = log
        self._source = SnapshotSource(log)
        self.state = Sender(term, transfer, self._source.plan, limits or SendLimits())

    def start(self) -> list[bytes]:
        """The first message."""
        return self._run(sending.Start())

    def receive(self, data: bytes) -> list[bytes]:
        """Return the messages to send after a message of the receiver.

        InstallMessageError: the message is damaged and does not count.
        """
        message = decode(data)
        return self._run(message) if isinstance(message, Progress | Installed | Refused) else []

    def resend(self) -> list[bytes]:
        """Return the messages to send when nothing has arrived for a while."""
        return self._run(sending.Resend())

    def learn_term(self, term: int) -> list[bytes]:
        """A larger term ends the transfer."""
        return self._run(sending.NewTerm(term))

    def stop(self) -> list[bytes]:
        """End the transfer."""
        return self._run(sending.Stop())

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, event: sending.SenderEvent) -> list[bytes]:
        messages: list[bytes] = []
        events = deque([event])
        while events:
            self.state, outputs = sending.step(self.state, events.popleft())
            for output in outputs:
                if isinstance(output, Offer | Cancel):
                    messages.append(encode(output))
                elif not events:
                    # After a read that failed, the others of this step are pointless.
                    messages += self._read(output, events)
        return messages

    def _read(self, wanted: sending.ReadEntries | sending.ReadChunk, events: deque[sending.SenderEvent]) -> list[bytes]:
        term, transfer = self.state.term, wanted.transfer
        try:
            if isinstance(wanted, sending.ReadChunk):
                return [encode(Chunk(term, transfer, wanted.offset, self._source.stream(wanted.offset, wanted.size)))]
            found, previous = self._source.entries(wanted.indexes), [wanted.previous, *wanted.indexes[:-1]]
            sent = [SentEntry(before, entry) for before, entry in zip(previous, found, strict=True)]
            return [encode(Entries(term, transfer, batch)) for batch in in_messages(sent)]
        except SnapshotReplaced:
            # Entries that the old snapshot needs may be dead and gone: go on with the newer one.
            events.append(self._reopen())
        except SegmentLogError as error:
            events.append(sending.Unreadable(str(error)))
        return []

    def _reopen(self) -> sending.SenderEvent:
        try:
            source = SnapshotSource(self._log)
        except SegmentLogError as error:
            return sending.Unreadable(str(error))
        self._source.close()
        self._source = source
        return sending.SenderReplaced(source.plan)


def in_messages(entries: list[SentEntry], *, limit: int = MAX_MESSAGE_BYTES) -> Iterator[tuple[SentEntry, ...]]:
    """The entries of one message each: together they fit in `limit` bytes.

    InstallStoppedError: one entry alone does not.
    """
    batch: list[SentEntry] = []
    size = OVERHEAD
    for sent in entries:
        own = ENTRY_OVERHEAD + len(sent.entry.payload)
        if OVERHEAD + own > limit:
            reason = (
                f"the entry of index {sent.entry.index} needs a message of {OVERHEAD + own} bytes, {limit} are allowed"
            )
            raise InstallStoppedError("install message", reason)
        if batch and size + own > limit:
            yield tuple(batch)
            batch, size = [], OVERHEAD
        batch.append(sent)
        size += own
    if batch:
        yield tuple(batch)


class SnapshotReceiver:
    """Takes snapshots into a log. `installed`: the last one, None before the first; its machine state is to be loaded.

    While a transfer is under way (`is_receiving`) the log takes no other write.
    """

    def __init__(self, log: Log, *, term: int) -> None:
        """`term`: the largest one that the owner knows."""
        self._log = log
        self._install: Install | None = None
        self.installed: LogSnapshot | None = None
        self.state = Receiver(term, None)

    @property
    def term(self) -> int:
        """The largest term known. The owner keeps it, as after any message with a larger one."""
        return self.state.term

    @property
    def is_receiving(self) -> bool:
        return self._install is not None

    def receive(self, data: bytes, *, applied: int | None) -> list[bytes]:
        """Return the messages to send after a message of a sender. Waits for the disk when the last one has arrived.

        `applied`: the last index that is known to be part of every member's log and applied here; None: none is.
        InstallMessageError: the message is damaged, and does not count.
        """
        message = decode(data)
        if not isinstance(message, Offer | Entries | Chunk | Cancel):
            return []
        if applied is not None:
            self._run(receiving.InstallApplied(applied))
        return self._run(message)

    def learn_term(self, term: int) -> list[bytes]:
        """A larger term ends the transfer."""
        return self._run(receiving.TermKnown(term))

    def abort(self) -> list[bytes]:
        """End the transfer, if one is under way: the log takes writes again."""
        offer = self.state.offer
        return [] if offer is None else self._run(Cancel(offer.term, offer.transfer))

    def _run(self, event: receiving.ReceiverEvent) -> list[bytes]:
        messages: list[bytes] = []
        events = deque([event])
        while events:
            self.state, outputs = receiving.step(self.state, events.popleft())
            for output in outputs:
                if isinstance(output, Progress | Installed | Refused):
                    messages.append(encode(output))
                elif (follows := self._act(output)) is not None:
                    events.append(follows)
                    if isinstance(follows, receiving.ActionFailed):
                        # What else this step wanted stands on what has failed.
                        break
        return messages

    def _act(self, action: receiving.ReceiverAction) -> receiving.ReceiverEvent | None:
        match action:
            case receiving.AdoptTerm():
                return None
            case receiving.Drop():
                # SegmentLogError passes through: the log takes no writes until its system is opened again.
                if self._install is not None:
                    self._install.abort()
                    self._install = None
                return None
            case receiving.Begin(offer):
                transfer = offer.transfer
            case receiving.Write(transfer=transfer) | receiving.Append(transfer=transfer) | receiving.Finish(transfer):
                pass
        try:
            return self._do(action)
        except InstallIncompleteError as error:
            return receiving.ActionFailed(transfer, Refusal.MISSING_ENTRIES, str(error))
        except InvalidInstallError as error:
            return receiving.ActionFailed(transfer, Refusal.INVALID, str(error))
        except SegmentLogError as error:
            return receiving.ActionFailed(transfer, Refusal.FAILED, str(error))

    def _do(self, action: receiving.ReceiverAction) -> receiving.ReceiverEvent | None:
        if isinstance(action, receiving.Begin):
            self._install = self._begin(action.offer)
            return receiving.InstallBegun(action.offer.transfer, self._install.base)
        if self._install is None:
            raise WriteRefusedError(str(self._log.directory), "no snapshot is being installed")
        match action:
            case receiving.Write(entries=entries):
                for previous, entry in entries:
                    self._install.write(entry, previous)
            case receiving.Append(data=data):
                self._install.chunk(data)
            case receiving.Finish(transfer):
                self.installed = self._install.finish().result()
                self._install = None
                return receiving.InstallFinished(transfer)
        return None

    def _begin(self, offer: Offer) -> Install:
        return self._log.begin_install(
            offer.index,
            offer.snapshot_term,
            applied=self.state.applied,
            indexes_bytes=offer.indexes_bytes,
            data_bytes=offer.data_bytes,
        )


def install_snapshot(source: Log, target: Log, *, term: int, transfer: int, applied: int | None) -> LogSnapshot | None:
    """Install the newest snapshot of one log in another, both in this process; None when the target had applied it.

    `applied`: as in `SnapshotReceiver.receive`. InstallStoppedError says why it did not end well.
    """
    receiver = SnapshotReceiver(target, term=term)
    with SnapshotSender(source, term=term, transfer=transfer) as sender:
        waiting = deque(sender.start())
        while waiting:
            for answer in receiver.receive(waiting.popleft(), applied=applied):
                waiting += sender.receive(answer)
        if sender.state.stopped is not None:
            raise InstallStoppedError(str(source.directory), f"{sender.state.stopped}: {sender.state.detail}")
    return receiver.installed
