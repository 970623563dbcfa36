"""One launcher for all policies: each worker goes where its policy wants it, or where the cluster offers a place."""

from dataclasses import dataclass

import structlog

from compaction.api.enums import LauncherType
from compaction.errors import ApiError
from compaction.kube.errors import KindNotServedError, LaunchError
from compaction.kube.launchers.base import Launcher as LauncherProtocol
from compaction.kube.launchers.base import WorkerObservation, WorkerRef, WorkerRequest
from compaction.kube.launchers.choice import LauncherChoice, choose
from compaction.kube.launchers.objects import ObjectLauncher


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
            log.warning("an ended worker could not be deleted yet", worker=ref.name, error=str(error))


log = structlog.get_logger(__name__)
