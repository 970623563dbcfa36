"""The synchronous edge of the commands for a cluster: flags as kubectl's, our kinds as models, names for
completion.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
from pydantic import ValidationError

from compaction.api.base import ApiModel
from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.job.job import CompactionJob
from compaction.api.names import COORDINATOR_LEASE, HOLD_LEASE
from compaction.api.policy.configuration import PolicyDefaults, completed, taken
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.cluster.flags import CommandTarget, ObjectKind, kind_and_name
from compaction.cli.lazy import report
from compaction.core.reconcile.observations import Hold
from compaction.errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    CompactionError,
    ForbiddenError,
    GoneError,
    MalformedLeaseError,
    NotFoundError,
    UnauthorizedError,
)
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, NAMESPACES, ApiClient, PatchKind
from compaction.kube.client.config import ApiConnection, load_connection
from compaction.kube.client.transport import CATALOG_COMPACTIONS, EVENTS, Obj, Resource
from compaction.kube.errors import ClusterCommandError
from compaction.kube.hold import lease_of, read_hold
from compaction.leases.record import Lease

# The synchronous edge of the commands for a cluster: flags as kubectl's, our kinds as models, errors a person can act
# on.
#
# Exit codes of all of them: 0 done; 1 not done, and the line on stderr says why (no cluster, no such object, a
# missing permission, a state that does not allow it); 2 wrong usage.

USER_AGENT: Final = "kubectl-compaction"
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""What the API server takes as a name. Anything else would be read as a part of the URL."""
RECONNECT_SECONDS: Final = 2.0
MOST_SEEN: Final = 20_000
"""Objects that a watch remembers: more than a cluster keeps Events of a namespace for an hour."""
Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=ApiModel)


