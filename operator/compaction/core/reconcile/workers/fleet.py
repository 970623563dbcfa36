"""The workers of a policy: who lives, starts or is gone, with which memory and version, and whether another is
started.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from compaction.api.conditions import Conditions, get_condition, remove_condition, set_condition
from compaction.api.enums import ConditionType, WorkerEnding, WorkerState, WorkerTrouble
from compaction.api.names import worker_stem
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicySpec
from compaction.api.policy.policy_status import MAX_WORKER_STATUSES, WorkerStatus
from compaction.api.policy.workers import GrowingPod
from compaction.api.text.printing import format_bytes
from compaction.core.planning.scheduler import WorkerSlots
from compaction.core.reconcile.actions import Announce, DeleteLease, ForgetWorker, StopWorker
from compaction.core.reconcile.jobs.steps import GoneWorker
from compaction.core.reconcile.observations import PolicySnapshot, WorkerLease, WorkerMemory, WorkerProcess, frozen
from compaction.registry import kind_of

# Workers that were launched and have not announced themselves: which of them wait, which have failed, which must go.
#
# A worker that starts is given `LAUNCH_TIMEOUT`, from when nothing holds it back any more. One that waits for room,
# or in a queue, waits: another in its place would only stand further back. A queue may take back a worker that had
# begun: it still holds its place. One whose image or pod is wrong is replaced at once when the spec has changed, and
# said to be stuck before its time is over.

LAUNCH_TIMEOUT: Final = 300.0
"""A worker that has not announced itself after so many seconds is stopped and counts as failed."""
LAUNCH_UNSEEN: Final = 60.0
"""A launch of which the launcher knows nothing after so many seconds did not happen."""
STUCK_AFTER: Final = 60.0
"""Trouble that lasts longer is said in the policy's conditions: kubelets try again, and short troubles pass."""
STOP_GRACE: Final = 10.0
PATIENT: Final = frozenset({WorkerTrouble.UNSCHEDULABLE, WorkerTrouble.QUEUED})
"""Troubles that end by themselves when there is room."""
_NOBODYS_FAULT: Final = frozenset({WorkerEnding.DISRUPTED, WorkerEnding.DELETED})


@dataclass(slots=True)
class Launching:
    """The workers on their way. `launches` maps them to when they were launched (monotonic); `trouble` is the one that
    has waited longest for something; `failures` are messages, `hopeless` when one of them is of a trouble that lasted.
    """

    launches: dict[str, float]
    stopping: set[str] = field(default_factory=set)
    stops: list[StopWorker] = field(default_factory=list)
    forgets: list[ForgetWorker] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    trouble: WorkerProcess | None = None
    hopeless: bool = False

    @property
    def count(self) -> int:
        """Workers on their way; one that does not end yet takes the place of another."""
        return len(self.launches) + len(self.stopping)


def launching(
    snapshot: PolicySnapshot, launches: Mapping[str, float], *, announced: frozenset[str], leaves: Callable[[str], str]
) -> Launching:
    """The workers of a snapshot that have no Lease. `launches` are those known so far; `announced` had one once;
    `leaves` says why one has to go, if it has.
    """
    now, memory = snapshot.now.monotonic, snapshot.memory.workers
    found = Launching(dict(launches))
    leased = {worker.name for worker in snapshot.workers}
    seen = {process.name for process in snapshot.processes}
    for process in snapshot.processes:
        if process.name in leased:
            continue
        if process.ended:
            found.forgets.append(ForgetWorker(process.name))
            if found.launches.pop(process.name, None) is not None and process.ending not in _NOBODYS_FAULT:
                found.failures.append(f"{process.name} ended before it announced itself: {process.message}")
        elif process.name not in announced or process.trouble in PATIENT:
            _waits(found, process, memory, now, leaves=leaves(process.name))
    for name, since in tuple(found.launches.items()):
        # A launcher lists every few seconds: what it has not shown for a minute was deleted, or never created.
        if name not in seen and now - since > LAUNCH_UNSEEN:
            del found.launches[name]
            found.failures.append(f"nothing was seen of {name} after its launch")
    return found


