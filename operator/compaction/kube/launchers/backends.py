"""All launchers put together: each worker goes where its policy wants it, or where the cluster offers a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from compaction.api.enums import LauncherType
from compaction.errors import ApiError
from compaction.kube.client.api import ApiClient
from compaction.kube.errors import KindNotServedError, LaunchError
from compaction.kube.launchers.apache import apache_application, observe_apache
from compaction.kube.launchers.base import BASELINE, PodAllowance, WorkerObservation, WorkerRef, WorkerRequest
from compaction.kube.launchers.base import Launcher as LauncherProtocol
from compaction.kube.launchers.driver_pod import driver_pod
from compaction.kube.launchers.kubeflow import kubeflow_application, observe_kubeflow
from compaction.kube.launchers.objects import Backend, LauncherChoice, ObjectLauncher, choose
from compaction.kube.launchers.pod_status import observe_pod

# One launcher for all policies: each worker goes where its policy wants it, or where the cluster offers a place.


@dataclass(frozen=True, slots=True)
class AutoLauncher:
    """Implements `launchers.base.Launcher`. `in_pod`: the operator runs in a pod, so its workers may as well."""

    processes: LauncherProtocol
    objects: ObjectLauncher
    in_pod: bool

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        """See `launchers.base.Launcher`. Raises LaunchError also when the policy's launcher cannot be used here."""
        wanted = request.pod.workers.launcher if request.pod is not None else LauncherType.PROCESS
        offer = LauncherChoice(in_pod=self.in_pod) if wanted is LauncherType.PROCESS else await self._offer()
        launcher = choose(wanted, offer)
        if launcher is LauncherType.PROCESS:
            return await self.processes.launch(request)
        try:
            return await self.objects.launch_as(launcher, request)
        except KindNotServedError:
            # The kind has gone since it was chosen: choose again, but never a process here instead of pods in the
            # cluster.
            other = choose(wanted, await self._offer())
            if other in (launcher, LauncherType.PROCESS):
                raise
        return await self.objects.launch_as(other, request)

    async def _offer(self) -> LauncherChoice:
        try:
            return LauncherChoice(await self.objects.offer(), in_pod=self.in_pod)
        except ApiError as error:
            raise LaunchError(f"the API server does not say which kinds of objects it serves: {error}") from error

    async def observe(self) -> list[WorkerObservation]:
        """See `launchers.base.Launcher`."""
        return [*await self.processes.observe(), *await self.objects.observe()]

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        """See `launchers.base.Launcher`."""
        if not self.objects.knows(ref):
            return await self.processes.stop(ref, grace=grace)
        try:
            await self.objects.stop(ref, grace=grace)
        except ApiError as error:
            # Its Lease is gone: it ends by itself, or is found again at the next look.
            log.warning("worker could not be deleted", worker=ref.name, error=str(error))

    async def forget(self, ref: WorkerRef) -> None:
        """See `launchers.base.Launcher`."""
        if not self.objects.knows(ref):
            return await self.processes.forget(ref)
        try:
            await self.objects.forget(ref)
        except ApiError as error:
            # It is still seen as ended, so the next decision forgets it again.
            log.warning("an ended worker could not be deleted yet", worker=ref.name, error=str(error))


log = structlog.get_logger(__name__)


# The launchers put together: every kind of object this version can make, and processes.


BACKENDS: Final[Mapping[LauncherType, Backend]] = {
    LauncherType.KUBEFLOW: Backend(kubeflow_application, observe_kubeflow),
    LauncherType.APACHE: Backend(apache_application, observe_apache),
    LauncherType.POD: Backend(driver_pod, lambda body, _, since: observe_pod(body, since)),
}


def make_launcher(
    client: ApiClient,
    processes: LauncherProtocol,
    *,
    namespace: str | None,
    in_pod: bool,
    allowance: PodAllowance = BASELINE,
) -> AutoLauncher:
    """The launcher of a term. `namespace` None: policies of all namespaces."""
    objects = ObjectLauncher(client, BACKENDS, namespace=namespace, allowance=allowance)
    return AutoLauncher(processes, objects, in_pod=in_pod)
