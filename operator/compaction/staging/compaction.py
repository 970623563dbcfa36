"""The compaction of a branch: claimed with a fencing token, its changes spooled, rewritten and proved."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from compaction.errors import StaleTokenError
from compaction.staging.errors import MissingRangeError, OutputSweptError, RewriteProofError, WorkOutdatedError
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import forget_receipts, fresh_token, keep_receipt, swapped
from compaction.staging.flows.reading import RecordView
from compaction.staging.format.columns import BINARY, RecordColumns, rows_where, tombstones
from compaction.staging.format.ranges import TableKind
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.staged.rows import layered
from compaction.staging.tree.aligning import Upcoming, fingerprint
from compaction.staging.tree.applying import AppliedChanges, Part, apply

# The input of one compaction of a branch: its tokens, and the trees below them, as they were when it was planned.


@dataclass(frozen=True, slots=True)
class BranchWork:
    """`tokens`, the newest first, become part of the base. `base`: the compacted base, "" when that is the commit's."""

    repository: str
    branch: str
    commit_id: str
    base: str
    tokens: tuple[str, ...]

    @property
    def base_version(self) -> str:
        """The version of the branch that the plan was computed from: another one means that the plan is outdated."""
        # The models of policies take longer to import than who compacts by hand waits for help.
        from compaction.staging.kind import base_version_of

        return base_version_of(self.repository, self.branch, self.commit_id, self.base, self.tokens)

    def is_of(self, record: BranchRecord) -> bool:
        """Return whether a branch still has the same trees below the same tokens; newer ones may be above them."""
        known = len(self.tokens)
        same_tokens = known > 0 and record.tokens[-known:] == self.tokens
        return same_tokens and (record.commit_id, record.compacted_base) == (self.commit_id, self.base)

    def is_sealed_in(self, record: BranchRecord) -> bool:
        """Return whether none of the tokens is the staging token."""
        return self.is_of(record) and record.staging_token not in self.tokens


def work_on(repository: str, record: BranchRecord, *, staged: bool) -> BranchWork:
    """The compaction of all that a branch has; `staged`: there are rows in its staging token."""
    tokens = record.tokens if staged else record.sealed_tokens
    return BranchWork(repository, record.id, record.commit_id, record.compacted_base, tokens)


# Claims: which job may swap the base of a branch, with which fencing token (docs/design/staging-areas.md#claims).


class ClaimedBranch(Enum):
    """The result of a claim."""

    CLAIMED = auto()
    COMMITTED = auto()  # the job's base is there already, and nothing was changed


def claim(area: Area, work: BranchWork, *, job: str, token: int) -> ClaimedBranch:
    """From now on only `token` may swap the base for `job`.

    The first claim seals the staging token and writes down when the compaction began: one swap for all of it. A later
    attempt changes nothing but the token, so that writers, which give up after three new tokens, are left alone.

    Raises:
        StaleTokenError: the branch has accepted this token, or a larger one, for the job.
        WorkOutdatedError: the branch has other tokens or trees than the work.
        UnknownRefError, TooManyTriesError
    """
    found = ClaimedBranch.CLAIMED

    def claimed(branch: Branch) -> BranchRecord | None:
        nonlocal found
        record = branch.record
        if record.compacted_job == job:
            found = ClaimedBranch.COMMITTED
            return None
        accepted = high_water_of(record, job)
        if token <= accepted:
            raise StaleTokenError(_path(work), job, token, accepted)
        if not work.is_of(record):
            raise WorkOutdatedError(_path(work))
        if not work.is_sealed_in(record):
            record = replace(record.sealed(fresh_token(area, branch)), compaction_started=int(area.clock() * 1000))
        elif record.claim_job != job:
            record = replace(record, compaction_started=int(area.clock() * 1000))
        if record.claim_job != job:
            record = record.unclaimed()
        return replace(record, claim_job=job, claim_token=token)

    swapped(area, work.branch, "claim it", claimed)
    return found


