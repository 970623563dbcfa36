"""Operations of the staging endpoint on one repository, each in a thread, and pages of their listings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import ConfigDict, Field

from compaction.serving.openapi import Wire
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import CommitDraft, Committer
from compaction.staging.flows.reading import MOST_LISTED, Listed, Reader, RecordDifference
from compaction.staging.flows.writing import Resetter, WriteCondition, Writer
from compaction.staging.kv.port import MAX_KEY_BYTES
from compaction.staging.serving.wire import (
    LONGEST_BASE64,
    Base64,
    ChangedAnswer,
    ChangeLine,
    ChangeOperation,
    CommitAnswer,
    CommitRequest,
    DeletedAnswer,
    ObjectAnswer,
    ObjectQuery,
    ReadQuery,
    ResetAnswer,
    ResetRequest,
    ShownEntry,
    WriteQuery,
    WrittenAnswer,
    bytes_of,
    identity_text,
    listed_value,
    object_answer,
    text_or_base64,
)
from compaction.staging.store import StagingStore

# The repositories of a staging area as requests use them: opened once, as long as their records stay the same.

MOST_OPEN: Final = 64


class OpenRepositories:
    """Areas by the names of their repositories. May be used by many threads."""

    def __init__(self, store: StagingStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._areas: OrderedDict[str, Area] = OrderedDict()

    def area(self, name: str) -> Area:
        """One repository; its record is read each time, because it may have been deleted and created again.

        Raises as `StagingStore.area`.
        """
        found = self._store.repositories.get(name)
        with self._lock:
            area = self._areas.get(name)
            if area is not None and area.repository == found:
                self._areas.move_to_end(name)
                return area
        area = self._store.area(name)
        with self._lock:
            self._areas[name] = area
            while len(self._areas) > MOST_OPEN:
                self._areas.popitem(last=False)
        return area


# Listings over the wire of the staging endpoint: pages of objects, and pages of differences.


class ListedObject(Wire):
    """One object of a listing, or a common prefix of keys."""

    key: str | None = None
    key_base64: str | None = None
    common_prefix: bool = False
    identity: str | None = None
    entry: ShownEntry | None = None
    bytes: int | None = None
    """Size of a value that is no entry."""


class ListedAnswer(Wire):
    """A page of a listing."""

    objects: tuple[ListedObject, ...]
    more: bool
    """Whether others follow: ask again with the last key as `after`."""


class DifferenceKind(StrEnum):
    """How an object differs."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class ObjectDifference(Wire):
    """One object that differs; identities are before and after."""

    key: str | None = None
    key_base64: str | None = None
    kind: DifferenceKind
    before: str | None = None
    after: str | None = None


class DifferencesAnswer(Wire):
    """A page of differences."""

    differences: tuple[ObjectDifference, ...]
    more: bool
    """Whether others follow: ask again with the last key as `after`."""


class PageQuery(Wire):
    """Which keys. Each of them has a form in base64 too."""

    model_config = ConfigDict(strict=False)

    prefix: Annotated[str, Field(max_length=MAX_KEY_BYTES)] = ""
    prefix_base64: Annotated[Base64, Field(max_length=LONGEST_BASE64)] = ""
    after: Annotated[str, Field(max_length=MAX_KEY_BYTES)] = ""
    """Only keys behind this one: the last of the page before."""
    after_base64: Annotated[Base64, Field(max_length=LONGEST_BASE64)] = ""
    amount: int = Field(default=MOST_LISTED, ge=1, le=MOST_LISTED)

    @property
    def prefix_bytes(self) -> bytes:
        return bytes_of(self.prefix, self.prefix_base64)

    @property
    def after_bytes(self) -> bytes:
        return bytes_of(self.after, self.after_base64)


class ObjectsQuery(PageQuery):
    """Which objects to list."""

    delimiter: Annotated[str, Field(max_length=16)] = ""
    """Keys that have it behind the prefix are listed once, as their common prefix."""


class DifferencesQuery(PageQuery):
    """Which differences to list."""

    since: Annotated[str, Field(max_length=512)] = ""
    """A reference to compare with; without it the commit of the branch: what is uncommitted."""


# The operations of the staging endpoint on one repository, in a thread: the library's flows, between wire models.

PAGE_BYTES: Final = 8 << 20
"""Of the objects of one page, approximately: one is never left out of the first place."""
One = TypeVar("One", bound=Wire)


