"""A replica of the operator: the real reconcile and the real save, over messages that are late or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from catalogs.simulation.users import START, User
from compaction.api.catalog.reasons import Reason
from compaction.catalogs.compaction.observations import (
    Ask,
    CatalogMemory,
    CatalogSnapshot,
    Delivered,
    Heard,
    LogRead,
    ReadLog,
    Result,
    SaveSnapshot,
    SendMinimum,
)
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered, history_of
from compaction.catalogs.errors import MinimumAheadError
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.operator.working import save
from compaction.catalogs.participants.reports import contradictions
from compaction.core.reconcile.observations import Moment

if TYPE_CHECKING:
    from catalogs.simulation.world import World

TIMEOUT = 10_000


@dataclass
class Replica:
    """`term`: transitions of the Lease when it was elected."""

    world: World
    name: str
    term: int
    offset: int = 0
    memory: CatalogMemory = field(default_factory=CatalogMemory)
    results: list[Result] = field(default_factory=list)
    asked: list[User] = field(default_factory=list)
    paused: bool = False
    _woken: int = 0

    @property
    def leads(self) -> bool:
        return self.world.leader is self and not self.paused

    def clock(self) -> int:
        return (START + self.world.schedule.now + self.offset) << 16

    def step(self) -> None:
        """One reconcile, when it leads; what it decides is on its way."""
        if not self.leads:
            return
        world, now = self.world, self.world.schedule.now
        version, catalog = world.version, world.stored()
        results, self.results = tuple(self.results), []
        moment = Moment((START + now + self.offset) / 1000, now / 1000)
        decision = reconcile(CatalogSnapshot("ns", "c", moment, catalog, self.name, self.term, results, self.memory))
        self.memory = decision.memory
        for task in decision.tasks:
            match task:
                case Ask():
                    self._ask(task.least)
                case ReadLog():
                    world.schedule.after(world.dice.uniform(5, 200), lambda: self._end(self._read()))
                case SaveSnapshot():
                    delay = world.dice.choice((5, 50, 20_000))
                    if delay == 20_000 and not world.peace:
                        # The replica is paused between the decision and the write, and another is elected.
                        world.schedule.after(2_000, world.elect)
                    world.schedule.after(delay, partial(self._save, task))
                case SendMinimum():
                    self._send(task)
        if decision.status is not None:
            world.write(version, decision.status.status)
        if decision.requeue_after is not None:
            world.schedule.after(decision.requeue_after * 1000 + 1, self.step)

    def _end(self, result: Result) -> None:
        self.results.append(result)
        self.world.schedule.after(1, self.step)

    def _ask(self, least: int) -> None:
        world = self.world
        token, world.claimed = world.log.claim(least), self.term
        started = self.clock()
        asked = self.asked = [user for user in world.users if user.found]
        answers: dict[str, ParticipantAnswer] = {}
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                silent = [Unanswered(user.name, Reason.NO_ANSWER, "lost") for user in asked if user.name not in answers]
                names = frozenset(user.name for user in asked)
                self._end(Heard(started, names, tuple(answers.values()), tuple(silent), token))

        def question(user: User) -> Callable[[], None]:
            def arrives() -> None:
                report = user.one.report()
                assert list(contradictions(report)) == []

                def answered() -> None:
                    if not ended:
                        answers[user.name] = ParticipantAnswer(report, started, self.clock())
                        if len(answers) == len(asked):
                            end()

                world.network.send(answered)

            return arrives

        for user in asked:
            world.network.send(question(user))
        world.schedule.after(TIMEOUT, end)

    def _read(self) -> LogRead:
        return LogRead(history_of(self.world.log.recover().events), self.clock())

    def _save(self, task: SaveSnapshot) -> None:
        world = self.world
        world.note_late(self)
        saved = save(world.log, task, ())
        if saved.outcome is SnapshotOutcome.SAVED:
            world.was_cut(task.candidate.version, self)
        self._end(saved)

    def _send(self, task: SendMinimum) -> None:
        world, missing = self.world, {user.name for user in self.asked}

        def arrives(user: User) -> Callable[[], None]:
            def store() -> None:
                try:
                    user.one.store_minimum(task.minimum)
                except MinimumAheadError as error:
                    world.refused.append(str(error))
                    return
                missing.discard(user.name)

            return store

        for user in self.asked:
            world.network.send(arrives(user))
        world.schedule.after(
            500, lambda: self._end(Delivered(task.minimum, tuple((name, "lost") for name in sorted(missing))))
        )