class ClusterAccess:
    """Our kinds in one namespace (or in all of them), read as models. Raises ClusterCommandError.

    `left_out`: how many objects of lists were not valid, and were named on stderr instead.
    """

    def __init__(self, client: ApiClient, target: CommandTarget) -> None:
        self._client = client
        self.namespace = target.namespace or client.connection.namespace
        self._scope = None if target.all_namespaces else self.namespace
        self.left_out = 0

    def explained(self, error: ApiError) -> str:
        """Say what a person can do about an answer of the API server."""
        return _advice(error, self._client.connection.server)

    def within(self, namespace: str) -> ClusterAccess:
        """The same cluster, one namespace of it."""
        return ClusterAccess(self._client, CommandTarget(namespace=namespace))

    async def policies(self, *, labels: str | None = None) -> list[CompactionPolicy]:
        """All policies in reach (with these labels); one that an older schema let in is named on stderr and left
        out.
        """
        found = await self._client.list(COMPACTION_POLICIES, namespace=self._scope, labels=labels)
        return self._valid(CompactionPolicy, found.items)

    def _valid(self, model: type[Model], bodies: Sequence[Obj]) -> list[Model]:
        found = models(model, bodies)
        self.left_out += len(bodies) - len(found)
        return found

    async def policy(self, name: str) -> CompactionPolicy:
        """One policy."""
        return await self._get(COMPACTION_POLICIES, CompactionPolicy, name)

    async def catalogs(self, *, labels: str | None = None) -> list[CatalogCompaction] | None:
        """All catalogs in reach, as `policies`; None where there is no such kind, or no permission: a role or a
        definition of before an upgrade lets policies be seen.
        """
        try:
            found = await self._client.list(CATALOG_COMPACTIONS, namespace=self._scope, labels=labels)
        except (ForbiddenError, NotFoundError):
            return None
        return self._valid(CatalogCompaction, found.items)

    async def catalog(self, name: str) -> CatalogCompaction:
        """One catalog."""
        return await self._get(CATALOG_COMPACTIONS, CatalogCompaction, name)

    async def find_catalog(self, name: str, *, alone: bool = False) -> CatalogCompaction | None:
        """One catalog, or None when there is none of that name, no such kind, or no permission; the last two are
        errors where a catalog `alone` is asked for, and nothing else may be meant.
        """
        try:
            return await self._find(CATALOG_COMPACTIONS, CatalogCompaction, name)
        except (ForbiddenError, NotFoundError):
            if alone:
                raise
            return None

    async def policy_or_catalog(self, text: str, *, only_one: bool = False) -> CompactionPolicy | CatalogCompaction:
        """The object that a user means: `cpol/NAME`, `ccat/NAME`, or NAME, which is that of a policy or else of a
        catalog. `only_one`: a name that both have is an error. Raises ClusterCommandError.
        """
        kind, name = kind_and_name(text, ObjectKind.POLICY, ObjectKind.CATALOG)
        if kind is not None:
            return await (self.catalog(name) if kind is ObjectKind.CATALOG else self.policy(name))
        policy = await self.find_policy(name)
        catalog = await self.find_catalog(name) if policy is None or only_one else None
        if policy is not None and catalog is not None:
            raise ClusterCommandError(f"{name} is a policy and a catalog: give cpol/{name} or ccat/{name}")
        if (found := policy or catalog) is not None:
            return found
        kinds = f"{COMPACTION_POLICIES.kind} or {CATALOG_COMPACTIONS.kind}"
        raise ClusterCommandError(f'no {kinds} "{name}" in namespace "{self.namespace}": see kubectl get compaction -A')

    async def job(self, name: str) -> CompactionJob:
        """One job."""
        return await self._get(COMPACTION_JOBS, CompactionJob, name)

    async def find_policy(self, name: str) -> CompactionPolicy | None:
        """One policy, or None when there is none of that name."""
        return await self._find(COMPACTION_POLICIES, CompactionPolicy, name)

    async def find_job(self, name: str) -> CompactionJob | None:
        """One job, or None when there is none of that name."""
        return await self._find(COMPACTION_JOBS, CompactionJob, name)

    async def jobs(self, policy: str) -> list[CompactionJob]:
        """The jobs of a policy, by name."""
        fields = f"spec.policyRef.name={policy}"
        found = await self._client.list(COMPACTION_JOBS, namespace=self.namespace, fields=fields)
        return sorted(models(CompactionJob, found.items), key=lambda job: job.metadata.name)

    async def coordinators(self) -> tuple[list[Lease] | None, bool]:
        """The coordinators' Leases of all namespaces, or of this one where this user may not see more, and whether they
        are all; None when there is no permission.
        """
        fields = f"metadata.name={COORDINATOR_LEASE}"
        for namespace in (None, self.namespace):
            with suppress(ForbiddenError):
                found = await self._client.list(LEASES, namespace=namespace, fields=fields)
                return _parsed(found.items), namespace is None
        return None, False

    async def leases(self) -> list[Lease] | None:
        """All Leases of the namespace; None when this user may not list them (they only add detail)."""
        try:
            found = await self._client.list(LEASES, namespace=self.namespace)
        except ForbiddenError:
            return None
        return _parsed(found.items)

    async def events(self, kind: str) -> list[Obj]:
        """Events about objects of a kind, in the namespace."""
        found = await self._client.list(EVENTS, namespace=self.namespace, fields=f"involvedObject.kind={kind}")
        return list(found.items)

    async def watch_events(self) -> AsyncIterator[Obj]:
        """Events of the namespace as they are, then each change. Raises as `watch_policies`."""
        async for event in self._client.watch(EVENTS, namespace=self.namespace):
            if event.type in ("ADDED", "MODIFIED"):
                yield event.object

    async def annotate(self, resource: Resource, name: str, key: str, value: str) -> None:
        """Set one annotation."""
        await self.patch(resource, name, {"metadata": {"annotations": {key: value}}}, namespace=self.namespace)

    async def patch(self, resource: Resource, name: str, patch: Obj, *, namespace: str) -> None:
        """Merge the patch into an object. Raises ClusterCommandError when it is not there, ApiError otherwise."""
        try:
            await self._client.patch(resource, name, patch, namespace=namespace, field_manager=USER_AGENT)
        except NotFoundError as error:
            raise _absent(resource, name, namespace) from error

    async def propose(self, resource: Resource, name: str, spec: Obj) -> Obj:
        """The spec as the API server would store it instead of the one in force: with its defaults, and judged by
        schema, rules and admission. Nothing is written. Raises as `patch`.
        """
        change: list[Obj] = [{"op": "replace", "path": "/spec", "value": spec}]
        try:
            body = await self._client.patch(
                resource,
                name,
                change,
                namespace=self.namespace,
                kind=PatchKind.JSON,
                field_manager=USER_AGENT,
                dry_run=True,
            )
        except NotFoundError as error:
            raise _absent(resource, name, self.namespace) from error
        found: Obj = body["spec"]
        return found

    async def hold(self, namespace: str | None, reason: str, *, drain: bool) -> str:
        """Put the operator in that namespace (None: the only one) on hold; returns its namespace."""
        where = await self._operator(namespace)
        wanted = Hold(reason, by=await self.user(), since=datetime.now(UTC), drain=drain)
        try:
            await self._client.create(LEASES, lease_of(wanted, where).body())
        except AlreadyExistsError as error:
            held = await read_hold(self._client, where)
            said = held.said if held is not None else "another hold has just ended; try again"
            raise ClusterCommandError(f"{said}. Release it first: kubectl compaction release -n {where}") from error
        return where

    async def release(self, namespace: str | None) -> str:
        """End the hold of the operator in that namespace (None: the only one); returns its namespace."""
        where = await self._operator(namespace)
        try:
            await self._client.delete(LEASES, HOLD_LEASE, namespace=where)
        except NotFoundError as error:
            raise ClusterCommandError(f"the operator in {where} is not on hold") from error
        return where

    async def _operator(self, namespace: str | None) -> str:
        """The namespace of the operator that is meant. Raises ClusterCommandError unless exactly one is found."""
        leases, _ = await self.coordinators()
        found = sorted({lease.namespace for lease in leases or ()})
        if namespace is not None:
            if leases is not None and namespace not in found:
                others = f"; there is one in {', '.join(found)}" if found else ""
                raise ClusterCommandError(f"no operator has its Lease in namespace {namespace}{others}")
            return namespace
        if len(found) != 1:
            what = f"operators are in {', '.join(found)}" if found else "no operator is found"
            raise ClusterCommandError(f"{what}: name the namespace of its Lease {COORDINATOR_LEASE} with -n")
        return found[0]

    async def user(self) -> str:
        """Who this user is to the API server; empty where it does not say (before Kubernetes 1.28)."""
        review = await self_review(self._client)
        return str(review.get("status", {}).get("userInfo", {}).get("username", ""))

    def watch_policies(self, name: str | None, *, labels: str | None = None) -> AsyncIterator[CompactionPolicy]:
        """Policies (with these labels) as they are, then each change. Raises GoneError and ApiUnavailableError as the
        client does.
        """
        return self._watch(COMPACTION_POLICIES, CompactionPolicy, name, labels)

    def watch_catalog(self, name: str) -> AsyncIterator[CatalogCompaction]:
        """One catalog as it is, then each change. Raises as `watch_policies`."""
        return self._watch(CATALOG_COMPACTIONS, CatalogCompaction, name)

    async def _watch(
        self, resource: Resource, model: type[Model], name: str | None, labels: str | None = None
    ) -> AsyncIterator[Model]:
        fields = f"metadata.name={name}" if name is not None else None
        async for event in self._client.watch(resource, namespace=self._scope, labels=labels, fields=fields):
            if event.type in ("ADDED", "MODIFIED"):
                for item in models(model, [event.object]):
                    yield item

    async def _get(self, resource: Resource, model: type[Model], name: str) -> Model:
        found = await self._find(resource, model, name)
        if found is None:
            raise _absent(resource, name, self.namespace)
        return found

    async def _find(self, resource: Resource, model: type[Model], name: str) -> Model | None:
        if not _NAME.fullmatch(name):
            raise ClusterCommandError(f'"{name}" is not the name of a {resource.kind}: give its metadata.name only')
        try:
            body = await self._client.get(resource, name, namespace=self.namespace)
        except NotFoundError as error:
            if error.is_of_kind:
                raise
            return None
        try:
            return read_model(model, body)
        except ValidationError as error:
            raise ClusterCommandError(_invalid(body, error)) from error


