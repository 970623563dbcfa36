"""Workers without Spark inside the test's process, and a launcher that starts them: they speak the lease protocol only.

A tiny worker announces itself, takes the jobs whose Leases name it, runs them with the store's own library in a thread,
and reports. What it does before it commits and before it reports is up to the test, and it can be killed between any
two awaits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compaction.api.job.job import CompactionJob
from compaction.blocks.rewriting.rewriter import BlockRewriter
from compaction.errors import ConflictError, NotFoundError
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, ApiClient, Obj
from compaction.kube.launchers.base import WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.leases.record import format_micro_time
from compaction.segments.errors import CorruptEntryError, SegmentLogError
from compaction.segments.scan.sense import SenseSettings
from compaction.segments.store import SegmentLogStore
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.ports import Assignment
from support.processes.worker_ports import FakeLease, ThreadEngine


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