def _waits(found: Launching, process: WorkerProcess, memory: WorkerMemory, now: float, *, leaves: str) -> None:
    """A worker that runs, or will, and has not announced itself."""
    replaced = bool(leaves) and process.trouble is not None
    if not replaced and (process.starting <= LAUNCH_TIMEOUT or process.trouble in PATIENT):
        found.launches.setdefault(process.name, now)
        if process.trouble is not None and (found.trouble is None or process.age > found.trouble.age):
            found.trouble = process
        return
    found.launches.pop(process.name, None)
    found.stopping.add(process.name)
    if process.name in memory.stopping:
        return
    if replaced:
        reason = f"{process.name} {leaves}"
    else:
        reason = f"{process.name} did not announce itself within {LAUNCH_TIMEOUT:.0f} s"
        reason += f": {process.message}" if process.trouble is not None else ""
        found.failures.append(reason)
        found.hopeless |= process.trouble is not None
    found.stops.append(StopWorker(process.name, None, STOP_GRACE, reason))


def stuck_launches(trouble: WorkerProcess | None) -> str:
    """Say what a person has to act on, if a worker has been waiting for it for long enough; empty otherwise."""
    if trouble is None or trouble.trouble in PATIENT:
        return ""
    # An operator that is silent was given its time already.
    since = trouble.age if trouble.trouble is WorkerTrouble.OPERATOR_SILENT else trouble.starting
    if since < STUCK_AFTER:
        return ""
    return f"{trouble.name} cannot start ({trouble.trouble}): {trouble.message}"


# Workers of another version than the operator: said, never acted upon.
#
# An upgrade of the operator meets workers of the version before, which end when they are idle: the condition comes
# and goes by itself. It stays when the image of workers was not upgraded as well. Jobs run in either case: what the
# two exchange (Leases, receipts) is read by both, and the store refuses what it does not know.

REASON: Final = "OtherVersion"


def skewed(snapshot: PolicySnapshot) -> tuple[WorkerLease, ...]:
    """The workers that live and say another version; one that says none is not judged."""
    if not snapshot.version:
        return ()
    return tuple(
        worker for worker in snapshot.workers if worker.is_live and worker.version not in {"", snapshot.version}
    )


def with_skew(conditions: Conditions, message: str, *, observed_generation: int, now: datetime) -> Conditions:
    """The conditions with WorkerVersionSkew as long as there is something to say about it."""
    if not message:
        return remove_condition(conditions, ConditionType.WORKER_VERSION_SKEW)
    return set_condition(
        conditions,
        type=ConditionType.WORKER_VERSION_SKEW,
        status=True,
        reason=REASON,
        message=message,
        observed_generation=observed_generation,
        now=now,
    )


def skew_announced(before: Conditions, after: Conditions) -> Iterable[Announce]:
    """One Event when other versions appear, and when they are others than before."""
    old = get_condition(before, ConditionType.WORKER_VERSION_SKEW)
    new = get_condition(after, ConditionType.WORKER_VERSION_SKEW)
    if new is not None and (old is None or old.message != new.message):
        yield Announce(ConditionType.WORKER_VERSION_SKEW.value, new.message, warning=True)


def skew_of(snapshot: PolicySnapshot) -> str:
    """Say how the workers' versions differ; empty without a difference. The same for any number of workers, so that the
    status is not written again for each that comes or goes.
    """
    versions = ", ".join(sorted({worker.version for worker in skewed(snapshot)}))
    if not versions:
        return ""
    version = snapshot.version
    return (
        f"workers of version {versions} run beside an operator of version {version}: their jobs go on, and they end "
        f"when they are idle. If new ones are of that version as well, set spec.workers.image of the policy, or "
        f"defaults.workers.image in the operator's configuration, to the worker image of version {version}"
    )


# The workers of a policy: who lives, who is starting, who is gone, who has room, and whether to start another.
#
# A worker's Lease is the truth about its life, its launcher's view a hint that is faster (kube/launchers/base.py): a
# process that has ended is gone at once, one that has not announced itself yet is starting, one that never does is
# stopped.

DEAD_AFTER_LEASES: Final = 3.0
"""A worker silent for so many times its lease is stopped, should it still hang somewhere."""
FRESH: Final = 0.5
"""A worker renews three times per lease: one silent for half of it gets nothing new (it may be dead)."""
OUTDATED: Final = "was started with other settings than spec.workers has now"
DRAINED: Final = "is stopped: the operator is on hold, and what runs was to be stopped"
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
    """Return the number of workers that the policy has, of whatever kind: announced, on their way, or on their way out.

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
    announced -= {process.name for process in snapshot.processes if process.trouble in PATIENT} - names
    fleet = _Survey(slots=[], stops=[], forgets=[], deletions=[], failures=[])
    live = 0
    surplus = _surplus(snapshot, held, owner_uid=owner_uid, settings=settings)

    drained = snapshot.hold is not None and snapshot.hold.drain

    def leaves(name: str) -> str:
        if drained:
            return DRAINED
        return OUTDATED if is_outdated(name, settings) else GIVEN_BACK if name in surplus else ""

    for worker in snapshot.workers:
        launches.pop(worker.name, None)
        if _look_at(worker, processes.get(worker.name), owner_uid, fleet):
            why = leaves(worker.name)
            # Drained with its jobs: their attempts end before the next commit, and are not charged.
            if why and (drained or not held.get(worker.name)):
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
    """Return the settings that a worker is started with and keeps to its end, as 4 hex digits. Idle time is no reason
    for another one.

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


