"""From cached JSON to the picture that `reconcile` decides on, and the policies that share a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import structlog
from pydantic import ValidationError

from compaction.api.base import ApiModel
from compaction.api.job.job import CompactionJob
from compaction.api.job.job_status import JobReport, parse_report
from compaction.api.names import (
    ANNOTATION_BYTES_PER_SECOND,
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    ANNOTATION_SLOTS,
    ANNOTATION_STOP,
    ANNOTATION_VERSION,
    COMPONENT_WORKER,
    JOB_KIND,
    LABEL_COMPONENT,
    POLICY_KIND,
)
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.policy.workers import MAX_SLOTS
from compaction.api.text.printing import INT64_MAX, cut, number_in, printable
from compaction.core.reconcile.observations import JobLease, JobView, OperatorIdentity, WorkerLease, WorkerProcess
from compaction.core.reconcile.store_work import Claimant, older_owner, said, share_a_store
from compaction.errors import MalformedLeaseError, MalformedReportError
from compaction.kube.client.transport import Obj
from compaction.kube.informer.cache import CacheKey, key_of
from compaction.kube.launchers.base import WorkerObservation
from compaction.leases.record import Lease, LeaseObserver

# From cached JSON to the picture that `reconcile` decides on. No I/O: cache, observations and memory are read,
# nothing else.
#
# Objects are parsed once per resourceVersion. What cannot be parsed is reported, never guessed.

log = structlog.get_logger(__name__)

DEFAULT_LEASE_SECONDS = 15.0
LONGEST_VERSION = 64
Model = TypeVar("Model", bound=ApiModel)
Uid = str


class ParsedObjects(Generic[Model]):
    """Models of API objects, parsed once per version by `parse`, which raises ValidationError."""

    def __init__(self, parse: Callable[[Obj], Model]) -> None:
        self._read = parse
        self._known: dict[Uid, tuple[str, Model | ValidationError]] = {}

    def get(self, body: Obj) -> Model:
        """The model of an object. Raises pydantic.ValidationError (again, without parsing again)."""
        metadata = body["metadata"]
        known = self._known.get(metadata["uid"])
        if known is None or known[0] != metadata["resourceVersion"]:
            known = (metadata["resourceVersion"], self._parse(body))
            self._known[metadata["uid"]] = known
        if isinstance(known[1], ValidationError):
            raise known[1]
        return known[1]

    def _parse(self, body: Obj) -> Model | ValidationError:
        try:
            return self._read(body)
        except ValidationError as error:
            return error

    def forget(self, uid: Uid) -> None:
        """The object is gone."""
        self._known.pop(uid, None)


def identity(body: Obj) -> OperatorIdentity:
    """The version of an object."""
    metadata = body["metadata"]
    return OperatorIdentity(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def is_worker(body: Obj) -> bool:
    """True for the Lease of a worker (the others of a policy are those of its jobs)."""
    return (body["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == COMPONENT_WORKER


def observe_lease(observer: LeaseObserver[Uid], body: Obj) -> None:
    """Note a Lease that was seen just now. Keyed by UID: a Lease created again is another one."""
    try:
        observer.observe(body["metadata"]["uid"], Lease.parse(body).record)
    except MalformedLeaseError as error:
        # Not observed, so it ages from its last readable version, like one that is not renewed.
        log.warning("a Lease cannot be read", lease=str(key_of(body)), error=str(error))


def silence_of(observer: LeaseObserver[Uid], body: Obj, now: float) -> float:
    """Seconds since the Lease was last seen to change, by our own clock; 0 when it is seen for the first time."""
    uid = body["metadata"]["uid"]
    if uid not in observer:
        observe_lease(observer, body)
    seen = observer.last(uid)
    return max(0.0, now - seen.changed_at) if seen is not None else 0.0


def worker_lease(body: Obj, observer: LeaseObserver[Uid], now: float) -> WorkerLease:
    """A worker's Lease. One that cannot be read has no slots; its silence is measured all the same."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or ()
    return WorkerLease(
        identity=identity(body),
        slots=number_in(annotations.get(ANNOTATION_SLOTS), limit=MAX_SLOTS) or 0,
        duration=float((body.get("spec") or {}).get("leaseDurationSeconds") or DEFAULT_LEASE_SECONDS),
        silence=silence_of(observer, body, now),
        owner_uid=next((str(o.get("uid", "")) for o in owners if o.get("kind") == POLICY_KIND), ""),
        stopping=annotations.get(ANNOTATION_STOP) == "true",
        version=printable(cut(str(annotations.get(ANNOTATION_VERSION, "")), LONGEST_VERSION)),
    )


def worker_process(worker: WorkerObservation, now: float) -> WorkerProcess:
    """A worker as its launcher sees it; `now` in epoch seconds."""
    return WorkerProcess(
        name=worker.name,
        ended=worker.ended,
        age=max(0.0, now - worker.started.timestamp()),
        message=worker.message or worker.reason,
        trouble=worker.trouble,
        ending=worker.ending,
        memory=worker.memory,
        executor_memory=worker.executor_memory,
        waited=worker.waited,
        leaving=worker.leaving,
        ui=worker.ui,
    )


