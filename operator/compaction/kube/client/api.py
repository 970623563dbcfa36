"""A thin asynchronous client of the Kubernetes API: typed verbs over `transport`.

Rules that callers may rely on:

* Every call has one deadline that covers all its retries. When it passes, `ApiUnavailableError` is raised and **a write
  may nevertheless have happened**: read the object again before deciding anything.
* A write with a resourceVersion is a compare-and-set; `ConflictError` means read again and decide again.
* One client belongs to one event loop; the elector therefore has its own.
* Answers other than 2xx are typed errors of `compaction.errors`.
"""

import builtins
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from compaction.errors import ApiError, GoneError
from compaction.kube.client.config import ApiConnection
from compaction.kube.client.transport import (
    COMPACTION_JOBS,
    COMPACTION_POLICIES,
    EVENTS,
    LEASES,
    NAMESPACES,
    PODS,
    ApiCall,
    Obj,
    Request,
    Resource,
    Transport,
    error_of,
)

__all__ = [
    "COMPACTION_JOBS",
    "COMPACTION_POLICIES",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "PODS",
    "ApiCall",
    "ApiClient",
    "Obj",
    "ObjectList",
    "PatchKind",
    "Resource",
    "WatchEvent",
]

DEFAULT_DEADLINE: Final = 15.0
#: The server sends a bookmark every minute; a stream silent for longer than this is broken
#: (docs/design/control-plane-traps.md#settings-of-the-watches).
WATCH_SILENCE: Final = 90.0
READY_SECONDS: Final = 10.0
"""For which an API server is asked whether it is ready."""
_PAGE_RESTARTS: Final = 2