# The memory of the next worker's pods: what the policy says, or more after one was killed for using more than it had.
#
# It is doubled from what that pod had, so the same death seen twice raises it once; never beyond maxMemory. Drivers
# and executors learn apart. Kept in status, so that a restart does not learn them again.

FACTOR = 2


@dataclass(frozen=True, slots=True)
class Raised:
    """Bytes for the status: only what is more than the policy says."""

    driver: int | None
    executor: int | None


def memory_learned(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: WorkerMemory) -> WorkerMemory:
    """The memory with the bytes that the next driver and executors get."""
    workers, status = policy.spec.workers, policy.status
    ended = [process for process in snapshot.processes if process.ended]
    drivers = (item.memory for item in ended if item.ending is WorkerEnding.OUT_OF_MEMORY)
    executors = (item.executor_memory for item in ended if item.ending is WorkerEnding.EXECUTORS_OUT_OF_MEMORY)
    return replace(
        memory,
        driver_memory=_next(workers.driver, memory.driver_memory or status.driver_memory_bytes, drivers),
        executor_memory=_next(workers.executor, memory.executor_memory or status.executor_memory_bytes, executors),
    )


def _next(spec: GrowingPod, before: int | None, killed: Iterable[int]) -> int:
    least, most = int(spec.memory), max(int(spec.memory), int(spec.max_memory))
    return min(most, max(least, before or 0, *(FACTOR * had for had in killed)))


def memory_raised(policy: CompactionPolicy, memory: WorkerMemory) -> Raised:
    """Return the bytes of memory of pods that are more than the spec says, for the status."""
    workers = policy.spec.workers
    return Raised(_above(workers.driver, memory.driver_memory), _above(workers.executor, memory.executor_memory))


def _above(spec: GrowingPod, bytes_now: int | None) -> int | None:
    return bytes_now if bytes_now is not None and bytes_now > int(spec.memory) else None


def memory_announced(policy: CompactionPolicy, before: WorkerMemory, after: WorkerMemory) -> tuple[Announce, ...]:
    """The Events that say which pods get more from now on."""
    workers, status, now = policy.spec.workers, policy.status, memory_raised(policy, after)
    events = []
    if (now.driver or 0) > (before.driver_memory or status.driver_memory_bytes or int(workers.driver.memory)):
        words = "a driver was killed for using more memory than it has: the next one gets"
        events.append(Announce("DriverMemoryRaised", f"{words} {format_bytes(now.driver or 0)}", warning=True))
    if (now.executor or 0) > (before.executor_memory or status.executor_memory_bytes or int(workers.executor.memory)):
        words = "executors were killed for using more memory than they have: the next ones get"
        events.append(Announce("ExecutorMemoryRaised", f"{words} {format_bytes(now.executor or 0)}", warning=True))
    return tuple(events)


# The workers of a policy one by one, for its status: who is there, what it waits for, where its web page is.


def worker_statuses(snapshot: PolicySnapshot) -> tuple[WorkerStatus, ...]:
    """Workers by name; those that have ended are left out."""
    leases = {worker.name: worker for worker in snapshot.workers if worker.is_live}
    processes = {process.name: process for process in snapshot.processes if not process.ended}
    rows = [_row(name, name in leases, processes.get(name)) for name in sorted(leases.keys() | processes.keys())]
    return tuple(rows[:MAX_WORKER_STATUSES])


def _row(name: str, announced: bool, process: WorkerProcess | None) -> WorkerStatus:
    if announced or process is None:
        return WorkerStatus(name=name, state=WorkerState.READY, ui=process.ui if process is not None else "")
    if process.trouble is not None:
        return WorkerStatus(name=name, state=WorkerState.PENDING, reason=process.trouble.value, message=process.message)
    return WorkerStatus(name=name, state=WorkerState.STARTING, ui=process.ui)