def job_lease(body: Obj, observer: LeaseObserver[Uid], now: float) -> JobLease:
    """A job's Lease with the worker's report. One whose spec cannot be read counts as not held."""
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    try:
        record = Lease.parse(body).record
    except MalformedLeaseError:
        return JobLease(identity(body), holder="", token=0, duration=DEFAULT_LEASE_SECONDS, silence=0.0)
    report: JobReport | None = None
    error = ""
    if ANNOTATION_REPORT in annotations:
        try:
            report = parse_report(annotations[ANNOTATION_REPORT])
        except MalformedReportError as malformed:
            # Handed on: the attempt is over, and the reconcile ends it at once instead of waiting for the Lease to run
            # out.
            error = str(malformed)
    return JobLease(
        identity=identity(body),
        holder=record.holder or "",
        token=record.transitions,
        duration=float(record.duration_seconds or DEFAULT_LEASE_SECONDS),
        silence=silence_of(observer, body, now),
        progress=number_in(annotations.get(ANNOTATION_PROGRESS), limit=100),
        bytes_per_second=number_in(annotations.get(ANNOTATION_BYTES_PER_SECOND), limit=INT64_MAX) or None,
        report=report,
        report_error=error,
    )


def job_leases(bodies: Iterable[Obj], observer: LeaseObserver[Uid], now: float) -> dict[tuple[str, Uid], JobLease]:
    """The Leases of jobs by name and owner: a namesake's Lease, or one of another program, is not the job's."""
    return {
        (body["metadata"]["name"], owner_job(body)): job_lease(body, observer, now)
        for body in bodies
        if not is_worker(body)
    }


def owner_job(body: Obj) -> Uid:
    """The uid of the job that a Lease was made for; "" for a Lease of anything else."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("uid", "")) for owner in owners if owner.get("kind") == JOB_KIND), "")


def is_lease_of(lease: Obj, job: Obj) -> bool:
    """True for a Lease that was created for this very job."""
    return owner_job(lease) == str(job["metadata"]["uid"])


def job_views(
    jobs: Iterable[Obj], leases: dict[tuple[str, Uid], JobLease], parsed: ParsedObjects[CompactionJob]
) -> tuple[JobView, ...]:
    """Jobs with their Leases (taken out of `leases`: what remains belongs to no job)."""
    views = []
    for body in jobs:
        lease = leases.pop((body["metadata"]["name"], body["metadata"]["uid"]), None)
        try:
            views.append(JobView(parsed.get(body), lease))
        except ValidationError as error:
            # Its Lease is taken out already: as a stray one it would be deleted under the worker that holds it.
            log.error("a CompactionJob cannot be read and is left alone", job=str(key_of(body)), error=str(error))
    return tuple(views)


# The policies that are known, and which of them share a store: kept up to date by each change of a policy.


class Overlaps:
    """Owned by the controller. A change of a spec costs one comparison with each policy whose store lies at, around or
    inside its own, however many others there are; a question one with each policy that shares the store.
    """

    def __init__(self) -> None:
        self._claimants: dict[CacheKey, Claimant] = {}
        self._versions: dict[CacheKey, tuple[str, int]] = {}
        self._neighbours: dict[CacheKey, set[CacheKey]] = {}
        self._places = _Places()

    def note(self, key: CacheKey, policy: CompactionPolicy | None) -> frozenset[CacheKey]:
        """Take what a policy is now (None: gone, or not valid); returns the others for which that changes something."""
        version = None if policy is None else (policy.metadata.uid, policy.metadata.generation)
        if version == self._versions.get(key):
            return frozenset()
        before = self._neighbours.pop(key, set())
        for other in before:
            self._neighbours[other].discard(key)
        if (known := self._claimants.pop(key, None)) is not None:
            self._places.remove(key, known.places)
        self._versions.pop(key, None)
        if policy is None or version is None:
            return frozenset(before)
        mine = Claimant.of(policy)
        after = {other for other in self._places.near(mine.places) if share_a_store(mine, self._claimants[other])}
        for other in after:
            self._neighbours[other].add(key)
        self._places.add(key, mine.places)
        self._claimants[key], self._versions[key], self._neighbours[key] = mine, version, after
        return frozenset(before | after)

    def held_by(self, key: CacheKey) -> str:
        """Say what keeps the policy from its store: an older one, in words; "" when nothing does."""
        mine = self._claimants.get(key)
        if mine is None:
            return ""
        owner = older_owner(mine, [self._claimants[other] for other in self._neighbours[key]])
        return said(mine, owner) if owner is not None else ""

    def would_hold(self, key: CacheKey, proposed: CompactionPolicy) -> str:
        """As `held_by`, if the policy had the proposed spec."""
        mine = Claimant.of(proposed)
        others = [self._claimants[other] for other in self._places.near(mine.places) if other != key]
        owner = older_owner(mine, others)
        return said(mine, owner) if owner is not None else ""


class _Places:
    """The policies at each place (`Claimant.places`), found by the paths around and inside of one."""

    def __init__(self) -> None:
        self._at: defaultdict[str, set[CacheKey]] = defaultdict(set)
        self._inside: defaultdict[str, set[CacheKey]] = defaultdict(set)

    def add(self, key: CacheKey, places: Iterable[str]) -> None:
        for place in places:
            self._at[place].add(key)
            for around in _around(place):
                self._inside[around].add(key)

    def remove(self, key: CacheKey, places: Iterable[str]) -> None:
        for place in places:
            _discard(self._at, place, key)
            for around in _around(place):
                _discard(self._inside, around, key)

    def near(self, places: Iterable[str]) -> set[CacheKey]:
        found: set[CacheKey] = set()
        for place in places:
            found.update(self._inside.get(place, ()), *(self._at.get(item, ()) for item in (place, *_around(place))))
        return found


def _around(place: str) -> Iterator[str]:
    end = place.rfind("/")
    while end >= 0:
        yield place[:end]
        end = place.rfind("/", 0, end)


def _discard(places: defaultdict[str, set[CacheKey]], place: str, key: CacheKey) -> None:
    places[place].discard(key)
    if not places[place]:
        del places[place]
