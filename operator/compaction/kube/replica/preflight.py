"""Checks before the first step: is the API there, are our kinds served, may we do what we will have to do?

A missing permission would otherwise show up as slowness: Kopf retries a 403 (docs/design/control-plane-traps.md#kopf).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import ValidationError

from compaction.api.crd.definitions import OPENAPI_PATH, RESOURCES, lacking_fields, served_schemas
from compaction.api.names import GROUP, VERSION
from compaction.api.policy.policy import CompactionPolicy
from compaction.errors import CONFIG_MAP, ApiError, ApiUnavailableError, NotFoundError, TooManyRequestsError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.secrets import may_not_read, resource_of
from compaction.kube.client.transport import (
    ACCESS_REVIEWS,
    CATALOG_COMPACTIONS,
    COMPACTION_JOBS,
    COMPACTION_POLICIES,
    EVENTS,
    LEASES,
    Obj,
    Resource,
)
from compaction.kube.errors import KindsNotServedError, MissingPermissionsError, OlderDefinitionsError
from compaction.registry import kind_of


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource; `namespace` None asks for all namespaces."""

    verb: str
    resource: Resource
    namespace: str | None
    subresource: str = ""
    name: str = ""

    def __str__(self) -> str:
        plural = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        group = f".{self.resource.group}" if self.resource.group else ""
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {plural}{group} {where}"

    @property
    def attributes(self) -> dict[str, str]:
        """The same as a review of access asks for it (`spec.resourceAttributes`)."""
        return {
            "verb": self.verb,
            "group": self.resource.group,
            "version": self.resource.version,
            "resource": self.resource.plural,
            "subresource": self.subresource,
            "namespace": self.namespace or "",
            "name": self.name,
        }


_NEEDED: Final[tuple[tuple[Resource, str, tuple[str, ...]], ...]] = (
    (COMPACTION_POLICIES, "", ("get", "list", "watch")),
    (COMPACTION_POLICIES, "status", ("update",)),
    (COMPACTION_JOBS, "", ("get", "list", "watch", "create", "delete")),
    (COMPACTION_JOBS, "status", ("update",)),
    (CATALOG_COMPACTIONS, "", ("get", "list", "watch")),
    (CATALOG_COMPACTIONS, "status", ("update",)),
    (LEASES, "", ("get", "list", "watch", "create", "update", "delete")),
    (EVENTS, "", ("create", "patch")),
)


def needed_permissions(*, namespace: str | None, lease_namespace: str) -> tuple[Permission, ...]:
    """Everything a replica uses: in the watched namespace (None: all), and on the election's Lease."""
    watched = [
        Permission(verb, resource, namespace, subresource) for resource, subresource, verbs in _NEEDED for verb in verbs
    ]
    election = [Permission(verb, LEASES, lease_namespace) for verb in ("get", "create", "update")]
    return tuple(dict.fromkeys(watched + election))


async def missing_permissions(client: ApiClient, needed: tuple[Permission, ...]) -> tuple[Permission, ...]:
    """Ask the API server about each (SelfSubjectAccessReview, which everybody may create)."""
    answers = await asyncio.gather(*(_allowed(client, permission) for permission in needed))
    return tuple(permission for permission, answer in zip(needed, answers, strict=True) if not answer)


async def check(client: ApiClient, *, namespace: str | None, lease_namespace: str) -> None:
    """Raises KindsNotServedError when our kinds are not served, OlderDefinitionsError when they are and lack fields,
    MissingPermissionsError listing what is missing.
    """
    await _check_kinds(client)
    await _check_fields(client)
    missing = await missing_permissions(
        client, needed_permissions(namespace=namespace, lease_namespace=lease_namespace)
    )
    if missing:
        raise MissingPermissionsError(
            "the operator's account may not: "
            + "; ".join(str(permission) for permission in missing)
            + ". Grant them to it (a Role and a RoleBinding, or cluster-wide ones for all namespaces) and start again"
        )


