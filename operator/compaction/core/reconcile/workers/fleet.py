"""The workers of a policy: who lives, who is starting, who is gone, who has room, and whether to start another.

A worker's Lease is the truth about its life, its launcher's view a hint that is faster (kube/launchers/base.py): a
process that has ended is gone at once, one that has not announced itself yet is starting, one that never does is
stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import WorkerTrouble
from compaction.api.names import worker_stem
from compaction.api.policy.resource import CompactionPolicySpec
from compaction.core.planning.scheduler import WorkerSlots
from compaction.core.reconcile.actions import Announce, DeleteLease, ForgetWorker, StopWorker
from compaction.core.reconcile.jobs.steps import GoneWorker
from compaction.core.reconcile.memory import WorkerMemory, frozen
from compaction.core.reconcile.observations import PolicySnapshot, WorkerLease, WorkerProcess
from compaction.core.reconcile.workers.launching import PATIENT, STOP_GRACE, launching
from compaction.registry import kind_of

DEAD_AFTER_LEASES: Final = 3.0
"""A worker silent for so many times its lease is stopped, should it still hang somewhere."""
FRESH: Final = 0.5
"""A worker renews three times per lease: one silent for half of it gets nothing new (it may be dead)."""
OUTDATED: Final = "was started with other settings than spec.workers has now"
GIVEN_BACK: Final = "is released: another policy waits for one of the shared workers (--max-workers)"
_SETTINGS: Final = re.compile(r"-w-([0-9a-f]{4})-[0-9a-f]{5}$")
HOPELESS: Final = 3
"""A worker that waited in vain for its image or pod counts as so many failed launches: the next one will, too."""
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that scheduling counts, and what has to be done about the others.

    `launching` counts workers that were started and have not announced themselves, `trouble` is what one of them waits
    for; `memory` has the launches brought up to date.
    """

    slots: tuple[WorkerSlots, ...]
    live: int
    launching: int
    memory: WorkerMemory
    stops: tuple[StopWorker, ...] = ()
    forgets: tuple[ForgetWorker, ...] = ()
    delete_leases: tuple[DeleteLease, ...] = ()
    events: tuple[Announce, ...] = ()
    next_look: float | None = None
    trouble: WorkerProcess | None = None

    @property
    def free(self) -> int:
        """Free slots of all live workers."""
        return sum(worker.free for worker in self.slots)


def gone_workers(snapshot: PolicySnapshot) -> Mapping[str, GoneWorker]:
    """The workers that jobs name and that are known to be gone, with the reason."""
    leases = {worker.name for worker in snapshot.workers}
    ended = {process.name: process for process in snapshot.processes if process.ended}
    gone: dict[str, GoneWorker] = {}
    named = {view.job.status.worker for view in snapshot.jobs} | {v.lease.holder for v in snapshot.jobs if v.lease}
    for name in named:
        if not name:
            continue
        if name in ended:
            process = ended[name]
            gone[name] = GoneWorker(f"{name} ended: {process.message or 'no reason is known'}", ending=process.ending)
        elif name not in leases:
            gone[name] = GoneWorker(f"the Lease of {name} is gone", absent_lease=name)
    return gone


def holding(snapshot: PolicySnapshot, launches: Iterable[str]) -> int:
    """How many workers the policy has, of whatever kind: announced, on their way, or on their way out.

    One that is silent for longer than its Lease, and of which the launcher knows nothing, is dead or soon finds out.
    """
    ended = {process.name for process in snapshot.processes if process.ended}
    names = {worker.name for worker in snapshot.workers if worker.is_live and worker.name not in ended}
    names |= {process.name for process in snapshot.processes if not process.ended}
    return len(names.union(launches))


