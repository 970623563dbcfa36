"""Reading through a reference: one record, a page of a listing, a page of differences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from compaction.staging.errors import MissingRangeError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import TOMBSTONE, RecordColumns, rows_where, tombstones
from compaction.staging.format.identity import split_value
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.staged.rows import after_prefix, layered
from compaction.staging.tree.diffing import DiffColumns, DiffKind, diff, diff_changes

# The view of a reference: tokens, the newest first, over a metarange (docs/design/staging-areas.md#views).
#
# A reader takes tokens and metarange from a branch it has read, and reads the branch again afterwards: tokens that
# were removed meanwhile may have lost rows under its feet, so it starts over. So it does when an object is missing: the
# base that a branch has left behind is deleted after the grace. What is missing while the branch has it is lost.

T = TypeVar("T")
READ_TRIES: Final = 10
_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class RecordView:
    """`tokens` over `metarange_id` ("" is the empty tree); `head_id` is the metarange of the commit."""

    metarange_id: str
    head_id: str
    tokens: tuple[str, ...] = ()

    @property
    def has_compacted_base(self) -> bool:
        return self.metarange_id != self.head_id


def view_of(area: Area, branch: Branch, *, sealed_only: bool = False) -> RecordView:
    """Return the view that a branch shows; `sealed_only`: without its staging token."""
    record = branch.record
    head = area.commits.get(record.commit_id).meta_range_id
    return RecordView(record.compacted_base or head, head, record.sealed_tokens if sealed_only else record.tokens)


def resolve_view(area: Area, reference: str) -> tuple[RecordView, Branch | None]:
    """Return the view that a reference shows, and the branch if it is one."""
    resolved = area.references.resolve(reference)
    if resolved.branch is not None:
        return view_of(area, resolved.branch), resolved.branch
    tree = resolved.commit.meta_range_id
    return RecordView(tree, tree), None


def read_consistently(area: Area, reference: str, read: Callable[[RecordView], T]) -> T:
    """Return the result of `read` for the view of a reference; it runs again when the branch has lost a part of that
    view.

    Raises:
        UnknownRefError, StagingNameError
        TooManyTriesError: others changed the branch during every try.
        What `read` raises: MissingRangeError only for what the branch still has.
    """
    for _ in range(READ_TRIES):
        view, branch = resolve_view(area, reference)
        found: T | MissingRangeError
        try:
            found = read(view)
        except MissingRangeError as error:
            found = error
        if branch is None or still_holds(branch.record, area.branches.get(branch.name).record):
            if isinstance(found, MissingRangeError):
                raise found
            return found
        area.sleep(_PAUSE)
    raise TooManyTriesError(reference, "read", READ_TRIES)


def still_holds(before: BranchRecord, now: BranchRecord) -> bool:
    """Return whether a branch still has all that it had: tokens may have come on top."""
    known = len(before.sealed_tokens) + 1
    same_tokens = now.tokens[-known:] == before.tokens
    return same_tokens and (now.commit_id, now.compacted_base) == (before.commit_id, before.compacted_base)


def effective(area: Area, view: RecordView, start: bytes = b"", stop: bytes | None = None) -> Iterator[RecordColumns]:
    """The records that a view shows, in order; no batch is empty."""
    layers = [area.tokens.changes(token, start, stop) for token in view.tokens]
    for batch in layered([*layers, area.ranges.records(view.metarange_id, start, stop)]):
        records = rows_where(batch, ~tombstones(batch))
        if len(records):
            yield records


def changes_since(
    area: Area, metarange_id: str, view: RecordView, start: bytes = b"", stop: bytes | None = None
) -> Iterator[RecordColumns]:
    """Changes, tombstones among them, that make what the view shows of what a metarange holds.

    A key of a token hides what the compacted base did to it, also where both say the same.
    """
    layers: list[Iterable[RecordColumns]] = [area.tokens.changes(token, start, stop) for token in view.tokens]
    if view.metarange_id != metarange_id:
        layers.append(item.changes for item in diff(area.ranges, metarange_id, view.metarange_id, start))
    return _until(stop, layered(layers))


def _until(stop: bytes | None, batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
    """The records before `stop`."""
    for batch in batches:
        end = len(batch) if stop is None else first_at(batch.keys, stop)
        yield batch.slice(0, end)
        if end < len(batch):
            return


def first_at(keys: Any, key: bytes, begin: int = 0) -> int:
    """The number of the first key, of keys in order (a large_binary array), that is not less than `key`."""
    return bisect_left(range(len(keys)), key, lo=begin, key=lambda row: keys[row].as_py())


def diff_since(
    area: Area, metarange_id: str, view: RecordView, start: bytes = b"", stop: bytes | None = None
) -> Iterator[DiffColumns]:
    """Yield the differences of a view from a metarange, by identity; no batch is empty."""
    changes = changes_since(area, metarange_id, view, start, stop)
    for batch in diff_changes(area.ranges, metarange_id, changes):
        if len(batch):
            yield batch


def is_clean(area: Area, view: RecordView) -> bool:
    """Return whether a view shows nothing that its commit does not."""
    return next(diff_since(area, view.head_id, view), None) is None


# Reading: one record, a page of a listing, a page of differences (docs/design/staging-areas.md#reading).

MOST_LISTED: Final = 1000
_PASSED: Final = 2
"""Batches of a stream that are passed over for one common prefix before a new stream begins behind it."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A record of a listing, or a common prefix (`value` is None)."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Of a listing. `more`: continue after the last key."""

    entries: tuple[Listed, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """A key that differs. A value that is not there is None."""

    key: bytes
    kind: DiffKind
    left: bytes | None
    right: bytes | None


@dataclass(frozen=True, slots=True)
class DiffPage:
    """Of differences. `more`: continue after the last key."""

    entries: tuple[RecordDifference, ...]
    more: bool


class Reader:
    """Reads one repository. Values are framed: identity and data (docs/design/staging.md#values)."""

    def __init__(self, area: Area) -> None:
        self._area = area

    def get(self, reference: str, key: bytes, *, stage_only: bool = False) -> bytes | None:
        """The value, None when the reference does not show the key. `stage_only`: None too when the value is that of
        the commit, by identity.

        Raises UnknownRefError, StagingNameError, TooManyTriesError, CorruptRangeError, CorruptMessageError.
        """

        def read(view: RecordView) -> bytes | None:
            value = self.shown(view, key)
            if not stage_only or value is None:
                return value
            committed = self._area.ranges.get(view.head_id, key)
            same = committed is not None and split_value(committed)[0] == split_value(value)[0]
            return None if same else value

        return read_consistently(self._area, reference, read)

    def shown(self, view: RecordView, key: bytes) -> bytes | None:
        """Return the value that a view shows for a key, None when it does not show it."""
        for token in view.tokens:
            value = self._area.tokens.get(token, key)
            if value is not None:
                return None if value == TOMBSTONE else value
        return self._area.ranges.get(view.metarange_id, key)

    def list(
        self, reference: str, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", amount: int = 1000
    ) -> RecordPage:
        """Records whose key begins with `prefix` and is greater than `after`, in order, at most `amount` (1 to 1,000).

        With a delimiter, keys that have it behind the prefix are listed once, as their common prefix; an `after` that
        is such a common prefix continues behind all of its keys. Raises as `get`.
        """
        amount = max(1, min(amount, MOST_LISTED))
        stop = after_prefix(prefix)
        start = max(prefix, _behind(after, prefix, delimiter))

        def read(view: RecordView) -> RecordPage:
            if stop is not None and start >= stop:
                return RecordPage((), False)
            found: list[Listed] = []
            for item in self._listed(view, start, stop, prefix, delimiter):
                if len(found) == amount:
                    return RecordPage(tuple(found), True)
                found.append(item)
            return RecordPage(tuple(found), False)

        return read_consistently(self._area, reference, read)

    def uncommitted(self, branch: str, *, prefix: bytes = b"", after: bytes = b"", amount: int = 1000) -> DiffPage:
        """Return the differences of a branch from its commit, a page at a time. Raises as `get`."""
        return self._differences(branch, None, prefix, after, amount)

    def diff(self, left: str, right: str, *, prefix: bytes = b"", after: bytes = b"", amount: int = 1000) -> DiffPage:
        """Return the differences of what `right` shows from the commit of `left`, a page at a time. Raises as `get`."""
        tree = self._area.references.commit(left).meta_range_id
        return self._differences(right, tree, prefix, after, amount)

    def _differences(self, reference: str, left: str | None, prefix: bytes, after: bytes, amount: int) -> DiffPage:
        amount = max(1, min(amount, MOST_LISTED))
        start, stop = max(prefix, after + b"\0" if after else b""), after_prefix(prefix)

        def read(view: RecordView) -> DiffPage:
            found: list[RecordDifference] = []
            for batch in diff_since(self._area, view.head_id if left is None else left, view, start, stop):
                wanted = min(len(batch), amount + 1 - len(found))
                found += [
                    RecordDifference(key, kind, old or None, new or None)
                    for key, kind, old, new in batch.slice(0, wanted).rows()
                ]
                if len(found) > amount:
                    return DiffPage(tuple(found[:amount]), True)
            return DiffPage(tuple(found), False)

        return read_consistently(self._area, reference, read)

    def _listed(
        self, view: RecordView, start: bytes, stop: bytes | None, prefix: bytes, delimiter: bytes
    ) -> Iterator[Listed]:
        floor: bytes | None = start
        while floor is not None and (stop is None or floor < stop):
            stream = effective(self._area, view, floor, stop)
            floor = None
            passed = 0
            for batch in stream:
                at = first_at(batch.keys, floor or b"")
                passed = passed + 1 if at == len(batch) else 0
                while at < len(batch):
                    key = batch.keys[at].as_py()
                    cut = key.find(delimiter, len(prefix)) if delimiter else -1
                    if cut < 0:
                        yield Listed(key, batch.values[at].as_py())
                        at += 1
                        continue
                    common = key[: cut + len(delimiter)]
                    yield Listed(common, None)
                    floor = after_prefix(common)
                    if floor is None:
                        return
                    at = first_at(batch.keys, floor, at)
                # A large folder: a stream that begins behind it costs less than to read over all of its keys.
                if passed >= _PASSED:
                    break
            else:
                return


def _behind(after: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """The first key of a listing that continues after a key or a common prefix."""
    if not after:
        return b""
    if delimiter and after.startswith(prefix) and after.endswith(delimiter) and len(after) > len(prefix):
        return after_prefix(after) or after + b"\0"
    return after + b"\0"
