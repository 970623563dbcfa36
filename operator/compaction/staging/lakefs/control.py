"""Who may merge, and when: the lease of a branch, what was seen of it, and the kill switch.

None of it is needed for correctness: two mergers of one branch lose races, and no data.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final
from uuid import uuid4

from compaction.staging.errors import PredicateFailedError, TokenMergeStoppedError
from compaction.staging.format.messages import SIGNED, TEXT, StagingMessage, wire_at
from compaction.staging.kv.port import Expected, KeyValueStore, Presence
from compaction.staging.lakefs.branch_rows import BranchRow
from compaction.staging.lakefs.journal import MERGE_PARTITION
from compaction.staging.lakefs.repository import LiveRepository, branch_key
from compaction.staging.staged.tokens import new_token

_STOP: Final = b"stop"


def stop_merging(kv: KeyValueStore, reason: str) -> None:
    """Turn the kill switch on, for all repositories of the store: merges end before their next step."""
    kv.set(MERGE_PARTITION, _STOP, reason.encode() or b"stopped")


def allow_merging(kv: KeyValueStore) -> None:
    """Turn the kill switch off."""
    kv.delete(MERGE_PARTITION, _STOP)


def stopped_because(kv: KeyValueStore) -> str:
    """Why the kill switch is on; empty when it is off."""
    return (kv.get(MERGE_PARTITION, _STOP) or b"").decode(errors="replace")


@dataclass(frozen=True)
class _LeaseRow(StagingMessage):
    """Who merges a branch, until when (milliseconds since 1970)."""

    NAME: ClassVar[str] = "MergeLease"
    holder: str = field(default="", metadata=wire_at(1, TEXT))
    until: int = field(default=0, metadata=wire_at(2, SIGNED))


class MergeLease:
    """The lease of one branch. Use `acquire`."""

    def __init__(
        self, live: LiveRepository, branch: str, seconds: float, stop: Callable[[], bool], holder: str
    ) -> None:
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}/{uuid4()}"
        self._live, self._branch, self._seconds, self._stop = live, branch, seconds, stop
        self._row = b""
        self._until = 0.0

    @classmethod
    def acquire(
        cls,
        live: LiveRepository,
        branch: str,
        *,
        seconds: float,
        stop: Callable[[], bool] = lambda: False,
        holder: str = "",
        instead_of: str = "",
    ) -> MergeLease | None:
        """None when another merger holds the lease. `stop`: asked before each step, beside the kill switch. `holder`:
        a name of its own without one. `instead_of`: the beginning of names of holders that are fenced off already.
        """
        raw = live.kv.get(MERGE_PARTITION, _lease_key(live, branch))
        row = None if raw is None else _LeaseRow.decode(raw, name=f"lease of {branch}")
        fenced = row is not None and instead_of != "" and row.holder.startswith(instead_of)
        if row is not None and row.until > live.clock() * 1000 and not fenced:
            return None
        lease = cls(live, branch, seconds, stop, holder)
        try:
            lease._write(Presence.ABSENT if raw is None else raw)
        except PredicateFailedError:
            return None
        return lease

    def keep(self) -> None:
        """Before each step: raises TokenMergeStoppedError when the kill switch is on or the lease is lost."""
        reason = stopped_because(self._live.kv) or ("the process ends" if self._stop() else "")
        if reason:
            raise TokenMergeStoppedError(self._branch, f"merging is stopped ({reason})")
        if self._live.clock() + self._seconds / 2 < self._until:
            return
        try:
            self._write(self._row)
        except PredicateFailedError:
            raise TokenMergeStoppedError(self._branch, "another merger took over its lease") from None

    def release(self) -> None:
        """Let the next merger begin at once. A lease that was lost is not touched."""
        now = int(self._live.clock() * 1000)
        ended = _LeaseRow(holder=self.holder, until=now).encode()
        with suppress(PredicateFailedError):
            self._live.kv.set_if(MERGE_PARTITION, _lease_key(self._live, self._branch), ended, self._row)

    def _write(self, expected: Expected) -> None:
        self._until = self._live.clock() + self._seconds
        row = _LeaseRow(holder=self.holder, until=int(self._until * 1000)).encode()
        if row != expected:
            self._live.kv.set_if(MERGE_PARTITION, _lease_key(self._live, self._branch), row, expected)
        self._row = row


def holder_of(live: LiveRepository, branch: str) -> str:
    """Who holds the lease of a branch now; empty when it is free."""
    row = _held(live, branch)
    return "" if row is None else row.holder


def held_because(live: LiveRepository, branch: str) -> str:
    """Why a merge has to wait for the lease of a branch; empty when it is free."""
    row = _held(live, branch)
    if row is None:
        return ""
    left = row.until / 1000 - live.clock()
    return (
        f"{row.holder.split('/')[0]} holds the lease of the branch for another {left:.0f} s, and longer while it "
        "works; a merger that was killed holds it until then"
    )


def _held(live: LiveRepository, branch: str) -> _LeaseRow | None:
    raw = live.kv.get(MERGE_PARTITION, _lease_key(live, branch))
    row = None if raw is None else _LeaseRow.decode(raw, name=f"lease of {branch}")
    return row if row is not None and row.until > live.clock() * 1000 else None


def _lease_key(live: LiveRepository, branch: str) -> bytes:
    return f"lease/{live.partition}/{branch}".encode()


@dataclass(frozen=True)
class BranchNotes(StagingMessage):
    """What mergers saw of a branch: a hash of its row, since when it is the same, when it was seen last, how many
    sealed tokens it had; and when a merger sealed last. Milliseconds since 1970.
    """

    NAME: ClassVar[str] = "BranchNotes"
    digest: str = field(default="", metadata=wire_at(1, TEXT))
    since: int = field(default=0, metadata=wire_at(2, SIGNED))
    seen: int = field(default=0, metadata=wire_at(3, SIGNED))
    tokens: int = field(default=0, metadata=wire_at(4, SIGNED))
    sealed: int = field(default=0, metadata=wire_at(5, SIGNED))

    def is_of(self, row: BranchRow) -> bool:
        """Whether the branch is as it was seen last."""
        return self.digest == _digest(row.raw)


def read_notes(live: LiveRepository, branch: str) -> tuple[BranchNotes, Expected]:
    """What is known of a branch, and the row for the next swap of it."""
    raw = live.kv.get(MERGE_PARTITION, _notes_key(live, branch))
    return (
        (BranchNotes(), Presence.ABSENT) if raw is None else (BranchNotes.decode(raw, name=f"notes of {branch}"), raw)
    )


def unchanged_seconds(live: LiveRepository, row: BranchRow) -> float | None:
    """For how long at least the branch is as it is; None when no merger saw it like that."""
    notes, _ = read_notes(live, row.name)
    return live.clock() - notes.since / 1000 if notes.is_of(row) else None


def note(live: LiveRepository, row: BranchRow) -> None:
    """Write down that the branch is like this now."""
    notes, expected = read_notes(live, row.name)
    noted = _noted(live, notes, row.raw, len(row.sealed))
    with suppress(PredicateFailedError):  # another merger saw it just now
        live.kv.set_if(MERGE_PARTITION, _notes_key(live, row.name), noted.encode(), expected)


def busy(live: LiveRepository, row: BranchRow, seconds: float) -> str:
    """Why a merge yields to those who use the branch: it changed within `seconds`. Empty: it may begin."""
    notes, _ = read_notes(live, row.name)
    if not notes.digest or notes.digest == _digest(row.raw) or live.clock() - notes.seen / 1000 >= seconds:
        return ""
    if len(row.sealed) > notes.tokens:
        return f"its sealed tokens grow ({notes.tokens} to {len(row.sealed)} within {seconds:g} s)"
    return f"it changed within the last {seconds:g} s"


def seal(live: LiveRepository, row: BranchRow, every: float) -> bytes | None:
    """Seal the staging token as the first phase of a commit does, by one swap that is not retried; the new row.

    None: mergers sealed this branch less than `every` seconds ago. Raises PredicateFailedError: another writer came
    first, or another merger.
    """
    notes, expected = read_notes(live, row.name)
    now = int(live.clock() * 1000)
    if now - notes.sealed < every * 1000:
        return None
    sealed = row.with_seal(new_token(live.name, row.name))
    noted = replace(_noted(live, notes, sealed, len(row.sealed) + 1), sealed=now)
    # One transaction: two mergers cannot both find that the last seal is long ago.
    live.kv.set_all_if(
        [
            (MERGE_PARTITION, _notes_key(live, row.name), noted.encode(), expected),
            (live.partition, branch_key(row.name), sealed, row.raw),
        ]
    )
    return sealed


def _noted(live: LiveRepository, notes: BranchNotes, raw: bytes, tokens: int) -> BranchNotes:
    now = int(live.clock() * 1000)
    since = notes.since if notes.digest == _digest(raw) else now
    return replace(notes, digest=_digest(raw), since=since, seen=now, tokens=tokens)


def forget_partition(kv: KeyValueStore, partition: str) -> None:
    """Delete leases, notes and claims of the branches of a repository that is gone."""
    for what in ("lease", "notes", "claim"):
        start = f"{what}/{partition}/".encode()
        for page in kv.scan(MERGE_PARTITION, start, start[:-1] + b"0"):
            for key, _ in page:
                kv.delete(MERGE_PARTITION, key)


def _notes_key(live: LiveRepository, branch: str) -> bytes:
    return f"notes/{live.partition}/{branch}".encode()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