def survey(
    snapshot: PolicySnapshot, *, owner_uid: str, held: Mapping[str, int], max_slots: int, settings: str
) -> Fleet:
    """The state of the fleet. `held` counts the jobs each worker has; `max_slots` is spec.workers.slots.

    Workers with other `settings` than the spec has now get nothing new, and are stopped when they hold nothing. So are
    those that the snapshot's allowance takes back.
    """
    memory = snapshot.memory.workers
    now = snapshot.now.monotonic
    processes = {process.name: process for process in snapshot.processes}
    names = {worker.name for worker in snapshot.workers}
    launches = dict(memory.launches)
    announced = (memory.announced | names) & (names | processes.keys())
    # What a queue has taken back starts again, if ever, and announces itself again.
    announced -= {one.name for one in snapshot.processes if one.trouble in PATIENT} - names
    fleet = _Survey(slots=[], stops=[], forgets=[], deletions=[], failures=[])
    live = 0
    surplus = _surplus(snapshot, held, owner_uid=owner_uid, settings=settings)

    def leaves(name: str) -> str:
        return OUTDATED if is_outdated(name, settings) else GIVEN_BACK if name in surplus else ""

    for worker in snapshot.workers:
        launches.pop(worker.name, None)
        if _look_at(worker, processes.get(worker.name), owner_uid, fleet):
            why = leaves(worker.name)
            if why and not held.get(worker.name):
                reason = f"{worker.name} {why}"
                fleet.stops.append(StopWorker(worker.name, worker.identity, STOP_GRACE, reason))
                continue
            live += 1
            if not why and _takes_jobs(worker, processes.get(worker.name)):
                free = max(0, min(worker.slots, max_slots) - held.get(worker.name, 0))
                fleet.slots.append(WorkerSlots(worker.name, free))
    starting = launching(snapshot, launches, announced=announced, leaves=leaves)
    fleet.failures += starting.failures
    memory = replace(
        memory,
        launches=frozen(starting.launches),
        announced=announced,
        stopping=frozenset(starting.stopping),
    )
    return Fleet(
        slots=tuple(fleet.slots),
        live=live,
        launching=starting.count,
        memory=_paced(memory, fleet, live, now, weight=HOPELESS if starting.hopeless else 1),
        stops=(*fleet.stops, *starting.stops),
        forgets=(*fleet.forgets, *starting.forgets),
        delete_leases=tuple(fleet.deletions),
        events=tuple(Announce("WorkerFailed", message, warning=True) for message in fleet.failures),
        next_look=_next_look(snapshot, starting.count),
        trouble=starting.trouble,
    )


def _surplus(snapshot: PolicySnapshot, held: Mapping[str, int], *, owner_uid: str, settings: str) -> frozenset[str]:
    """The workers that are released to other policies: those that end anyway, then those that wait for room or an
    image, then those with the fewest jobs.
    """
    surplus = snapshot.allowance.surplus(holding(snapshot, snapshot.memory.workers.launches))
    if not surplus:
        return frozenset()
    announced = {worker.name for worker in snapshot.workers}
    mine = [worker for worker in snapshot.workers if worker.is_live and worker.owner_uid == owner_uid]
    stay = [worker.name for worker in mine if not worker.stopping and not is_outdated(worker.name, settings)]
    silent = {p.name: p for p in snapshot.processes if not p.ended and p.name not in announced}
    ending = silent.keys() & (snapshot.memory.workers.announced | snapshot.memory.workers.stopping)
    pending = sorted(name for name, process in silent.items() if process.trouble is not None and name not in ending)
    surplus -= len(mine) - len(stay) + len(ending)
    in_order = [*pending, *sorted(stay, key=lambda name: (held.get(name, 0), name))]
    return frozenset(in_order[: max(0, surplus)])


@dataclass(slots=True)
class _Survey:
    slots: list[WorkerSlots]
    stops: list[StopWorker]
    forgets: list[ForgetWorker]
    deletions: list[DeleteLease]
    failures: list[str]


def _takes_jobs(worker: WorkerLease, process: WorkerProcess | None) -> bool:
    """True for a live worker that stays: not one that got the order to end, is being deleted or held back, or seems
    dead.
    """
    if worker.stopping or worker.silence >= FRESH * worker.duration:
        return False
    return process is None or not (process.leaving or process.trouble is WorkerTrouble.QUEUED)


