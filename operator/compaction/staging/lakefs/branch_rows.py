"""Rows of branches that a lakeFS server wrote: read with all that is in them, and changed in one field only.

A message that is encoded again is not always the same bytes: so a row is cut into its fields, and only those of the
tokens are replaced. A row with fields that this version does not know is refused: something else than the commit may
lie below its tokens then, as a compaction of the servers' own would record it, and a merge would be wrong beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from compaction.staging.errors import LiveStoreRefusedError
from compaction.staging.format.messages import BranchData
from compaction.staging.format.wire import bytes_field, read_fields
from compaction.staging.refs.names import COMMIT_ID

_STAGING: Final = 3
_SEALED: Final = 4
_KNOWN: Final = frozenset(range(1, 6))


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch as it was read at one moment. `raw`: the exact bytes of its row, which a swap compares."""

    data: BranchData
    raw: bytes

    @property
    def name(self) -> str:
        return self.data.id

    @property
    def sealed(self) -> tuple[str, ...]:
        """The sealed tokens, the newest first."""
        return self.data.sealed_tokens

    def with_sealed(self, tokens: Sequence[str]) -> bytes:
        """The row with other sealed tokens and nothing else changed, byte for byte."""
        return _edited(self.raw, tokens, None)

    def with_merged(self, old: Sequence[str], fresh: str) -> bytes:
        """The row with one token in the place of its oldest ones."""
        return self.with_sealed((*self.sealed[: len(self.sealed) - len(old)], fresh))

    def with_seal(self, fresh: str) -> bytes:
        """The row with its staging token sealed, as the first phase of a commit does, and `fresh` as the new one."""
        return _edited(self.raw, (self.data.staging_token, *self.sealed), fresh)


def read_branch_row(raw: bytes, *, name: str, repository: str) -> BranchRow:
    """Raises CorruptMessageError, and LiveStoreRefusedError for a row that no server of a known version writes."""
    where = f"branch {name} of repository {repository}"
    data = BranchData.decode(raw, name=where)
    counts = Counter(one.number for one in read_fields(raw))
    strange = sorted(counts.keys() - _KNOWN)
    if strange:
        reason = (
            f"its row has field {strange[0]}, which a newer lakeFS wrote; use a version of the compactor that knows it"
        )
        raise LiveStoreRefusedError(where, reason)
    twice = [number for number in _KNOWN - {_SEALED} if counts[number] > 1]
    tokens = (data.staging_token, *data.sealed_tokens)
    if twice:
        raise LiveStoreRefusedError(where, f"its row has field {twice[0]} more than once")
    if data.id != name:
        raise LiveStoreRefusedError(where, f"its row is of branch {data.id[:80]!a}")
    if not all(tokens) or len(set(tokens)) < len(tokens):
        raise LiveStoreRefusedError(where, "one of its tokens is empty, or in its row twice")
    if not COMMIT_ID.fullmatch(data.commit_id):
        raise LiveStoreRefusedError(where, f"its commit {data.commit_id[:80]!a} is no id of a commit")
    return BranchRow(data, raw)


def _edited(raw: bytes, sealed: Sequence[str], staging: str | None) -> bytes:
    """The fields in their order; the sealed tokens where the first of them was, else behind the staging token."""
    fields = list(read_fields(raw))
    written = b"".join(bytes_field(_SEALED, token.encode(), always=True) for token in sealed)
    place = next((number for number, one in enumerate(fields) if one.number == _SEALED), None)
    parts = []
    for number, one in enumerate(fields):
        if number == place:
            parts.append(written)
        if one.number == _STAGING and staging is not None:
            parts.append(bytes_field(_STAGING, staging.encode()))
        elif one.number != _SEALED:
            parts.append(one.raw)
        if place is None and one.number == _STAGING:
            parts.append(written)
    return b"".join(parts)
