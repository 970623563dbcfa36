"""`check`: what stands between this cluster and compaction, before an installation and after it.

Exit codes: 0 nothing is wrong; 1 something is, or it could not be asked; 2 wrong usage. What this user may not read is
unknown, and no failure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import ConditionType, PolicyReason, WorkerTrouble
from compaction.api.names import ANNOTATION_CONFIGURATION, GROUP, LABEL_APP, VERSION, WORKER_APP
from compaction.api.policy.configuration import flattened
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_age, plural, printable
from compaction.cli.cluster.flags import CommandTarget, cluster_options
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.core.explain.explanation import Leadership, coordination
from compaction.leases.record import Lease

if TYPE_CHECKING:
    from compaction.api.crd.definitions import Resource
    from compaction.kube.client.api import ApiClient

OPERATOR_APP: Final = "compaction-operator"
OLDEST_SERVER: Final = (1, 30)
"""Minor version of Kubernetes from which on resources have all that the definitions say (docs/install.md)."""
MOST_SKEW: Final = timedelta(seconds=5)
"""More than that makes ages in status, and windows, wrong by as much; leases do not depend on it."""
_REACHED: Final = frozenset(
    {
        PolicyReason.SOURCES_QUARANTINED,
        PolicyReason.SOURCES_UNREADABLE,
        PolicyReason.JOBS_FAULTY,
        PolicyReason.LAUNCH_FAILED,
    }
)
"""Reasons for which a policy is stalled although its store was read: `status` and `why` tell of them."""
_IMAGES: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff"})
"""Reasons of a container that waits, of an image that cannot start."""


class CheckVerdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "FAILED"
    UNKNOWN = "unknown"  # this user may not read what tells it, or there is nothing yet that would


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """One check, and in words what was found and what to do."""

    name: str
    result: CheckVerdict
    message: str


def _ok(name: str, message: str) -> ClusterCheck:
    return ClusterCheck(name, CheckVerdict.OK, message)


def _failed(name: str, message: str) -> ClusterCheck:
    return ClusterCheck(name, CheckVerdict.FAILED, message)


def _unknown(name: str, message: str) -> ClusterCheck:
    return ClusterCheck(name, CheckVerdict.UNKNOWN, message)


@click.command("check")
@cluster_options(all_namespaces=True)
@output_option()
def command(*, target: CommandTarget, output: OutputFormat) -> int:
    """Check definitions, rights, the leader, clocks, images and stores, before an installation and after it.

    It creates nothing but reviews of access, which are not kept. Rights are those of the user of the command in the
    namespace, and of the operator where reviews of others are permitted.
    """
    from compaction.cli.cluster.access import connect
    from compaction.kube.client.api import ApiClient

    connection = connect(target)

    async def checking() -> list[ClusterCheck]:
        async with ApiClient(connection, user_agent="kubectl-compaction") as client:
            return await checks(client, None if target.all_namespaces else connection.namespace)

    found = asyncio.run(checking())
    rows = [{"check": item.name, "result": item.result.value, "message": item.message} for item in found]
    if output is OutputFormat.TABLE:
        print_table(rows, [OutputColumn(key, key.title()) for key in ("check", "result", "message")])
    else:
        emit({"items": rows}, output)
    return EXIT_DATA_ERROR if any(item.result is CheckVerdict.FAILED for item in found) else 0


async def checks(client: ApiClient, namespace: str | None) -> list[ClusterCheck]:
    """All checks, in the order in which one depends on another. `namespace` None: of all of them."""
    from compaction.errors import ApiError

    try:
        served = await client.request("GET", "/version")
    except ApiError as error:
        return [_failed("api server", f"{error}; check --context, --kubeconfig and that the cluster runs")]
    found = [server_version(served)]
    found += await _definitions(client)
    found += await _rights(client, namespace)
    leases = await _coordinators(client)
    found += await _leader_and_clocks(client, leases, namespace)
    found += await _images(client, leases)
    found += await _stores(client, namespace)
    return found


def server_version(served: Mapping[str, Any]) -> ClusterCheck:
    """Judge the answer of /version."""
    text = str(served.get("gitVersion", ""))
    digits = [str(served.get(part, "")).rstrip("+") for part in ("major", "minor")]
    if not all(part.isdecimal() for part in digits):
        return _unknown("api server", f"it calls itself {text or 'nothing'}")
    if tuple(map(int, digits)) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        return _failed("api server", f"Kubernetes {text} is older than {oldest}: upgrade the cluster")
    return _ok("api server", f"Kubernetes {text}")


# Definitions: served, and of this program's version, told from the fields that they have.


async def _definitions(client: ApiClient) -> list[ClusterCheck]:
    from compaction.api.crd.definitions import OPENAPI_PATH, RESOURCES, served_schemas
    from compaction.errors import ApiError, NotFoundError

    try:
        served = served_schemas(await client.request("GET", OPENAPI_PATH))
    except NotFoundError:
        apply = "apply them (kubectl apply --server-side -f crds/)"
        return [_failed("definitions", f"{GROUP}/{VERSION} is not served: {apply}")]
    except ApiError as error:
        return [_unknown("definitions", str(error))]
    return [definition(resource, served.get(resource.INFO.kind)) for resource in RESOURCES]


def definition(resource: Resource, served: Mapping[str, Any] | None) -> ClusterCheck:
    """Compare a resource of this program with the schema that is served."""
    from compaction.api.crd.definitions import fields_of_model, fields_of_schema, lacking_fields

    name = f"definition {resource.INFO.kind}"
    if served is None:
        return _failed(name, "it is not served: apply it (kubectl apply --server-side -f crds/)")
    # Older first: a definition that lacks fields drops what the operator writes, and says nothing of it.
    if lacking := lacking_fields(resource, served):
        return _failed(
            name, f"it is older than this program, and lacks {lacking}: apply the definitions of this version"
        )
    if foreign := sorted(set(fields_of_schema(served)) - set(fields_of_model(resource))):
        return _failed(name, f"it is newer than this program, and has {foreign[0]}: use the program of that version")
    return _ok(name, "of the version of this program")


# Rights: what the user of the command may do, and whether the operator may do what it has to.


async def _rights(client: ApiClient, namespace: str | None) -> list[ClusterCheck]:
    from compaction.errors import ApiError
    from compaction.kube.client.transport import COMPACTION_POLICIES
    from compaction.kube.replica.preflight import Permission, missing_permissions

    read = tuple(Permission(verb, COMPACTION_POLICIES, namespace) for verb in ("get", "list"))
    write = (Permission("patch", COMPACTION_POLICIES, namespace),)
    try:
        missing = await missing_permissions(client, read + write)
    except ApiError as error:
        return [_unknown("rights", str(error))]
    if missing:
        may_read = not set(missing) & set(read)
        role = "compaction-editor" if may_read else "compaction-viewer"
        refused = "; ".join(str(permission) for permission in missing)
        return [_failed("rights", f"this user may not {refused}: bind the role {role}")]
    return [_ok("rights", "this user may read and change policies")]


async def operator_rights(client: ApiClient, lease: Lease) -> ClusterCheck:
    """Judge whether the account of the operator beside this Lease may do what it has to, in its own namespace at the
    least.
    """
    from compaction.errors import ApiError, NotFoundError
    from compaction.kube.replica.preflight import needed_permissions

    name, account = "operator's rights", f"system:serviceaccount:{lease.namespace}:{OPERATOR_APP}"
    path = f"/api/v1/namespaces/{lease.namespace}/serviceaccounts/{OPERATOR_APP}"
    try:
        await client.request("GET", path)
    except NotFoundError:
        return _unknown(
            name, f"{account} does not exist: the operator runs as another user, and says so itself at start"
        )
    except ApiError:
        pass  # who may not read accounts may review their access all the same
    missing = []
    for permission in needed_permissions(namespace=lease.namespace, lease_namespace=lease.namespace):
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": permission.attributes},
        }
        try:
            answer = await client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
        except ApiError:
            # Reviews of others are for administrators: that they are refused says nothing about the operator.
            return _unknown(name, "this user may not review the access of others; the operator says so itself at start")
        if not answer.get("status", {}).get("allowed"):
            missing.append(str(permission))
    if missing:
        return _failed(name, f"{account} may not {'; '.join(missing)}: apply manifests/rbac, and its binding")
    return _ok(name, f"{account} may do what it has to in its namespace")


# The leader, and clocks: this machine's, the leader's and the API server's.


async def _coordinators(client: ApiClient) -> list[Lease] | None:
    from compaction.cli.cluster.access import ClusterAccess
    from compaction.errors import ApiError

    try:
        leases, _ = await ClusterAccess(client, CommandTarget()).coordinators()
    except ApiError:
        return None
    return leases


async def _leader_and_clocks(
    client: ApiClient, leases: list[Lease] | None, namespace: str | None
) -> list[ClusterCheck]:
    asked = datetime.now(UTC)
    server = await _server_time(client)
    # The answer has whole seconds, and was given between question and receipt.
    slack = timedelta(seconds=1) + (datetime.now(UTC) - asked)
    found = [leader(leases, namespace, asked if server is None else server)]
    held = [lease for lease in leases or () if lease.record.holder is not None]
    found += [configuration(lease) for lease in held]
    found += [await operator_rights(client, lease) for lease in held]
    if server is None:
        return [*found, _unknown("clocks", "the API server does not say its time (before Kubernetes 1.28)")]
    clocks: list[tuple[str, datetime, timedelta]] = [("this machine", asked, slack)]
    clocks += [
        # A Lease is renewed every few seconds: it may be as old as that.
        (f"the leader in {lease.namespace}", lease.record.renew_time, slack + timedelta(seconds=10))
        for lease in held
        if lease.record.renew_time is not None
    ]
    return [*found, clock_skew(server, clocks)]


async def _server_time(client: ApiClient) -> datetime | None:
    """The time of the API server, to the second: it stamps a review of who this user is."""
    from compaction.cli.cluster.access import self_review

    review = await self_review(client)
    try:
        return datetime.fromisoformat(str(review["metadata"]["creationTimestamp"]))
    except (KeyError, TypeError, ValueError):
        return None  # an older API server does not know it, or does not stamp it


def leader(leases: Sequence[Lease] | None, namespace: str | None, now: datetime) -> ClusterCheck:
    """Judge whether a replica leads."""
    if leases is None:
        return _unknown("leader", "this user may not read its Lease (role compaction-viewer)")
    if not leases:
        return _unknown("leader", "no operator has ever led here: install it, or it is elsewhere (-n, -A)")
    found = coordination(leases, namespace or leases[0].namespace, now, complete=True)
    if found.state is Leadership.LEADS:
        return _ok("leader", f"{found.holder}")
    return _failed("leader", f"{found.sentence(now)} See docs/runbooks/CompactionNoLeader.md")


def configuration(lease: Lease) -> ClusterCheck:
    """Say which configuration the leader of this Lease runs with, as it has said there itself."""
    where = f"configuration in {lease.namespace}"
    try:
        said = json.loads(lease.annotations[ANNOTATION_CONFIGURATION])
        digest, values = str(said["hash"]), said.get("values")
    except (KeyError, TypeError, ValueError):
        return _unknown(where, "the leader does not say it: it is of an older version")
    if values is None:
        return _ok(where, f"{digest}: it is long; see the ConfigMap that the operator mounts")
    lines = flattened(values)
    return _ok(where, printable(f"{digest}: {', '.join(lines)}" if lines else f"{digest}: built-in defaults"))


def clock_skew(server: datetime, clocks: Iterable[tuple[str, datetime, timedelta]]) -> ClusterCheck:
    """Judge clocks against the API server's: each with its name, its time, and how far that may be off by itself."""
    compared = 0
    for name, at, slack in clocks:
        compared += 1
        off = at - server
        if abs(off) > MOST_SKEW + slack:
            direction = "ahead of" if off > timedelta() else "behind"
            seconds = format_age(abs(off).total_seconds())
            return _failed("clocks", f"{name} is {seconds} {direction} the API server: synchronize them")
    return _ok("clocks", f"{plural(compared, 'clock')} within {MOST_SKEW.seconds} s of the API server")


