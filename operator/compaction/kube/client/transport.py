"""One HTTP exchange with the API server, and the kinds of objects it is about."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from compaction import errors
from compaction.api.names import (
    CATALOG_KIND,
    CATALOG_PLURAL,
    GROUP,
    JOB_KIND,
    JOB_PLURAL,
    POLICY_KIND,
    POLICY_PLURAL,
    VERSION,
)
from compaction.kube.client.config import ApiConnection
from compaction.storage.connector import ClosingConnector

# The kinds this project reads or writes, as plain descriptors from which URL paths are derived.

#: A JSON object as the API server sends it. Parsed into models at the boundary of the pure layers.
Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """One served kind. `group` is empty for the core API; `plural` is the name in URLs and in RBAC rules."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`, as in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection or of one object; no namespace on a namespaced kind means all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise ValueError(f"{self.kind} {name} needs a namespace")
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


COMPACTION_POLICIES = Resource(GROUP, VERSION, POLICY_PLURAL, POLICY_KIND)
COMPACTION_JOBS = Resource(GROUP, VERSION, JOB_PLURAL, JOB_KIND)
CATALOG_COMPACTIONS = Resource(GROUP, VERSION, CATALOG_PLURAL, CATALOG_KIND)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("", "v1", "events", "Event")
PODS = Resource("", "v1", "pods", "Pod")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
KUBEFLOW_APPLICATIONS = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
APACHE_APPLICATIONS = Resource("spark.apache.org", "v1", "sparkapplications", "SparkApplication")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


# One HTTP exchange with the API server: deadline, bounded retries, credentials, and errors with a type.
#
# Calls that are repeated, and no others:
#
# * reads, after any transport error or 5xx;
# * any call that never left this machine (connection refused);
# * any call the server refused unprocessed (429, or 503 with Retry-After);
# * a creation on a path that the server does not serve yet (below), until the deadline;
# * once, after a 401, with credentials that were read again.
#
# A new definition is in discovery and Established before the server answers on its path; until then it says a bare
# 404, without a Status. A 404 with a Status names what is missing (the namespace, the object) and is final.
#
# aiohttp itself may resend a PUT or DELETE on a kept-alive connection that the server had closed, so the answer to a
# versioned PUT may be a conflict with one's own write: on `ConflictError` read again and compare with what was meant.

