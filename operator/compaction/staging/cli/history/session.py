"""What the operations of a history share: the store, and its repositories, each opened once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from compaction.errors import RecordTextError
from compaction.staging.cli.options import StagingPlace
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Committer
from compaction.staging.flows.importing import Importer
from compaction.staging.flows.merging import Merger
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.resetting import Resetter
from compaction.staging.flows.writing import Writer
from compaction.staging.store import StagingStore

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
class Session:
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
