"""The fencing drill: one attempt sleeps through its lease, another finishes the job, and the first must change
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec, JobParameters, JobSources, PolicyReference
from compaction.api.job.job_status import ReportOutcome
from compaction.api.names import COMPONENT_DRILL, LABEL_COMPONENT, LABEL_MANAGED_BY, MANAGED_BY
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, SegmentGroup, SegmentLogParameters, SegmentLogSources
from compaction.errors import ApiError, ConflictError, NotFoundError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import LEASES
from compaction.kube.errors import MissingPermissionsError
from compaction.kube.replica.preflight import Permission, missing_permissions
from compaction.leases.record import Lease, LeaseObserver, LeaseRecord, next_token
from compaction.local.errors import DrillError
from compaction.local.processes.process import GUARD
from compaction.local.tenants import Check
from compaction.segments.directory.lock import LOCK_FILE
from compaction.segments.drill.attempt import Line, LineKind, Order, encode
from compaction.segments.format.names import needs_recovery, parse_partial
from compaction.segments.generate import generate_log
from compaction.segments.model import FileIdentity
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import log_fingerprint
from compaction.segments.reading.view import open_log
from compaction.segments.scan.sense import SenseSettings
from compaction.segments.store import SegmentLogStore

# An attempt as the drill holds it in its hands: start, stop, wake, listen, and make sure that it ends.

ANSWER_SECONDS: Final = 60.0
"""How long an attempt may take for any one step before the drill gives up."""
_TAIL_LINES: Final = 5


@dataclass(slots=True)
class DrillAttempt:
    """A running attempt. `errors` is the file its stderr goes to."""

    order: Order
    process: asyncio.subprocess.Process
    errors: Path

    async def hear(self, *expected: LineKind) -> Line:
        """The next line that is one of `expected`; earlier ones of other kinds are skipped.

        Raises:
            DrillError: the attempt ended, or said nothing for too long.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while True:
                    line = await self._line()
                    if line.said in expected:
                        return line
        except TimeoutError as error:
            raise DrillError(f"{self.order.name} said nothing for {ANSWER_SECONDS:.0f} s") from error

    async def _line(self) -> Line:
        assert self.process.stdout is not None
        text = await self.process.stdout.readline()
        if not text:
            code = await self.process.wait()
            lines = self.errors.read_text(errors="replace").splitlines()
            words = " / ".join(lines[-_TAIL_LINES:]) or "no message"
            raise DrillError(f"{self.order.name} ended early with code {code}: {words}")
        try:
            return Line.parse(json.loads(text))
        except (ValueError, KeyError) as error:
            raise DrillError(f"{self.order.name} printed an unknown line: {text!r}") from error

    async def stop(self) -> None:
        """SIGSTOP; returns when the kernel says that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Answer its question at the commit point; a stopped attempt reads it when it wakes."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"commit\n")

    def wake(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """Make it end, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def start(order: Order, errors: Path) -> AsyncIterator[DrillAttempt]:
    """An attempt that cannot outlive the block, nor this process."""
    guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid())]
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *guard,
            *(sys.executable, "-m", "compaction.segments.drill.attempt", encode(order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            # A terminal's Ctrl-C is for the drill, which then ends its attempts itself.
            start_new_session=True,
        )
    attempt = DrillAttempt(order, process, errors)
    try:
        yield attempt
    finally:
        await attempt.end()


# The coordinator's side of the drill: the scratch job's Lease, made, watched, handed on and deleted.
#
# The Lease carries no policy's label, so that no operator takes it for one of its own.

VERBS: Final = ("get", "create", "update", "delete")
_LOOKS_PER_LEASE: Final = 20


@dataclass(slots=True)
class DrillLease:
    """One Lease, named like the scratch job."""

    client: ApiClient
    namespace: str
    name: str
    seconds: int

    async def check_permissions(self) -> None:
        """Raises MissingPermissionsError that lists what is missing and how to grant it."""
        needed = tuple(Permission(verb, LEASES, self.namespace) for verb in VERBS)
        missing = await missing_permissions(self.client, needed)
        if missing:
            raise MissingPermissionsError(
                f"this account may not: {'; '.join(map(str, missing))}. The drill needs {', '.join(VERBS)} on leases "
                f"in coordination.k8s.io and nothing else: kubectl create role fencing-drill --namespace="
                f"{self.namespace} --verb={','.join(VERBS)} --resource=leases.coordination.k8s.io, and bind it"
            )

    async def create(self, *, holder: str, token: int) -> None:
        """Give the job to its first attempt."""
        now = datetime.now(UTC)
        lease = Lease(
            name=self.name,
            namespace=self.namespace,
            record=LeaseRecord(holder, self.seconds, token, acquire_time=now, renew_time=now),
            labels={LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_DRILL},
        )
        await self.client.create(LEASES, lease.body())

    async def until_expired(self) -> tuple[Lease, float]:
        """Wait until the holder was silent for its lease, by the coordinator's rule: (Lease, seconds of silence)."""
        observer: LeaseObserver[str] = LeaseObserver()
        while True:
            lease = await self.read()
            observer.observe(self.name, lease.record)
            seen = observer.last(self.name)
            if observer.expired(self.name) and seen is not None:
                return lease, time.monotonic() - seen.changed_at
            await asyncio.sleep(self.seconds / _LOOKS_PER_LEASE)

    async def hand_on(self, lease: Lease, *, holder: str, token: int) -> bool:
        """Give the job to another attempt; False when the Lease has changed since it was read."""
        now = datetime.now(UTC)
        record = lease.record.acquired(holder, transitions=token, duration_seconds=self.seconds, now=now)
        try:
            await self.client.replace(LEASES, lease.with_record(record).body())
        except ConflictError:
            return False
        return True

    async def read(self) -> Lease:
        """The Lease as it is now."""
        return Lease.parse(await self.client.get(LEASES, self.name, namespace=self.namespace))

    async def delete(self) -> None:
        """Delete it if it is there; its name was made for this drill alone."""
        try:
            await self.client.delete(LEASES, self.name, namespace=self.namespace)
        except NotFoundError:
            return


# The fencing drill: one attempt sleeps through its lease, another finishes the job, the first wakes: is it harmless?
#
# Made of the production parts: the coordinator's rules for tokens and silence, the worker's port, rewrite and commit,
# a real Lease on the cluster's API server, and a scratch log of our own in a directory of the user's choice. Whatever
# happens, the processes, the Lease and the directory are gone at the end.

SEGMENTS: Final = 9
ENTRIES: Final = 256
"""Per segment: the scratch log is half a MiB, and its job has two groups."""


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """The place and the lease of the drill. `directory` None: the system's directory for temporary files."""

    directory: Path | None = None
    kubeconfig: Path | None = None
    namespace: str | None = None
    lease_seconds: int = 5


@dataclass(slots=True)
class FencingDrill:
    """One drill. `tell` gets the seconds since its beginning and what has just happened."""

    settings: DrillSettings
    tell: Callable[[float, str], None]
    job: str = field(default_factory=lambda: f"fencing-drill-{secrets.token_hex(4)}")
    _began: float = field(default_factory=time.monotonic)

    async def run(self) -> tuple[Check, ...]:
        """Carry it through; every claim with the fact that shows whether it holds.

        Raises:
            CompactionError: it could not be carried through (no API server, no permission, no room, an attempt that
            ended early): nothing is proved either way.
        """
        connection = load_connection(self.settings.kubeconfig, namespace=self.settings.namespace)
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(ApiClient(connection, user_agent="compactor-drill"))
            lease = DrillLease(client, connection.namespace, self.job, self.settings.lease_seconds)
            await lease.check_permissions()
            self._say(f"API server {connection.server}, namespace {connection.namespace}, lease {lease.seconds} s")
            scratch = stack.enter_context(_scratch(self.settings.directory, self.job))
            ground = Ground.prepare(scratch)
            self._say(f"scratch log {ground.log}: {len(ground.groups)} groups of segments to rewrite")
            await stack.enter_async_context(_deleted_at_the_end(lease))
            return await self._rounds(stack, lease, ground)

    async def _rounds(self, stack: contextlib.AsyncExitStack, lease: DrillLease, ground: Ground) -> tuple[Check, ...]:
        first_token = self._claim(ground, known=None)
        order = self._order(lease, ground, attempt=1, token=first_token)
        await lease.create(holder=order.name, token=first_token)
        first = await stack.enter_async_context(start(order, ground.scratch / "attempt-1.err"))
        await first.hear(LineKind.AT_COMMIT)
        self._say(
            f"attempt 1 holds the lease with token {first_token} and stands before its commit (pid {first.process.pid})"
        )
        await first.stop()
        first.go_on()
        self._say("attempt 1 is stopped (SIGSTOP)")

        second_token = await self._take_over(lease, ground)
        order = self._order(lease, ground, attempt=2, token=second_token, pause=False)
        second = await stack.enter_async_context(start(order, ground.scratch / "attempt-2.err"))
        committed = await second.hear(LineKind.ENDED)
        self._say(f"attempt 2 has ended: {committed.outcome}, {committed.text}")
        # The files as attempt 2 left them: the woken attempt must change none of them.
        settled = ground.files()

        first.wake()
        self._say("attempt 1 is awake (SIGCONT) and goes on with its commit")
        believes = await first.hear(LineKind.BELIEVES)
        refused = await first.hear(LineKind.ENDED)
        self._say(f"attempt 1 has ended: {refused.outcome}, {refused.reason}: {refused.text}")
        renewal = await first.hear(LineKind.RENEWED, LineKind.RENEWAL_REFUSED, LineKind.RENEWAL_UNKNOWN)
        return (
            ground.committed_by(second_token, job=self.job, line=committed, larger_than=first_token),
            Check(
                "the woken attempt knew by its own clock that its lease was over", bool(believes.text), believes.text
            ),
            _refused(refused),
            Check("the API server refused its renewal", renewal.said is LineKind.RENEWAL_REFUSED, renewal.text),
            Check("the woken attempt changed no file of the log", *ground.unchanged_since(settled)),
            Check("the readable content is what it was", *ground.same_content()),
            Check("no half-done file is left", *ground.no_leftovers()),
        )

    def _order(self, lease: DrillLease, ground: Ground, *, attempt: int, token: int, pause: bool = True) -> Order:
        kubeconfig = self.settings.kubeconfig
        return Order(
            kubeconfig=None if kubeconfig is None else str(kubeconfig.absolute()),
            namespace=lease.namespace,
            name=f"{self.job}-attempt-{attempt}",
            job=self.job,
            token=token,
            lease_seconds=lease.seconds,
            spec=ground.spec.to_object(),
            pause=pause,
        )

    async def _take_over(self, lease: DrillLease, ground: Ground) -> int:
        """Wait for the silence, then assign the job again: token, claim in the store, Lease."""
        while True:
            found, silence = await lease.until_expired()
            token = self._claim(ground, known=found.record.transitions)
            if await lease.hand_on(found, holder=f"{self.job}-attempt-2", token=token):
                self._say(f"the lease was silent for {silence:.1f} s: assigned to attempt 2 with token {token}")
                return token

    def _claim(self, ground: Ground, *, known: int | None) -> int:
        token = next_token(known, None, ground.store.high_water(ground.log, self.job))
        ground.store.claim(ground.log, job=self.job, token=token)
        return token

    def _say(self, text: str) -> None:
        self.tell(time.monotonic() - self._began, text)


def _refused(line: Line) -> Check:
    holds = (line.outcome, line.reason) == (ReportOutcome.FAILED, JobReason.STALE_TOKEN)
    return Check("the store refused its commit", holds, line.text)


@dataclass(frozen=True, slots=True)
class Ground:
    """The scratch log, what is to be done to it, and what was readable in it at the beginning."""

    scratch: Path
    log: Path
    store: SegmentLogStore
    groups: tuple[tuple[str, ...], ...]
    spec: CompactionJobSpec
    before: str

    @classmethod
    def prepare(cls, scratch: Path) -> Ground:
        """Write the log and plan its one job. Raises SegmentLogError and OSError."""
        log = scratch / "log"
        generate_log(log, segments=SEGMENTS, entries_per_segment=ENTRIES, payload_bytes=256)
        limits = SegmentLimits(max_entries=ENTRIES)
        store = SegmentLogStore(scratch, SenseSettings(limits=limits), holder="fencing-drill")
        groups = tuple(group.sources for group in store.plan(log).groups)
        sources = SegmentLogSources(path=str(log), groups=tuple(SegmentGroup(segments=group) for group in groups))
        spec = CompactionJobSpec(
            policy_ref=PolicyReference(name="fencing-drill"),
            kind=SEGMENT_REWRITE,
            sources=JobSources(segment_log=sources),
            parameters=JobParameters(segment_log=SegmentLogParameters(max_entries_per_segment=ENTRIES)),
        )
        return cls(scratch, log, store, groups, spec, _fingerprint(log))

    def files(self) -> dict[str, str]:
        """Every file of the log that carries data or says who may commit, and which file that is."""
        # The lock's file is written by everybody who asks for the lock, also by those who are refused; and what an
        # attempt has rewritten is its own until it is committed.
        names = [name for name in os.listdir(self.log) if name != LOCK_FILE and parse_partial(name) is None]
        return {name: str(FileIdentity.of(os.stat(self.log / name, follow_symlinks=False))) for name in names}

    def unchanged_since(self, settled: dict[str, str]) -> tuple[bool, str]:
        now = self.files()
        changed = sorted(name for name in now.keys() | settled.keys() if now.get(name) != settled.get(name))
        return not changed, f"changed: {', '.join(changed)}" if changed else f"{len(now)} files as attempt 2 left them"

    def no_leftovers(self) -> tuple[bool, str]:
        names = sorted(os.listdir(self.log))
        left = [name for name in names if parse_partial(name) is not None or needs_recovery([name])]
        return not left, f"left: {', '.join(left)}" if left else "only segments, snapshots, lock and fence"

    def same_content(self) -> tuple[bool, str]:
        after = _fingerprint(self.log)
        return after == self.before, f"sha256 {self.before[:12]} before, {after[:12]} after"

    def committed_by(self, token: int, *, job: str, line: Line, larger_than: int) -> Check:
        receipts = self.store.receipts(self.log, job)
        holds = (
            line.outcome == ReportOutcome.SUCCEEDED
            and token > larger_than
            and len(receipts) == len(self.groups)
            and all(receipt.token == token for receipt in receipts)
        )
        fact = f"{len(receipts)} of {len(self.groups)} groups; tokens {larger_than}, then {token}"
        return Check("the second attempt committed everything, with a larger token", holds, fact)


def _fingerprint(log: Path) -> str:
    return log_fingerprint(open_log(log)).hexdigest()


@contextlib.contextmanager
def _scratch(parent: Path | None, name: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)).absolute()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.asynccontextmanager
async def _deleted_at_the_end(lease: DrillLease) -> AsyncIterator[None]:
    """Also when its creation was interrupted, or its answer lost: whether it exists is found out by deleting it."""
    try:
        yield
    finally:
        try:
            await lease.delete()
        except ApiError as error:
            raise DrillError(
                f"the drill's Lease could not be deleted ({error}): "
                f"kubectl delete lease {lease.name} --namespace={lease.namespace}"
            ) from error