MAX_RETRIES: Final = 4
TRANSPORT_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
_UNSENT: Final = "Unsent"


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One finished request, for metrics. `code` is the HTTP code or `error` when there was no answer."""

    verb: str
    resource: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """One call as the caller means it; `verb` and `resource` name it in metrics."""

    verb: str
    resource: str
    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Obj | list[Obj] | None = None
    content_type: str = "application/json"


class Transport:
    """A lazily opened aiohttp session and the rules above. Bound to the event loop of its first call."""

    def __init__(
        self,
        connection: ApiConnection,
        *,
        user_agent: str,
        deadline: float,
        observe: Callable[[ApiCall], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._connection = connection
        self._user_agent = user_agent
        self._deadline = deadline
        self._observe = observe
        self._rng = rng or random.Random()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections; the transport may not be used afterwards."""
        if self._session is not None:
            await self._session.close()

    async def call(self, request: Request, *, deadline: float | None = None) -> Obj:
        """Send, retry within the deadline, and return the parsed answer."""
        budget = self._deadline if deadline is None else deadline
        attempt, renewed_token = 0, False
        unserved: errors.ApiError | None = None
        try:
            async with asyncio.timeout(budget):
                while True:
                    try:
                        return await self._once(request)
                    except errors.UnauthorizedError:
                        # The token may have been rotated since it was read: read it again, once.
                        if renewed_token:
                            raise
                        renewed_token = True
                        self._connection.token.expire()
                        continue
                    except errors.ApiError as error:
                        pause = _pause(error, method=request.method, attempt=attempt)
                        if pause is None:
                            raise
                        unserved = error if _unserved(error, request.method) else None
                    attempt += 1
                    await asyncio.sleep(pause * self._rng.uniform(1.0, 1.3))
                    unserved = None  # the next try may be processed, and its answer lost
        except TimeoutError as error:
            if unserved is not None:
                raise unserved from error  # nothing was sent since: it is certain that nothing was created
            what = f"{request.method} {request.path}"
            raise errors.ApiUnavailableError(f"{what}: no answer within {budget:g} s") from error

    async def stream(self, request: Request, *, seconds: float, silence: float) -> AsyncIterator[bytes]:
        """Yield the lines of a streamed answer for at most `seconds`; `silence` seconds without a byte break it."""
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=seconds, connect=self._deadline, sock_read=silence)
        what = f"{request.verb} {request.path}"
        try:
            async with self._send(request, timeout) as response:
                self._observed(request, str(response.status), started)
                if response.status >= 400:
                    raise error_of(response.status, await response.text(), what, response.headers)
                async for line in _lines(response.content):
                    yield line
        except (*TRANSPORT_ERRORS, TimeoutError) as error:
            raise errors.ApiUnavailableError(f"{what} broke: {_text(error)}") from error

    async def _once(self, request: Request) -> Obj:
        started, code = time.monotonic(), "error"
        what = f"{request.method} {request.path}"
        timeout = aiohttp.ClientTimeout(total=None, connect=self._deadline)
        try:
            async with self._send(request, timeout) as response:
                text = await response.text()
                code = str(response.status)
                if response.status >= 400:
                    raise error_of(response.status, text, what, response.headers)
                answer: Obj = json.loads(text)
                return answer
        except aiohttp.ClientConnectorError as error:
            # Nothing was sent, so a write can be repeated as well as a read (`_pause`).
            raise errors.ApiUnavailableError(f"{what}: cannot connect: {_text(error)}", reason=_UNSENT) from error
        except TRANSPORT_ERRORS as error:
            # The request may have been processed: only a read is repeated.
            raise errors.ApiUnavailableError(f"{what}: {_text(error)}") from error
        finally:
            self._observed(request, code, started)

    def _send(
        self, request: Request, timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:  # not in __init__: a session must be born inside the loop that uses it
            connector = ClosingConnector(limit=64, ssl=self._connection.ssl_context or True)
            self._session = aiohttp.ClientSession(connector=connector)
        connection = self._connection
        headers = [("User-Agent", self._user_agent), ("Accept", "application/json")]
        if (authorization := connection.token.header()) is not None:
            headers.append(("Authorization", authorization))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        if connection.user is not None:
            headers.append(("Impersonate-User", connection.user))
            headers += [("Impersonate-Group", group) for group in connection.groups]
        return self._session.request(
            request.method,
            self._connection.server + request.path,
            params=request.query,
            data=None if request.body is None else json.dumps(request.body, separators=(",", ":")),
            headers=headers,
            proxy=self._connection.proxy,
            server_hostname=self._connection.server_hostname,
            timeout=timeout,
        )

    def _observed(self, request: Request, code: str, started: float) -> None:
        if self._observe is not None:
            self._observe(ApiCall(request.verb, request.resource, code, time.monotonic() - started))


def _pause(error: errors.ApiError, *, method: str, attempt: int) -> float | None:
    """Seconds to wait before the next try, or None when the call must not be repeated."""
    backoff: float = min(0.1 * 2**attempt, 2.0)
    if _unserved(error, method):
        return backoff
    if attempt >= MAX_RETRIES:
        return None
    refused_unprocessed = error.status == 429 or (error.status == 503 and error.retry_after is not None)
    if refused_unprocessed:
        return max(backoff, error.retry_after or 0.0)
    if error.reason == _UNSENT:
        return backoff
    broken_read = method == "GET" and isinstance(error, errors.ApiUnavailableError)
    return backoff if broken_read else None


def _unserved(error: errors.ApiError, method: str) -> bool:
    """Return whether the server has no handler for the path of a creation: it processed nothing."""
    return method == "POST" and isinstance(error, errors.NotFoundError) and error.is_of_kind


_BY_REASON: Final[Mapping[str, type[errors.ApiError]]] = {
    "NotFound": errors.NotFoundError,
    "AlreadyExists": errors.AlreadyExistsError,
    "Conflict": errors.ConflictError,
    "Gone": errors.GoneError,
    "Expired": errors.GoneError,
    "TooManyRequests": errors.TooManyRequestsError,
    "Forbidden": errors.ForbiddenError,
    "Unauthorized": errors.UnauthorizedError,
    "Invalid": errors.InvalidObjectError,
    "BadRequest": errors.InvalidObjectError,
}
_BY_CODE: Final[Mapping[int, type[errors.ApiError]]] = {
    400: errors.InvalidObjectError,
    401: errors.UnauthorizedError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    410: errors.GoneError,
    422: errors.InvalidObjectError,
    429: errors.TooManyRequestsError,
}


def error_of(code: int, text: str, call: str, headers: Mapping[str, Any]) -> errors.ApiError:
    """The typed error for an answer: the Status reason decides first, then the HTTP code."""
    try:
        status = json.loads(text)
    except ValueError:
        # A proxy or load balancer in between answers with text of its own: the HTTP code has to do.
        status = None
    if not isinstance(status, dict):
        status = {}
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or text.strip()[:300] or f"HTTP {code}")
    fallback = errors.ApiUnavailableError if code >= 500 else errors.ApiError
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, fallback)
    pause = str(headers.get("Retry-After", ""))
    return kind(f"{call}: {message}", status=code, reason=reason, retry_after=float(pause) if pause.isdigit() else None)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own line iterator refuses lines above 64 KiB, and objects may be larger."""
    rest = b""
    async for chunk in stream.iter_any():
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += chunk
            continue
        for line in (rest + head).split(b"\n"):
            if line:
                yield line
        rest = tail
