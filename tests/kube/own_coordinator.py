"""A coordinator of a test's own on a real API server, with a launcher of the test's choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compaction.api.job.job import CompactionJob
from compaction.api.policy.configuration import PolicyDefaults
from compaction.blocks.rewriting.rewriter import BlockRewriter
from compaction.errors import ApiUnavailableError, ConflictError, NotFoundError
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, EVENTS, LEASES, ApiCall, ApiClient, Obj
from compaction.kube.client.config import ApiConnection
from compaction.kube.controller import PolicyController
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import ObjectCache
from compaction.kube.informer.handlers import Feed
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.kube.launchers.process import ProcessLauncher
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Runtime
from compaction.leases.record import format_micro_time
from compaction.segments.errors import CorruptEntryError, SegmentLogError
from compaction.segments.generate import generate_log
from compaction.segments.scan.sense import SenseSettings
from compaction.segments.store import SegmentLogStore
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.ports import Assignment
from support.clocks import PATIENCE_SECONDS
from support.processes.worker_ports import FakeLease, ThreadEngine

# Workers without Spark inside the test's process, and a launcher that starts them: they speak the lease protocol
# only.
#
# A tiny worker announces itself, takes the jobs whose Leases name it, runs them with the store's own library in a
# thread, and reports. What it does before it commits and before it reports is up to the test, and it can be killed
# between any two awaits.


async def nothing(worker: str, job: str) -> None:
    """The default of what is done before a commit, and before a report."""


@dataclass
class TinyWorker:
    client: ApiClient
    request: WorkerRequest
    root: Path
    before_commit: Callable[[str, str], Awaitable[None]]
    version: str = ""
    before_report: Callable[[str, str], Awaitable[None]] = nothing
    secrets: Secrets = NO_SECRETS
    taken: set[tuple[str, int]] = field(default_factory=set)

    async def run(self) -> None:
        policy = await self.client.get(COMPACTION_POLICIES, self.request.policy.name, namespace=self.namespace)
        await self.client.create(LEASES, self._announcement(policy["metadata"]["uid"]))
        async with asyncio.TaskGroup() as group:
            while True:
                await self._renew(self.request.name, {})
                for lease in await self._offers():
                    key = (lease["metadata"]["name"], lease["spec"]["leaseTransitions"])
                    if key not in self.taken:
                        self.taken.add(key)
                        group.create_task(self._work(*key))
                await asyncio.sleep(0.2)

    @property
    def namespace(self) -> str:
        return self.request.policy.namespace

    def _announcement(self, owner: str) -> Obj:
        now = format_micro_time(datetime.now(UTC))
        reference = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy"}
        return {
            "metadata": {
                "name": self.request.name,
                "namespace": self.namespace,
                "labels": {
                    "app.kubernetes.io/managed-by": "compaction-operator",
                    "compaction.dev/policy": self.request.policy.name,
                    "compaction.dev/component": "worker",
                },
                "annotations": {
                    "compaction.dev/slots": str(self.request.slots),
                    **({"compaction.dev/version": self.version} if self.version else {}),
                },
                "ownerReferences": [{**reference, "name": self.request.policy.name, "uid": owner}],
            },
            "spec": {
                "holderIdentity": self.request.name,
                "leaseDurationSeconds": self.request.lease_seconds,
                "acquireTime": now,
                "renewTime": now,
            },
        }

    async def _offers(self) -> tuple[Obj, ...]:
        label = f"compaction.dev/worker={self.request.name}"
        return (await self.client.list(LEASES, namespace=self.namespace, labels=label)).items

    async def _renew(self, name: str, annotations: dict[str, str], *, token: int | None = None) -> bool:
        for _ in range(5):
            try:
                lease = await self.client.get(LEASES, name, namespace=self.namespace)
            except NotFoundError:
                return False
            if token is not None and (lease["spec"]["leaseTransitions"], lease["spec"]["holderIdentity"]) != (
                token,
                self.request.name,
            ):
                return False
            lease["spec"]["renewTime"] = format_micro_time(datetime.now(UTC))
            lease["metadata"].setdefault("annotations", {}).update(annotations)
            try:
                await self.client.replace(LEASES, lease)
            except ConflictError:
                continue
            except NotFoundError:
                return False
            return True
        return False

    async def _work(self, name: str, token: int) -> None:
        try:
            job = CompactionJob.from_object(await self.client.get(COMPACTION_JOBS, name, namespace=self.namespace))
        except NotFoundError:
            return
        renewing = asyncio.create_task(self._keep(name, token))
        try:
            await self.before_commit(self.request.name, name)
            report = await asyncio.to_thread(self._do, job, token)
            await self.before_report(self.request.name, name)
        finally:
            renewing.cancel()
        await self._renew(name, {"compaction.dev/report": json.dumps(report)}, token=token)

    async def _keep(self, name: str, token: int) -> None:
        held = True
        while held:
            held, _ = await asyncio.gather(
                self._renew(name, {"compaction.dev/progress": "50"}, token=token),
                asyncio.sleep(self.request.lease_seconds / 3),
            )

    def _do(self, job: CompactionJob, token: int) -> dict[str, Any]:
        if job.spec.sources.blocks is not None:
            return self._merge(job, token)
        settings = SenseSettings(ownership=job.spec.segment_log_parameters.ownership)
        store, name = SegmentLogStore(self.root, settings, holder=self.request.name), job.metadata.name
        source = job.spec.sources.segment_log
        assert source is not None
        skipped: list[dict[str, Any]] = []
        prepared = store.prepare(
            source.path,
            job=name,
            groups=[group.segments for group in source.groups],
            snapshot_index=source.snapshot_index,
        )
        for group in prepared.groups:
            if group.receipt is not None:
                continue
            try:
                rewritten = store.rewrite(source.path, group=group, live=prepared.live, job=name, token=token)
                store.commit(source.path, job=name, token=token, group=rewritten)
            except CorruptEntryError as error:
                place = {"source": Path(error.file).name, "index": error.index, "offset": error.offset}
                skipped.append({**place, "reason": "SourceCorrupt", "message": str(error)})
            except SegmentLogError as error:
                return self._report(store, job, token, "Failed", "StoreUnreadable", str(error), skipped)
        store.commit_unreferenced(source.path, job=name, token=token, names=source.obsolete)
        if skipped:
            return self._report(store, job, token, "Failed", "SourceCorrupt", skipped[0]["message"], skipped)
        return self._report(store, job, token, "Succeeded", "Completed", "all groups committed", skipped)

    def _merge(self, job: CompactionJob, token: int) -> dict[str, Any]:
        engine = ThreadEngine()
        try:
            rewriter = BlockRewriter(engine, holder=self.request.name, secrets=self.secrets)
            assignment = Assignment(job.metadata.name, self.namespace, token, 60.0, job.spec)
            report: dict[str, Any] = json.loads(rewriter.run(assignment, FakeLease(token=token)).to_json())
        finally:
            engine.close()
        return report

    def _report(
        self,
        store: SegmentLogStore,
        job: CompactionJob,
        token: int,
        outcome: str,
        reason: str,
        message: str,
        skipped: list[dict[str, Any]],
    ) -> dict[str, Any]:
        source = job.spec.sources.segment_log
        assert source is not None
        receipts = store.receipts(source.path, job.metadata.name)
        marked = store.marked(source.path, job.metadata.name)
        freed = sum(r.bytes_reclaimed for r in receipts) + sum(tombstone.bytes for tombstone in marked)
        receipt = {
            "token": token,
            "worker": self.request.name,
            "groups": len(source.groups),
            "groupsCommitted": len(receipts),
            "bytesReclaimed": freed,
            "seconds": 0.5,
        }
        return {
            "token": token,
            "outcome": outcome,
            "reason": reason,
            "message": message,
            "charged": outcome != "Succeeded",
            "skipped": skipped,
            "receipt": receipt,
        }


@dataclass
class TinyLauncher:
    """A launcher (`kube.launchers.base.Launcher`) of tiny workers."""

    client: ApiClient
    root: Path
    before_commit: Callable[[str, str], Awaitable[None]] = nothing
    version: str = ""
    before_report: Callable[[str, str], Awaitable[None]] = nothing
    secrets: Secrets = NO_SECRETS
    workers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    started: dict[str, tuple[WorkerRequest, datetime]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        worker = TinyWorker(
            self.client, request, self.root, self.before_commit, self.version, self.before_report, self.secrets
        )
        self.workers[request.name] = asyncio.create_task(worker.run())
        self.started[request.name] = (request, datetime.now(UTC))
        return WorkerRef(request.name, request.policy)

    async def observe(self) -> list[WorkerObservation]:
        return [
            WorkerObservation(
                name,
                request.policy,
                WorkerPhase.FAILED if self.workers[name].done() else WorkerPhase.RUNNING,
                started,
                message="it ended",
            )
            for name, (request, started) in self.started.items()
            if name not in self.hidden
        ]

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        if ref.name in self.workers:
            self.workers[ref.name].cancel()

    async def forget(self, ref: WorkerRef) -> None:
        self.started.pop(ref.name, None)

    def kill(self, name: str, *, unnoticed: bool) -> None:
        """End a worker; `unnoticed` by this launcher, as one on another machine would be."""
        if unnoticed:
            self.hidden.add(name)
        self.workers[name].cancel()

    async def close(self) -> None:
        for task in self.workers.values():
            task.cancel()
        await asyncio.gather(*self.workers.values(), return_exceptions=True)


@dataclass
class Bench:
    """A coordinator of the test's own: lists instead of watches, so that the test says when it sees what."""

    client: ApiClient
    namespace: str
    launcher: Any
    tmp_path: Path
    root: Path
    calls: list[ApiCall] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def start(self) -> None:
        """A new coordinator with nothing in its memory."""
        self.controller = PolicyController(defaults=PolicyDefaults.from_object({"workers": {"image": "w:1"}}))
        self.runtime = Runtime(
            client=self.client,
            cache=ObjectCache(),
            queue=WorkQueue(),
            launcher=self.launcher,
            events=EventRecorder(self.client),
            metrics=self.metrics,
            is_leader=lambda: True,
            epoch=1,
            identity="test",
            namespace=self.namespace,
            state_dir=self.tmp_path,
        )
        self.feed = Feed(self.runtime.cache, self.runtime.queue, self.controller, self.metrics)
        await self.controller.start(self.runtime)
        await self.relist()
        self.tasks = [
            asyncio.create_task(self.runtime.queue.run(self.controller.reconcile)),
            asyncio.create_task(self.runtime.events.run()),
            asyncio.create_task(self._keep_listing()),
        ]

    async def die(self) -> None:
        """End it where it is, in the middle of whatever it does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.controller.stop()

    async def relist(self) -> None:
        for resource, labels in (
            (COMPACTION_POLICIES, None),
            (COMPACTION_JOBS, None),
            (LEASES, ObjectCache.LEASE_SELECTOR),
        ):
            listed = await self.client.list(resource, namespace=self.namespace, labels=labels)
            self.feed.swept(resource, listed.items, listed.resource_version)

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            with suppress(ApiUnavailableError):
                await self.relist()

    async def apply(self, name: str = "logs", **spec: Any) -> Obj:
        return await self.client.create(
            COMPACTION_POLICIES,
            {
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "store": {"segmentLogs": {"root": str(self.root)}},
                    "trigger": {"interval": "2s"},
                    "lease": {"durationSeconds": 3},
                    "cleanup": {"delay": "1h"},
                    **spec,
                },
            },
        )

    def add_log(self, name: str, **more: Any) -> Path:
        """In one step, and in the data directory of a Ra server too, into which none is generated."""
        elsewhere, directory = self.root.with_name(f"elsewhere-{name}"), self.root / name
        options = {"segments": 5, "entries_per_segment": 64, "payload_bytes": 64, "sync": False, **more}
        generate_log(elsewhere, **options)
        self.root.mkdir(parents=True, exist_ok=True)
        return elsewhere.rename(directory)

    async def policy(self, name: str = "logs") -> Obj:
        return await self.client.get(COMPACTION_POLICIES, name, namespace=self.namespace)

    async def condition(self, kind: str, name: str = "logs") -> Obj | None:
        conditions = (await self.policy(name)).get("status", {}).get("conditions", ())
        return next((c for c in conditions if c["type"] == kind), None)

    async def event(self, reason: str) -> Obj | None:
        found = (await self.client.list(EVENTS, namespace=self.namespace)).items
        return next((item for item in found if item["reason"] == reason), None)

    def observed(self) -> list[WorkerObservation]:
        """The workers as the coordinator has seen them: its decisions rest on these."""
        return [worker for workers in self.controller._workers.values() for worker in workers]

    async def jobs(self) -> tuple[Obj, ...]:
        return (await self.client.list(COMPACTION_JOBS, namespace=self.namespace)).items

    async def leases(self) -> tuple[Obj, ...]:
        return (await self.client.list(LEASES, namespace=self.namespace)).items

    async def until(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until `look` returns something true."""
        found = None
        for _ in range(int(PATIENCE_SECONDS / 0.1)):
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"never happened: {what}; jobs {await self.jobs()}; {await self.policy()}")

    async def all_in(self, *states: str) -> tuple[Obj, ...]:
        async def look() -> Any:
            jobs = await self.jobs()
            return jobs if jobs and all(job["status"].get("state") in states for job in jobs) else None

        found: tuple[Obj, ...] = await self.until(f"all jobs {states}", look)
        return found

    async def settled(self) -> Obj:
        """The policy once nothing runs or waits and its totals are written."""

        async def look() -> Any:
            status = (await self.policy()).get("status", {})
            finished = [job for job in await self.jobs() if job["status"].get("state") in ("Succeeded", "Faulty")]
            quiet = status.get("active") == 0 and status.get("queued") == 0
            counted = len(status.get("counted", ())) == len(finished) > 0
            ready: Obj = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
            looked = ready.get("reason") not in (None, "Compacting", "Sensing")
            return status if quiet and counted and looked else None

        found: Obj = await self.until("a policy at rest", look)
        return found


@asynccontextmanager
async def bench(connection: ApiConnection, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    calls: list[ApiCall] = []
    root = tmp_path / "ra"
    root.mkdir()
    async with ApiClient(connection, observe=calls.append) as client, ApiClient(connection) as other:
        made = Bench(client, namespace, TinyLauncher(other, root), tmp_path, root, calls)
        await made.start()
        try:
            yield made
        finally:
            await made.die()
            await made.launcher.close()


# The operator's shared parts around a client, with nothing running behind them.


def quiet_runtime(client: ApiClient, state_dir: Path) -> Runtime:
    """A leader's parts; its cache is empty."""
    return Runtime(
        client=client,
        cache=ObjectCache(),
        queue=WorkQueue(),
        launcher=ProcessLauncher(state_dir),
        events=EventRecorder(client),
        metrics=Metrics(),
        is_leader=lambda: True,
        epoch=1,
        identity="test",
        namespace="ns",
        state_dir=state_dir,
    )
