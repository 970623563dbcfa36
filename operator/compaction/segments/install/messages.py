"""What the two sides of an installation say to each other: plain data (docs/design/segment-install.md#messages).

Every message carries the sender's term and the number of the transfer, which grows with each attempt of a term: what
belongs to an older attempt is recognised, however late it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from compaction.segments.memtable.table import LogEntry


class Refusal(StrEnum):
    """Why a receiver does not go on with a transfer."""

    NEWER_TERM = "NewerTerm"
    """The receiver's term is larger: the sender is no leader any more."""
    STALE_TRANSFER = "StaleTransfer"
    """The receiver has seen a transfer with a larger number in this term; `at` is that number."""
    UNKNOWN_TRANSFER = "UnknownTransfer"
    """The receiver does not have this transfer: it was restarted, or has dropped it."""
    INVALID = "Invalid"
    """What was sent contradicts the offer, or is damaged."""
    MISSING_ENTRIES = "MissingEntries"
    """Live entries of the snapshot are not in the receiver's log."""
    FAILED = "Failed"
    """The receiver's storage refuses something."""


class SentEntry(NamedTuple):
    """A live entry, and the index before it in the receiver's log; None when the log holds none."""

    previous: int | None
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Offer:
    """Sender: a snapshot can be had. The stream of its chunks has `indexes_bytes` of the `indexes` file and then
    `data_bytes` of `snapshot.dat`.
    """

    term: int
    transfer: int
    index: int
    snapshot_term: int
    indexes_bytes: int
    data_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole stream."""
        return self.indexes_bytes + self.data_bytes


@dataclass(frozen=True, slots=True)
class Entries:
    """Sender: live entries, ascending."""

    term: int
    transfer: int
    entries: tuple[SentEntry, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sender: bytes of the stream from `offset` on, at least one."""

    term: int
    transfer: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """Sender: the transfer ends here."""

    term: int
    transfer: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Receiver: everything is there up to entry `index` (None: the log is empty) and up to `offset` of the stream.

    The first one answers the offer: `index` is where the receiver's log ends, so larger live indexes are needed.
    """

    term: int
    transfer: int
    index: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Installed:
    """Receiver: it has applied everything up to `index`, by this transfer or before."""

    term: int
    transfer: int
    index: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Receiver: the transfer is over on its side. `at`: a number that goes with the reason, else 0."""

    term: int
    transfer: int
    reason: Refusal
    at: int = 0
    detail: str = ""


FromSender = Offer | Entries | Chunk | Cancel
FromReceiver = Progress | Installed | Refused
Message = FromSender | FromReceiver
