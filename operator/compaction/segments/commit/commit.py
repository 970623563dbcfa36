"""Commits: how verified outputs become part of the log, and how dead segments are given up. All under the log's lock.

What is asked before anything is changed, and what is said when a change was refused; `publish` does the changes.
Invariants: at most one commit of a group per job; with a token that is not the one claimed last, none; a group whose
sources are not the very files that were read is not committed, and holds back no other group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.commit import fence, records, recovery
from compaction.segments.commit.evidence import changed_names
from compaction.segments.commit.records import (
    FenceRecord,
    GroupReceipt,
    PendingCommit,
    RewrittenGroup,
    SegmentTombstone,
)
from compaction.segments.directory import fs, lock
from compaction.segments.directory.fs import (
    links_of,
    regular_identity,
    regular_segments,
    status,
    storage_error,
    storage_errors,
)
from compaction.segments.directory.owner import require_stopped
from compaction.segments.errors import (
    InvalidGroupError,
    LockLostError,
    OwnerRunningError,
    SegmentLogError,
    SourcesChangedError,
    StaleLogTokenError,
    UnwritableFenceError,
)
from compaction.segments.format.names import compacting_name, group_key, partial_name
from compaction.segments.planning.unreferenced import IndexesMissing, dead_segments
from compaction.segments.snapshot.directories import make_durable
from compaction.segments.snapshot.live_indexes import LiveSet

# The steps of a commit: every system call that makes verified outputs part of a log, in the one safe order.
#
# A group `a-b-c` (docs/design/segment-commit.md#the-steps; every step is durable before the next begins):
#
# 1. the intent (with the receipt to be) is recorded in the fence; the partial file is renamed to `a-b-c.compacting`;
# 2. `a.segment` becomes a hard link to it, through `a.link` and rename: THE COMMIT POINT;
# 3. `b.segment`, then `c.segment` become relative symlinks to `a.segment`, in ascending order, and so do dead
#   segments that lie between them;
# 4. the receipt is recorded, the replaced names get tombstones;
# 5. the name `a-b-c.compacting` is removed.
#
# (A group of one is `a-a.compacting`, because `a.compacting` is a name of Ra's.)
#
# Several groups take each step together and share its syncs: six for all of them. Invariant: no step of any group
# begins before the step before it is durable for that group. What lies between is per group: its own intent, its own
# commit point, its own evidence. So a crash leaves each group in one of the states of a commit of its own, whatever
# state its neighbours are in, and `recovery` settles each by itself, on positive evidence: `a-b-c.compacting` and
# `a.segment` are the same inode.
#
# The lock is verified before each step that could destroy another's work, in case a person deletes its file while
# this process sleeps; right before each commit point the fence must still be, byte for byte, the one with these
# intents. Each name is checked right before it is replaced: while this process slept, the log's owner may have
# started and compacted the log itself. A group whose sources changed before its commit point is not committed; one
# whose higher names changed behind it ends below the first that did, and its receipt says so.
#
# The order of step 3 matters to a reader between two steps: an untouched higher source hides the output from its own
# first index on (docs/design/segment-files.md#log-view) and still holds everything from there on. For the same reason
# nothing between the lowest and the highest source may stay a regular file: it would hide the output behind it.

_TOMBSTONE_BYTES: Final = 512


def publish(
    directory: Path,
    record: FenceRecord,
    intents: tuple[PendingCommit, ...],
    *,
    held: lock.HeldLock,
    now: float | None,
) -> dict[str, GroupReceipt | SourcesChangedError]:
    """Steps 1 to 5 for `intents`, which are accepted, ascending and disjoint. OSError passes through.

    Returns what became of each group, by its key: its receipt, or why nothing of it was committed.

    Raises:
        UnwritableFenceError: nothing was changed.
        LockLostError, StaleLogTokenError: another process has the lock, and settles what was begun.
    """
    # What is written after the commit points must fit as well.
    spare = fence.SPARE_BYTES + _TOMBSTONE_BYTES * sum(len(intent.receipt.linked) for intent in intents)
    intended = fence.with_intents(record, intents)
    written = fence.write(directory, intended, sync_directory=False, held=held, spare=spare)
    for intent in intents:
        fs.rename(directory / intent.partial, directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    outcomes: dict[str, GroupReceipt | SourcesChangedError] = {}
    for intent in intents:
        # Every commit point is taken before the first symlink of any group: one sync then makes all of them durable.
        if changed := _place(directory, intent, written, held):
            outcomes[intent.group] = changed
    fs.sync_directory(directory)
    placed = [intent for intent in intents if intent.group not in outcomes]
    ended = [_link(directory, intent, held) for intent in placed]
    fs.sync_directory(directory)
    linked_at = held.now() if now is None else now
    done = intended
    for group in outcomes:
        done = fence.without_intent(done, group)
    for intent in ended:
        links = links_of(directory, intent.receipt.linked)
        done = fence.promoted(done, intent, linked_at=linked_at, links=links)
        outcomes[intent.group] = intent.receipt
    # One sync for both: should only the removal reach the disk, the intent still names the output's inode.
    fence.write(directory, done, sync_directory=False, held=held, spare=0)
    for intent in intents:
        # Last, and only now: until the receipt is written, this second name is the evidence that recovery needs.
        fs.unlink(directory / compacting_name(intent.group))
    fs.sync_directory(directory)
    return outcomes


def _place(directory: Path, intent: PendingCommit, written: bytes, held: lock.HeldLock) -> SourcesChangedError | None:
    """The commit point of one group; or why it was not taken."""
    _still_ours(directory, written, intent, held)
    source = directory / compacting_name(intent.group)
    changed = changed_names(directory, intent)
    lowest = intent.replaced[0]
    if not changed and records.put_link(directory, lowest.name, source, expected=lowest.identity):
        return None
    name = directory / (changed or [lowest.name])[0]
    return SourcesChangedError(f"{name}: no longer the file that was read for {intent.partial}")


def _link(directory: Path, intent: PendingCommit, held: lock.HeldLock) -> PendingCommit:
    """Step 3 of one group: the intent as it came true."""
    linked: list[str] = []
    for item in intent.replaced[1:]:
        held.verify()
        if not records.put_symlink(directory, item.name, intent.receipt.output, expected=item.identity):
            # The first name that is another file hides the output from here on, so links above it would hide live
            # entries.
            break
        linked.append(item.name)
    return intent.cut_short(linked)


def _still_ours(directory: Path, written: bytes, intent: PendingCommit, held: lock.HeldLock) -> None:
    """The last check before a commit point: a lock that was lost and came back leaves its traces in the fence."""
    held.verify()
    if not fence.stands(directory, written):
        fence.check_token(fence.read(directory), directory, job=intent.receipt.job, token=intent.receipt.token)
        raise LockLostError(str(held.path), "", 0.0)


GroupOutcome = GroupReceipt | SegmentLogError
"""What became of one group of several."""


def commit_group(
    directory: Path,
    *,
    job: str,
    token: int,
    group: RewrittenGroup,
    holder: str,
    now: float | None = None,
    ownership: Ownership = Ownership.DETECT,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> GroupReceipt:
    """`commit_groups` of one group: its receipt, or its error raised."""
    outcomes = commit_groups(
        directory, job=job, token=token, groups=[group], holder=holder, now=now, ownership=ownership, timeout=timeout
    )
    if isinstance(outcomes[0], SegmentLogError):
        raise outcomes[0]
    return outcomes[0]


def commit_groups(
    directory: Path,
    *,
    job: str,
    token: int,
    groups: Sequence[RewrittenGroup],
    holder: str,
    now: float | None = None,
    ownership: Ownership = Ownership.DETECT,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> tuple[GroupOutcome, ...]:
    """Make rewritten groups part of the log, each exactly once per job: repeated, it returns the first time's receipts.

    The groups share the lock, the two writes of the fence and the syncs; each has a commit point of its own, and each
    may fail alone. In the order of `groups`: a receipt, or the error of this group, of which nothing was committed
    unless the error says otherwise:
        SourcesChangedError: a source is not the file that was read, or a segment appeared between; the partial is
        removed.
        LogNotReadableError, LogNotWritableError, StoreIOError: the message says whether it was committed.

    Raises, for all groups:
        StaleTokenError: `token` is not the one claimed last; this attempt's partial files are removed, nothing else.
        OwnerRunningError: the log's owner is not known to be stopped; the partial files are removed, nothing else.
        LockLostError: the lock's file was deleted meanwhile; the current holder of the lock settles what was begun.
        NotALogDirectoryError, LockHeldError, UnwritableFenceError, LogNotReadableError, LogNotWritableError,
        StoreIOError: nothing was committed.
    """
    keys = [group_key(group.sources) for group in groups]
    if len(set(keys)) < len(keys):
        raise InvalidGroupError(f"{directory}: a group is to be committed twice at once")
    batch = _Batch(directory, job=job, token=token, holder=holder, now=now)
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        try:
            require_stopped(directory, ownership)
        except OwnerRunningError:
            # Partial files have names of this attempt: no other one would use them.
            batch.discard(groups)
            raise
        # Before any check: an earlier commit that died half-way may have replaced sources of these groups.
        recovery.recover_locked(directory, now=now, held=held)
        record = fence.read(directory)
        try:
            fence.check_token(record, directory, job=job, token=token)
            intents = batch.accept(record, groups, now=batch.time(held))
            held.verify()
        except (StaleLogTokenError, LockLostError):
            batch.discard(groups)
            raise
        if intents:
            try:
                make_durable(directory)
                batch.outcomes.update(publish(directory, record, intents, held=held, now=now))
            except UnwritableFenceError:
                batch.discard(groups)
                raise
            except OSError as error:
                batch.settle(intents, error, held=held)
    return tuple(batch.outcomes[key] for key in keys)


@dataclass(slots=True)
class _Batch:
    """The outcomes of the groups of one call, by group key."""

    directory: Path
    job: str
    token: int
    holder: str
    now: float | None
    outcomes: dict[str, GroupOutcome] = field(default_factory=dict)

    def time(self, held: lock.HeldLock) -> float:
        return held.now() if self.now is None else self.now

    def accept(self, record: FenceRecord, groups: Sequence[RewrittenGroup], *, now: float) -> tuple[PendingCommit, ...]:
        """The intents of the groups that are to be committed now, ascending; the others get their outcome here."""
        intents: list[PendingCommit] = []
        for group in sorted(groups, key=lambda group: group.sources):
            key = group_key(group.sources)
            partial = self.directory / partial_name(key, job=self.job, token=self.token)
            try:
                if partial.name != group.partial:
                    raise SourcesChangedError(
                        f"{self.directory}: {group.partial} is not the output of job {self.job}, token {self.token}"
                    )
                # A retry after a lost answer, or a worker that took over: the group is committed, so its output is
                # superfluous.
                if receipt := record.receipt(self.job, key):
                    fs.unlink_if_present(partial)
                    self.outcomes[key] = receipt
                    continue
                if intents and group.sources[0] <= intents[-1].receipt.sources[-1]:
                    raise SourcesChangedError(f"{partial}: overlaps {intents[-1].partial}, which is committed with it")
                _check_files(self.directory, group, partial)
            except SourcesChangedError as error:
                # A file under another name is not this attempt's, so it is not removed here.
                if partial.name == group.partial:
                    _discard(partial)
                self.outcomes[key] = error
                continue
            receipt = _receipt(
                self.directory,
                group,
                key=key,
                job=self.job,
                token=self.token,
                holder=self.holder,
                now=now,
            )
            files = group.files
            intents.append(
                PendingCommit(
                    group=key,
                    partial=partial.name,
                    identity=group.identity,
                    receipt=receipt,
                    mark=group.mark,
                    replaced=tuple(files[name] for name in (receipt.output, *receipt.linked)),
                )
            )
        return tuple(intents)

    def discard(self, groups: Sequence[RewrittenGroup]) -> None:
        """Remove the outputs of this attempt."""
        for group in groups:
            if group.partial == partial_name(group_key(group.sources), job=self.job, token=self.token):
                _discard(self.directory / group.partial)

    def settle(self, intents: tuple[PendingCommit, ...], error: OSError, *, held: lock.HeldLock) -> None:
        """After a failed system call: finish what passed its commit point, and leave nothing of the others behind.

        When the disk refuses this as well, the directory stays as after a crash: readable, and settled by the next
        recovery. The errors say which of the two it will be, if that can be seen.
        """
        held.verify()
        try:
            recovery.recover_locked(self.directory, now=self.now, held=held)
            record = fence.read(self.directory)
            for intent in intents:
                if receipt := record.receipt(self.job, intent.group):
                    self.outcomes[intent.group] = receipt
                    continue
                fs.unlink_if_present(self.directory / intent.partial)
                self._fail(intent, error, "nothing was committed")
        except OSError:
            for intent in intents:
                self._fail(intent, error, _outcome(self.directory, intent))

    def _fail(self, intent: PendingCommit, error: OSError, outcome: str) -> None:
        failure = storage_error(error, self.directory, outcome=outcome)
        failure.__cause__ = error
        self.outcomes[intent.group] = failure


def _discard(partial: Path) -> None:
    """Attempt-unique name: no other attempt's file. A failure to remove it leaves an orphan for the sweeper."""
    with suppress(OSError):
        fs.unlink_if_present(partial)


