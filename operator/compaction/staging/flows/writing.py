"""Writing into the staging token of a branch, and taking it back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from compaction.staging.errors import (
    ConditionFailedError,
    InvalidBatchError,
    MissingRangeError,
    PredicateFailedError,
    RangeRecordError,
    TooManyTriesError,
)
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import fresh_token, journal, swapped, was_dropped
from compaction.staging.flows.reading import RecordView, diff_since, still_holds, view_of
from compaction.staging.format.columns import TOMBSTONE, RecordColumns, tombstones
from compaction.staging.format.identity import split_value
from compaction.staging.kv.port import Presence
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.staged.rows import after_prefix, encode_row

# Writing: what is acknowledged was in the staging token before that was sealed
# (docs/design/staging-areas.md#writing).
#
# Each change reads the branch, writes into its staging token, and reads the branch again: only when the token is
# still the staging token is the change acknowledged, else it is made again in the new one. So a scan of a sealed
# token sees all acknowledged changes, and what comes late into a sealed token was never acknowledged.

Replaced: TypeAlias = dict[str, bytes | None]
"""By token: what a row of ours has replaced in it, None when there was none."""
WRITE_TRIES: Final = 3
MOST_DELETED: Final = 1000
"""Keys of one batch."""
_PAUSE: Final = 0.02
NOTHING: Final[tuple[bytes, Replaced]] = (b"", {})


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """The expectation of a conditional write: the identity that the branch shows for the key, None for a key that it
    does not show.
    """

    identity: bytes | None

    def holds(self, shown: bytes | None) -> bool:
        """Return whether the value that the branch shows is the expected one."""
        return (None if shown is None else split_value(shown)[0]) == self.identity

    def __str__(self) -> str:
        return "it exists" if self.identity is None else "it is not the object that was expected"


class Writer:
    """Writes to branches of one repository. Values are framed; a key has at least one byte.

    Every method raises UnknownRefError, RepositoryReadOnlyError, TooManyTriesError (sealed during each of three tries:
    the change may or may not be there), KeyValueArgumentError and DatabaseError.
    """

    def __init__(self, area: Area) -> None:
        self._area = area
        self._tokens = area.tokens

    def set(self, branch: str, key: bytes, value: bytes) -> None:
        """Write a record. RangeRecordError: its value has no identity."""
        self.set_many(branch, [(key, value)])

    def set_many(self, branch: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write records; those that a failed call wrote may be there."""
        for key, value in records:
            _check_value(key, value)

        def write(found: Branch) -> bool:
            self._stage(found.record.staging_token, records)
            return False

        self._acknowledged(branch, "write", write)

    def set_if(self, branch: str, key: bytes, value: bytes, condition: WriteCondition) -> None:
        """Write a record if the branch shows what is expected at that moment.

        Raises:
            ConditionFailedError: it does not; nothing was written.
        """
        _check_value(key, value)
        mine = encode_row(key, value)
        own: Replaced = {}

        def write(found: Branch) -> bool:
            view, token = view_of(self._area, found), found.record.staging_token
            below, source = self._shown(view, key, but=(mine, own))
            if own and not source and below == value:
                return True  # a commit or a compaction took the earlier try along
            if not condition.holds(below):
                self._take_back(view, key, below, mine, own)
                raise ConditionFailedError(key, f"{condition} on branch {branch}")
            row = self._tokens.read(token, key)
            if row is None or row.raw != mine or token not in own:
                self._tokens.set_if(token, key, value, Presence.ABSENT if row is None else row.raw)
                own[token] = None if row is None else row.value
                self._area.counters.count(token, writes=1, nbytes=len(key) + len(value))
            return True

        self._acknowledged(branch, "write", write)

    def delete(self, branch: str, key: bytes) -> None:
        """Delete a record; one that is not there counts as deleted."""
        self.delete_many(branch, [key])

    def delete_many(self, branch: str, keys: Sequence[bytes]) -> None:
        """Delete up to 1,000 records. InvalidBatchError for more of them."""
        if len(keys) > MOST_DELETED:
            raise InvalidBatchError(f"{len(keys)} keys in one batch: delete at most {MOST_DELETED} at a time")

        def write(found: Branch) -> bool:
            view = view_of(self._area, found)
            chosen = self._need_tombstones(view, sorted(set(keys)))
            self._stage(found.record.staging_token, [(key, TOMBSTONE) for key in chosen])
            return len(chosen) < len(keys)

        self._acknowledged(branch, "delete", write)

    def restore(self, branch: str, key: bytes) -> None:
        """Make the branch show of a key what its commit does."""

        def write(found: Branch) -> bool:
            view = view_of(self._area, found)
            committed = self._area.ranges.get(view.head_id, key)
            shown, _ = self._shown(view, key)
            if shown != committed:
                self._stage(found.record.staging_token, [(key, TOMBSTONE if committed is None else committed)])
            return True

        self._acknowledged(branch, "reset", write)

    def _need_tombstones(self, view: RecordView, keys: list[bytes]) -> list[bytes]:
        """For which of the keys a deletion has to be written into the staging token.

        A tombstone in a sealed token is no reason to write none: it may have come too late for a reader that has
        scanned that token already, perhaps in an earlier try of this very deletion
        (docs/design/staging-areas.md#a-lost-deletion).
        """
        newest, *sealed = view.tokens
        staged = self._tokens.get_many(newest, keys)
        chosen = {key for key, value in staged.items() if value != TOMBSTONE}
        left = [key for key in keys if key not in staged]
        for token in sealed:
            chosen |= self._tokens.get_many(token, left).keys()
            left = [key for key in left if key not in chosen]
        return sorted(chosen | self._area.ranges.get_many(view.metarange_id, left).keys())

    def _shown(
        self, view: RecordView, key: bytes, *, but: tuple[bytes, Replaced] = NOTHING
    ) -> tuple[bytes | None, str]:
        """Return the value that a view shows for a key, and the token it is in ("" for the metarange). `but`: a row of
        ours, and the tokens in which what it has replaced counts instead.
        """
        mine, own = but
        for token in view.tokens:
            row = self._tokens.read(token, key)
            value = None if row is None else own[token] if token in own and row.raw == mine else row.value
            if value is not None:
                return (None if value == TOMBSTONE else value), token
        return self._area.ranges.get(view.metarange_id, key), ""

    def _take_back(self, view: RecordView, key: bytes, below: bytes | None, mine: bytes, own: Replaced) -> None:
        """Earlier tries of a conditional write came before another change: restore what they have replaced, or write
        what is below them.
        """
        shown = TOMBSTONE if below is None else below
        for token, before in own.items():
            if token in view.tokens:
                try:
                    self._tokens.set_if(token, key, shown if before is None else before, mine)
                except PredicateFailedError:
                    continue  # another writer has written over it

    def _stage(self, token: str, changes: Sequence[tuple[bytes, bytes]]) -> None:
        if not changes:
            return
        rows = RecordColumns.of(sorted(dict(changes).items()))
        self._tokens.set_many(token, rows)
        self._area.counters.count(token, writes=len(rows), tombstones=int(tombstones(rows).sum()), nbytes=rows.nbytes)

    def _acknowledged(self, name: str, doing: str, write: Callable[[Branch], bool]) -> None:
        """Run `write` until the branch it was given is still the branch. `write` returns whether it decided anything
        by what it read below the staging token: then that has to be there still too.
        """
        self._area.repository.check_writable()
        for attempt in range(WRITE_TRIES):
            before = self._area.branches.get(name)
            try:
                relied = write(before)
            except PredicateFailedError:
                # Another writer changed the row: what the branch shows has to be read again.
                self._pause(attempt)
                continue
            except MissingRangeError:
                if still_holds(before.record, self._area.branches.get(name).record):
                    raise
                self._pause(attempt)
                continue
            now = self._area.branches.get(name).record
            same_token = now.staging_token == before.record.staging_token
            if same_token and (not relied or still_holds(before.record, now)):
                return
            self._pause(attempt)
        raise TooManyTriesError(name, doing, WRITE_TRIES)

    def _pause(self, attempt: int) -> None:
        self._area.sleep(random.uniform(0.5, 1.0) * _PAUSE * 2**attempt)


def _check_value(key: bytes, value: bytes) -> None:
    if value == TOMBSTONE or not split_value(value)[0]:
        raise RangeRecordError(key, "its value has no identity")


# Resets: uncommitted changes of a branch, of a key or of a prefix are taken back.
#
# docs/design/staging-areas.md#resets.


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
