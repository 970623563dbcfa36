"""What of a round runs, and what a trigger does meanwhile (docs/design/catalog-compaction.md#processes)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from compaction.api.catalog.reasons import Process


class Trigger(StrEnum):
    """Why a round begins; an earlier one in this list is named when several are remembered."""

    NEW_TERM = "NewTerm"
    SPEC_CHANGED = "SpecChanged"
    WATERMARK = "Watermark"
    INTERVAL = "Interval"


class Stage(StrEnum):
    """Where a round is."""

    IDLE = "Idle"
    ASKING = "Asking"
    ACTING = "Acting"
    """The answers are there; one of the two processes runs, or both."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The round of one catalog. `running` is empty except while acting. `trigger` began the round that runs;
    `remembered` begins the next one, when both processes of this one have ended.
    """

    stage: Stage = Stage.IDLE
    running: frozenset[Process] = frozenset()
    trigger: Trigger | None = None
    remembered: Trigger | None = None

    def triggered(self, trigger: Trigger) -> Processes:
        """A trigger begins a round, or is remembered while one runs: what it is about may have come too late for it."""
        if self.stage is Stage.IDLE:
            return Processes(Stage.ASKING, trigger=trigger)
        return replace(self, remembered=_first(self.remembered, trigger))

    def answered(self) -> Processes:
        """All answers are there, or have failed to come: both processes begin, side by side. ValueError when no answer
        is awaited.
        """
        if self.stage is not Stage.ASKING:
            raise ValueError(f"answers arrive while the round is {self.stage}")
        return replace(self, stage=Stage.ACTING, running=frozenset(Process))

    def ended(self, process: Process) -> Processes:
        """One process has ended, whatever the other does; after both a remembered trigger begins the next round.
        ValueError when it does not run.
        """
        if process not in self.running:
            raise ValueError(f"{process} ends and does not run")
        running = self.running - {process}
        if running:
            return replace(self, running=running)
        ended = Processes()
        return ended if self.remembered is None else ended.triggered(self.remembered)

    def runs(self, process: Process) -> bool:
        """Whether this process has begun and not ended."""
        return process in self.running


def _first(one: Trigger | None, other: Trigger) -> Trigger:
    order = tuple(Trigger)
    return other if one is None or order.index(other) < order.index(one) else one
