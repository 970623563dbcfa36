"""The port of a launcher of workers, and what their pods may not have whatever a policy says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import WORKER_SERVICE_ACCOUNT
from compaction.api.policy.workers import WorkersSpec
from compaction.core.kind import NO_SECRETS, StoreSecrets, StoreVolume
from compaction.kube.client.transport import Obj
from compaction.kube.errors import LaunchError

# Restrictions on the pods of a policy's workers, whatever the policy says: nothing of the node, of the operator's
# account, or of other accounts.
#
# A writer of policies cannot make pods himself; the operator makes them for him, in namespaces where perhaps no Pod
# Security is enforced. So the operator enforces the Baseline of the Pod Security Standards on each pod that it makes,
# and what it made must not run as root (docs/design/threat-model.md). The installation may allow more, never a
# policy.
#
# Source: "Pod Security Standards" of Kubernetes, level Baseline, and of Restricted what says as whom containers run.

_VOLUMES: Final = frozenset({"hostPath", "flexVolume", "gitRepo"})
"""Sources of volumes that are of the node, or are made by a program that runs there."""
_HOST: Final = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_ADDED: Final = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
     "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
)  # fmt: skip
_SYSCTLS: Final = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
     "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
     "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
     "net.ipv4.tcp_keepalive_probes"}
)  # fmt: skip
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP: Final = frozenset({"RuntimeDefault", "Localhost"})


@dataclass(frozen=True, slots=True)
class PodAllowance:
    """The rights of worker pods in an installation. `accounts`: service accounts that policies may name for drivers.
    `privileged`: pods may have whatever the API server admits.
    """

    accounts: frozenset[str] = frozenset({WORKER_SERVICE_ACCOUNT})
    privileged: bool = False


BASELINE: Final = PodAllowance()


def check_pod(
    spec: Obj,
    allowance: PodAllowance,
    *,
    accounts: Collection[str],
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises LaunchError with all that a pod has and may not have. `accounts`: those that it may run as."""
    # The second is the older name of the first.
    named = (spec.get(member) for member in ("serviceAccountName", "serviceAccount"))
    strange = [f"the service account {item}" for item in named if item is not None and item not in accounts]
    if found := [*strange, *(() if allowance.privileged else (*_beyond(spec), *_unconfined(annotations)))]:
        raise LaunchError(
            f"workers of policies may not have {', '.join(found)}: correct spec.workers, or have the installation "
            "allow it (docs/install.md#what-policies-may-ask-for)"
        )


def secrets_in(found: Any) -> Iterator[str]:
    """The names of all Secrets that containers would see of an object with pods in it, wherever they stand. Those that
    images are pulled with are the kubelet's alone.
    """
    if isinstance(found, Mapping):
        for key, value in found.items():
            if key == "secretName" and isinstance(value, str):
                yield value
            elif key == "secret" or key.lower().endswith(("secretref", "secretkeyref")):
                yield from ([str(value["name"])] if isinstance(value, Mapping) and "name" in value else ())
            if key != "imagePullSecrets":
                yield from secrets_in(value)
    elif isinstance(found, list):
        for item in found:
            yield from secrets_in(item)


