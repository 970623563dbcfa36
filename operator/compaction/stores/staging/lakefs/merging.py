"""The merge of a branch's sealed tokens into one, under the ten rules of docs/design/staging.md#live-lakefs.

Every step may be the last one: up to the swap the branch is as it was, and what was written is found by `recover`. A
race that is lost ends the merge; it is never repeated with newer bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from compaction.exceptions import PredicateFailedError, TokenMergeProofError, TokenMergeStoppedError
from compaction.stores.staging.lakefs.branch_rows import BranchRow, read_branch_row
from compaction.stores.staging.lakefs.cleaning import GRACE, discard, recover
from compaction.stores.staging.lakefs.control import MergeLease, busy, note, seal, stopped_because
from compaction.stores.staging.lakefs.journal import JournalRow, MergeEntry, begin, swap
from compaction.stores.staging.lakefs.planning import too_few, tree_below
from compaction.stores.staging.lakefs.repository import LiveRepository
from compaction.stores.staging.lakefs.scanning import TokenScan, kept_rows, shown
from compaction.stores.staging.staged.tokens import new_token

PAGE: Final = 5_000
"""Rows that are written at once."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """Times in seconds.

    quiet: from the last read of a branch until its tokens are scanned; longer than the longest request of a server, so
        that late writes have landed.
    yields: a branch that changed within this time is left to those who use it.
    grace: from the swap until old tokens may be dropped.
    least_tokens: fewer sealed tokens are not merged. seals: seal the staging token first, where it has rows.
    seal_every: from one seal of ours to the next; writers give up after three new tokens.
    lease: of the merger. stop: asked before each step; True ends the merge.
    """

    quiet: float = 30.0
    yields: float = 60.0
    grace: float = GRACE
    least_tokens: int = 2
    seals: bool = False
    seal_every: float = 60.0
    lease: float = 300.0
    stop: Callable[[], bool] = _never

    def __post_init__(self) -> None:
        if self.least_tokens < 1 or min(self.quiet, self.yields, self.grace, self.seal_every) < 0:
            raise ValueError("least_tokens below 1 or a time below 0; correct the settings of the merge")
        if self.lease <= 2 * self.quiet:
            raise ValueError("a lease that ends within twice the quiet period; make it longer")


class MergeEnd(Enum):
    """How a merge ended. Only `MERGED` changed what the branch names."""

    MERGED = auto()
    SKIPPED = auto()  # nothing was written, but perhaps the staging token sealed
    DISCARDED = auto()  # what was written is deleted again


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """A merge at its end. `reason`: why there was none. The counts are 0 when it ended before they were known."""

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
    seconds: float = 0.0


def merge_branch(live: LiveRepository, branch: str, settings: MergeSettings | None = None) -> MergeOutcome:
    """Merge the sealed tokens of a branch into one.

    Raises, with the branch unchanged:
        UnknownRefError, SchemaVersionError, RepositoryReadOnlyError, LiveStoreRefusedError: what `live.check` refuses
        TokenMergeProofError: the result does not show what the tokens show
        CorruptMessageError, CorruptRangeError, MissingRangeError, ObjectError
        DatabaseError: the branch may be merged; `recover` and `check_undo` know
    """
    settings = settings or MergeSettings()
    live.check()
    stopped = stopped_because(live.kv)
    if stopped:
        return MergeOutcome(branch, MergeEnd.SKIPPED, f"merging is stopped ({stopped})")
    lease = MergeLease.acquire(live, branch, seconds=settings.lease, stop=settings.stop)
    if lease is None:
        return MergeOutcome(branch, MergeEnd.SKIPPED, "another merger holds the lease of the branch")
    began = live.clock()
    try:
        recover(live, branch=branch)
        outcome = _Merge(live, branch, settings, lease).run()
    except Exception:
        lease.release()
        raise
    lease.release()
    return replace(outcome, seconds=live.clock() - began)


class _Merge:
    """One merge, from the lease to the swap."""

    def __init__(self, live: LiveRepository, branch: str, settings: MergeSettings, lease: MergeLease) -> None:
        self._live, self._branch, self._settings, self._lease = live, branch, settings, lease

    def run(self) -> MergeOutcome:
        try:
            row = self._settled()
        except (TokenMergeStoppedError, PredicateFailedError) as error:
            reason = getattr(error, "reason", "another writer changed the branch while its staging token was sealed")
            return MergeOutcome(self._branch, MergeEnd.SKIPPED, reason)
        tree = tree_below(self._live, row)
        entry = MergeEntry(
            fresh=new_token(self._live.name, self._branch),
            partition=self._live.partition,
            branch=self._branch,
            commit_id=row.data.commit_id,
            old=row.sealed,
            since=int(self._live.clock() * 1000),
            holder=self._lease.holder,
        )
        journal = begin(self._live, entry)
        try:
            return self._merged(row, tree, journal)
        except (PredicateFailedError, TokenMergeStoppedError) as error:
            reason = getattr(error, "reason", "another writer changed the branch before the swap")
            self._discard(journal)
            return MergeOutcome(self._branch, MergeEnd.DISCARDED, reason, tokens=row.sealed)
        except Exception:
            self._discard(journal)
            raise

    def _settled(self) -> BranchRow:
        """The branch after the quiet period, in which it has not changed. Raises TokenMergeStoppedError,
        PredicateFailedError: the merge yields.
        """
        live, settings = self._live, self._settings
        row = live.branch(self._branch)
        reason = busy(live, row, settings.yields)
        note(live, row)
        sealable = settings.seals and live.tokens.has_rows(row.data.staging_token)
        reason = reason or too_few(row, settings.least_tokens - sealable)
        if reason:
            raise TokenMergeStoppedError(self._branch, reason)
        self._lease.keep()
        if sealable:
            seal(live, row, settings.seal_every)
            row = live.branch(self._branch)
            reason = too_few(row, settings.least_tokens)
            if reason:
                raise TokenMergeStoppedError(self._branch, f"{reason}, and was sealed a short time ago")
        # Also for tokens that a server sealed: when it did is not known.
        live.sleep(settings.quiet)
        self._lease.keep()
        if live.branch_bytes(self._branch) != row.raw:
            raise TokenMergeStoppedError(self._branch, "the branch changed during the quiet period")
        return row

    def _merged(self, row: BranchRow, tree: str | None, journal: JournalRow) -> MergeOutcome:
        first = TokenScan(self._live, row.sealed)
        written = idle = 0
        for batch in kept_rows(self._live.ranges, tree, first.merged()):
            idle += batch.dropped
            written += len(batch.rows)
            for at in range(0, len(batch.rows), PAGE):
                self._go_on(row)
                rows = batch.rows.slice(at, min(at + PAGE, len(batch.rows)))
                self._live.kv.set_many(journal.entry.fresh, rows.pairs())
        view = self._proved(row, tree, journal, first, written)
        self._go_on(row)
        swapped = swap(self._live, journal, row, fingerprints=first.fingerprints, view=view, grace=self._settings.grace)
        merged = row.with_sealed([swapped.entry.fresh])
        note(self._live, read_branch_row(merged, name=self._branch, repository=self._live.name))
        return MergeOutcome(
            self._branch,
            MergeEnd.MERGED,
            fresh=swapped.entry.fresh,
            tokens=row.sealed,
            rows_before=first.rows,
            rows_after=written,
            idle_tombstones=idle,
            row_bytes_before=len(row.raw),
            row_bytes_after=len(merged),
        )

    def _proved(self, row: BranchRow, tree: str | None, journal: JournalRow, first: TokenScan, written: int) -> str:
        """Read back the result, then all tokens again: the last thing before the swap, so that a late write that came
        in since the first scan ends the merge.
        """
        fresh = TokenScan(self._live, [journal.entry.fresh])
        after = shown(self._live.ranges, tree, fresh.merged())
        again = TokenScan(self._live, row.sealed)
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

    def _discard(self, journal: JournalRow) -> None:
        discard(self._live, journal)
