"""The reader that proves it: at every time that is allowed, the catalog is the one that was written; at every time
before, it is refused by name.

It reads as a process that follows the log all the time, and now and then as one that has just started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from compaction.catalogs.errors import CatalogNotFoundError
from compaction.catalogs.manager.history import History
from compaction.catalogs.model.catalog import Catalog
from compaction.errors import CompactionError
from compaction.local.demo.catalog.model import Model, Recorded, digest

PAUSE_SECONDS: Final = 0.3
FRESH_EVERY: Final = 5
"""One reading of so many is that of a process that has just started."""
REMEMBERED: Final = 3


@dataclass
class Prover:
    """Reads and compares until `stopped`.

    `follow`: the history of the process that follows; `fresh`: that of one that starts now. `proven`: times at which
    the version was the one that was written; `refused`: times and numbers of versions that were cut, refused as such;
    `earliest`: every first version that was ever seen, in order; `readings`: of the whole history, `started` of them
    by processes that had just started.
    """

    model: Model
    follow: Callable[[], History]
    fresh: Callable[[], History]
    stopped: threading.Event = field(default_factory=threading.Event)
    proven: int = 0
    refused: int = 0
    readings: int = 0
    started: int = 0
    different: list[str] = field(default_factory=list)
    wrong: int = 0
    earliest: list[int] = field(default_factory=list)
    error: CompactionError | None = None

    def run(self) -> None:
        """One reading after the other."""
        try:
            while not self.stopped.is_set():
                begun = time.monotonic()
                self.prove()
                # A quarter of the time at most: the operator is on the same machine.
                self.stopped.wait(max(PAUSE_SECONDS, 3 * (time.monotonic() - begun)))
        except CompactionError as error:
            self.error = error

    def prove(self) -> None:
        """Every version that was written, at its first and its last moment. Raises CatalogError."""
        fresh = self.readings % FRESH_EVERY == FRESH_EVERY - 1
        history = self.fresh() if fresh else self.follow()
        self.started += fresh
        self.readings += 1
        # A version that is read was recorded a moment later at most: what is not recorded yet is left to the next one.
        recorded = [one for one in self.model.all() if one.version <= history.latest.version]
        first = max(1, history.earliest.version)
        if not fresh and self.earliest[-1:] != [first]:
            self.earliest.append(first)
        for one, end in zip(recorded, _ends(recorded), strict=True):
            if one.version < first:
                self._refuse(history, one, end)
            else:
                self._equal(history, one, end)

    def _equal(self, history: History, one: Recorded, end: int) -> None:
        for at in (one.activation, end):
            try:
                found = history.active(at)
            except CatalogNotFoundError as error:
                self._differ(f"version {one.version} at {at}: {error}")
                continue
            if found.version != one.version:
                self._differ(f"at {at} version {found.version} is active, {one.version} was written")
            elif at == one.activation and digest(found) != one.digest:
                self._differ(f"version {one.version} has other descriptors than were written")
            else:
                self.proven += 1

    def _refuse(self, history: History, one: Recorded, end: int) -> None:
        reads: tuple[Callable[[], Catalog], ...] = (
            partial(history.active, one.activation),
            partial(history.active, end),
            partial(history.catalog, one.version),
        )
        for read in reads:
            try:
                found = read()
            except CatalogNotFoundError:
                self.refused += 1
                continue
            self._differ(f"version {one.version} was cut, and version {found.version} is read in its place")

    def _differ(self, what: str) -> None:
        self.wrong += 1
        if len(self.different) < REMEMBERED:
            self.different.append(what)


def _ends(recorded: Sequence[Recorded]) -> Iterator[int]:
    """The last moment of each: before the next one, and for the last one its first."""
    yield from (later.activation - 1 for later in recorded[1:])
    if recorded:
        yield recorded[-1].activation
