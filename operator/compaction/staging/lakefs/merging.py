"""The merge of a branch's sealed tokens into one, under the ten rules of docs/design/staging.md#live-lakefs.

Every step may be the last one: up to the swap the branch is as it was, and what was written is found by `recover`. A
race that is lost ends the merge; it is never repeated with newer bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from compaction.staging.errors import PredicateFailedError, TokenMergeProofError, TokenMergeStoppedError
from compaction.staging.lakefs.cleaning import discard, recover
from compaction.staging.lakefs.control import (
    MergeLease,
    MergeStep,
    MergeWarrant,
    TokenMergeSettings,
    busy,
    held_because,
    note,
    seal,
    stopped_because,
)
from compaction.staging.lakefs.journal import MergeEntry, MergeJournalRow, begin, swap
from compaction.staging.lakefs.planning import TokenScan, kept_rows, shown, too_few
from compaction.staging.lakefs.repository import BranchRow, LiveRepository, read_branch_row
from compaction.staging.staged.rows import new_token

PAGE: Final = 5_000
"""Rows that are written at once."""


class MergeEnd(Enum):
    """The end of a merge. Only `MERGED` changed what the branch names."""

    MERGED = auto()
    HELD = auto()  # it may not begin now: the kill switch is on, or another merger has the branch
    SKIPPED = auto()  # nothing was written, but perhaps the staging token sealed
    DISCARDED = auto()  # what was written is deleted again


@dataclass(frozen=True, slots=True)
class TokenMergeOutcome:
    """A merge at its end. `reason`: why there was none. The counts are 0 when it ended before they were known.

    row_bytes: of the branch's row; bytes: of the rows of its tokens. view: what old tokens and merged one show.
    """

    branch: str
    end: MergeEnd
    reason: str = ""
    fresh: str = ""
    tokens: tuple[str, ...] = ()
    rows_before: int = 0
    rows_after: int = 0
    idle_tombstones: int = 0
    row_bytes_before: int = 0
    row_bytes_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    view: str = ""
    seconds: float = 0.0


def merge_branch(
    live: LiveRepository,
    branch: str,
    settings: TokenMergeSettings | None = None,
    *,
    warrant: MergeWarrant | None = None,
    receipt: Callable[[TokenMergeOutcome], str] = lambda _: "",
) -> TokenMergeOutcome:
    """Merge the sealed tokens of a branch into one. `warrant`: the claim of a job, which merges the tokens that it
    names and ends its claim with the swap; `receipt`: what is kept with it.

    Raises, with the branch unchanged:
        StaleTokenError: another attempt has claimed the branch
        UnknownRefError, SchemaVersionError, RepositoryReadOnlyError, LiveStoreRefusedError: what `live.check` refuses
        TokenMergeProofError: the result does not show what the tokens show
        CorruptMessageError, CorruptRangeError, MissingRangeError, ObjectError
        DatabaseError: the branch may be merged; `recover` and `check_undo` know
    """
    settings = settings or TokenMergeSettings()
    live.check()
    stopped = stopped_because(live.kv)
    if stopped:
        return TokenMergeOutcome(branch, MergeEnd.HELD, f"merging is stopped ({stopped})")
    lease = MergeLease.acquire(
        live,
        branch,
        seconds=settings.lease,
        stop=settings.stop,
        holder="" if warrant is None else warrant.holder,
        instead_of="" if warrant is None else f"{warrant.job}/",
    )
    if lease is None:
        reason = held_because(live, branch) or "another merger had the lease of the branch a moment ago"
        return TokenMergeOutcome(branch, MergeEnd.HELD, reason)
    began = live.clock()
    try:
        # With the lease in hand: what other mergers have left of this branch is of dead ones now.
        recover(live, branch=branch)
        outcome = _Merge(live, branch, settings, lease, warrant, receipt).run()
    except Exception:
        # Else the next attempt would wait until the lease is over.
        lease.release()
        raise
    lease.release()
    return replace(outcome, seconds=live.clock() - began)


class _Merge:
    """One merge, from the lease to the swap."""

    def __init__(
        self,
        live: LiveRepository,
        branch: str,
        settings: TokenMergeSettings,
        lease: MergeLease,
        warrant: MergeWarrant | None,
        receipt: Callable[[TokenMergeOutcome], str],
    ) -> None:
        self._live, self._branch, self._settings, self._lease = live, branch, settings, lease
        self._warrant, self._receipt = warrant, receipt

    def run(self) -> TokenMergeOutcome:
        try:
            row = self._settled()
        except TokenMergeStoppedError as error:
            # No row was written yet, so there is nothing to discard.
            return TokenMergeOutcome(self._branch, MergeEnd.SKIPPED, error.reason)
        tree = self._live.head(row)
        entry = MergeEntry(
            fresh=new_token(self._live.name, self._branch),
            partition=self._live.partition,
            branch=self._branch,
            commit_id=row.data.commit_id,
            old=self._old(row),
            since=int(self._live.clock() * 1000),
            holder=self._lease.holder,
        )
        journal = begin(self._live, entry)
        try:
            return self._merged(row, tree, journal)
        except TokenMergeStoppedError as error:
            discard(self._live, journal)
            return TokenMergeOutcome(self._branch, MergeEnd.DISCARDED, error.reason, tokens=entry.old)
        except Exception:
            # `recover` would find the entry later: until then its rows would take space for nothing.
            discard(self._live, journal)
            raise

    def _settled(self) -> BranchRow:
        """The branch after the quiet period, in which it has not changed. Raises TokenMergeStoppedError: the merge
        yields.
        """
        live, settings = self._live, self._settings
        row = live.branch(self._branch)
        reason = busy(live, row, settings.yields)
        note(live, row)
        sealable = self._seals(row) and live.tokens.has_rows(row.data.staging_token)
        reason = reason or too_few(len(row.sealed) + sealable, settings.least_tokens)
        if reason:
            raise TokenMergeStoppedError(self._branch, reason)
        self._lease.keep()
        if sealable:
            self._seal(row)
            row = live.branch(self._branch)
            reason = too_few(len(row.sealed), settings.least_tokens)
            if reason:
                raise TokenMergeStoppedError(self._branch, f"{reason}, and its last seal is a short time ago")
        if self._old(row) != row.sealed[len(row.sealed) - len(self._old(row)) :]:
            raise TokenMergeStoppedError(self._branch, "its oldest sealed tokens are not those of the job")
        # Also for tokens that a server sealed: when it did is not known.
        settings.progress(MergeStep.WAITING, 0)
        live.sleep(settings.quiet)
        self._lease.keep()
        if live.branch_bytes(self._branch) != row.raw:
            raise TokenMergeStoppedError(self._branch, "the branch changed during the quiet period")
        return row

    def _old(self, row: BranchRow) -> tuple[str, ...]:
        """The tokens to merge: the oldest of the branch, all of them without a job that names some."""
        return row.sealed if self._warrant is None else self._warrant.tokens

    def _seals(self, row: BranchRow) -> bool:
        """Return whether the staging token is sealed first, where it has rows."""
        named = self._warrant is None or row.data.staging_token in self._warrant.tokens
        return self._settings.seals and named

    def _seal(self, row: BranchRow) -> None:
        try:
            seal(self._live, row, self._settings.seal_every)
        except PredicateFailedError:
            reason = "another writer changed the branch before its staging token was sealed"
            raise TokenMergeStoppedError(self._branch, reason) from None

    def _merged(self, row: BranchRow, tree: str, journal: MergeJournalRow) -> TokenMergeOutcome:
        first = TokenScan(self._live, journal.entry.old)
        written = idle = after = 0
        for batch in kept_rows(self._live.ranges, tree, first.merged()):
            idle += batch.dropped
            for at in range(0, len(batch.rows), PAGE):
                self._go_on(row)
                rows = batch.rows.slice(at, min(at + PAGE, len(batch.rows)))
                self._live.kv.set_many(journal.entry.fresh, rows.pairs())
                written += len(rows)
                after += rows.nbytes
                self._settings.progress(MergeStep.WRITING, written)
        self._settings.progress(MergeStep.PROVING, written)
        view = self._proved(row, tree, journal, first, written)
        self._settings.progress(MergeStep.SWAPPING, written)
        merged = row.with_merged(journal.entry.old, journal.entry.fresh)
        outcome = TokenMergeOutcome(
            self._branch,
            MergeEnd.MERGED,
            fresh=journal.entry.fresh,
            tokens=journal.entry.old,
            rows_before=first.rows,
            rows_after=written,
            idle_tombstones=idle,
            row_bytes_before=len(row.raw),
            row_bytes_after=len(merged),
            bytes_before=first.nbytes,
            bytes_after=after,
            view=view,
        )
        self._swap(row, journal, outcome, first.fingerprints)
        # Else the next merge would take this swap for a change by a user of the branch, and yield to it.
        note(self._live, read_branch_row(merged, name=self._branch, repository=self._live.name))
        return outcome

    def _swap(
        self, row: BranchRow, journal: MergeJournalRow, outcome: TokenMergeOutcome, fingerprints: tuple[str, ...]
    ) -> None:
        self._go_on(row)
        also = []
        if self._warrant is not None:
            also.append(self._warrant.ended(self._live, self._branch, self._receipt(outcome)))
        grace = self._settings.grace
        try:
            swap(self._live, journal, row, fingerprints=fingerprints, view=outcome.view, grace=grace, also=also)
        except PredicateFailedError:
            reason = "another writer changed the branch before the swap, or the merge was taken for dead"
            raise TokenMergeStoppedError(self._branch, reason) from None

    def _proved(self, row: BranchRow, tree: str, journal: MergeJournalRow, first: TokenScan, written: int) -> str:
        """Read back the result, then all tokens again: the last thing before the swap, so that a late write that came
        in since the first scan ends the merge.
        """
        fresh = TokenScan(self._live, [journal.entry.fresh])
        after = shown(self._live.ranges, tree, fresh.merged())
        again = TokenScan(self._live, journal.entry.old)
        before = shown(self._live.ranges, tree, again.merged())
        if again.fingerprints != first.fingerprints:
            raise TokenMergeStoppedError(self._branch, "a late write changed a sealed token during the merge")
        if before != after or fresh.rows != written:
            raise TokenMergeProofError(f"{self._live.name}/{self._branch}", before, after)
        return before

    def _go_on(self, row: BranchRow) -> None:
        """Before each step. Raises TokenMergeStoppedError: kill switch, lost lease, or a branch that has changed, as a
        commit does when it begins; the swap would fail, and the commit should have the database for itself.
        """
        self._lease.keep()
        if self._live.branch_bytes(self._branch) != row.raw:
            raise TokenMergeStoppedError(self._branch, "another writer changed the branch during the merge")
