"""What must hold (docs/design/invariants.md), each as a checker of its own that looks after every step it concerns.

A step is a change on the API server, a system call that changes a log, or a change of leadership. A checker reports to
`SimulatedSystem.fail` with the invariant's name; it knows the system from outside, and keeps books of its own where the
system's own could be wrong.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.api.names import ANNOTATION_BYTES_PER_SECOND, ANNOTATION_REPORT
from compaction.kube.client.transport import Request
from compaction.segments.commit import fence
from compaction.segments.commit.records import FenceRecord, TombstoneKind
from compaction.segments.format.names import job_key, parse_partial
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from simulation.api_server import Change, Obj
from simulation.disk import TICK
from simulation.processes import EPOCH, Process

if TYPE_CHECKING:
    from simulation.world import SimulatedSystem

WRITES_PER_JOB = 8
WRITES_PER_ATTEMPT = 6
WRITES_OF_PROGRESS = 2
WRITES_PER_RAISE = 1


class Invariant(StrEnum):
    """The names under which violations are reported."""

    CONTENT = "live content is equal before and after"
    ONE_COMMIT = "at most one commit per group and job"
    FENCING = "no commit with a token below the highest claimed one"
    TOKENS = "tokens strictly increase"
    OLD_NAMES = "old names stay readable through the grace"
    DELETION = "nothing is deleted without a tombstone or before its grace"
    ORPHANS = "the output of a running attempt is not deleted by others"
    WRITES = "the API writes of a job are bounded"
    WAITS = "each wait has a reason and an age in status"
    ONE_LEADER = "at most one process believes that it leads"
    TERMS = "each term of leadership has a larger number"
    SHARES = "no share of the bytes per second is raised above what others leave of the limit"
    WORKERS = "never more workers than the operator may start"
    SPEC = "the operator never writes a spec of a user"
    ENDS = "every job ends after the faults stop"
    LEFTOVERS = "nothing is left over at the end"
    FORESEEN = "no error that nobody foresaw"


Content = dict[int, tuple[int, bytes]]


def readable(directory: Path) -> tuple[Content, frozenset[int]]:
    """What a reader finds: the entries that must survive, and the indexes of those that are damaged."""
    damaged: set[int] = set()
    log = open_log(directory)
    entries = iter_entries(log, live_only=True, on_corrupt=lambda error: damaged.add(error.index))
    return {entry.index: (entry.term, bytes(entry.payload)) for entry in entries}, frozenset(damaged)


@dataclass
class LogBook:
    """What the simulation knows of one log. `replaced`: old name -> when it stopped being a file of its own."""

    path: Path
    content: Content
    damaged: frozenset[int]
    names: frozenset[str]
    record: FenceRecord = field(default_factory=FenceRecord)
    tokens: dict[str, int] = field(default_factory=dict)
    marked: dict[str, float] = field(default_factory=dict)
    begun: dict[tuple[str, str], int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


@dataclass
class StoreWatch:
    """Looks at the logs around every system call (implements `disk.Observer`)."""

    world: SimulatedSystem
    logs: dict[Path, LogBook] = field(default_factory=dict)
    commits: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    checks: int = 0

    def add(self, path: Path) -> None:
        content, damaged = readable(path)
        names = frozenset(name for name in os.listdir(path) if SEGMENT_NAME.fullmatch(name))
        self.logs[path] = LogBook(path, content, damaged, names)

    def before(self, process: Process, call: str, paths: list[Path]) -> None:
        if call != "unlink":
            return
        book, name = self.logs.get(paths[0].parent), paths[0].name
        if book is None:
            return
        if SEGMENT_NAME.fullmatch(name):
            self._deletion(process, book, name)
        elif partial := parse_partial(name):
            self._partial(process, book, partial.job, partial.token, paths[0])

    def _deletion(self, process: Process, book: LogBook, name: str) -> None:
        tombstone = fence.read(book.path).tombstone(name)
        if tombstone is None:
            self.world.fail(Invariant.DELETION, f"{process} deletes {name} of {book.path.name} without a tombstone")
            return
        now = self.world.loop.time()
        since = book.marked.get(name, now) if tombstone.kind is TombstoneKind.LINKED else tombstone.since - EPOCH
        age = now - since
        if age + 2 * TICK < self.world.grace:
            self.world.fail(
                Invariant.DELETION,
                f"{process} deletes {name} of {book.path.name} after {age:.1f} s of {self.world.grace}",
            )
        book.deleted.add(name)

    def _partial(self, process: Process, book: LogBook, job: str, token: int, path: Path) -> None:
        """Only the attempt itself, or whoever knows that it is over, removes its output."""
        holder = self.world.holder_of(job, token)
        if holder is None or holder is process or holder.dead or holder.paused:
            return
        if path.exists() and book.record.claimed(self.world.job_of(job)) == token and self.world.is_held(job, token):
            self.world.fail(Invariant.ORPHANS, f"{process} removes {path.name}, which {holder} is writing")

    def after(self, process: Process, call: str, paths: list[Path]) -> None:
        if call not in ("rename", "link", "symlink", "unlink"):
            return
        book = self.logs.get(paths[-1].parent)
        if book is None:
            return
        target = paths[-1].name
        if call == "rename" and target == fence.FENCE_FILE:
            self._fence(process, book)
        if SEGMENT_NAME.fullmatch(target):
            self.look(process, book, f"{call} of {target}")

    def look(self, process: Process | None, book: LogBook, when: str) -> None:
        """The content is what it was; every name that was there at the beginning still opens, or has been swept."""
        self.checks += 1
        content, damaged = readable(book.path)
        if content != book.content or damaged != book.damaged:
            lost, broken = (
                sorted(book.content.keys() - content.keys() - damaged)[:5],
                sorted(damaged - book.damaged)[:5],
            )
            self.world.fail(
                Invariant.CONTENT,
                f"{book.path.name} after {when} by {process}: lost {lost}, damaged {broken}",
            )
        missing = [name for name in book.names - book.deleted if not (book.path / name).exists()]
        if missing:
            self.world.fail(Invariant.OLD_NAMES, f"{book.path.name} after {when} by {process}: no {sorted(missing)}")
        for name in book.names - book.deleted:
            if (book.path / name).is_symlink():
                book.marked.setdefault(name, self.world.loop.time())

    def _fence(self, process: Process, book: LogBook) -> None:
        before, record = book.record, fence.read(book.path)
        book.record = record
        for job, claim in record.jobs.items():
            known = book.tokens.get(job, 0)
            old = before.jobs.get(job)
            if claim.token < known or (claim.token == known and old is not None and old.retired and not claim.retired):
                self.world.fail(
                    Invariant.TOKENS, f"{process} claims {claim.token} for {job}, {known} was claimed before"
                )
            book.tokens[job] = max(known, claim.token)
        for intent in record.intents:
            if before.intent(intent.group) != intent:
                self._intent(process, book, intent.receipt.job, intent.group, intent.receipt.token)
        for receipt in record.receipts:
            if receipt in before.receipts:
                continue
            self.commits[book.path.name, receipt.job, receipt.group] += 1
            if book.begun.get((receipt.job, receipt.group)) != receipt.token:
                self.world.fail(Invariant.FENCING, f"{receipt.job} token {receipt.token}: committed without an intent")
        for (job, group), count in Counter((receipt.job, receipt.group) for receipt in record.receipts).items():
            if count > 1 or self.commits[book.path.name, job, group] > 1:
                self.world.fail(Invariant.ONE_COMMIT, f"{job} committed {group} more than once")
        for tombstone in record.tombstones:
            if before.tombstone(tombstone.name) is None:
                book.marked.setdefault(tombstone.name, self.world.loop.time())
                if tombstone.token and tombstone.token < book.tokens.get(tombstone.job, 0) and not record.receipts:
                    self.world.fail(Invariant.FENCING, f"{tombstone.job} marked with the old token {tombstone.token}")

    def _intent(self, process: Process, book: LogBook, job: str, group: str, token: int) -> None:
        highest = book.tokens.get(job, 0)
        if token != highest:
            self.world.fail(
                Invariant.FENCING, f"{process} commits {group} of {job} with {token}, {highest} was claimed"
            )
        if process.name != book.record.jobs[job].holder and self.world.holder_of(job_key(job), token) not in (
            None,
            process,
        ):
            self.world.fail(Invariant.FENCING, f"{process} commits {group} of {job} with the token of another")
        book.begun[job, group] = token


@dataclass
class ApiWatch:
    """Looks at every change on the API server."""

    world: SimulatedSystem
    writes: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, list[str]] = field(default_factory=dict)
    given_up: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    raises: Counter[str] = field(default_factory=Counter)

    def changed(self, change: Change) -> None:
        """Every change, whoever made it."""
        new = change.new
        if change.plural == "leases" and new is not None:
            self._lease(new, change.old)
        if change.plural == "compactionpolicies" and new is not None:
            self._policy(new)

    def _lease(self, lease: Obj, old: Obj | None) -> None:
        name, spec = lease["metadata"]["name"], lease["spec"]
        token, holder = spec.get("leaseTransitions", 0), spec.get("holderIdentity")
        if old is not None and old["spec"].get("holderIdentity") == holder:
            if share_of(lease) != share_of(old) and old["spec"].get("leaseTransitions", 0) == token:
                self._raised(name)
            return
        if name == "compaction-coordinator":
            if holder and old is not None and token <= old["spec"].get("leaseTransitions", 0):
                self.world.fail(Invariant.TERMS, f"{holder} leads with {token} after {old['spec']}")
            return
        if lease["metadata"].get("labels", {}).get("compaction.dev/component") == "job":
            if token <= self.tokens.get(name, 0):
                self.world.fail(Invariant.TOKENS, f"Lease {name}: {token} after {self.tokens[name]}")
            self.tokens[name] = token

    def _raised(self, name: str) -> None:
        self.raises[name] += 1
        limit, leases = self.world.limits.bytes_per_second, self.world.server.all("leases")
        given = sum(share_of(lease) for lease in leases if not reported(lease))
        if limit is not None and given > limit:
            self.world.fail(
                Invariant.SHARES, f"{given} bytes per second with the raise of {name}, {limit} is the limit"
            )

    def _policy(self, policy: Obj) -> None:
        status, now = policy.get("status") or {}, self.world.loop.time()
        waiting = status.get("waiting")
        if status.get("queued"):
            if not waiting or not waiting.get("reason") or not waiting.get("since") or not waiting.get("message"):
                self.world.fail(Invariant.WAITS, f"{status['queued']} jobs wait and nothing says why ({now:.1f} s)")
            elif not str(waiting["since"]).startswith("2"):
                self.world.fail(Invariant.WAITS, f"a wait without an age: {waiting}")

    def written(self, process: Process, request: Request, answer: Obj) -> None:
        """A request of the system's that was carried out."""
        if request.method == "GET":
            return
        body: Any = request.body
        plural = request.path.split("/namespaces/default/")[-1].split("/")[0]
        if request.method == "PUT" and plural.startswith("compaction") and not request.path.endswith("/status"):
            self.world.fail(Invariant.SPEC, f"{process}: PUT {request.path}")
        job = self._job(plural, request, body)
        if job is not None:
            if (request.method, plural) == ("POST", "compactionjobs"):  # made anew under its old name
                self.writes[job], self.kinds[job] = 0, []
                self.given_up[job], self.states[job] = 0, ""
                self.world.reported.discard(job)
            self.writes[job] += 1
            self.kinds.setdefault(job, []).append(f"{request.method} {plural}")
            self._count_endings(job, request, body)
            self.look(job)

    def _job(self, plural: str, request: Request, body: Any) -> str | None:
        """The job that a write is about; renewals are the workers', and so are conflicts that changed nothing."""
        name = request.path.rsplit("/", 1)[-1].replace("status", "") or request.path.split("/")[-2]
        if plural == "compactionjobs":
            return str(body["metadata"]["name"]) if request.method == "POST" else name
        if plural == "events":
            involved = body.get("involvedObject") or {}
            return str(involved.get("name")) if involved.get("kind") == "CompactionJob" else None
        if plural != "leases":
            return None
        name = body["metadata"]["name"] if request.method in ("POST", "PUT") else name
        if name not in self.world.known_jobs:
            return None
        if request.method == "PUT":
            known = self.tokens.get(name)
            annotations = body["metadata"].get("annotations") or {}
            is_report = ANNOTATION_REPORT in annotations and name not in self.world.reported
            if is_report:
                self.world.reported.add(name)
            taken = (name, body["spec"].get("leaseTransitions")) not in self.world.assigned and known is not None
            self.world.assigned.add((name, body["spec"].get("leaseTransitions")))
            return name if is_report or (taken and process_is_coordinator(body)) else None
        return name

    def _count_endings(self, job: str, request: Request, body: Any) -> None:
        """How often the job was given up: an overlooked report may take that back, and no token tells."""
        if (request.method, request.path.endswith("/status")) != ("PUT", True):
            return
        state = str((body.get("status") or {}).get("state"))
        if state == "Abandoned" != self.states.get(job):
            self.given_up[job] = self.given_up.get(job, 0) + 1
        self.states[job] = state

    def look(self, job: str) -> None:
        attempts = max(1, self.tokens.get(job, 1), self.world.attempts_of(job), 1 + self.given_up.get(job, 0))
        bound = WRITES_PER_JOB + WRITES_OF_PROGRESS + WRITES_PER_ATTEMPT * (attempts - 1) + self.world.disturbed(job)
        bound += WRITES_PER_RAISE * self.raises[job]
        if self.writes[job] > bound:
            said = dict(Counter(self.kinds[job]))
            self.world.fail(Invariant.WRITES, f"{job}: {self.writes[job]} writes in {attempts} attempts: {said}")


