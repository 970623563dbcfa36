"""Sessions of `compactor staging debug exec`: fields and results of operations, and the repositories that they open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from compaction.cli import histories
from compaction.cli.histories import BASE64, Result, text_fields
from compaction.errors import RecordTextError
from compaction.staging.cli.options import StagingPlace
from compaction.staging.cli.values import (
    bytes_of_hex,
    entry_from,
    entry_object,
    entry_of,
    entry_value,
    parts_of,
    raw_value,
)
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Committer, Importer, Merger
from compaction.staging.flows.reading import DiffPage, Reader, RecordPage
from compaction.staging.flows.writing import Resetter, Writer
from compaction.staging.format.messages import CommitData

if TYPE_CHECKING:
    from compaction.staging.store import StagingStore

# The fields of an operation on a staging area: those of every history, and records with their framed values.

_VALUE: Final = ("value", "value" + BASE64, "entry", "identity")
_RECORD: Final = frozenset({"key", "key" + BASE64, *_VALUE})


@dataclass(frozen=True, slots=True)
class RecordFields(histories.Fields):
    """The fields of one operation, or of one record of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar = frozenset({"key", "keys", "value", "prefix", "prefixes", "after", "delimiter", "if_value"})

    def value(self) -> bytes:
        """A framed value: of `value` (with its `identity`, or that of its bytes), or of an `entry`."""
        if "entry" in self.given:
            if not isinstance(self.given["entry"], dict) or self.given.keys() & {"value", "value" + BASE64, "identity"}:
                raise RecordTextError(f'"entry" of {self.what} is an object, without a value or identity beside it')
            return entry_value(entry_from(self.given["entry"]))
        identity = bytes_of_hex(self.given["identity"], "identity") if self.has("identity") else None
        return raw_value(self.data("value"), identity)

    def records(self) -> list[tuple[bytes, bytes]]:
        """Keys and framed values of `values` (an object of texts), or of `records` (a list with a value each)."""
        if "values" in self.given:
            if "records" in self.given:
                raise RecordTextError(f'{self.what} has "values" or "records", not both')
            pairs = self.texts("values").items()
            records = [RecordFields({"key": key, "value": value}, self.what) for key, value in pairs]
        else:
            records = [RecordFields(record, "a record") for record in self.objects("records")]
        for record in records:
            record.check(_RECORD)
        return [(record.data("key"), record.value()) for record in records]


# Results of operations as plain objects.


def key_fields(key: bytes, name: str = "key") -> dict[str, str]:
    """A key as text, or in base64 when it is none."""
    return text_fields(name, key, BASE64)


def value_fields(value: bytes) -> dict[str, Any]:
    """A framed value: identity, and the entry, or the data as text, or in base64."""
    identity, data = parts_of(value)
    entry = entry_of(identity, data)
    shown = text_fields("value", data, BASE64) if entry is None else {"entry": entry_object(entry)}
    return {"identity": identity.hex(), **shown}


def page_result(page: RecordPage) -> Result:
    """A page of a listing: records, and common prefixes."""
    entries = [
        key_fields(entry.key, "prefix")
        if entry.value is None
        else {**key_fields(entry.key), **value_fields(entry.value)}
        for entry in page.entries
    ]
    return {"entries": entries, "more": page.more}


def diff_result(page: DiffPage) -> Result:
    """A page of differences."""
    entries = [
        {
            **key_fields(entry.key),
            "kind": entry.kind.name.lower(),
            "left": None if entry.left is None else value_fields(entry.left),
            "right": None if entry.right is None else value_fields(entry.right),
        }
        for entry in page.entries
    ]
    return {"entries": entries, "more": page.more}


def commit_result(commit: CommitData) -> Result:
    """A commit: its id and its tree."""
    return {"commit": commit.id, "metarange": commit.meta_range_id}


# The shared parts of the operations of a history: the store, and its repositories, each opened once.

COMMITTER: Final = "exec"
"""Who commits, when an operation does not say: the same for every user, so that commits have the same ids."""


class SteppingClock:
    """Seconds since 1970 that pass with the operations only, one for each."""

    def __init__(self, start: int) -> None:
        self._now = start - 1

    def step(self) -> None:
        """The next operation."""
        self._now += 1

    def __call__(self) -> float:
        return float(self._now)


@dataclass(frozen=True, slots=True)
class OpenArea:
    """One repository with all its flows."""

    area: Area
    reader: Reader
    writer: Writer
    committer: Committer
    merger: Merger
    resetter: Resetter
    importer: Importer

    @classmethod
    def of(cls, area: Area) -> OpenArea:
        """Flows without hooks."""
        writer, committer = Writer(area), Committer(area)
        merger = Merger(area, committer)
        return cls(area, Reader(area), writer, committer, merger, Resetter(area, writer), Importer(area, merger))


@dataclass(slots=True)
class RepositorySession:
    """A history that runs. `repository`: the one of operations that name none, "" when they have to."""

    place: StagingPlace
    store: StagingStore
    repository: str = ""
    _areas: dict[str, OpenArea] = field(default_factory=dict)

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds since 1970."""
        return self.store.clock

    def name(self, given: str) -> str:
        """The repository that an operation is about. RecordTextError: neither it nor the command names one."""
        if not (given or self.repository):
            raise RecordTextError('the operation needs "repo": the command names no repository (--repo)')
        return given or self.repository

    def open(self, given: str) -> OpenArea:
        """A repository, opened by the first operation that needs it. Raises as `StagingPlace.check` and
        `StagingStore.area`.
        """
        name = self.name(given)
        if name not in self._areas:
            self.place.check()
            self._areas[name] = OpenArea.of(self.store.area(name))
        return self._areas[name]

    def create(self, given: str, namespace: str, *, committer: str, default_branch: str) -> None:
        """A new repository. Raises as `StagingStore.create`."""
        replace(self.place, may_be_new=True).check()
        area = self.store.create(self.name(given), namespace, committer=committer, default_branch=default_branch)
        self._areas[area.repository.name] = OpenArea.of(area)