def _look_at(worker: WorkerLease, process: WorkerProcess | None, owner_uid: str, fleet: _Survey) -> bool:
    """True for a live worker of this policy; what is wrong with any other is put on the lists."""
    # A policy that was deleted and created again has the same name; workers of the former one have its settings and
    # secrets.
    if worker.owner_uid != owner_uid:
        reason = f"the policy {worker.name} was started for does not exist any more"
        fleet.stops.append(StopWorker(worker.name, worker.identity, STOP_GRACE, reason))
        return False
    # Its Lease would still look alive until it expires, and jobs would be given to it.
    if process is not None and process.ended:
        fleet.deletions.append(DeleteLease(worker.identity))
        fleet.forgets.append(ForgetWorker(worker.name))
        return False
    if worker.silence >= DEAD_AFTER_LEASES * worker.duration:
        reason = f"{worker.name} did not renew its lease for {worker.silence:.0f} s"
        fleet.stops.append(StopWorker(worker.name, worker.identity, STOP_GRACE, reason))
        return False
    return worker.is_live


def _paced(memory: WorkerMemory, fleet: _Survey, live: int, now: float, *, weight: int = 1) -> WorkerMemory:
    """Launches are spaced out while workers fail to start: 5, 10, 20 ... 300 s; a worker that lives ends that."""
    if fleet.failures:
        failures = memory.failures + weight
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10))
        return replace(memory, failures=failures, error=fleet.failures[-1], not_before=now + pause)
    if live and memory.failures:
        return replace(memory, failures=0, error="", not_before=0.0)
    return memory


def corrected(memory: WorkerMemory, generation: int) -> WorkerMemory:
    """The memory for this spec: failed launches of another one say nothing about it, and hold nothing up."""
    if memory.generation == generation:
        return memory
    return replace(memory, generation=generation, failures=0, error="", not_before=0.0)


def launch_failed(memory: WorkerMemory, message: str, now: float, *, names: Iterable[str] = ()) -> WorkerMemory:
    """The memory after the launcher itself refused to start a worker; `names` were certainly not started."""
    gone = set(names)
    memory = replace(memory, launches=frozen({k: at for k, at in memory.launches.items() if k not in gone}))
    failed = _Survey(slots=[], stops=[], forgets=[], deletions=[], failures=[message])
    return _paced(memory, failed, 0, now)


def _next_look(snapshot: PolicySnapshot, launching: int) -> float | None:
    looks = [5.0] if launching else []
    for worker in snapshot.workers:
        limit = worker.duration if worker.is_live else DEAD_AFTER_LEASES * worker.duration
        looks.append(max(0.1, limit - worker.silence))
    return min(looks, default=None)


def settings_of(spec: CompactionPolicySpec) -> str:
    """What a worker is started with and keeps to its end, as 4 hex digits. Idle time is no reason for another one.

    Names of Secrets belong to it: a worker sees those that it was started with, and could open no other store.
    """
    kept = spec.workers.model_dump(mode="json", exclude={"max", "idle_seconds"})
    if secrets := kind_of(spec.store).secrets(spec.store).driver:
        kept["secrets"] = secrets
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:4]


def is_outdated(name: str, settings: str) -> bool:
    """True for a worker that was started with other settings: its name says so, also to the next coordinator."""
    written = _SETTINGS.search(name)
    return written is not None and written[1] != settings


def worker_names(
    policy_name: str, owner_uid: str, *, settings: str, seed: float, count: int, taken: Iterable[str]
) -> tuple[str, ...]:
    """Fresh names for workers, from the clock: `<policy>-w-<settings>-<5 hex digits>`."""
    used = set(taken)
    names: list[str] = []
    number = 0
    while len(names) < count:
        digest = hashlib.sha256(f"{owner_uid}/{seed!r}/{number}".encode()).hexdigest()[:5]
        name = f"{worker_stem(policy_name)}-w-{settings}-{digest}"
        number += 1
        if name not in used:
            used.add(name)
            names.append(name)
    return tuple(names)