def put(area: Area, branch: str, query: WriteQuery, framed: bytes) -> WrittenAnswer:
    """Raises as `Writer.set_if`."""
    writer, key = Writer(area), query.key_bytes
    if query.if_absent or query.if_identity is not None:
        expected = None if query.if_identity is None else bytes.fromhex(query.if_identity)
        writer.set_if(branch, key, framed, WriteCondition(expected))
    else:
        writer.set(branch, key, framed)
    return WrittenAnswer(identity=identity_text(framed) or "")


def delete(area: Area, branch: str, query: ObjectQuery) -> DeletedAnswer:
    """Raises as `Writer.delete`."""
    Writer(area).delete(branch, query.key_bytes)
    return DeletedAnswer()


def change(area: Area, branch: str, lines: Sequence[tuple[ChangeLine, bytes]]) -> ChangedAnswer:
    """`lines`: with the framed value of each that writes. Raises as `Writer.set_many` and `Writer.delete_many`."""
    last = {line.key_bytes: (line, framed) for line, framed in lines}
    written = [(key, framed) for key, (line, framed) in last.items() if line.op is ChangeOperation.PUT]
    deleted = [key for key, (line, _) in last.items() if line.op is ChangeOperation.DELETE]
    writer = Writer(area)
    if written:
        writer.set_many(branch, written)
    if deleted:
        writer.delete_many(branch, deleted)
    if not last:
        area.branches.get(branch)
    return ChangedAnswer(written=len(written), deleted=len(deleted))


def commit(area: Area, branch: str, request: CommitRequest, *, caller: str) -> CommitAnswer:
    """Raises as `Committer.commit`."""
    draft = CommitDraft(request.committer or caller, request.message, request.metadata)
    done = Committer(area).commit(branch, draft, allow_empty=request.allow_empty)
    return CommitAnswer(id=done.id, metarange=done.meta_range_id, parents=done.parents)


def reset(area: Area, branch: str, request: ResetRequest) -> ResetAnswer:
    """Raises as `Resetter`."""
    resetter = Resetter(area, Writer(area))
    if request.all:
        resetter.reset(branch)
    elif request.prefix is not None or request.prefix_base64 is not None:
        resetter.reset_prefix(branch, bytes_of(request.prefix, request.prefix_base64))
    else:
        resetter.reset_key(branch, bytes_of(request.key, request.key_base64))
    return ResetAnswer()


def get(area: Area, reference: str, query: ReadQuery) -> ObjectAnswer | None:
    """None: the reference does not show it. Raises as `Reader.get`."""
    found = Reader(area).get(reference, query.key_bytes, stage_only=query.staged_only)
    return None if found is None else object_answer(found)


def listing(area: Area, reference: str, query: ObjectsQuery) -> ListedAnswer:
    """Raises as `Reader.list`."""
    page = Reader(area).list(
        reference,
        prefix=query.prefix_bytes,
        after=query.after_bytes,
        delimiter=query.delimiter.encode(),
        amount=query.amount,
    )
    objects, cut = _bounded(page.entries, _listed, lambda item: len(item.key) + len(item.value or b""))
    return ListedAnswer(objects=objects, more=page.more or cut)


def differences(area: Area, branch: str, query: DifferencesQuery) -> DifferencesAnswer:
    """Raises as `Reader.diff`."""
    reader, bounds = Reader(area), {"prefix": query.prefix_bytes, "after": query.after_bytes}
    area.branches.get(branch)
    page = (
        reader.diff(query.since, branch, amount=query.amount, **bounds)
        if query.since
        else reader.uncommitted(branch, amount=query.amount, **bounds)
    )
    return DifferencesAnswer(differences=tuple(map(_difference, page.entries)), more=page.more)


Entry = TypeVar("Entry")


def _bounded(
    entries: Iterable[Entry], shown: Callable[[Entry], One], size: Callable[[Entry], int]
) -> tuple[tuple[One, ...], bool]:
    """Entries until they are too large together, and whether some were left out."""
    found: list[One] = []
    total = 0
    for entry in entries:
        total += size(entry)
        if found and total > PAGE_BYTES:
            return tuple(found), True
        found.append(shown(entry))
    return tuple(found), False


def _listed(listed: Listed) -> ListedObject:
    key = text_or_base64("key", listed.key)
    if listed.value is None:
        return ListedObject(**key, common_prefix=True)
    return ListedObject(**key, **listed_value(listed.value))


def _difference(difference: RecordDifference) -> ObjectDifference:
    return ObjectDifference(
        **text_or_base64("key", difference.key),
        kind=DifferenceKind[difference.kind.name],
        before=identity_text(difference.left),
        after=identity_text(difference.right),
    )
