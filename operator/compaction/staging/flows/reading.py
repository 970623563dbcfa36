"""Reading: one record, a page of a listing, a page of differences (docs/design/staging-areas.md#reading)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from compaction.staging.changes import TOMBSTONE
from compaction.staging.flows.area import Area
from compaction.staging.flows.views import View, diff_since, effective, first_at, read_consistently
from compaction.staging.format.framing import split_value
from compaction.staging.staged.tokens import after_prefix
from compaction.staging.tree.diffing import DiffKind

MOST_LISTED: Final = 1000
_PASSED: Final = 2
"""Batches of a stream that are passed over for one common prefix before a new stream begins behind it."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A record of a listing, or a common prefix (`value` is None)."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Page:
    """Of a listing. `more`: continue after the last key."""

    entries: tuple[Listed, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that differs. A value that is not there is None."""

    key: bytes
    kind: DiffKind
    left: bytes | None
    right: bytes | None


@dataclass(frozen=True, slots=True)
class DiffPage:
    """Of differences. `more`: continue after the last key."""

    entries: tuple[Difference, ...]
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

        def read(view: View) -> bytes | None:
            value = self.shown(view, key)
            if not stage_only or value is None:
                return value
            committed = self._area.ranges.get(view.head_id, key)
            same = committed is not None and split_value(committed)[0] == split_value(value)[0]
            return None if same else value

        return read_consistently(self._area, reference, read)

    def shown(self, view: View, key: bytes) -> bytes | None:
        """What a view shows of a key, None when it does not show it."""
        for token in view.tokens:
            value = self._area.tokens.get(token, key)
            if value is not None:
                return None if value == TOMBSTONE else value
        return self._area.ranges.get(view.metarange_id, key)

    def list(
        self, reference: str, *, prefix: bytes = b"", after: bytes = b"", delimiter: bytes = b"", amount: int = 1000
    ) -> Page:
        """Records whose key begins with `prefix` and is greater than `after`, in order, at most `amount` (1 to 1,000).

        With a delimiter, keys that have it behind the prefix are listed once, as their common prefix; an `after` that
        is such a common prefix continues behind all of its keys. Raises as `get`.
        """
        amount = max(1, min(amount, MOST_LISTED))
        stop = after_prefix(prefix)
        start = max(prefix, _behind(after, prefix, delimiter))

        def read(view: View) -> Page:
            if stop is not None and start >= stop:
                return Page((), False)
            found: list[Listed] = []
            for one in self._listed(view, start, stop, prefix, delimiter):
                if len(found) == amount:
                    return Page(tuple(found), True)
                found.append(one)
            return Page(tuple(found), False)

        return read_consistently(self._area, reference, read)

    def uncommitted(self, branch: str, *, prefix: bytes = b"", after: bytes = b"", amount: int = 1000) -> DiffPage:
        """How a branch differs from its commit, a page at a time. Raises as `get`."""
        return self._differences(branch, None, prefix, after, amount)

    def diff(self, left: str, right: str, *, prefix: bytes = b"", after: bytes = b"", amount: int = 1000) -> DiffPage:
        """How what `right` shows differs from the commit of `left`, a page at a time. Raises as `get`."""
        tree = self._area.references.commit(left).meta_range_id
        return self._differences(right, tree, prefix, after, amount)

    def _differences(self, reference: str, left: str | None, prefix: bytes, after: bytes, amount: int) -> DiffPage:
        amount = max(1, min(amount, MOST_LISTED))
        start, stop = max(prefix, after + b"\0" if after else b""), after_prefix(prefix)

        def read(view: View) -> DiffPage:
            found: list[Difference] = []
            for batch in diff_since(self._area, view.head_id if left is None else left, view, start, stop):
                wanted = min(len(batch), amount + 1 - len(found))
                found += [
                    Difference(key, kind, old or None, new or None)
                    for key, kind, old, new in batch.slice(0, wanted).rows()
                ]
                if len(found) > amount:
                    return DiffPage(tuple(found[:amount]), True)
            return DiffPage(tuple(found), False)

        return read_consistently(self._area, reference, read)

    def _listed(
        self, view: View, start: bytes, stop: bytes | None, prefix: bytes, delimiter: bytes
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
