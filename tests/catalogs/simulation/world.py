"""One run: a catalog, three participants, replicas of the operator, and everything that happens to them.

`simulate(seed)` lets faults happen, then peace, and says what did not hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from catalogs.simulation.replica import Replica
from catalogs.simulation.users import (
    AVAILABILITY,
    PARTITIONS,
    SKEW,
    START,
    UPDATE,
    Network,
    Schedule,
    SkewedClock,
    User,
)
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.reasons import UNDEFINED, Outcome, Reason
from compaction.catalogs.commands.command import CatalogCommand, batch
from compaction.catalogs.commands.schema_commands import (
    CreateIndex,
    CreateSchema,
    CreateSystemSchema,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from compaction.catalogs.commands.table_commands import AddColumns, DropTable
from compaction.catalogs.commands.zone_commands import CreateZone
from compaction.catalogs.manager.history import CatalogHistory
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import IndexStatus, hybrid
from compaction.catalogs.model.entries import VersionedUpdate
from support.catalogs.memory_log import MemoryUpdateLog
from support.catalogs.rounds import column, table
from support.cluster.orders import catalog_object

DELAY = 2_000
"""Milliseconds from the writing of a version to its activation. Participants know it sooner, also by a clock that is
ahead by the allowed skew: that is what the delay is for.
"""
TROUBLE, PEACE = 400_000, 90_000
NAMES = ("a", "b", "c")
SPEC: dict[str, Any] = {
    "topology": {"participants": list(NAMES), "assignments": [{"zone": "Z", "participants": list(NAMES)}]},
    "interval": "6s",
    "lowWatermark": {"updateInterval": f"{UPDATE}ms", "dataAvailability": f"{AVAILABILITY}ms"},
    "maxClockSkew": f"{SKEW}ms",
}


class Violated(AssertionError):
    """What did not hold, in which run, when."""


@dataclass
class Tally:
    """What a run did, so that one that did nothing does not count."""

    versions: int = 0
    cuts: int = 0
    restarts: int = 0
    terms: int = 0
    late: int = 0
    reasons: frozenset[str] = frozenset()


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.dice = seed, random.Random(seed)
        self.schedule = Schedule()
        self.network = Network(self.schedule, self.dice, loss=self.dice.choice((0.0, 0.01, 0.03)))
        self.log = MemoryUpdateLog()
        self.truth: list[Catalog] = []
        self.users = [User(name, number, SkewedClock(self.schedule)) for number, name in enumerate(NAMES)]
        self.status, self.version, self.generation = CatalogCompactionStatus(), 1, 1
        self.leader: Replica | None = None
        self.replicas: list[Replica] = []
        self.claimed, self.made = 0, 0
        self.refused: list[str] = []
        self.tally = Tally()
        self.peace = False
        self.registered: dict[int, int] = {}

    # -- the API server ------------------------------------------------------------------------------------------------

    def stored(self) -> CatalogCompaction:
        document = catalog_object(**SPEC)
        document["metadata"] |= {"uid": "u", "resourceVersion": str(self.version), "generation": self.generation}
        return CatalogCompaction.from_object(document | {"status": self.status.to_object()})

    def write(self, version: int, status: CatalogCompactionStatus) -> None:
        if version != self.version or self.dice.random() < 0.05:
            return
        self.status, self.version = CatalogCompactionStatus.from_object(status.to_object()), self.version + 1
        self._named(self.status)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def _fail(self, what: str) -> None:
        raise Violated(f"seed {self.seed}, {self.schedule.now} ms: {what}")

    def was_cut(self, version: int, by: Replica) -> None:
        """No participant asks for a version that was cut: the one before what it needs stays as well."""
        self.tally.cuts += 1
        if by.term < self.claimed:
            self._fail(f"{by.name} of term {by.term} cuts after term {self.claimed} has claimed the log")
        for user in self.users:
            active = CatalogHistory(self.truth).find_active(user.one.watermark.value)
            for needed, why in user.needs(active):
                if needed <= version and version > 1:
                    self._fail(f"cut to version {version}, and {user.name} needs {needed} and the one before for {why}")
        for index, since in self.registered.items():
            if since <= version:
                self._fail(f"cut to version {version}, and index {index} is under construction since {since}")

    def note_late(self, replica: Replica) -> None:
        """Count a save after another term has begun."""
        self.tally.late += self.leader is not replica

    def _named(self, status: CatalogCompactionStatus) -> None:
        """Each wait has a name, and a time since when."""
        for process in (status.compaction, status.propagation):
            if process is None:
                continue
            self.tally.reasons |= {process.reason}
            if process.reason not in set(Reason) or not process.message or process.since is None:
                self._fail(f"a wait without a name: {process}")
            if process.participant and process.participant not in NAMES:
                self._fail(f"{process.participant} is no participant")
            if process.outcome is Outcome.ABORTED and process.reason == Reason.NO_ANSWER and not process.participant:
                self._fail("no answer, of no participant")
        cut = status.compaction is not None and status.compaction.outcome is Outcome.SUCCEEDED
        if cut and status.debt_versions and status.required_time is None:
            self._fail("versions are left, and what needs them is not named")

    def check(self) -> None:
        """After everything that happens: what is needed is there."""
        for user in self.users:
            for needed, why in user.needs(None):
                if needed < self.log.earliest:
                    self._fail(f"{user.name} asks for version {needed} for {why}; earliest is {self.log.earliest}")

    # -- what happens --------------------------------------------------------------------------------------------------

    def ddl(self, *commands: CatalogCommand) -> None:
        latest = self.truth[-1] if self.truth else EMPTY
        update = VersionedUpdate(latest.version + 1, DELAY, batch(latest, commands, PARTITIONS).entries)
        timestamp = hybrid(START + self.schedule.now)
        assert self.log.append(update, timestamp)
        catalog = applied(latest, update, self.log.recover().events[-1].timestamp)
        self.truth.append(catalog)
        self.tally.versions += 1
        for user in self.users:
            self.schedule.after(self.dice.uniform(1, DELAY / 2), partial(user.learn, catalog))

    def change(self) -> None:
        """One change of the catalog, of any sort."""
        latest, self.made = self.truth[-1], self.made + 1
        names = sorted(item.name for item in latest.tables.values())
        building = [index for index in latest.indexes.values() if index.status is not IndexStatus.AVAILABLE]
        draw = self.dice.random()
        if building and self.dice.random() < 0.5:
            self._go_on_building(building[0].id, building[0].status)
        elif draw < 0.05 or not names:
            self.ddl(table(f"T{self.made}", "V", zone="Z"))
        elif draw < 0.1 and len(names) > 1:
            self.ddl(
                DropTable("PUBLIC", self.dice.choice([name for name in names if not self._indexed(name)] or names))
            )
        elif draw < 0.25 and not building:
            name = self.dice.choice(names)
            self.ddl(CreateIndex("PUBLIC", f"I{self.made}", name, ("V",)))
            index = max(self.truth[-1].indexes)
            self.registered[index] = self.truth[-1].version
        else:
            self.ddl(AddColumns("PUBLIC", self.dice.choice(names), (column(f"C{self.made}"),)))
        self.registered = {index: since for index, since in self.registered.items() if index in self.truth[-1].indexes}

    def _indexed(self, name: str) -> bool:
        latest = self.truth[-1]
        return any(latest.tables[latest.indexes[item].table_id].name == name for item in self.registered)

    def _go_on_building(self, index: int, status: IndexStatus) -> None:
        builder = self.users[index % len(self.users)]
        if status is IndexStatus.REGISTERED:
            self.ddl(StartBuildingIndex(index))
            builder.builds[index] = self.registered[index]
            builder.one.start_index_build(index)
        elif status is IndexStatus.BUILDING:
            self.ddl(MakeIndexAvailable(index))
            del self.registered[index]
            # Its builder may be a little behind: it still builds, and says so.
            self.schedule.after(self.dice.choice((1, 30_000)), lambda: self._built(builder, index))

    def _built(self, builder: User, index: int) -> None:
        del builder.builds[index]
        builder.one.end_index_build(index)

    def transact(self, user: User) -> None:
        """Begin, or write and finish."""
        if user.transactions and self.dice.random() < 0.6:
            begun = self.dice.choice(sorted(user.transactions))
            version = user.transactions[begun]
            keys = sorted(user.partitions)
            if keys:
                key = self.dice.choice(keys)
                for item in self.users:
                    if key in item.partitions:
                        item.partitions[key].entries.append(version)
            user.finish(begun)
        elif len(user.transactions) < 4:
            user.begin()

    def checkpoint(self, user: User) -> None:
        """One that ends a while later, as a rule well. A restart in between ends it too."""
        number = user.begin_checkpoint()
        succeeds = self.peace or self.dice.random() < 0.8
        self.schedule.after(self.dice.uniform(100, 8_000), lambda: user.finish_checkpoint(number, succeeds))

    def rebalance(self, user: User) -> None:
        """Begin or end; what moves needs the version that is active now."""
        if user.moves:
            zone = min(user.moves)
            del user.moves[zone]
            user.one.end_rebalance(zone)
        elif not self.peace:
            version, time = user.one.versions.active(user.clock())
            user.moves[0] = version
            user.one.start_rebalance(0, time)

    def restart(self, user: User) -> None:
        self.tally.restarts += 1
        user.restart(self.truth[self.log.earliest - 1].activation_time)

    def elect(self) -> None:
        """Another replica leads; the one before does not know, or is paused in the middle of its work."""
        self.tally.terms += 1
        replica = Replica(self, f"operator-{self.tally.terms}", self.tally.terms)
        self.replicas.append(replica)
        self.leader = replica
        replica.step()

    def jump(self, user: User) -> None:
        """The clock of a participant is off by up to an hour, for a while; a restart sets it right."""
        user.clock.offset = self.dice.choice((400, -400, 3_600_000))

        def back() -> None:
            user.clock.offset = 0
            self.restart(user)

        self.schedule.after(self.dice.uniform(5_000, 40_000), back)

    def jump_of_leader(self) -> None:
        """The coordinator's clock is off for a while."""
        leader = self.leader
        assert leader is not None
        leader.offset = self.dice.choice((-3_600_000, 3_600_000))

        def back() -> None:
            leader.offset = 0

        self.schedule.after(self.dice.uniform(5_000, 40_000), back)

    def vanish(self, user: User) -> None:
        """Its process is gone, and is back a while later."""
        user.found = False
        self.restart(user)

        def back() -> None:
            user.found = True

        self.schedule.after(self.dice.uniform(5_000, 60_000), back)

    def forever(self, mean: float, happens: Callable[[], object], *, also_in_peace: bool = False) -> None:
        """Again and again, at random times."""

        def once() -> None:
            if self.peace and not also_in_peace:
                return
            happens()
            self.schedule.after(self.dice.expovariate(1 / mean), once)

        self.schedule.after(self.dice.uniform(0, mean), once)

    def begin(self) -> None:
        """Everything starts."""
        self.ddl(CreateSchema("PUBLIC"), CreateSystemSchema("SYSTEM"))
        self.ddl(CreateZone("Z", ("default",), partitions=PARTITIONS, replicas=len(NAMES)))
        # Versions are active, and learnt in order, before anything else happens.
        self.schedule.run(2 * DELAY, lambda: None)
        for user in self.users:
            self.forever(4_000, partial(self.transact, user))
            self.forever(6_000, partial(self.checkpoint, user), also_in_peace=True)
            self.forever(UPDATE, user.move_watermark, also_in_peace=True)
            self.forever(40_000, partial(self.rebalance, user))
            self.forever(300_000, partial(self.restart, user))
            self.forever(700_000, partial(self.jump, user))
            self.forever(700_000, partial(self.vanish, user))
        self.forever(4_000, self._change_slowly)
        self.elect()
        self.forever(60_000, self.elect)
        self.forever(300_000, self.jump_of_leader)

    def _change_slowly(self) -> None:
        # A participant learns versions in the order in which they are written.
        if START + self.schedule.now > (self.truth[-1].activation_time >> 16):
            self.change()

    def calm(self) -> None:
        """Nothing happens any more, and what has begun ends."""
        self.peace, self.network.loss = True, 0.0
        latest = self.truth[-1]
        for index in sorted(latest.indexes.values(), key=lambda index: index.id):
            while (status := self.truth[-1].indexes[index.id].status) is not IndexStatus.AVAILABLE:
                self.schedule.run(self.schedule.now + 2 * DELAY, self.check)
                self._go_on_building(index.id, status)
        for user in self.users:
            for begun in sorted(user.transactions):
                user.finish(begun)
            if user.moves:
                self.rebalance(user)


def simulate(seed: int) -> Tally:
    """Raises Violated. What the run did."""
    world = World(seed)
    world.begin()
    world.schedule.run(TROUBLE, world.check)
    world.calm()
    world.schedule.run(TROUBLE + PEACE, world.check)
    latest, earliest = world.truth[-1].version, world.log.earliest
    if earliest != latest - 1:
        found = world.status.compaction
        world._fail(f"the history is {earliest} to {latest} although nothing pins it: {found}")
    if world.status.earliest_version != earliest or UNDEFINED in (world.status.fencing_token,):
        world._fail(f"the status says {world.status.earliest_version}, the log {earliest}")
    return world.tally
