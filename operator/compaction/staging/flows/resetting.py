"""Resets: uncommitted changes of a branch, of a key or of a prefix are taken back.

docs/design/staging-areas.md#resets.
"""

from __future__ import annotations

from dataclasses import replace

from compaction.staging.flows.area import Area
from compaction.staging.flows.journal import journal, was_dropped
from compaction.staging.flows.swapping import fresh_token, swapped
from compaction.staging.flows.views import diff_since, view_of
from compaction.staging.flows.writing import Writer
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord
from compaction.staging.staged.tokens import after_prefix


class Resetter:
    """Takes back uncommitted changes.

    Every method raises UnknownRefError, RepositoryReadOnlyError, TooManyTriesError.
    """

    def __init__(self, area: Area, writer: Writer) -> None:
        self._area = area
        self._writer = writer

    def reset(self, branch: str) -> None:
        """All changes of a branch, its compacted base among them."""
        self._area.repository.check_writable()
        swapped(self._area, branch, "reset", lambda found: found.record.emptied(fresh_token(self._area, found)))

    def reset_key(self, branch: str, key: bytes) -> None:
        """The changes of one key: the commit's record, or a deletion, is written over them."""
        self._writer.restore(branch, key)

    def reset_prefix(self, branch: str, prefix: bytes) -> None:
        """The changes of all keys that begin with a prefix, at one moment.

        What takes them back is in a token of its own, which comes above all others with the swap.
        """
        if not prefix:
            self.reset(branch)
            return
        self._area.repository.check_writable()

        def reverted(found: Branch) -> BranchRecord | None:
            token = fresh_token(self._area, found)
            # No branch has it until the swap: after a crash the journal knows it.
            journal(self._area, [token])
            if not self._write_back(found, prefix, token):
                return None
            return replace(
                found.record.sealed(fresh_token(self._area, found)), sealed_tokens=(token, *found.record.tokens)
            )

        while was_dropped(self._area, swapped(self._area, branch, "reset", reverted).record.sealed_tokens[:1]):
            # The sweep found the token unused for the whole grace: this reset took longer than that.
            continue

    def _write_back(self, branch: Branch, prefix: bytes, token: str) -> int:
        """Write into a token what takes back the changes below a prefix; how many."""
        view = view_of(self._area, branch)
        count = 0
        for batch in diff_since(self._area, view.head_id, view, prefix, after_prefix(prefix)):
            changes = batch.reverted
            self._area.tokens.set_many(token, changes)
            count += len(changes)
        self._area.counters.count(token, writes=count)
        return count