class PatchKind(StrEnum):
    """The form in which the server reads a patch body."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"  # JSON is YAML


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A complete list, all pages joined, consistent at `resource_version`."""

    items: tuple[Obj, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK; a bookmark's object carries a resourceVersion and nothing else."""

    type: str
    object: Obj


class ApiClient:
    """Typed verbs over one session. Use as an async context manager, or call `close()`.

    `deadline` (seconds) is the default of every call and can be overridden per call.
    """

    def __init__(
        self,
        connection: ApiConnection,
        *,
        user_agent: str = "compactor",
        deadline: float = DEFAULT_DEADLINE,
        observe: Callable[[ApiCall], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.connection = connection
        self._transport = Transport(connection, user_agent=user_agent, deadline=deadline, observe=observe, rng=rng)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; the client may not be used afterwards."""
        await self._transport.close()

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, deadline: float | None = None
    ) -> Obj:
        """Read one object. Raises NotFoundError."""
        path = resource.path(namespace=namespace, name=name)
        return await self._transport.call(Request("get", resource.plural, "GET", path), deadline=deadline)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = 500,
        deadline: float | None = None,
    ) -> ObjectList:
        """Read all objects that match, page by page; starts over when a continue token expired half-way."""
        path = resource.path(namespace=namespace)
        query = _query(labelSelector=labels, fieldSelector=fields, limit=str(limit))
        for restart in range(_PAGE_RESTARTS + 1):
            try:
                return await self._pages(resource, path, query, deadline)
            except GoneError:
                # The version of the first page was compacted away before the last one was read: begin at a newer one.
                if restart == _PAGE_RESTARTS:
                    raise
        raise AssertionError("unreachable: the last restart returns or raises")

    async def _pages(self, resource: Resource, path: str, query: dict[str, str], deadline: float | None) -> ObjectList:
        items: list[Obj] = []
        following = query
        while True:
            request = Request("list", resource.plural, "GET", path, query=following)
            page = await self._transport.call(request, deadline=deadline)
            # Lists leave out what is the same for every item; an object of ours always says what it is.
            items += [_typed(resource, item) for item in page.get("items") or ()]
            token = page["metadata"].get("continue")
            if not token:
                return ObjectList(tuple(items), page["metadata"]["resourceVersion"])
            following = query | {"continue": token}

    async def create(
        self,
        resource: Resource,
        body: Obj,
        *,
        namespace: str | None = None,
        strict: bool = False,
        deadline: float | None = None,
    ) -> Obj:
        """Create an object (namespace from the argument or the body). Raises AlreadyExistsError; with `strict`
        InvalidObjectError for a field that the kind does not have, which is dropped otherwise.
        """
        path = resource.path(namespace=namespace or body["metadata"].get("namespace"))
        query = _query(fieldValidation="Strict" if strict else None)
        request = Request("create", resource.plural, "POST", path, query=query, body=_typed(resource, body))
        return await self._transport.call(request, deadline=deadline)

    async def replace(
        self, resource: Resource, body: Obj, *, subresource: str | None = None, deadline: float | None = None
    ) -> Obj:
        """PUT a whole object; with metadata.resourceVersion in the body this is a compare-and-set (ConflictError)."""
        metadata = body["metadata"]
        path = resource.path(namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource)
        request = Request("update", resource.plural, "PUT", path, body=_typed(resource, body))
        return await self._transport.call(request, deadline=deadline)

    async def replace_status(self, resource: Resource, body: Obj, *, deadline: float | None = None) -> Obj:
        """PUT the status of an object; of the rest of the body only resourceVersion (the precondition) counts."""
        return await self.replace(resource, body, subresource="status", deadline=deadline)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Obj | builtins.list[Obj],
        *,
        namespace: str | None = None,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        deadline: float | None = None,
    ) -> Obj:
        """Patch an object; a merge patch with metadata.resourceVersion inside is guarded like a PUT. With `dry_run` it
        is judged as if it were written, a field that the kind does not have is refused, and nothing is written.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        query = _query(fieldManager=field_manager, force="true" if force else None)
        # A field that was dropped silently would be judged as if it had not been written.
        query |= {"dryRun": "All", "fieldValidation": "Strict"} if dry_run else {}
        body = _typed(resource, patch) if kind is PatchKind.APPLY and isinstance(patch, dict) else patch
        request = Request("patch", resource.plural, "PATCH", path, query=query, body=body, content_type=kind.value)
        return await self._transport.call(request, deadline=deadline)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        deadline: float | None = None,
    ) -> Obj:
        """Delete one object; the given preconditions must hold (ConflictError). Raises NotFoundError."""
        body: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if preconditions := _query(uid=uid, resourceVersion=resource_version):
            body["preconditions"] = preconditions
        path = resource.path(namespace=namespace, name=name)
        request = Request("delete", resource.plural, "DELETE", path, body=body)
        return await self._transport.call(request, deadline=deadline)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str | None = None,
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after `resource_version` until the server ends the watch after `timeout_seconds`.

        Without a version the current objects come first, as ADDED. Raises GoneError when the version is too old
        (list again), ApiUnavailableError when the stream broke (watch again from the last version seen).
        """
        path = resource.path(namespace=namespace)
        query = _query(labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        request = Request("watch", resource.plural, "GET", path, query=query)
        async for line in self._transport.stream(request, seconds=timeout_seconds + 15, silence=WATCH_SILENCE):
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise error_of(int(status.get("code", 500)), json.dumps(status), f"watch {path}", {})
            yield WatchEvent(event["type"], event["object"])

    async def pod_log(
        self,
        namespace: str,
        name: str,
        *,
        container: str | None = None,
        previous: bool = False,
        lines: int = 200,
        limit_bytes: int = 1 << 20,
    ) -> str:
        """The last lines of a container's log, of the one before it with `previous`; the first bytes of these lines, if
        they are more than the limit. Raises NotFoundError, and InvalidObjectError while no container has started.
        """
        path = PODS.path(namespace=namespace, name=name, subresource="log")
        query = _query(container=container, previous="true" if previous else None, limitBytes=str(limit_bytes))
        request = Request("get", PODS.plural, "GET", path, query=query | {"tailLines": str(lines)})
        # A log is text, so it is read as the lines of a stream.
        found = [line async for line in self._transport.stream(request, seconds=READY_SECONDS, silence=READY_SECONDS)]
        return b"\n".join(found).decode(errors="replace")

    async def request(self, method: str, path: str, *, body: Obj | None = None, deadline: float | None = None) -> Obj:
        """A raw call for what is not a resource of ours, such as `/version`; the answer must be JSON."""
        return await self._transport.call(Request(method.lower(), "", method, path, body=body), deadline=deadline)

    async def is_ready(self) -> bool:
        """Return whether the API server says that it has read what it answers by: roles, resource definitions, its
        caches.
        """
        request = Request("get", "", "GET", "/readyz")
        try:
            # The answer is "ok", no JSON; without it, 403 (no role has been read) or 500.
            async for _ in self._transport.stream(request, seconds=READY_SECONDS, silence=READY_SECONDS):
                pass
        except ApiError:
            return False
        return True


def _query(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def _typed(resource: Resource, body: Obj) -> Obj:
    return {"apiVersion": resource.api_version, "kind": resource.kind} | body