def retire(area: Area, branch: str, job: str) -> None:
    """No base is swapped for the job any more; what it sealed stays sealed. A later claim for it takes a larger token
    than all that were accepted before.

    Raises UnknownRefError, TooManyTriesError.
    """

    def retired(found: Branch) -> BranchRecord | None:
        if found.record.claim_job != job:
            return None
        return found.record.unclaimed()

    swapped(area, branch, "retire a job", retired)


def high_water_of(record: BranchRecord, job: str) -> int:
    """The largest token that the branch may have accepted for a job; 0: none."""
    return record.high_water(job)


def swap_base(
    area: Area,
    work: BranchWork,
    tree: str,
    *,
    job: str,
    token: int,
    receipt: str = "",
    written: Collection[str] = (),
) -> Branch:
    """The commit of a compaction: `tree` becomes the base, the tokens of the work go, and nothing else changes.

    `tree` holds what the tokens showed over the base: the caller has proved it. Repeated after a lost answer it changes
    nothing. `receipt`: kept for attempts that come later. `written`: the ids of the objects that the attempt has
    written; each must be there still.

    Raises:
        StaleTokenError: another attempt has claimed the branch, or the job was retired.
        WorkOutdatedError: a commit, merge or reset came first: plan again.
        OutputSweptError: a sweep that had begun before the claim has deleted what the attempt wrote again.
        UnknownRefError, TooManyTriesError
    """
    head = area.commits.get(work.commit_id).meta_range_id
    forget_receipts(area, work.branch)
    # Before the swap: an attempt that finds it done asks for the receipt.
    keep_receipt(area, work.branch, job=job, token=token, receipt=receipt)

    def based(branch: Branch) -> BranchRecord | None:
        record = branch.record
        # An earlier try was committed and its answer lost. Asked first: that commit has ended the claim.
        if (record.compacted_job, record.compacted_token) == (job, token):
            return None
        if (record.claim_job, record.claim_token) != (job, token):
            claimed = record.claim_token if record.claim_job == job else None
            raise StaleTokenError(_path(work), job, token, claimed)
        if not work.is_sealed_in(record):
            raise WorkOutdatedError(_path(work))
        return replace(
            record,
            sealed_tokens=record.sealed_tokens[: -len(work.tokens)],
            compacted_base="" if tree == head else tree,
            claim_job="",
            claim_token=0,
            compacted_job=job,
            compacted_token=token,
        )

    def present() -> None:
        gone = [item for item in written if not area.ranges.exists(item)]
        if gone:
            raise OutputSweptError(_path(work), gone[0])

    return swapped(area, work.branch, "swap its base", based, before_swap=present)


def _path(work: BranchWork) -> str:
    return f"{work.repository}/{work.branch}"


# The staged changes of a branch on the driver's disk: read from the key-value store once, given to tasks in parts.
#
# Sealed tokens are not immutable: changes that no writer was acknowledged for may still arrive in them. So a
# compaction reads them once, and what is written and what proves it come from the same changes.

SCHEMA: Final[Any] = pa.schema([("key", BINARY), ("value", BINARY)])
_ZSTD: Final[Any] = pa.ipc.IpcWriteOptions(compression="zstd")