def connect(target: CommandTarget) -> ApiConnection:
    """Return the connection to the target's API server. Raises ConnectionConfigError."""
    if target.groups and target.user is None:
        raise click.UsageError("--as-group needs --as")
    found = load_connection(target.kubeconfig, context=target.context, namespace=target.namespace)
    return replace(found, user=target.user, groups=target.groups)


async def self_review(client: ApiClient) -> Obj:
    """The caller, as the API server names and stamps it; empty where it does not (before Kubernetes 1.28)."""
    body: Obj = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with suppress(ApiError):
        return await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
    return {}


def _parsed(bodies: Iterable[Obj]) -> list[Lease]:
    leases = []
    for body in bodies:
        with suppress(MalformedLeaseError):  # somebody else's, and nothing to explain with
            leases.append(Lease.parse(body))
    return leases


def ask(target: CommandTarget, question: Callable[[ClusterAccess], Awaitable[Answer]]) -> Answer:
    """Connect, ask, disconnect. Raises ClusterCommandError and ConnectionConfigError."""
    connection = connect(target)

    async def asking() -> Answer:
        async with ApiClient(connection, user_agent=USER_AGENT) as client:
            return await question(ClusterAccess(client, target))

    try:
        return asyncio.run(asking())
    except ApiError as error:
        raise ClusterCommandError(_advice(error, connection.server)) from error


