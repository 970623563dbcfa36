"""A CatalogCompaction on this machine: the reconciler and the work of the operator, without Kubernetes.

Nothing elects a coordinator here: each round claims the log, and fences those that were begun before, also those of a
cluster, whose next round claims it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from compaction.api.base import to_timestamp
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, CatalogPreview
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Ended, Stage
from compaction.catalogs.compaction.observations import CatalogDecision, CatalogMemory, CatalogSnapshot, Result
from compaction.catalogs.compaction.preview import compared, opens_another_log, preview_round
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.errors import ParticipantConfigError
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.operator.finding import EtcdLogs, HttpParticipants, credentials_in, named_participants
from compaction.catalogs.operator.working import CatalogWork, Credentials, RoundState
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.core.reconcile.observations import Moment
from compaction.kube.informer.cache import CacheKey
from compaction.local.run.objects import NAMESPACE, OWNER
from compaction.storage.secrets import Secrets

REREAD_SECONDS: Final = 1.0
"""How often the file is asked for again."""


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Implements `catalogs.operator.working.Places`: participants by address, Secrets of a file or a directory."""

    secrets: Secrets

    async def participants(self, namespace: str, spec: CatalogCompactionSpec) -> tuple[ParticipantAddress, ...]:
        """See `Places`. What labels select is refused where the file is read."""
        return tuple(sorted(named_participants(spec), key=lambda participant: participant.name))

    async def credentials(self, key: CacheKey, spec: CatalogCompactionSpec) -> Credentials:
        """See `Places`."""
        return credentials_in(spec, {name: self.secrets.read(name) for name in spec.secret_names})


class LocalCatalog:
    """One catalog. `tell` is called with the end of each process of a round, in the loop's thread.

    Everything runs on one event loop; `stop` may be called from any thread and from signal handlers.
    """

    def __init__(
        self,
        catalog: CatalogCompaction,
        *,
        secrets: Secrets,
        reread: Callable[[], CatalogCompaction | None] = lambda: None,
        tell: Callable[[Ended], None] = lambda ended: None,
    ) -> None:
        """`reread`: the catalog when its manifest has changed, else None; called about once a second."""
        meta = catalog.metadata.model_copy(
            update={
                "namespace": NAMESPACE,
                "uid": OWNER,
                "generation": 1,
                "resource_version": "1",
                "creation_timestamp": to_timestamp(datetime.now(UTC)),
            }
        )
        self.catalog = catalog.model_copy(update={"metadata": meta, "status": CatalogCompactionStatus()})
        self._reread = reread
        self._tell = tell
        self._stopped = False
        self._memory = CatalogMemory()
        self._round = RoundState()
        self._work = CatalogWork(
            FilePlaces(secrets),
            logs=EtcdLogs(),
            participants=HttpParticipants(_clock),
            clock=_clock,
            is_leader=lambda: not self._stopped,
        )

    @property
    def status(self) -> CatalogCompactionStatus:
        """The newest known status; between the steps of a round more than the last one that was written."""
        return self._memory.status or self.catalog.status

    def stop(self) -> None:
        """End soon: nothing is written that has not begun."""
        self._stopped = True

    async def once(self) -> CatalogCompactionStatus:
        """One round; none when the catalog is suspended."""
        await self._loop(lambda decision: bool(decision.round_seconds) or (self._memory.processes.stage is Stage.IDLE))
        return self.status

    async def preview(self, proposed: CatalogCompactionSpec) -> CatalogPreview:
        """Compare a round with another spec now with one of this spec. Raises ParticipantConfigError when it
        names another log or other participants.
        """
        if other := opens_another_log(self.catalog.spec, proposed):
            raise ParticipantConfigError(other)
        now = Moment(time.time(), time.monotonic())
        task = preview_round(self.catalog, proposed, 0, now)
        result = await self._work.do(CacheKey(NAMESPACE, self.catalog.metadata.name), self._round, task)
        return compared(task, result, now)

    async def watch(self) -> CatalogCompactionStatus:
        """Round after round until `stop`."""
        await self._loop(lambda decision: False)
        return self.status

    async def _loop(self, done: Callable[[CatalogDecision], bool]) -> None:
        running: set[asyncio.Task[Result]] = set()
        results: tuple[Result, ...] = ()
        try:
            while not self._stopped:
                decision = self._decided(results)
                for ended in decision.ended:
                    self._tell(ended)
                if done(decision):
                    return
                key = CacheKey(NAMESPACE, self.catalog.metadata.name)
                running |= {asyncio.create_task(self._work.do(key, self._round, task)) for task in decision.tasks}
                results, running = await self._waited(running, decision.requeue_after)
                self._take_changes()
        finally:
            for task in running:
                task.cancel()
            # Threads cannot be cancelled: they are waited for.
            await asyncio.gather(*running, return_exceptions=True)

    def _decided(self, results: tuple[Result, ...]) -> CatalogDecision:
        name = self.catalog.metadata.name
        now = Moment(time.time(), time.monotonic())
        decision = reconcile(CatalogSnapshot(NAMESPACE, name, now, self.catalog, OWNER, 0, results, self._memory))
        self._memory = decision.memory
        if decision.status is not None:
            self.catalog = self.catalog.model_copy(update={"status": decision.status.status})
        return decision

    async def _waited(
        self, running: set[asyncio.Task[Result]], due: float | None
    ) -> tuple[tuple[Result, ...], set[asyncio.Task[Result]]]:
        """Results of what ends next, and what still runs: no longer than until the file is asked for again."""
        seconds = min(REREAD_SECONDS, REREAD_SECONDS if due is None else due)
        if not running:
            await asyncio.sleep(seconds)
            return (), running
        ended, running = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return tuple(item.result() for item in ended), running

    def _take_changes(self) -> None:
        wanted = self._reread()
        if wanted is None or wanted.spec == self.catalog.spec:
            return
        meta = self.catalog.metadata.model_copy(update={"generation": self.catalog.metadata.generation + 1})
        self.catalog = self.catalog.model_copy(update={"spec": wanted.spec, "metadata": meta})


def _clock() -> int:
    return hybrid(max(1, int(time.time() * 1000)))