class ChangesSpool:
    """A temporary file of changes in order, compressed; gone when the context ends, or the process.

    Memory is one batch of changes while it is written, and the changes of one part while it is read. OSError when the
    disk is full.
    """

    def __init__(self) -> None:
        # Without a name from its beginning: a process that is killed leaves nothing.
        self._file = tempfile.TemporaryFile(prefix="compactor-changes-")  # noqa: SIM115  # closed by the context
        self._writer = pa.ipc.new_stream(self._file, SCHEMA, options=_ZSTD)
        self.nbytes = 0
        self.changes = 0
        self.tombstones = 0

    def through(self, batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
        """The same batches, each written down on its way."""
        for batch in batches:
            self._writer.write_batch(_batch_of(batch))
            self.nbytes += batch.nbytes
            self.changes += len(batch)
            self.tombstones += int(tombstones(batch).sum())
            yield batch

    def parts(self, parts: Sequence[Part]) -> Iterator[tuple[Part, bytes]]:
        """Each part with its changes, as `encode_changes` writes them. All changes were written, and they belong to the
        parts in their order.
        """
        upcoming = Upcoming(self.again())
        for part in parts:
            yield part, encode_changes(upcoming.until(part.until))

    def again(self) -> Iterator[RecordColumns]:
        """All changes, once more; nothing is written any more."""
        self._writer.close()
        self._file.flush()
        # By a copy of the descriptor: the file itself stays open.
        with os.fdopen(os.dup(self._file.fileno()), "rb") as source:
            source.seek(0)
            for batch in pa.ipc.open_stream(source):
                yield RecordColumns(batch.column(0), batch.column(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def encode_changes(batches: Iterable[RecordColumns]) -> bytes:
    """Changes as they travel to a task."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_ZSTD) as writer:
        for batch in batches:
            writer.write_batch(_batch_of(batch))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_changes(data: bytes) -> Iterator[RecordColumns]:
    """Read the changes that `encode_changes` has written."""
    for batch in pa.ipc.open_stream(pa.py_buffer(data)):
        yield RecordColumns(batch.column(0), batch.column(1))


def _batch_of(records: RecordColumns) -> Any:
    return pa.record_batch([records.keys, records.values], schema=SCHEMA)


# The rewrite of a branch in one process, and its proof (docs/design/staging-areas.md#proof).
#
# The Spark job writes the same ranges, a stretch at a time in several tasks; both prove them in the same way.


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A tree that was written and proved. Fingerprints are of all that the branch shows: `<records>:<digest>`."""

    applied: AppliedChanges
    fingerprint_before: str
    fingerprint_after: str

    @property
    def tree(self) -> str:
        return self.applied.metarange_id


def base_view(area: Area, work: BranchWork) -> RecordView:
    """Return the view of which the work makes one tree: its tokens over the base."""
    head = area.commits.get(work.commit_id).meta_range_id
    return RecordView(work.base or head, head, work.tokens)


def staged_changes(
    area: Area, work: BranchWork, start: bytes = b"", stop: bytes | None = None
) -> Iterator[RecordColumns]:
    """Yield the changes of the work's tokens, tombstones among them."""
    return layered([area.tokens.changes(token, start, stop) for token in work.tokens])


def rewrite(area: Area, work: BranchWork) -> Rewritten:
    """Write the tree that the work's tokens make of its base, and prove that it shows what they show together.

    Raises RewriteProofError, CorruptRangeError, CorruptMessageError, ObjectError, DatabaseError, and as
    `unless_outdated`; what was written then is found by the sweep.
    """
    with unless_outdated(area, work):
        return _rewritten(area, work)


@contextmanager
def unless_outdated(area: Area, work: BranchWork) -> Iterator[None]:
    """A part of the base that does not exist is damage only while the branch has that base: one that it has left behind
    is deleted after the grace.

    Raises WorkOutdatedError, UnknownRefError; else MissingRangeError is raised as it was.
    """
    try:
        yield
    except MissingRangeError as error:
        if not work.is_of(area.branches.get(work.branch).record):
            raise WorkOutdatedError(f"{work.repository}/{work.branch}") from error
        raise


def _rewritten(area: Area, work: BranchWork) -> Rewritten:
    base = base_view(area, work).metarange_id
    with ChangesSpool() as spool:
        changes = spool.through(staged_changes(area, work))
        applied = apply(area.ranges, base, changes, allow_empty=True, keep_equal=False)
        before = fingerprint(shown_over(spool.again(), area.ranges.records(base)))
    after = fingerprint(area.ranges.records(applied.metarange_id))
    found = area.ranges.content_id(applied.metarange_id, TableKind.METARANGES)
    if found != applied.metarange_id:
        raise RewriteProofError(f"{work.repository}/{work.branch}", applied.metarange_id, found)
    if before != after:
        raise RewriteProofError(f"{work.repository}/{work.branch}", before, after)
    return Rewritten(applied, before, after)


def shown_over(changes: Iterable[RecordColumns], base: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
    """Yield the records that a reader sees of changes over a base: not by the code that writes trees."""
    for batch in layered([changes, base]):
        yield rows_where(batch, ~tombstones(batch))
