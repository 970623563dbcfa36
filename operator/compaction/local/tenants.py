"""The drill that shows what a tenant would get: each attempt of the threat model that a dry run can make, on the user's
own cluster.

A user that no one is, who may write policies and catalogs in one namespace and nothing else, writes what a tenant
might; then the worker's account does. The API server answers as it would, and keeps nothing (`dryRun=All`). What holds
is that it refuses each, and takes a policy as tenants should write them (docs/design/threat-model.md).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final, Self

import yaml

from compaction.api.names import (
    API_VERSION,
    CATALOG_KIND,
    COORDINATOR_LEASE,
    EXECUTOR_SERVICE_ACCOUNT,
    WORKER_SERVICE_ACCOUNT,
)
from compaction.errors import ApiError, ForbiddenError, InvalidObjectError, NotFoundError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection
from compaction.kube.client.transport import CATALOG_COMPACTIONS, COMPACTION_POLICIES, LEASES, PODS, Obj, Resource
from compaction.local.errors import DrillError

EDITOR: Final = "compaction-editor"
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
SETTLE_SECONDS: Final = 30.0
"""The API server takes a moment to see a new binding."""
_PAUSE: Final = 0.5
_POD_SECURITY: Final = "violates PodSecurity"
"""Where the namespace enforces it, it refuses a pod before an admission policy does."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim of a drill or a demonstration, whether it holds, and the fact that shows it."""

    claim: str
    holds: bool
    fact: str


@dataclass(frozen=True, slots=True)
class TenantAttempt:
    """The object that a user who may write policies, and nothing else, might write: `says` is in the refusal.
    `operator`: what the operator says of it, where it was written all the same; empty where it cannot be.
    """

    name: str
    resource: Resource
    body: Obj
    says: str
    operator: str = ""


@dataclass(frozen=True, slots=True)
class TenantTable:
    """`tenants.yaml`: a policy that is taken, and the attempts."""

    usual: Obj
    attempts: tuple[TenantAttempt, ...]

    @classmethod
    def read(cls) -> Self:
        """As the package has it."""
        found = yaml.safe_load((resources.files("compaction.local") / "tenants.yaml").read_text())
        usual = found["usual"]
        return cls(_object(COMPACTION_POLICIES, usual), tuple(_attempt(item, usual) for item in found["attempts"]))


def _attempt(document: Mapping[str, Any], usual: Mapping[str, Any]) -> TenantAttempt:
    resource, spec = COMPACTION_POLICIES, {**usual, **document["spec"]}
    if document.get("kind") == CATALOG_KIND:
        resource, spec = CATALOG_COMPACTIONS, document["spec"]
    body = _object(resource, spec)
    return TenantAttempt(document["attempt"], resource, body, document["says"], document.get("operator", ""))


def _object(resource: Resource, spec: Mapping[str, Any]) -> Obj:
    return {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": {"name": "compaction-drill"}, "spec": spec}


def pod(account: str) -> Obj:
    """A pod that PodSecurity `restricted` admits."""
    container = {
        "name": "a",
        "image": "a",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    context = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"serviceAccountName": account, "containers": [container], "securityContext": context}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "compaction-drill"}, "spec": spec}