# Images of the operator and of workers: told from containers that do not start.


async def _images(client: ApiClient, leases: list[Lease] | None) -> list[ClusterCheck]:
    from compaction.errors import ApiError
    from compaction.kube.client.transport import PODS

    pods: list[dict[str, Any]] = []
    try:
        for namespace in sorted({lease.namespace for lease in leases or ()}):
            for app in (OPERATOR_APP, WORKER_APP):
                listed = await client.list(PODS, namespace=namespace, labels=f"{LABEL_APP}={app}")
                pods += listed.items
    except ApiError as error:
        return [_unknown("images", str(error))]
    return [images(pods)]


def images(pods: Sequence[Mapping[str, Any]]) -> ClusterCheck:
    """Judge the containers of pods of ours."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses") or ():
            waiting = container.get("state", {}).get("waiting") or {}
            if waiting.get("reason") in _IMAGES:
                namespace, name = pod["metadata"].get("namespace"), pod["metadata"]["name"]
                where = f"{namespace}/{name}"
                said = waiting.get("message") or f"kubectl logs --previous -n {namespace} {name}"
                return _failed("images", f"{container.get('image')} of {where}: {waiting['reason']}: {said}")
    if not pods:
        return _unknown("images", "no pod of the operator or of a worker is here yet")
    # A pod without statuses is one that no node has taken yet: it says nothing about its image.
    started = sum(bool(pod.get("status", {}).get("containerStatuses")) for pod in pods)
    if started < len(pods):
        return _unknown("images", f"{started} of {plural(len(pods), 'pod')} of ours have started so far")
    return _ok("images", f"{plural(len(pods), 'pod')} of ours, none that cannot start")


# Stores: reached by the operator, which is where they have to be reached from.


async def _stores(client: ApiClient, namespace: str | None) -> list[ClusterCheck]:
    from compaction.cli.cluster.access import models
    from compaction.errors import ApiError
    from compaction.kube.client.transport import COMPACTION_POLICIES

    try:
        listed = await client.list(COMPACTION_POLICIES, namespace=namespace)
    except ApiError as error:
        return [_unknown("stores", str(error))]
    return stores(models(CompactionPolicy, listed.items))


def stores(policies: Sequence[CompactionPolicy]) -> list[ClusterCheck]:
    """Judge what policies say of their stores, and of workers that cannot pull their image: each failure by itself."""
    if not policies:
        return [_unknown("stores", "there is no policy yet; the operator reaches the stores of policies")]
    found = []
    for policy in policies:
        where = f"{policy.metadata.namespace}/{policy.metadata.name}"
        ready = get_condition(policy.status.conditions, ConditionType.READY)
        stalled = is_true(policy.status.conditions, ConditionType.STALLED)
        if ready is not None and stalled and ready.reason not in _REACHED:
            found.append(_failed(f"store of {where}", f"{ready.reason}: {ready.message}"))
        found += [
            _failed(f"workers of {where}", f"{worker.name}: {worker.reason}: {worker.message}")
            for worker in policy.status.worker_statuses
            if worker.reason in (WorkerTrouble.IMAGE_PULL, WorkerTrouble.POD_CONFIG)
        ]
    if found:
        return found
    scanned = sum(policy.status.last_sense_time is not None for policy in policies)
    if scanned < len(policies):
        return [_unknown("stores", f"{scanned} of {plural(len(policies), 'store')} were scanned so far")]
    return [_ok("stores", f"{plural(scanned, 'store')} scanned")]
