"""What sealed tokens cost, and what a merge of them would change. Nothing here writes a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from compaction.staging.changes import tombstones
from compaction.staging.errors import StagingStoreError
from compaction.staging.lakefs.branch_rows import BranchRow, read_branch_row
from compaction.staging.lakefs.control import busy, held_because, stopped_because, unchanged_seconds
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.lakefs.scanning import TokenScan, kept_rows
from compaction.staging.lakefs.settings import MergeSettings
from compaction.staging.staged.rows import decode_rows
from compaction.staging.staged.tokens import new_token

COUNTED: Final = 100_000
"""Rows that `inspect_branches` counts of a token at most."""


@dataclass(frozen=True, slots=True)
class TokenInspection:
    """Rows of a token, and the tombstones among them. `more`: it has more than were counted."""

    token: str
    rows: int
    tombstones: int
    more: bool


@dataclass(frozen=True, slots=True)
class BranchInspection:
    """A branch as it is. `unchanged_seconds`: for how long at least; None: no merger saw it like this. `problem`: why
    it cannot be read, in which case nothing else of it is known. `reason`: why a merge would not begin now.
    """

    branch: str
    commit_id: str = ""
    hidden: bool = False
    row_bytes: int = 0
    staging: TokenInspection | None = None
    sealed: tuple[TokenInspection, ...] = ()
    unchanged_seconds: float | None = None
    problem: str = ""
    reason: str = ""

    @property
    def statements_per_get(self) -> int:
        """Statements of a server for one object that no token has: the branch, its staging token, each sealed one."""
        return statements_per_get(len(self.sealed))


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a merge of a branch would change. `reason`: why there would be none; empty: it would run.

    rows_before: of all sealed tokens; rows_after: of the merged one. hidden_rows: an older change of a key that a newer
    token changes again; idle_tombstones: those of keys that the commit lacks. The two make the difference.
    """

    repository: str
    branch: str
    commit_id: str
    tokens: tuple[str, ...]
    rows_before: int
    rows_after: int
    hidden_rows: int
    tombstones: int
    idle_tombstones: int
    row_bytes_before: int
    row_bytes_after: int
    reason: str = ""

    @property
    def statements_before(self) -> int:
        """Statements of a server for one object that no token has."""
        return statements_per_get(len(self.tokens))

    @property
    def statements_after(self) -> int:
        """The same after the merge."""
        return statements_per_get(min(1, len(self.tokens)))


def statements_per_get(sealed: int) -> int:
    """The row of the branch, the staging token, and each sealed one."""
    return 2 + sealed


def inspect_branches(
    live: LiveRepository, *, limit: int = COUNTED, settings: MergeSettings | None = None
) -> Iterator[BranchInspection]:
    """All branches by name; of each token at most `limit` rows are counted. A branch that cannot be read is one with a
    problem, and those beside it are reported. `settings`: by which a merge would begin or not.

    Raises DatabaseError, SchemaVersionError, UnknownRefError, RepositoryReadOnlyError, LiveStoreRefusedError.
    """
    live.check()
    for name, raw in live.branch_rows():
        try:
            row = read_branch_row(raw, name=name, repository=live.name)
            yield _inspection(live, row, limit, settings or MergeSettings())
        except StagingStoreError as error:
            yield BranchInspection(name, problem=str(error))


def _inspection(live: LiveRepository, row: BranchRow, limit: int, settings: MergeSettings) -> BranchInspection:
    seals = settings.seals and live.tokens.has_rows(row.data.staging_token)
    return BranchInspection(
        row.name,
        row.data.commit_id,
        row.data.hidden,
        len(row.raw),
        _counted(live, row.data.staging_token, limit),
        tuple(_counted(live, token, limit) for token in row.sealed),
        unchanged_seconds(live, row),
        reason=_why_not(live, row, len(row.sealed) + seals, settings),
    )


def _counted(live: LiveRepository, token: str, limit: int) -> TokenInspection:
    rows = deleted = 0
    for page in live.kv.scan(token):
        counted = page[: limit - rows]
        rows += len(counted)
        deleted += int(tombstones(decode_rows(token, counted)).sum())
        if rows == limit:
            more = len(counted) < len(page) or bool(next(iter(live.kv.scan(token, counted[-1][0] + b"\0", page=1)), []))
            return TokenInspection(token, rows, deleted, more)
    return TokenInspection(token, rows, deleted, more=False)


def plan_merge(live: LiveRepository, branch: str, settings: MergeSettings | None = None) -> MergePlan:
    """What `merge_branch` would do now: all tokens to merge are read, and of the commit's tree what tombstones touch.
    Where the settings seal, a staging token with rows is one of them.

    Raises UnknownRefError, LiveStoreRefusedError, SchemaVersionError, RepositoryReadOnlyError, CorruptMessageError,
    CorruptRangeError, MissingRangeError, DatabaseError, ObjectError.
    """
    live.check()
    settings = settings or MergeSettings()
    row = live.branch(branch)
    seals = settings.seals and live.tokens.has_rows(row.data.staging_token)
    tokens = (row.data.staging_token, *row.sealed) if seals else row.sealed
    scan = TokenScan(live, tokens)
    after = deleted = idle = 0
    for batch in kept_rows(live.ranges, live.head(row), scan.merged()):
        after += len(batch.rows)
        deleted += batch.tombstones
        idle += batch.dropped
    merged = row.with_sealed([new_token(live.name, branch)]) if tokens else row.raw
    return MergePlan(
        live.name,
        branch,
        row.data.commit_id,
        tokens,
        rows_before=scan.rows,
        rows_after=after,
        hidden_rows=scan.rows - after - idle,
        tombstones=deleted,
        idle_tombstones=idle,
        row_bytes_before=len(row.raw),
        row_bytes_after=len(merged),
        reason=_why_not(live, row, len(tokens), settings),
    )


def too_few(tokens: int, least: int) -> str:
    """Why there is nothing to merge; empty: there is."""
    return "" if tokens >= least else f"it has {tokens} tokens to merge, {least} are the least"


def _why_not(live: LiveRepository, row: BranchRow, tokens: int, settings: MergeSettings) -> str:
    stopped = stopped_because(live.kv)
    if stopped:
        return f"merging is stopped ({stopped})"
    held = held_because(live, row.name)
    return held or busy(live, row, settings.yields) or too_few(tokens, settings.least_tokens)