def _outcome(directory: Path, intent: PendingCommit) -> str:
    """Describe the outcome of a commit that can neither go on nor be undone now, by whether its output is in place."""
    try:
        output = regular_identity(directory / intent.receipt.output)
    except OSError:
        return "whether the group was committed is settled by the next recovery"
    if output == intent.identity:
        return "the group is past its commit point, the next recovery finishes it"
    return "nothing was committed"


def _check_files(directory: Path, group: RewrittenGroup, partial: Path) -> None:
    """SourcesChangedError unless the sources are the files that were read and the output is the file that was
    verified.
    """
    for name, identity in zip(group.sources, group.identities, strict=True):
        if regular_identity(directory / name) != identity:
            raise SourcesChangedError(f"{directory / name}: no longer the file that was read for {group.partial}")
    if regular_identity(partial) != group.identity:
        raise SourcesChangedError(f"{partial}: not the file that was verified")
    names = regular_segments(directory)
    lowest, highest = group.sources[0], group.sources[-1]
    # The owner may have deleted newer segments since the plan; what is newest now may be appended to at any moment.
    if highest >= names[-1]:
        raise SourcesChangedError(f"{directory / highest}: the newest segment is its owner's, and never compacted")
    carried = dict(zip(group.carried, group.carried_identities, strict=True))
    for name in names:
        between = lowest < name < highest and name not in group.sources
        if between and regular_identity(directory / name) != carried.get(name):
            raise SourcesChangedError(f"{directory / name}: lies between the sources of {group.partial}")