@dataclass(slots=True)
class StartupPatience:
    """The time for which a replica that starts waits for an API server that is away, instead of ending.

    A supervisor waits longer before each restart (kubelet up to five minutes), so a replica that ended for want of an
    answer would be missing for long after the API server is back. `settling`: an API server that has just come up
    refuses everybody until it has read its roles, serves no kind of ours until it has read their definitions, and
    lists none of their objects (429) until its cache of them is filled. A replica may be the first to ask it, so what
    it refuses counts if it said before that it is ready. Definitions of an older version may be about to be replaced,
    and new ones are described a moment after they are served.
    """

    away: float = 300.0
    settling: float = 60.0
    pause: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _away_since: float | None = None
    _back_since: float | None = None

    def bears(self, error: Exception, *, ready: bool) -> bool:
        """Return whether to try again after this error; `ready`: the API server said so before it was asked."""
        now = self.clock()
        if isinstance(error, ApiUnavailableError | TooManyRequestsError):
            self._back_since = None
            self._away_since = now if self._away_since is None else self._away_since
            return now < self._away_since + self.away
        if ready and self._away_since is None and not isinstance(error, OlderDefinitionsError):
            return False
        self._back_since = now if self._back_since is None else self._back_since
        return now < self._back_since + self.settling


async def secrets_refused(client: ApiClient, *, namespace: str | None) -> tuple[str, ...]:
    """A sentence for each Secret or ConfigMap that a policy's store needs and the operator may not read.

    No reason to end: their policies say so themselves, and the others are looked after.
    """
    policies = await client.list(COMPACTION_POLICIES, namespace=namespace)
    wanted: dict[Permission, tuple[Obj, str]] = {}
    for body in policies.items:
        for name in _secrets_of(body):
            read = Permission(
                "get", resource_of(name), body["metadata"]["namespace"], name=name.removeprefix(CONFIG_MAP)
            )
            wanted[read] = body["metadata"], name
    return tuple(
        f"policy {metadata['namespace']}/{metadata['name']} cannot be looked after: "
        + may_not_read(name, metadata["namespace"], "block-stores")
        for metadata, name in (wanted[permission] for permission in await missing_permissions(client, tuple(wanted)))
    )


def _secrets_of(body: Obj) -> tuple[str, ...]:
    """Names as the stored policy has them; one that this version cannot read has none that count."""
    try:
        store = CompactionPolicy.from_object(body).spec.store
    except ValidationError:
        return ()
    return kind_of(store).secrets(store).driver


async def check_when_up(
    client: ApiClient, *, namespace: str | None, lease_namespace: str, patience: StartupPatience | None = None
) -> tuple[str, ...]:
    """`check`, then `secrets_refused`, once the API server answers both. Also raises ApiUnavailableError, when it
    stays away for too long.
    """
    patience = patience or StartupPatience()
    while True:
        ready = await client.is_ready()
        try:
            await check(client, namespace=namespace, lease_namespace=lease_namespace)
            return await secrets_refused(client, namespace=namespace)
        except (ApiError, KindsNotServedError, MissingPermissionsError) as error:
            if not patience.bears(error, ready=ready):
                raise
            _log.warning("waiting for the API server", error=str(error))
        await asyncio.sleep(patience.pause)


async def _check_kinds(client: ApiClient) -> None:
    try:
        served = await client.request("GET", f"/apis/{GROUP}/{VERSION}")
    except NotFoundError:
        # The group has no kind at all: each of ours is named as absent below, with the command that creates it.
        kinds: set[str] = set()
    else:
        kinds = {entry["name"] for entry in served["resources"]}
    absent = [
        kind.plural for kind in (COMPACTION_POLICIES, COMPACTION_JOBS, CATALOG_COMPACTIONS) if kind.plural not in kinds
    ]
    if absent:
        raise KindsNotServedError(
            f"{client.connection.server} does not serve {', '.join(absent)} in {GROUP}/{VERSION}: "
            "apply the resource definitions first (kubectl apply --server-side -f crds/)"
        )


async def _check_fields(client: ApiClient) -> None:
    try:
        served = served_schemas(await client.request("GET", OPENAPI_PATH))
    except NotFoundError:
        served = {}
    for resource in RESOURCES:
        schema = served.get(resource.INFO.kind)
        if schema is None:
            raise OlderDefinitionsError(f"{client.connection.server} does not describe {resource.INFO.kind} yet")
        if lacking := lacking_fields(resource, schema):
            raise OlderDefinitionsError(
                f"the definition of {resource.INFO.kind} is older than this operator, and lacks {lacking}: "
                "apply the definitions of this version (kubectl apply --server-side -f crds/)"
            )


async def _allowed(client: ApiClient, permission: Permission) -> bool:
    review = {"metadata": {}, "spec": {"resourceAttributes": permission.attributes}}
    answer = await client.create(ACCESS_REVIEWS, review)
    return bool(answer["status"].get("allowed"))


_log = structlog.get_logger(__name__)