def with_the_node(body: Obj) -> Obj:
    """The same pod with the disk of the node."""
    return {**body, "spec": {**body["spec"], "volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}


def as_root(body: Obj) -> Obj:
    """The same pod, where its image may run as root."""
    return {**body, "spec": {**body["spec"], "securityContext": {}}}


OF_WORKERS: Final = (
    TenantAttempt("a worker makes a pod as the operator", PODS, pod("compaction-operator"), "own Deployment"),
    TenantAttempt("a worker makes a pod as a worker", PODS, pod(WORKER_SERVICE_ACCOUNT), "executors only"),
    TenantAttempt(
        "a worker makes a pod with the disk of the node",
        PODS,
        with_the_node(pod(EXECUTOR_SERVICE_ACCOUNT)),
        "nothing of the node",
    ),
    TenantAttempt("a worker makes a pod as root", PODS, as_root(pod(EXECUTOR_SERVICE_ACCOUNT)), "do not run as root"),
)


@dataclass(frozen=True, slots=True)
class TenantsDrill:
    """Needs to create and delete a RoleBinding in the namespace, to get the coordinator's Lease there, and to
    impersonate. `tell`: what is being done.
    """

    connection: ApiConnection
    tell: Callable[[str], None]

    async def run(self) -> tuple[Check, ...]:
        """One check per attempt. Raises DrillError, ApiError: it could not be carried through; nothing is left."""
        table = TenantTable.read()
        attempts = table.attempts
        worker = f"system:serviceaccount:{self.connection.namespace}:{WORKER_SERVICE_ACCOUNT}"
        async with (
            ApiClient(self.connection) as own,
            self._tenant(own, table.usual) as tenant,
            self._as(worker) as of_worker,
        ):
            self.tell(f"{len(attempts)} attempts of a tenant, {len(OF_WORKERS) + 1} of a worker, nothing is kept")
            checks = [await self._attempt(tenant, attempt) for attempt in attempts]
            checks += [await self._attempt(of_worker, worker) for worker in OF_WORKERS]
            return (*checks, await self._lead(own, of_worker))

    @asynccontextmanager
    async def _tenant(self, own: ApiClient, usual: Obj) -> AsyncIterator[ApiClient]:
        """A user of this drill's own, who may write policies, and may do it by now."""
        user = f"compaction-drill-{secrets.token_hex(4)}"
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": EDITOR}
        metadata = {"name": user, "namespace": self.connection.namespace}
        await own.create(ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": [subject]})
        try:
            async with self._as(user) as tenant:
                await self._settled(tenant, usual)
                yield tenant
        finally:
            await own.delete(ROLE_BINDINGS, user, namespace=self.connection.namespace)

    async def _settled(self, tenant: ApiClient, usual: Obj) -> None:
        """A policy as tenants should write them is taken, or nothing that follows proves anything."""
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while said := await self._said(tenant, COMPACTION_POLICIES, usual):
            if asyncio.get_running_loop().time() >= deadline:
                raise DrillError(f"a policy that asks for nothing is refused to a user with {EDITOR}: {said}")
            await asyncio.sleep(_PAUSE)

    @asynccontextmanager
    async def _as(self, user: str) -> AsyncIterator[ApiClient]:
        async with ApiClient(replace(self.connection, user=user, groups=("system:authenticated",))) as client:
            yield client

    async def _attempt(self, client: ApiClient, attempt: TenantAttempt) -> Check:
        return _judged(attempt.name, attempt.says, await self._said(client, attempt.resource, attempt.body))

    async def _said(self, client: ApiClient, resource: Resource, body: Obj) -> str:
        """Return the reason for which the API server would not create it; nothing when it would."""
        path = f"{resource.path(namespace=self.connection.namespace)}?dryRun=All"
        return await _refusal(client, "POST", path, body)

    async def _lead(self, own: ApiClient, worker: ApiClient) -> Check:
        """It takes the coordinator's Lease, or makes it where there is none."""
        namespace = self.connection.namespace
        try:
            lease = await own.get(LEASES, COORDINATOR_LEASE, namespace=namespace)
            method, path = "PUT", LEASES.path(namespace=namespace, name=COORDINATOR_LEASE)
        except NotFoundError:
            metadata = {"name": COORDINATOR_LEASE, "namespace": namespace}
            lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
            method, path = "POST", LEASES.path(namespace=namespace)
        lease["spec"] = {**(lease.get("spec") or {}), "holderIdentity": "compaction-drill"}
        return _judged(
            "a worker leads", "a worker cannot lead", await _refusal(worker, method, f"{path}?dryRun=All", lease)
        )


def _judged(claim: str, says: str, said: str) -> Check:
    held = says in said or _POD_SECURITY in said
    return Check(claim, held, "refused" if held else f"expected {says!r}; {said or 'it was taken'}")


async def _refusal(client: ApiClient, method: str, path: str, body: Obj) -> str:
    try:
        await client.request(method, path, body=body)
    except (ForbiddenError, InvalidObjectError) as error:
        return str(error)
    except ApiError as error:
        raise DrillError(f"the API server could not answer: {error}") from error
    return ""
