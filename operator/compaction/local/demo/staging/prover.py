"""The reader that proves it: every record of each branch, a stretch of keys at a time, compared with its model."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compaction.errors import CompactionError
from compaction.local.demo.staging.entries import TOTAL, EntryColumns, decode_entries, key_of
from compaction.local.demo.staging.model import BranchModel, Moment
from compaction.staging.errors import CorruptRangeError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.views import View, effective, read_consistently
from compaction.staging.format.columns import concatenated

STRETCH: Final = 50_000
PAUSE_SECONDS: Final = 0.05
REMEMBERED: Final = 3


@dataclass(frozen=True, slots=True)
class ProvedStretch:
    """The records `first` to `last` of a branch. `exact`: no change was made meanwhile; `seconds`: of the reading."""

    branch: str
    first: int
    last: int
    records: int
    different: tuple[int, ...]
    exact: bool
    seconds: float

    def difference(self) -> str:
        """What is not as it should be, for a person."""
        keys = ", ".join(key_of(number).decode() for number in self.different[:REMEMBERED])
        return f"{self.branch}: {len(self.different)} records differ: {keys}"


@dataclass
class StagingProver:
    """Reads and compares until `stopped`. `damaged`: the range that is damaged now, of branch `where`: there an error
    that names it is right, and counted in `refused`. `states`: of branches that were read (commit, base and tokens).
    """

    area: Area
    models: Mapping[str, BranchModel]
    stopped: threading.Event = field(default_factory=threading.Event)
    damaged: tuple[str, str] | None = None
    proven: int = 0
    exact: int = 0
    again: int = 0
    refused: int = 0
    records: int = 0
    states: set[tuple[str, ...]] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    error: CompactionError | None = None

    def run(self) -> None:
        """One branch after the other, from its first record to its last."""
        try:
            while not self.stopped.is_set():
                for name in self.models:
                    for first in range(0, TOTAL, STRETCH):
                        seconds = self._one(name, first, min(first + STRETCH, TOTAL))
                        # A third of the time at most: it is the workers' machine too.
                        if self.stopped.wait(max(PAUSE_SECONDS, 2 * seconds)):
                            return
        except CompactionError as error:
            self.error = error

    def prove(self, name: str) -> list[ProvedStretch]:
        """All of a branch. Raises CompactionError: it could not be read."""
        return [self._prove(name, first, min(first + STRETCH, TOTAL)) for first in range(0, TOTAL, STRETCH)]

    def _one(self, name: str, first: int, last: int) -> float:
        began, expected_damage = time.monotonic(), self.damaged
        try:
            self._prove(name, first, last)
        except TooManyTriesError:
            self.again += 1
        except CorruptRangeError as error:
            damage = self.damaged or expected_damage
            if damage is None or name != damage[0] or damage[1] not in str(error):
                raise
            self.refused += 1
        return time.monotonic() - began

    def _prove(self, name: str, first: int, last: int) -> ProvedStretch:
        began, model = time.monotonic(), self.models[name]
        moment = model.moment(first, last)
        found = self.read(name, first, last)
        since = model.since(moment)
        wrong = tuple(moment.differences(found, since).tolist())
        proved = ProvedStretch(name, first, last, len(found), wrong, not since, time.monotonic() - began)
        self.proven += not wrong
        self.exact += proved.exact and not wrong
        self.records += len(found)
        if wrong and len(self.different) < REMEMBERED:
            self.different.append(proved.difference())
        return proved

    def shows(self, reference: str, moment: Moment) -> bool:
        """Whether a reference that no writer changes shows exactly the state of a moment. Raises CompactionError."""
        return not any(
            len(Moment(first, moment.versions[first:last], 0).differences(self.read(reference, first, last), []))
            for first, last in ((at, min(at + STRETCH, TOTAL)) for at in range(0, TOTAL, STRETCH))
        )

    def read(self, reference: str, first: int, last: int) -> EntryColumns:
        """Every record from number `first` to `last`, as the reference shows them. Raises CompactionError."""
        stop = key_of(last) if last < TOTAL else None
        states: list[tuple[str, ...]] = []

        def read(view: View) -> EntryColumns:
            states.append((reference, view.metarange_id, *view.tokens))
            return decode_entries(concatenated(list(effective(self.area, view, key_of(first), stop))))

        found = read_consistently(self.area, reference, read)
        self.states.add(states[-1])
        return found
