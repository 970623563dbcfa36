"""The seam between the process (election, informer, queue) and the controller that decides and acts.

The process makes one `Runtime` per term of leadership, inside the loop that Kopf runs in, and hands it to the
controller. Order: `controller.start(runtime)` before the first event; `observed` for every change the cache accepted,
on the loop, before the policy's key is queued; `reconcile` for queued policy keys, never two at a time for one key;
`stop` after the queue has drained. Every key is the key of a catalog or of a policy: jobs and Leases
map to the policy they belong to, also when that policy no longer exists (which is how orphans are found).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compaction.kube.client.api import ApiClient
from compaction.kube.client.resources import Resource
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import Delta, ObjectCache, ObjectKey
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.base import Launcher
from compaction.kube.metrics.registry import Metrics
from compaction.kube.release import OWN_VERSION


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a controller works with; all of it belongs to the running loop.

    `is_leader` must be asked before every side effect outside the API server (starting or stopping a worker, deleting
    files); API writes are made harmless by their preconditions instead. `epoch` grows with every change of leadership.
    """

    client: ApiClient
    cache: ObjectCache
    queue: WorkQueue[ObjectKey]
    launcher: Launcher
    events: EventRecorder
    metrics: Metrics
    is_leader: Callable[[], bool]
    epoch: int
    identity: str
    namespace: str | None
    state_dir: Path
    version: str = OWN_VERSION


class Controller(Protocol):
    """Owned by `kube.controller` and `catalogs.operator`. `watches_catalogs`: whether catalogs are reconciled."""

    watches_catalogs: bool = False

    async def start(self, runtime: Runtime) -> None:
        """Take the term's runtime; nothing was observed yet."""
        ...

    def observed(self, resource: Resource, delta: Delta) -> None:
        """The cache accepted a change; the moment of this call is the local time of observation. Must not block."""
        ...

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Bring one policy and everything of it forward; returns seconds after which to look again, or None."""
        ...

    async def stop(self) -> None:
        """The queue has drained; end what `start` began. Workers are left running: they outlive their coordinator.

        May be called more than once.
        """
        ...
