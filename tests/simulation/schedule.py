"""The large faults of a schedule: what happens to processes, machines and the server, and what people do meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compaction.api.names import ANNOTATION_RUN_NOW, HOLD_LEASE
from compaction.core.reconcile.observations import Hold
from compaction.kube.hold import lease_of
from compaction.segments.directory import lock
from compaction.segments.errors import LockHeldError
from simulation.processes import Process, give_way

if TYPE_CHECKING:
    from simulation.world import SimulatedSystem

KINDS = (
    "crash-coordinator", "crash-coordinator", "pause-coordinator", "pause-coordinator", "cut-coordinator", "handover",
    "crash-worker", "crash-worker", "pause-worker", "pause-worker", "cut-worker", "evict-worker",
    "server-down", "compact-history", "clock-jump", "touch-job", "touch-lease", "delete-job-lease",
    "delete-worker-lease", "delete-job", "suspend", "hold-lock", "on-hold", "run-now",
)  # fmt: skip
BEGIN, END = 2.0, 45.0


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that begins at a moment and may last. `roll` chooses whom it strikes."""

    name: str
    kind: str
    at: float
    lasts: float
    roll: int


def happenings(world: SimulatedSystem) -> list[Happening]:
    """The plan of this seed; masked ones are left out."""
    plan = []
    for number in range(world.faults.dice("happenings").choice((0, 2, 4, 6, 8))):
        dice = world.faults.dice(f"happening/{number}")
        kind = dice.choice(KINDS)
        name = f"happening/{number}:{kind}"
        lasts = dice.choice((dice.uniform(0.5, 4.0), dice.uniform(4.0, 15.0), dice.uniform(15.0, 40.0)))
        one = Happening(name, kind, dice.uniform(BEGIN, END), lasts, dice.randrange(1000))
        if world.faults.strikes(name):
            plan.append(one)
    return plan


async def run_happening(world: SimulatedSystem, one: Happening) -> None:
    """Let it happen, and undo what passes."""
    await asyncio.sleep(one.at)
    coordinators = [p for p in world.processes if p.name.startswith("coordinator") and not p.dead]
    workers = world.launcher.running()
    victims = coordinators if one.kind.endswith("coordinator") or one.kind == "handover" else workers
    victim = victims[one.roll % len(victims)] if victims else None
    leading = [p for p in coordinators if p in world.stops]
    if one.kind.endswith("coordinator") and leading and one.roll % 3:
        victim = leading[-1]
    world.log(victim, f"{one.kind} for {one.lasts:.1f} s")
    match one.kind.partition("-")[0]:
        case "crash" if victim:
            victim.kill()
        case "pause" if victim:
            await _paused(victim, one.lasts)
        case "cut" if victim:
            world.network.cut.add(victim.name)
            await asyncio.sleep(one.lasts)
            world.network.cut.discard(victim.name)
        case "handover" if victim:
            if (stop := world.stops.get(victim)) is not None:
                victim.context.copy().run(stop.signal)
        case "evict" if victim:
            await world.launcher.of(victim).stop(
                world.launcher.of(victim)._observation(world.launcher.records[victim.name]).ref, grace=one.lasts
            )
        case "server":
            world.network.down = True
            await asyncio.sleep(one.lasts)
            world.network.down = False
        case _:
            await _people(world, one)


async def _paused(victim: Process, seconds: float) -> None:
    victim.pause()
    await asyncio.sleep(seconds)
    victim.resume()


