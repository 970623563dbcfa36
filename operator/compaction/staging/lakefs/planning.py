"""Plans of merges of sealed tokens: what the tokens cost, and what a merge would change. Nothing here writes a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.staging.errors import StagingStoreError
from compaction.staging.format.columns import RecordColumns, rows_where, tombstones
from compaction.staging.lakefs.control import TokenMergeSettings, busy, held_because, stopped_because, unchanged_seconds
from compaction.staging.lakefs.repository import BranchRow, LiveRepository, read_branch_row
from compaction.staging.staged.rows import decode_rows, layered, new_token
from compaction.staging.tree.aligning import ContentFingerprint
from compaction.staging.tree.diffing import diff_changes
from compaction.staging.tree.storage import RangeStorage

# Rows of sealed tokens: scanned, merged newest first, and what they show over the tree of the commit.
#
# Rows travel as the server wrote them, since a message may have fields that this version does not know. Memory is
# bounded by the layers' buffers.


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A batch of merged rows with those that count. `tombstones`: of those kept; `dropped`: tombstones left out."""

    rows: RecordColumns
    tombstones: int
    dropped: int


class TokenScan:
    """One pass over some tokens, the newest first. After it: how many rows each has, their fingerprints, and `nbytes`
    of all keys and rows.
    """

    def __init__(self, live: LiveRepository, tokens: Sequence[str]) -> None:
        self._live = live
        self._tokens = tuple(tokens)
        self._contents = tuple(ContentFingerprint() for _ in tokens)
        self.nbytes = 0

    def merged(self) -> Iterator[RecordColumns]:
        """The rows in the order of their keys, of equal keys the newest. Raises CorruptMessageError, DatabaseError."""
        streams = (self._rows(*item) for item in zip(self._tokens, self._contents, strict=True))
        yield from layered(list(streams))

    @property
    def rows(self) -> int:
        return sum(content.records for content in self._contents)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(content.text() for content in self._contents)

    def _rows(self, token: str, content: ContentFingerprint) -> Iterator[RecordColumns]:
        for page in self._live.kv.scan(token):
            decode_rows(token, page)  # a damaged row is reported with its token
            rows = RecordColumns.of(page)
            content.add(rows)
            self.nbytes += rows.nbytes
            yield rows


def kept_rows(ranges: RangeStorage, tree: str, merged: Iterable[RecordColumns]) -> Iterator[KeptRows]:
    """All rows but tombstones of keys that the tree lacks.

    A value stays even if the tree has the same identity: its time and address are visible, and no identity covers them.
    """
    for batch in merged:
        changes = _changes(batch)
        deleted = tombstones(changes)
        kept = np.ones(len(batch), dtype=np.bool_)
        if deleted.any():
            found = [change.keys for change in diff_changes(ranges, tree, [rows_where(changes, deleted)])]
            present = pa.chunked_array(found, type=batch.keys.type)
            kept = ~deleted | pc.is_in(batch.keys, value_set=present).to_numpy(zero_copy_only=False)
        rows = rows_where(batch, kept) if kept.any() else batch.slice(0, 0)
        yield KeptRows(rows, int((kept & deleted).sum()), len(batch) - int(kept.sum()))


def shown(ranges: RangeStorage, tree: str, merged: Iterable[RecordColumns]) -> str:
    """A fingerprint of what merged rows show over a tree: every value as its row, and how all of it differs from the
    tree (what lakeFS shows as uncommitted). Where two agree in it, so do their whole views: everything else is the
    tree's.
    """
    values, differences = ContentFingerprint(), ContentFingerprint()

    def changes() -> Iterator[RecordColumns]:
        for batch in merged:
            found = _changes(batch)
            live = ~tombstones(found)
            if live.any():
                values.add(rows_where(batch, live))
            yield found

    for change in diff_changes(ranges, tree, changes()):
        differences.add(change.changes)
    return f"{values.text()}/{differences.text()}"


def _changes(rows: RecordColumns) -> RecordColumns:
    return decode_rows("merged tokens", rows.pairs())


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
    """The changes that a merge of a branch would cause. `reason`: why there would be none; empty: it would run.

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
    live: LiveRepository, *, limit: int = COUNTED, settings: TokenMergeSettings | None = None
) -> Iterator[BranchInspection]:
    """All branches by name; of each token at most `limit` rows are counted. A branch that cannot be read is one with a
    problem, and those beside it are reported. `settings`: by which a merge would begin or not.

    Raises DatabaseError, SchemaVersionError, UnknownRefError, RepositoryReadOnlyError, LiveStoreRefusedError.
    """
    live.check()
    for name, raw in live.branch_rows():
        try:
            row = read_branch_row(raw, name=name, repository=live.name)
            yield _inspection(live, row, limit, settings or TokenMergeSettings())
        except StagingStoreError as error:
            yield BranchInspection(name, problem=str(error))


def _inspection(live: LiveRepository, row: BranchRow, limit: int, settings: TokenMergeSettings) -> BranchInspection:
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


def plan_merge(live: LiveRepository, branch: str, settings: TokenMergeSettings | None = None) -> MergePlan:
    """Return the plan of what `merge_branch` would do now: all tokens to merge are read, and of the commit's tree what
    tombstones touch. Where the settings seal, a staging token with rows is one of them.

    Raises UnknownRefError, LiveStoreRefusedError, SchemaVersionError, RepositoryReadOnlyError, CorruptMessageError,
    CorruptRangeError, MissingRangeError, DatabaseError, ObjectError.
    """
    live.check()
    settings = settings or TokenMergeSettings()
    row = live.branch(branch)
    seals = settings.seals and live.tokens.has_rows(row.data.staging_token)
    tokens = (row.data.staging_token, *row.sealed) if seals else row.sealed
    scan = TokenScan(live, tokens)
    after = deleted = idle = 0
    for batch in kept_rows(live.ranges, live.head(row), scan.merged()):
        after += len(batch.rows)
        deleted += batch.tombstones
        idle += batch.dropped
    # Only for its length: nothing is written under this token.
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
    """Return the reason for which there is nothing to merge; empty: there is."""
    return "" if tokens >= least else f"it has {tokens} tokens to merge, {least} are the least"


def _why_not(live: LiveRepository, row: BranchRow, tokens: int, settings: TokenMergeSettings) -> str:
    stopped = stopped_because(live.kv)
    if stopped:
        return f"merging is stopped ({stopped})"
    held = held_because(live, row.name)
    return held or busy(live, row, settings.yields) or too_few(tokens, settings.least_tokens)
