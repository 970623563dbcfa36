"""Control over merges of sealed tokens: settings, claims with fencing tokens, the lease of a branch, the kill
switch.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, Final
from uuid import uuid4

from compaction.errors import StaleTokenError
from compaction.staging.compaction import BranchWork
from compaction.staging.errors import PredicateFailedError, TokenMergeStoppedError, TooManyTriesError, WorkOutdatedError
from compaction.staging.format.messages import SIGNED, TEXT, StagingMessage, wire_at
from compaction.staging.kv.port import Expected, KeyValueStore, Presence
from compaction.staging.lakefs.journal import MERGE_PARTITION
from compaction.staging.lakefs.repository import BranchRow, LiveRepository, branch_key
from compaction.staging.refs.branches import BranchRecord
from compaction.staging.staged.rows import new_token

# Settings of merges of sealed tokens: how and when they are made.

GRACE: Final = 6 * 3600.0
"""Seconds from a swap until old tokens are dropped: servers do not read a branch again after a listing, and a garbage
collection that misses rows deletes objects. Longer than the longest of both.
"""


DROPS_PER_SECOND: Final = 20_000
"""Rows that cleaning deletes in a second at most: servers use the same table meanwhile."""


class MergeStep(Enum):
    """The step that a merge is in at the moment."""

    WAITING = "waiting for late writes"
    WRITING = "writing the merged token"
    PROVING = "comparing it with the sealed tokens"
    SWAPPING = "swapping it in"


def _never() -> bool:
    return False


def _silently(_step: MergeStep, _rows: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class TokenMergeSettings:
    """Times in seconds.

    quiet: from the last read of a branch until its tokens are scanned; longer than the longest request of a server, so
        that late writes have landed.
    yields: a branch that changed within this time is left to those who use it.
    grace: from the swap until old tokens may be dropped.
    least_tokens: fewer sealed tokens are not merged. seals: seal the staging token first, where it has rows.
    seal_every: from one seal of ours to the next; writers give up after three new tokens.
    lease: of the merger. stop: asked before each step; True ends the merge. progress: each step, and how many rows are
        written so far.
    """

    quiet: float = 30.0
    yields: float = 60.0
    grace: float = GRACE
    least_tokens: int = 2
    seals: bool = False
    seal_every: float = 60.0
    lease: float = 300.0
    stop: Callable[[], bool] = _never
    progress: Callable[[MergeStep, int], None] = _silently

    def __post_init__(self) -> None:
        if self.least_tokens < 1 or min(self.quiet, self.yields, self.grace, self.seal_every) < 0:
            raise ValueError("least_tokens below 1 or a time below 0; correct the settings of the merge")
        if self.lease <= 2 * self.quiet:
            raise ValueError("a lease that ends within twice the quiet period; make it longer")

    def shown_by(self, progress: Callable[[MergeStep, int], None]) -> TokenMergeSettings:
        """The same settings with a progress."""
        return replace(self, progress=progress)


# Claims on branches of a live lakeFS: which job may merge a branch, with which fencing token.
#
# The row of a branch is the servers': they would drop what they do not know. So a claim is a row beside it. The swap
# of the branch, the step of the journal and the end of the claim are one transaction
# (docs/design/staging.md#live-lakefs).

TRIES: Final = 5
_CLAIMS: Final = "claim/"


@dataclass(frozen=True)
class LiveClaim(BranchRecord):
    """The claims in a branch record of this project (`BranchRecord`), and the receipt of the last merge."""

    NAME: ClassVar[str] = "LiveClaim"
    receipt: str = field(default="", metadata=wire_at(120, TEXT))


def read_claim(live: LiveRepository, branch: str) -> tuple[LiveClaim, Expected]:
    """The claim on a branch, and the row for the next swap of it. Raises CorruptMessageError, DatabaseError."""
    raw = live.kv.get(MERGE_PARTITION, _key(live, branch))
    if raw is None:
        return LiveClaim(), Presence.ABSENT
    return LiveClaim.decode(raw, name=f"claim on branch {branch}"), raw


def record_of(row: BranchRow) -> BranchRecord:
    """The row of a server as a record of this project, which has no compacted base."""
    data = row.data
    return BranchRecord(
        id=data.id, commit_id=data.commit_id, staging_token=data.staging_token, sealed_tokens=data.sealed_tokens
    )


def claim_branch(live: LiveRepository, work: BranchWork, *, job: str, token: int) -> None:
    """From now on only `token` may merge the branch for `job`; nothing of the branch itself changes. A job that has
    merged needs no claim.

    Raises:
        StaleTokenError: this token, or a larger one, was accepted for the job.
        WorkOutdatedError: the branch has other tokens, or another commit, than the work.
        UnknownRefError, LiveStoreRefusedError, CorruptMessageError, TooManyTriesError, DatabaseError
    """
    for _ in range(TRIES):
        found, expected = read_claim(live, work.branch)
        if found.compacted_job == job:
            return
        accepted = found.high_water(job)
        if token <= accepted:
            raise StaleTokenError(_path(live, work.branch), job, token, accepted)
        if not work.is_of(record_of(live.branch(work.branch))):
            raise WorkOutdatedError(_path(live, work.branch))
        if found.claim_job != job:
            found = replace(found.unclaimed(), compaction_started=int(live.clock() * 1000))
        if _swapped(live, work.branch, replace(found, claim_job=job, claim_token=token), expected):
            return
    raise TooManyTriesError(work.branch, "claim it", TRIES)


def retire_job(live: LiveRepository, branch: str, job: str) -> None:
    """No merge is swapped in for the job any more. Raises CorruptMessageError, TooManyTriesError, DatabaseError."""
    for _ in range(TRIES):
        found, expected = read_claim(live, branch)
        if found.claim_job != job or _swapped(live, branch, found.unclaimed(), expected):
            return
    raise TooManyTriesError(branch, "retire a job", TRIES)


def forget_claims(live: LiveRepository, gone: set[str]) -> None:
    """Delete the claims on branches that are gone. Raises DatabaseError."""
    for branch in gone:
        live.kv.delete(MERGE_PARTITION, _key(live, branch))


def claimed_branches(live: LiveRepository) -> set[str]:
    """Names of branches that have a claim, or had one. Raises DatabaseError."""
    prefix = _key(live, "")
    pages = live.kv.scan(MERGE_PARTITION, prefix, prefix[:-1] + b"0")
    return {key.decode(errors="replace").removeprefix(prefix.decode()) for page in pages for key, _ in page}


@dataclass(frozen=True, slots=True)
class MergeWarrant:
    """The right of one attempt of a job to merge exactly these tokens of a branch, the newest first."""

    job: str
    token: int
    tokens: tuple[str, ...]

    @property
    def holder(self) -> str:
        """Name of the attempt in the lease of the branch."""
        return f"{self.job}/{self.token}"

    def ensure(self, live: LiveRepository, branch: str) -> tuple[LiveClaim, Expected]:
        """The claim of this attempt as it is now. Raises StaleTokenError: another one has it, or none."""
        found, expected = read_claim(live, branch)
        if (found.claim_job, found.claim_token) != (self.job, self.token):
            claimed = found.claim_token if found.claim_job == self.job else None
            raise StaleTokenError(_path(live, branch), self.job, self.token, claimed)
        return found, expected

    def ended(self, live: LiveRepository, branch: str, receipt: str) -> tuple[str, bytes, bytes, Expected]:
        """The row with which the swap of the branch ends the claim. Raises StaleTokenError."""
        found, expected = self.ensure(live, branch)
        ended = replace(
            found, claim_job="", claim_token=0, compacted_job=self.job, compacted_token=self.token, receipt=receipt
        )
        return MERGE_PARTITION, _key(live, branch), ended.encode(), expected


def _swapped(live: LiveRepository, branch: str, claim: LiveClaim, expected: Expected) -> bool:
    try:
        live.kv.set_if(MERGE_PARTITION, _key(live, branch), claim.encode(), expected)
    except PredicateFailedError:
        return False
    return True


def _key(live: LiveRepository, branch: str) -> bytes:
    return f"{_CLAIMS}{live.partition}/{branch}".encode()


def _path(live: LiveRepository, branch: str) -> str:
    return f"{live.name}/{branch}"


# The right to merge, and its times: the lease of a branch, what was seen of it, and the kill switch.
#
# None of it is needed for correctness: two mergers of one branch lose races, and no data.

_STOP: Final = b"stop"


def stop_merging(kv: KeyValueStore, reason: str) -> None:
    """Turn the kill switch on, for all repositories of the store: merges end before their next step."""
    kv.set(MERGE_PARTITION, _STOP, reason.encode() or b"stopped")


def allow_merging(kv: KeyValueStore) -> None:
    """Turn the kill switch off."""
    kv.delete(MERGE_PARTITION, _STOP)


def stopped_because(kv: KeyValueStore) -> str:
    """Return the reason for which the kill switch is on; empty when it is off."""
    return (kv.get(MERGE_PARTITION, _STOP) or b"").decode(errors="replace")


@dataclass(frozen=True)
class _LeaseRow(StagingMessage):
    """The merger that has the lease of a branch, and the end of the lease (milliseconds since 1970)."""

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
            # Another merger wrote the row since it was read: it has the lease.
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
    """Return the holder of the lease of a branch now; empty when it is free."""
    row = _held(live, branch)
    return "" if row is None else row.holder


def held_because(live: LiveRepository, branch: str) -> str:
    """Return the reason for which a merge has to wait for the lease of a branch; empty when it is free."""
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
    """The observations of mergers on a branch: a hash of its row, the time since which it is the same, the time it was
    seen last, the number of its sealed tokens; and the time at which a merger sealed last. Milliseconds since 1970.
    """

    NAME: ClassVar[str] = "BranchNotes"
    digest: str = field(default="", metadata=wire_at(1, TEXT))
    since: int = field(default=0, metadata=wire_at(2, SIGNED))
    seen: int = field(default=0, metadata=wire_at(3, SIGNED))
    tokens: int = field(default=0, metadata=wire_at(4, SIGNED))
    sealed: int = field(default=0, metadata=wire_at(5, SIGNED))

    def is_of(self, row: BranchRow) -> bool:
        """Return whether the branch is as it was seen last."""
        return self.digest == _digest(row.raw)


def read_notes(live: LiveRepository, branch: str) -> tuple[BranchNotes, Expected]:
    """Return the notes on a branch, and the row for the next swap of them."""
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
    """Return the reason for which a merge yields to those who use the branch: it changed within `seconds`. Empty: it
    may begin.
    """
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
