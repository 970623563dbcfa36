"""The verdict on the demo of catalogs: pins, the reader that compares every version, one check for each claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.reasons import PINS, Reason
from compaction.catalogs.errors import CatalogNotFoundError
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.catalog import Catalog
from compaction.errors import CompactionError
from compaction.local.tenants import Check
from demos.catalog.history import StoredVersions
from demos.catalog.nodes import Model, Node, Recorded, digest

# The pins, one after the other: what holds history, where it must begin meanwhile, and how the pin is released.


@dataclass(frozen=True, slots=True)
class PinScene:
    """One pin. `first`: the version that history must begin with while it holds; `participant`: "" when none is to be
    named. `released`: what ends it, for a person; `release`: does that.
    """

    reason: Reason
    participant: str
    first: int
    released: str
    release: Callable[[], object]

    @property
    def title(self) -> str:
        """The pin by its name."""
        return f"{self.reason.value} of {self.participant}" if self.participant else self.reason.value


@dataclass(frozen=True, slots=True)
class Shown:
    """What a scene came to. `needed`: earliest version that a participant asked for; `rounds`: that ended while the pin
    held and cut nothing more.
    """

    scene: PinScene
    status: CatalogCompactionStatus
    since: datetime | None
    needed: int
    rounds: int

    @property
    def holds(self) -> bool:
        """Whether the pin was named, and history began where it must."""
        return shows(self.status, self.scene) and self.rounds > 0 and self.needed >= self.scene.first


def shows(status: CatalogCompactionStatus, scene: PinScene) -> bool:
    """Whether a status names the pin of a scene, and begins where it must."""
    ended = status.compaction
    return (
        ended is not None
        and ended.reason == scene.reason
        and ended.participant == scene.participant
        and status.earliest_version == scene.first
    )


def since_of(status: CatalogCompactionStatus) -> datetime | None:
    """Since when the pin holds, from the required time where that names it."""
    pin, ended = status.required_time, status.compaction
    if pin is not None and ended is not None and ended.reason in PINS and pin.reason == ended.reason:
        return pin.since or ended.since
    return None if ended is None else ended.since


def needed_by(nodes: list[Node], model: Model) -> int:
    """The earliest version that a participant asks for, from its own report; the last one when none asks.
    Raises DemoError.
    """
    times: list[int] = []
    for node in nodes:
        report = node.report()
        times += [int(report["transactions"]), int(report["lowWatermark"])]
        times += [int(item["minimum"]) for item in report["partitions"]]
    versions = [model.active(at).version for at in times if at]
    return min(versions, default=model.all()[-1].version)


def status_of(catalog: CatalogCompaction) -> str:
    """The state of a catalog in one line."""
    status = catalog.status
    if status.earliest_version is None or status.compaction is None:
        return "no round has read the log yet"
    ended = status.compaction
    who = f" of {ended.participant}" if ended.participant else ""
    what = f", {ended.subject}" if ended.subject else ""
    return f"versions {status.earliest_version} to {status.latest_version}; {ended.reason}{who}{what}"


# The reader that proves it: at every time that is allowed, the catalog is the one that was written; at every time
# before, it is refused by name.
#
# It reads as a process that follows the log all the time, and now and then as one that has just started.

PAUSE_SECONDS: Final = 0.3
FRESH_EVERY: Final = 5
"""One reading of so many is that of a process that has just started."""
REMEMBERED: Final = 3


@dataclass
class CatalogProver:
    """Reads and compares until `stopped`.

    `follow`: the history of the process that follows; `fresh`: that of one that starts now. `proven`: times at which
    the version was the one that was written; `refused`: times and numbers of versions that were cut, refused as such;
    `earliest`: every first version that was ever seen, in order; `readings`: of the whole history, `started` of them
    by processes that had just started.
    """

    model: Model
    follow: Callable[[], CatalogHistory]
    fresh: Callable[[], CatalogHistory]
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
        recorded = [item for item in self.model.all() if item.version <= history.latest.version]
        first = max(1, history.earliest.version)
        if not fresh and self.earliest[-1:] != [first]:
            self.earliest.append(first)
        for item, end in zip(recorded, _ends(recorded), strict=True):
            if item.version < first:
                self._refuse(history, item, end)
            else:
                self._equal(history, item, end)

    def _equal(self, history: CatalogHistory, recorded: Recorded, end: int) -> None:
        for at in (recorded.activation, end):
            try:
                found = history.active(at)
            except CatalogNotFoundError as error:
                self._differ(f"version {recorded.version} at {at}: {error}")
                continue
            if found.version != recorded.version:
                self._differ(f"at {at} version {found.version} is active, {recorded.version} was written")
            elif at == recorded.activation and digest(found) != recorded.digest:
                self._differ(f"version {recorded.version} has other descriptors than were written")
            else:
                self.proven += 1

    def _refuse(self, history: CatalogHistory, recorded: Recorded, end: int) -> None:
        reads: tuple[Callable[[], Catalog], ...] = (
            partial(history.active, recorded.activation),
            partial(history.active, end),
            partial(history.catalog, recorded.version),
        )
        for read in reads:
            try:
                found = read()
            except CatalogNotFoundError:
                self.refused += 1
                continue
            self._differ(f"version {recorded.version} was cut, and version {found.version} is read in its place")

    def _differ(self, what: str) -> None:
        self.wrong += 1
        if len(self.different) < REMEMBERED:
            self.different.append(what)


def _ends(recorded: Sequence[Recorded]) -> Iterator[int]:
    """The last moment of each: before the next one, and for the last one its first."""
    yield from (later.activation - 1 for later in recorded[1:])
    if recorded:
        yield recorded[-1].activation


# The verdict: for every claim of the demo one check, from the model, from the reader, from etcd, and from what the
# API server says.

KEPT: Final = 2
"""The last version and the one before it always stay."""


@dataclass(frozen=True, slots=True)
class CatalogStory:
    """Everything that was seen, of which `checks` judges. `first`: the version that the history must begin with at the
    end; `leaks`: where the shared secret was found.
    """

    shown: Sequence[Shown]
    status: CatalogCompactionStatus
    first: int
    prover: CatalogProver
    before: StoredVersions
    after: StoredVersions
    leaks: Sequence[str]
    replicas_alive: int

    @property
    def steps(self) -> list[int]:
        """The versions that history must have begun with, in order, each once."""
        found: list[int] = []
        for item in (*(each.scene.first for each in self.shown), self.first):
            if found[-1:] != [item]:
                found.append(item)
        return found


def checks(story: CatalogStory) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_pin(item) for item in story.shown),
        _not_one_further(story),
        _short(story),
        _equal(story.prover),
        _refused(story.prover),
        _bytes(story),
        Check(
            "the shared secret is in no object, log or process", not story.leaks, ", ".join(story.leaks) or "none found"
        ),
        Check(
            "one replica led while the other stood by",
            story.replicas_alive == 2 and bool(story.status.coordinator),
            f"led by {story.status.coordinator or 'none'}",
        ),
    ]


def _pin(shown: Shown) -> Check:
    status, ended = shown.status, shown.status.compaction
    subject = f", {ended.subject}" if ended is not None and ended.subject else ""
    fact = f"versions {status.earliest_version} to {status.latest_version} through {shown.rounds} rounds{subject}"
    if not shown.holds:
        named = "nothing" if ended is None else f"{ended.reason} {ended.participant}"
        fact = f"{fact}; {named} is named, and version {shown.needed} is asked for"
    return Check(f"{shown.scene.title} is named, and holds version {shown.scene.first}", shown.holds, fact)


def _not_one_further(story: CatalogStory) -> Check:
    seen = story.prover.earliest
    return Check(
        "history begins where the rules say, and not one version further",
        seen == story.steps,
        " -> ".join(map(str, seen)) + ("" if seen == story.steps else f", expected {story.steps}"),
    )


def _short(story: CatalogStory) -> Check:
    status, left = story.status, story.after.versions
    holds = status.earliest_version == story.first and left == KEPT and status.versions_cut == story.first - 1
    return Check(
        "nothing is left but the two versions that always stay",
        holds,
        f"versions {status.earliest_version} to {status.latest_version}, {left} in etcd, {status.versions_cut} cut",
    )


def _equal(prover: CatalogProver) -> Check:
    holds = prover.error is None and not prover.wrong and prover.proven > 0 and prover.started > 0
    fact = (
        f"{prover.proven} times equal, {prover.wrong} different; {prover.readings} readings, {prover.started} by new "
        "processes"
    )
    if not holds:
        fact = "; ".join([str(prover.error)] if prover.error is not None else prover.different) or fact
    return Check("active(t) is what was written, for every allowed t, all the time", holds, fact)


def _refused(prover: CatalogProver) -> Check:
    holds = prover.refused > 0 and prover.error is None and not prover.wrong
    return Check("versions that were cut are refused by name", holds, f"{prover.refused} times CatalogNotFoundError")


def _bytes(story: CatalogStory) -> Check:
    before, after = story.before.bytes, story.after.bytes
    cut = story.status.bytes_cut
    return Check(
        "etcd holds fewer bytes",
        after < before and cut > 0,
        f"{before} -> {after} of keys and values; {cut} of updates were cut",
    )
