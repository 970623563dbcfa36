"""The launchers put together: every kind of object this version can make, and processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compaction.api.enums import LauncherType
from compaction.kube.client.api import ApiClient
from compaction.kube.client.resources import Obj
from compaction.kube.launchers.apache import ApacheBackend
from compaction.kube.launchers.auto import AutoLauncher
from compaction.kube.launchers.base import Launcher as LauncherProtocol
from compaction.kube.launchers.base import WorkerObservation, WorkerRequest
from compaction.kube.launchers.baseline import BASELINE, PodAllowance
from compaction.kube.launchers.driver_pod import driver_pod
from compaction.kube.launchers.kubeflow import KubeflowBackend
from compaction.kube.launchers.objects import Backend, ObjectLauncher
from compaction.kube.launchers.pod_status import Sighting, observe_pod


@dataclass(frozen=True, slots=True)
class PodBackend:
    """Implements `objects.Backend`: the driver pod is the object."""

    def build(self, request: WorkerRequest, default_image: str) -> Obj:
        """See `objects.Backend`."""
        return driver_pod(request, default_image=default_image)

    def observe(self, body: Obj, pod: Obj | None, since: Sighting) -> WorkerObservation:
        """See `objects.Backend`."""
        return observe_pod(body, since)


BACKENDS: Final[Mapping[LauncherType, Backend]] = {
    LauncherType.KUBEFLOW: KubeflowBackend(),
    LauncherType.APACHE: ApacheBackend(),
    LauncherType.POD: PodBackend(),
}


def make_launcher(
    client: ApiClient,
    processes: LauncherProtocol,
    *,
    namespace: str | None,
    default_image: str,
    in_pod: bool,
    allowance: PodAllowance = BASELINE,
) -> AutoLauncher:
    """The launcher of a term. `namespace` None: policies of all namespaces."""
    objects = ObjectLauncher(client, BACKENDS, namespace=namespace, default_image=default_image, allowance=allowance)
    return AutoLauncher(processes, objects, in_pod=in_pod)