def _advice(error: ApiError, server: str) -> str:
    """Say what a person can do about an answer of the API server, or about none."""
    said = error.said
    match error:
        case ApiUnavailableError():
            return f"{server} does not answer: {said}; check --context, --kubeconfig and that the cluster runs"
        case ForbiddenError():
            return (
                f"not permitted: {said}; the role compaction-viewer lets status, plan, why and quarantine read, "
                "compaction-editor lets approve, plan -f, retry, run-now, scan, suspend, resume and quarantine "
                "--release write, and compaction-holder in the operator's namespace hold and release"
            )
        case UnauthorizedError():
            return f"{server} does not know these credentials: {said}; log in again, or check --context"
        case NotFoundError():
            return (
                f"{server} does not know {COMPACTION_POLICIES.kind}s: apply the resource definitions first "
                "(kubectl apply --server-side -f crds/)"
            )
    return said


def _absent(resource: Resource, name: str, namespace: str) -> ClusterCommandError:
    return ClusterCommandError(f'no {resource.kind} "{name}" in namespace "{namespace}": see kubectl get compaction -A')


def models(model: type[Model], bodies: Iterable[Obj]) -> list[Model]:
    """The objects as models; one that is not valid (an older schema let it in) is named on stderr and left out."""
    found = []
    for body in bodies:
        try:
            found.append(read_model(model, body))
        except ValidationError as error:
            report(ClusterCommandError(_invalid(body, error)))
    return found


def read_model(model: type[Model], body: Obj) -> Model:
    """The model of an object; a policy with the spec in force, as the operator says in its status."""
    if model is CompactionPolicy and (added := (body.get("status") or {}).get("defaults")):
        body = dict(completed(body, taken(body.get("spec") or {}, PolicyDefaults.from_object(added))))
    return model.from_object(body)


def _invalid(body: Obj, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    meta = body["metadata"]
    return f"{body.get('kind')} {meta.get('namespace')}/{meta['name']} is not valid: {where}: {first['msg']}"


async def follow(
    watch: Callable[[], AsyncIterator[Answer]],
    version_of: Callable[[Answer], tuple[str, str]],
    show: Callable[[Answer], None],
) -> None:
    """Show each object once in each of its versions (`version_of`: UID and resourceVersion), until interrupted. A watch
    that ends or breaks is begun again, which shows nothing twice; that it broke is said once.
    """
    seen: OrderedDict[str, str] = OrderedDict()
    lost = False
    while True:
        try:
            async for item in watch():
                lost = False
                uid, version = version_of(item)
                if seen.get(uid) == version:
                    continue
                # What changed longest ago is forgotten first: of Events the cluster has forgotten it by then.
                seen[uid] = version
                seen.move_to_end(uid)
                if len(seen) > MOST_SEEN:
                    seen.popitem(last=False)
                show(item)
        except GoneError:
            continue  # begun again from what there is
        except ApiUnavailableError as error:
            if not lost:
                click.echo(f"the watch broke, trying again: {error}", err=True)
            lost = True
            await asyncio.sleep(RECONNECT_SECONDS)


def nothing_found(cluster_namespace: str, target: CommandTarget, what: str) -> None:
    """Say on stderr, in kubectl's words, that there is nothing to show."""
    where = "" if target.all_namespaces else f" in {cluster_namespace} namespace"
    click.echo(f"No {what} found{where}.", err=True)


# Names of objects in the cluster, for completion: one short question, and no answer is none, not an error.

SECONDS: Final = 2.0
"""Shell completion gives up after this time."""
_KINDS: Final = {
    "policies": COMPACTION_POLICIES,
    "jobs": COMPACTION_JOBS,
    "catalogs": CATALOG_COMPACTIONS,
    "namespaces": NAMESPACES,
}


def names_of(what: str, target: CommandTarget) -> list[str]:
    """The names of `what` (words of `policies`, `jobs`, `catalogs`, `namespaces`), sorted within each kind; a catalog's
    is `ccat/NAME`, which names it whatever else has that name.
    """
    try:
        return asyncio.run(_ask([_KINDS[word] for word in what.split()], target))
    except CompactionError:
        return []  # completion has no place for an error; the command itself will say it


async def _ask(kinds: list[Resource], target: CommandTarget) -> list[str]:
    found: list[str] = []
    connection = connect(target)
    async with ApiClient(connection, deadline=SECONDS) as client:
        for kind in kinds:
            scope = connection.namespace if kind is not NAMESPACES and not target.all_namespaces else None
            try:
                listed = await client.list(kind, namespace=scope)
            except (ForbiddenError, NotFoundError):
                continue
            prefix = f"{ObjectKind.CATALOG}/" if kind is CATALOG_COMPACTIONS else ""
            found += sorted(f"{prefix}{body['metadata']['name']}" for body in listed.items)
    return found