async def _people(world: SimulatedSystem, one: Happening) -> None:
    """What somebody with kubectl, a clock or a shell does."""
    jobs = [job["metadata"]["name"] for job in world.server.all("compactionjobs")]
    leases = [lease["metadata"]["name"] for lease in world.server.all("leases")]
    leases.remove("compaction-coordinator") if "compaction-coordinator" in leases else None
    match one.kind:
        case "compact-history":
            world.server.compact()
        case "clock-jump":
            machine = ("machine-1", "machine-2", "workers")[one.roll % 3]
            if machine in world.clocks:
                world.set_clock(machine, (-3600.0, -20.0, 20.0, 3600.0)[one.roll % 4])
        case "touch-job" if jobs:
            _touch(world, "compactionjobs", jobs[one.roll % len(jobs)], one)
        case "touch-lease" if leases:
            _touch(world, "leases", leases[one.roll % len(leases)], one)
        case "delete-job-lease":
            mine = [name for name in leases if name in jobs]
            if mine:
                world.touch(mine[one.roll % len(mine)])
                world.server.remove("leases", mine[one.roll % len(mine)])
        case "delete-worker-lease":
            others = [name for name in leases if name not in jobs]
            if others:
                world.server.remove("leases", others[one.roll % len(others)])
        case "delete-job" if jobs:
            world.server.remove("compactionjobs", jobs[one.roll % len(jobs)])
        case "suspend":
            world.server.edit("compactionpolicies", "logs", lambda o: _suspend(o, suspend=True))
            await asyncio.sleep(one.lasts)
            world.server.edit("compactionpolicies", "logs", lambda o: _suspend(o, suspend=False))
        case "hold-lock":
            await _hold_lock(world, one)
        case "on-hold":
            hold = Hold("the disk moves", by="somebody", drain=one.roll % 2 == 0)
            world.server.add("leases", lease_of(hold, "default").body())
            await asyncio.sleep(one.lasts)
            world.server.remove("leases", HOLD_LEASE)
        case "run-now":
            world.server.edit("compactionpolicies", "logs", lambda o: _run_now(o, one.name))


def _touch(world: SimulatedSystem, plural: str, name: str, one: Happening) -> None:
    def note(obj: dict[str, Any]) -> None:
        obj["metadata"].setdefault("annotations", {})["example.com/note"] = one.name

    world.touch(name)
    world.server.edit(plural, name, note)


def _run_now(obj: dict[str, Any], value: str) -> None:
    obj["metadata"]["annotations"] = {**obj["metadata"].get("annotations", {}), ANNOTATION_RUN_NOW: value}


def _suspend(obj: dict[str, Any], *, suspend: bool) -> None:
    obj["spec"] = {**obj["spec"], "suspend": suspend}
    obj["metadata"]["generation"] += 1


async def _hold_lock(world: SimulatedSystem, one: Happening) -> None:
    """The owner's own tool has the lock of a log for a while."""
    logs = sorted(world.store.logs)
    process = world.process(f"owner-{one.roll}", machine="workers")

    def hold() -> None:
        with suppress(LockHeldError), lock.hold(logs[one.roll % len(logs)], holder="owner", timeout=10.0):
            give_way(min(one.lasts, 20.0))

    process.thread(hold)
    await asyncio.sleep(45.0)
    process.kill(0)


# Which faults a schedule injects: a pure function of the seed and of the moment's name, as far as they are allowed.
#
# Every moment at which something may go wrong has a name that does not depend on the faults elsewhere
# (`worker-2/api/17`), and its own dice. So a fault can be left out and the others still strike where they did: that
# is what shrinking needs.


@dataclass
class Faults:
    """`allowed`: names of the only faults that may strike, None for all. `struck`: those that did, in order.

    `active` False: peace.
    """

    seed: int
    allowed: frozenset[str] | None = None
    struck: list[str] = field(default_factory=list)
    active: bool = True

    def dice(self, name: str) -> random.Random:
        """The dice of a moment."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))

    def chance(self, name: str, probability: float) -> bool:
        """Whether the fault of this name strikes."""
        if not self.active or probability <= 0 or self.dice(name).random() >= probability:
            return False
        return self.strikes(name)

    def choose(self, name: str, odds: Mapping[str, float]) -> str | None:
        """Which of several faults strikes at this moment, if any."""
        if not self.active:
            return None
        roll = self.dice(name).random()
        for kind, probability in odds.items():
            roll -= probability
            if roll < 0:
                return kind if self.strikes(f"{name}:{kind}") else None
        return None

    def strikes(self, name: str) -> bool:
        """A fault that was planned: it strikes if it is allowed to."""
        if self.allowed is not None and name not in self.allowed:
            return False
        self.struck.append(name)
        return True
