"""What the pods of a policy's workers may not have, whatever the policy says: nothing of the node, of the operator's
account, or of other accounts.

A writer of policies cannot make pods himself; the operator makes them for him, in namespaces where perhaps no Pod
Security is enforced. So the operator enforces the Baseline of the Pod Security Standards on each pod that it makes, and
what it made must not run as root (docs/design/threat-model.md). The installation may allow more, never a policy.

Source: "Pod Security Standards" of Kubernetes, level Baseline, and of Restricted what says as whom containers run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from compaction.api.names import WORKER_SERVICE_ACCOUNT
from compaction.kube.client.resources import Obj
from compaction.kube.errors import LaunchError

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
    """What an installation allows. `accounts`: service accounts that policies may name for drivers. `privileged`: pods
    may have whatever the API server admits.
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
    strange = [f"the service account {one}" for one in named if one is not None and one not in accounts]
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
        for one in found:
            yield from secrets_in(one)


def _beyond(spec: Mapping[str, Any]) -> Iterator[str]:
    """What goes beyond the Baseline, in words that name the field."""
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
    return (one for one in (found if isinstance(found, list) else ()) if isinstance(one, Mapping))