def _beyond(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what goes beyond the Baseline, in words that name the field."""
    yield from (member for member in _HOST if spec.get(member))
    if spec.get("nodeName"):
        yield "nodeName"
    for volume in _objects(spec.get("volumes")):
        for source in sorted(_VOLUMES & set(volume)):
            yield f"a volume of {source} ({volume.get('name')})"
    yield from _security(_object(spec.get("securityContext")), "securityContext")
    for sysctl in _objects(_object(spec.get("securityContext")).get("sysctls")):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"the sysctl {sysctl.get('name')}"
    for kind in _CONTAINERS:
        for container in _objects(spec.get(kind)):
            name = f"{kind}[{container.get('name')}]"
            yield from _security(_object(container.get("securityContext")), f"{name}.securityContext")
            yield from (f"{name}: hostPort" for port in _objects(container.get("ports")) if port.get("hostPort"))
            if "terminationMessagePath" in container:
                # The kubelet copies this file, a Secret perhaps, to where everybody reads it.
                yield f"{name}.terminationMessagePath"


def _unconfined(annotations: Mapping[str, str]) -> Iterator[str]:
    """The older form of appArmorProfile, which the API server still takes over into containers."""
    for key, profile in annotations.items():
        if key.startswith(_APPARMOR) and not (profile == "runtime/default" or profile.startswith("localhost/")):
            yield f"the annotation {key}: {profile}"


def _security(context: Mapping[str, Any], where: str) -> Iterator[str]:
    for member in ("privileged", "allowPrivilegeEscalation"):
        if context.get(member):
            yield f"{where}.{member}"
    if context.get("runAsNonRoot") is False:
        yield f"{where}.runAsNonRoot: false"
    if context.get("runAsUser") == 0:
        yield f"{where}.runAsUser: 0"
    if context.get("procMount", "Default") != "Default":
        yield f"{where}.procMount"
    for capability in _object(context.get("capabilities")).get("add") or ():
        if capability not in _ADDED:
            yield f"{where}.capabilities: {capability}"
    if _object(context.get("seccompProfile")).get("type", "RuntimeDefault") not in _SECCOMP:
        yield f"{where}.seccompProfile"
    if _object(context.get("appArmorProfile")).get("type", "RuntimeDefault") not in _SECCOMP:
        yield f"{where}.appArmorProfile"
    if context.get("seLinuxOptions"):
        yield f"{where}.seLinuxOptions"
    if _object(context.get("windowsOptions")).get("hostProcess"):
        yield f"{where}.windowsOptions.hostProcess"


def _object(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _objects(found: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in (found if isinstance(found, list) else ()) if isinstance(item, Mapping))


# Operations that a launcher of workers must provide. One worker = one uniquely named, create/delete-only thing.
#
# The coordinator decides; a launcher only starts, looks and stops. The commit in the store is the truth about work, a
# worker's Lease the truth about its life: an observation is a hint that makes reactions faster, nothing is decided on
# its absence (docs/design/spark-applications.md). Every method is idempotent by the worker's name.


class PolicyKey(NamedTuple):
    """The policy that a worker belongs to."""

    namespace: str
    name: str


class WorkerPhase(StrEnum):
    """The phase of a launched worker, as its launcher reports it."""

    PENDING = "Pending"  # accepted, not running yet
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"  # ended by itself with exit code 0
    FAILED = "Failed"  # ended with another code, or by a signal
    LOST = "Lost"  # it is gone and nobody knows how it ended


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The part of a request that only a worker in pods needs. `owner_uid` is the policy's; `volume` what the store is
    on, if it is on one; `memory` the bytes that the driver pod gets this time, `executor_memory` each executor.
    `allowance`: what the installation allows.
    """

    workers: WorkersSpec
    owner_uid: str
    memory: int
    executor_memory: int
    volume: StoreVolume | None = None
    allowance: PodAllowance = BASELINE


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """Everything needed to start one worker. `master` and `conf` are handed to Spark as they are."""

    name: str
    policy: PolicyKey
    slots: int
    idle_seconds: float
    lease_seconds: int
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pod: PodRequest | None = None
    secrets: StoreSecrets = NO_SECRETS


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A started worker: its name is the identity, the rest is for people reading logs."""

    name: str
    policy: PolicyKey
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """One worker as the launcher sees it now. Ended workers are reported until `forget` is called for them.

    `trouble` says why one has not begun, `ending` how it ended; `ui` is the address of Spark's UI, where there is one;
    `memory` the bytes that its driver pod has, `executor_memory` those of each executor; `waited` the seconds in which
    it could not begin to start: not submitted yet, in a queue, or without room. `leaving`: it is being deleted, or held
    back; it takes no more jobs.
    """

    name: str
    policy: PolicyKey
    phase: WorkerPhase
    started: datetime
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    trouble: WorkerTrouble | None = None
    ending: WorkerEnding | None = None
    ui: str = ""
    memory: int = 0
    executor_memory: int = 0
    waited: float = 0.0
    leaving: bool = False

    @property
    def ended(self) -> bool:
        """True when the worker will do nothing any more."""
        return self.phase not in (WorkerPhase.PENDING, WorkerPhase.RUNNING)

    @property
    def ref(self) -> WorkerRef:
        """The reference to stop or forget this worker with."""
        return WorkerRef(self.name, self.policy)


class Launcher(Protocol):
    """Implemented for subprocesses (process.py) and for objects on the API server (objects.py)."""

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        """Start a worker; the name must be new. Raises LaunchError naming the cause."""
        ...

    async def observe(self) -> list[WorkerObservation]:
        """Every worker known to this backend, also those started by an earlier coordinator."""
        ...

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        """Ask it to end, and make it end after `grace` seconds. Stopping what has ended, or never was, is no error."""
        ...

    async def forget(self, ref: WorkerRef) -> None:
        """Drop the records of an ended worker; its observation was acted upon."""
        ...
