"""The pins, one after the other: what holds history, where it must begin meanwhile, and how the pin is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from compaction.api.catalog.reasons import PINS, Reason
from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.local.demo.catalog.model import Model
from compaction.local.demo.catalog.nodes import Node


@dataclass(frozen=True, slots=True)
class Scene:
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

    scene: Scene
    status: CatalogCompactionStatus
    since: datetime | None
    needed: int
    rounds: int

    @property
    def holds(self) -> bool:
        """Whether the pin was named, and history began where it must."""
        return shows(self.status, self.scene) and self.rounds > 0 and self.needed >= self.scene.first


def shows(status: CatalogCompactionStatus, scene: Scene) -> bool:
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
        times += [int(one["minimum"]) for one in report["partitions"]]
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