def _receipt(
    directory: Path, group: RewrittenGroup, *, key: str, job: str, token: int, holder: str, now: float
) -> GroupReceipt:
    """The receipt to be. A carried segment that was swept since the rewrite is neither linked nor counted."""
    carried = dict(zip(group.carried, group.carried_identities, strict=True))
    swept = [name for name in carried if regular_identity(directory / name) is None]
    return GroupReceipt(
        job=job,
        token=token,
        holder=holder,
        group=key,
        sources=group.sources,
        output=group.sources[0],
        linked=tuple(sorted({*group.sources[1:], *carried} - {*swept})),
        entries=group.entries,
        live_bytes=group.live_bytes,
        bytes_before=group.bytes_before - sum(carried[name].size for name in swept),
        bytes_after=group.bytes_after,
        fingerprint_before=group.fingerprint_before,
        fingerprint_after=group.fingerprint_after,
        seconds=group.seconds,
        committed_at=now,
    )


def commit_unreferenced(
    directory: Path,
    *,
    job: str,
    token: int,
    names: Iterable[str],
    holder: str,
    now: float | None = None,
    snapshot_index: int | None = None,
    live: LiveSet | None = None,
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE,
    wal_directory: Path | None = None,
    ownership: Ownership = Ownership.DETECT,
    timeout: float = lock.DEFAULT_TIMEOUT,
) -> tuple[SegmentTombstone, ...]:
    """Mark segments without anything live for deletion after the grace. Nothing is deleted here.

    Each is checked again against the log as it is now; one that is gone is left out: its owner, or a sweep, has deleted
    it since the plan. Repeated, it returns the tombstones of the first time, also when they have been carried out.

    Raises:
        StaleTokenError: `token` is not the one claimed last.
        SourcesChangedError: a segment is (again) needed, or another file has its name.
        LiveSetUnknownError: the snapshot does not say what is live.
        NotALogDirectoryError, LockHeldError, OwnerRunningError, UnwritableFenceError, LogNotWritableError,
        StoreIOError: nothing was marked.
    """
    wanted = sorted(set(names))
    recovery.require_log(directory)
    with storage_errors(directory), lock.hold(directory, holder=holder, job=job, timeout=timeout) as held:
        require_stopped(directory, ownership)
        recovery.recover_locked(directory, now=now, held=held)
        now = held.now() if now is None else now
        record = fence.read(directory)
        fence.check_token(record, directory, job=job, token=token)
        claim = record.jobs[job]
        done = {tombstone.name: tombstone for tombstone in claim.unreferenced}
        missing = [name for name in wanted if name not in done and status(directory / name) is not None]
        if missing:
            dead = dead_segments(
                directory,
                snapshot_index=snapshot_index,
                live=live,
                indexes_missing=indexes_missing,
                wal_directory=wal_directory,
            )
            for name in missing:
                if name not in dead:
                    raise SourcesChangedError(f"{directory / name}: replaced, or something in it is needed (again)")
            marked = tuple(dead[name].tombstone(since=now, job=job, token=token, holder=holder) for name in missing)
            jobs = record.jobs | {job: replace(claim, unreferenced=(*claim.unreferenced, *marked))}
            marks = fence.with_tombstones(replace(record, jobs=jobs), marked)
            make_durable(directory)
            # Half of the room at most: commits, claims and the sweep that shrinks it again need theirs.
            fence.write(directory, marks, held=held, spare=fence.MAX_FENCE_BYTES // 2)
            done |= {tombstone.name: tombstone for tombstone in marked}
        return tuple(done[name] for name in wanted if name in done)
