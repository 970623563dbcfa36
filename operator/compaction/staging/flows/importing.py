"""Imports: records of elsewhere become a commit, in place of what was below their prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from compaction.staging.changes import TOMBSTONE
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Draft
from compaction.staging.flows.merging import Merger
from compaction.staging.format.columns import BINARY, RecordColumns
from compaction.staging.format.messages import CommitData
from compaction.staging.staged.layers import layered
from compaction.staging.staged.tokens import after_prefix
from compaction.staging.tree.applying import apply


class Importer:
    """Imports into branches of one repository that have no uncommitted changes."""

    def __init__(self, area: Area, merger: Merger) -> None:
        self._area = area
        self._merger = merger

    def import_records(
        self,
        branch: str,
        records: Callable[[], Iterable[RecordColumns]],
        draft: Draft,
        *,
        prefixes: Sequence[bytes] = (),
    ) -> CommitData:
        """Commit `records` (in order of their keys; called again for another try). What the branch has below one of the
        prefixes and is not among them is deleted.

        Raises RangeRecordError, and as `Merger`.
        """

        def tree(head: str) -> str:
            old = [self._deletions(head, prefix) for prefix in disjoint(prefixes)]
            return apply(self._area.ranges, head, layered([records(), *old])).metarange_id

        return self._merger.replace_tree(branch, draft, tree, "import")

    def _deletions(self, tree: str, prefix: bytes) -> Iterator[RecordColumns]:
        for batch in self._area.ranges.records(tree, prefix, after_prefix(prefix)):
            yield RecordColumns(batch.keys, pa.repeat(pa.scalar(TOMBSTONE, BINARY), len(batch)))


def disjoint(prefixes: Sequence[bytes]) -> list[bytes]:
    """The prefixes without those that begin with another of them, in order."""
    found: list[bytes] = []
    for prefix in sorted(set(prefixes)):
        if not (found and prefix.startswith(found[-1])):
            found.append(prefix)
    return found
