"""Rows of sealed tokens: scanned, merged newest first, and what they show over the tree of the commit.

Rows travel as the server wrote them, since a message may have fields that this version does not know. Memory is bounded
by the layers' buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.staging.changes import rows_where, tombstones
from compaction.staging.format.columns import RecordColumns
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.staged.layers import layered
from compaction.staging.staged.rows import decode_rows
from compaction.staging.tree.diffing import diff_changes
from compaction.staging.tree.fingerprint import ContentFingerprint
from compaction.staging.tree.storage import RangeStorage


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
        streams = (self._rows(*one) for one in zip(self._tokens, self._contents, strict=True))
        yield from layered(list(streams))

    @property
    def rows(self) -> int:
        return sum(one.records for one in self._contents)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(one.text() for one in self._contents)

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
            found = [one.keys for one in diff_changes(ranges, tree, [rows_where(changes, deleted)])]
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

    for one in diff_changes(ranges, tree, changes()):
        differences.add(one.changes)
    return f"{values.text()}/{differences.text()}"


def _changes(rows: RecordColumns) -> RecordColumns:
    return decode_rows("merged tokens", rows.pairs())