def share_of(lease: Obj) -> int:
    """The bytes per second that the holder of a job's Lease may move; 0 for one that names none."""
    return int((lease["metadata"].get("annotations") or {}).get(ANNOTATION_BYTES_PER_SECOND, 0))


def reported(lease: Obj) -> bool:
    """Whether the attempt's worker has left its last word: nothing of it writes any more."""
    return ANNOTATION_REPORT in (lease["metadata"].get("annotations") or {})


def process_is_coordinator(lease: Obj) -> bool:
    """An assignment renews nothing: acquireTime and renewTime are the same."""
    return bool(lease["spec"].get("acquireTime") == lease["spec"].get("renewTime"))


def leaders(world: SimulatedSystem) -> None:
    """At most one process believes that it leads."""
    believing = [process for process, item in world.candidates.items() if not process.dead and item.is_leader()]
    if len(believing) > 1:
        world.fail(Invariant.ONE_LEADER, f"{believing} at {world.loop.time():.2f} s")


def leftovers(world: SimulatedSystem) -> list[str]:
    """What may not be there once everything has come to rest."""
    found = [
        f"{path.name}/{name}"
        for path in world.store.logs
        for name in sorted(os.listdir(path))
        if name.endswith((".partial", ".compacting", ".link", ".tmp", ".clump"))
    ]
    found += [f"{path.name}: tombstones" for path in world.store.logs if fence.read(path).tombstones]
    found += [f"{path.name}: intents" for path in world.store.logs if fence.read(path).intents]
    found += [
        f"Lease {o['metadata']['name']}"
        for o in world.server.all("leases")
        if o["metadata"]["name"] != "compaction-coordinator"
    ]
    found += [f"worker {process}" for process in world.launcher.running()]
    return found


def unfinished(world: SimulatedSystem) -> list[str]:
    """Jobs without an end, and debt that nobody plans."""
    jobs = world.server.all("compactionjobs")
    found = [
        f"{job['metadata']['name']} is {state}"
        for job in jobs
        if (state := (job.get("status") or {}).get("state", "new")) not in ("Succeeded", "Faulty")
    ]
    for job in jobs:
        status = job.get("status") or {}
        if status.get("state") == "Faulty" and not any(c.get("message") for c in status.get("conditions", [])):
            found.append(f"{job['metadata']['name']} is Faulty without a reason")
    policy = world.server.get("compactionpolicies", "logs")
    status = (policy or {}).get("status") or {}
    if not status.get("lastSenseTime"):
        found.append("the store was never looked at")
    if status.get("queued") or status.get("active"):
        found.append(f"the policy counts {status.get('active')} active, {status.get('queued')} queued")
    return found


def brief(value: Any) -> str:
    return json.dumps(value, default=str)[:300]
