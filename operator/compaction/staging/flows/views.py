"""What a reference shows: tokens, the newest first, over a metarange (docs/design/staging-areas.md#views).

A reader takes tokens and metarange from a branch it has read, and reads the branch again afterwards: tokens that were
removed meanwhile may have lost rows under its feet, so it starts over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from compaction.staging.changes import rows_where, tombstones
from compaction.staging.errors import TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import RecordColumns
from compaction.staging.refs.branches import Branch
from compaction.staging.refs.records import BranchRecord
from compaction.staging.staged.layers import layered
from compaction.staging.tree.diffing import DiffColumns, diff, diff_changes

T = TypeVar("T")
READ_TRIES: Final = 10
_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class View:
    """`tokens` over `metarange_id` ("" is the empty tree); `head_id` is the metarange of the commit."""

    metarange_id: str
    head_id: str
    tokens: tuple[str, ...] = ()

    @property
    def has_compacted_base(self) -> bool:
        return self.metarange_id != self.head_id


def view_of(area: Area, branch: Branch, *, sealed_only: bool = False) -> View:
    """What a branch shows; `sealed_only`: without its staging token."""
    record = branch.record
    head = area.commits.get(record.commit_id).meta_range_id
    return View(record.compacted_base or head, head, record.sealed_tokens if sealed_only else record.tokens)


def resolve_view(area: Area, reference: str) -> tuple[View, Branch | None]:
    """What a reference shows, and the branch if it is one."""
    resolved = area.references.resolve(reference)
    if resolved.branch is not None:
        return view_of(area, resolved.branch), resolved.branch
    tree = resolved.commit.meta_range_id
    return View(tree, tree), None


def read_consistently(area: Area, reference: str, read: Callable[[View], T]) -> T:
    """What `read` makes of the view of a reference; it runs again when the branch has lost a part of that view.

    Raises:
        UnknownRefError, StagingNameError
        TooManyTriesError: others changed the branch during every try.
    """
    for _ in range(READ_TRIES):
        view, branch = resolve_view(area, reference)
        result = read(view)
        if branch is None or still_holds(branch.record, area.branches.get(branch.name).record):
            return result
        area.sleep(_PAUSE)
    raise TooManyTriesError(reference, "read", READ_TRIES)


def still_holds(before: BranchRecord, now: BranchRecord) -> bool:
    """Whether a branch still has all that it had: tokens may have come on top."""
    known = len(before.sealed_tokens) + 1
    same_tokens = now.tokens[-known:] == before.tokens
    return same_tokens and (now.commit_id, now.compacted_base) == (before.commit_id, before.compacted_base)


def effective(area: Area, view: View, start: bytes = b"", stop: bytes | None = None) -> Iterator[RecordColumns]:
    """The records that a view shows, in order; no batch is empty."""
    layers = [area.tokens.changes(token, start, stop) for token in view.tokens]
    for batch in layered([*layers, area.ranges.records(view.metarange_id, start, stop)]):
        records = rows_where(batch, ~tombstones(batch))
        if len(records):
            yield records


def changes_since(
    area: Area, metarange_id: str, view: View, start: bytes = b"", stop: bytes | None = None
) -> Iterator[RecordColumns]:
    """Changes, tombstones among them, that make what the view shows of what a metarange holds.

    A key of a token hides what the compacted base did to it, also where both say the same.
    """
    layers: list[Iterable[RecordColumns]] = [area.tokens.changes(token, start, stop) for token in view.tokens]
    if view.metarange_id != metarange_id:
        layers.append(one.changes for one in diff(area.ranges, metarange_id, view.metarange_id, start))
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
    area: Area, metarange_id: str, view: View, start: bytes = b"", stop: bytes | None = None
) -> Iterator[DiffColumns]:
    """How a view differs from a metarange, by identity; no batch is empty."""
    changes = changes_since(area, metarange_id, view, start, stop)
    for batch in diff_changes(area.ranges, metarange_id, changes):
        if len(batch):
            yield batch


def is_clean(area: Area, view: View) -> bool:
    """Whether a view shows nothing that its commit does not."""
    return next(diff_since(area, view.head_id, view), None) is None
