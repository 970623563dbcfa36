"""What one user of the console may see and do: watches with that user's credentials, shared by that user's pages.

Each kind of object is listed once and watched from then on, however many pages show it; a watch that no page needs any
more ends after a while. Whatever the API server refuses is a sentence on the page, never an empty table.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import structlog
from pydantic import StringConstraints, ValidationError

from compaction.api.base import ApiModel, first_problem
from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.job.job import CompactionJob
from compaction.api.manifests import documents_of
from compaction.api.names import (
    ANNOTATION_APPROVE,
    ANNOTATION_RETRY,
    ANNOTATION_SCAN,
    LABEL_APP_COMPONENT,
    LABEL_WORKER,
)
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.preview import MAX_PREVIEW
from compaction.api.requests import RequestOutcome, run_now_annotations
from compaction.cli.cluster.access import ClusterAccess, read_model
from compaction.cli.cluster.console.pages import (
    Coordinators,
    catalog_page,
    catalog_row,
    failures_page,
    job_page,
    policy_page,
    policy_row,
)
from compaction.cli.cluster.flags import CommandTarget
from compaction.cli.cluster.plan import approval_patch, plan_to_approve
from compaction.cli.cluster.preview import propose
from compaction.cli.cluster.status_view import totals_data
from compaction.errors import ApiError, CompactionError, ForbiddenError, GoneError, InvalidManifestError, NotFoundError
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, PODS, ApiClient, Resource
from compaction.kube.client.transport import CATALOG_COMPACTIONS
from compaction.kube.errors import ClusterCommandError
from compaction.kube.gather import ParsedObjects
from compaction.kube.informer.cache import KindStore
from compaction.kube.replica.preflight import Permission, missing_permissions
from compaction.leases.record import format_micro_time

log = structlog.get_logger(__name__)

Model = TypeVar("Model", bound=ApiModel)
RECONNECT_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 30.0
"""For which a watch goes on that no page needs: a user who goes back finds the page filled."""
RIGHTS_SECONDS: Final = 60.0
"""For which the answers about a user's rights are kept; a refusal of the API server itself is shown at once."""
LEASES_SECONDS: Final = 10.0
LOG_LINES: Final = 200


class ConsoleRefusal(CompactionError):
    """A request that is refused, with the status of the answer; the text is for the user."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class WatchedKind(Generic[Model]):
    """Objects of one kind, as one user may read them.

    `problem`: why they may be incomplete or out of date, in words; empty when they are neither. `loaded`: whether a
    list was read, or refused, at least once.
    """

    def __init__(
        self, client: ApiClient, resource: Resource, model: type[Model], namespace: str | None, fields: str | None
    ) -> None:
        self._client, self._resource, self._namespace, self._fields = client, resource, namespace, fields
        self._store = KindStore(resource)
        self._parsed: ParsedObjects[Model] = ParsedObjects(partial(read_model, model))
        self._changed: set[asyncio.Event] = set()
        self._version = ""
        self.loaded = asyncio.Event()
        self.problem = ""

    def models(self) -> tuple[list[Model], list[str]]:
        """The objects, and in words those that are not valid: an older definition let them in."""
        found: list[Model] = []
        invalid: list[str] = []
        for body in self._store:
            try:
                found.append(self._parsed.get(body))
            except ValidationError as error:
                meta = body["metadata"]
                name = f"{meta.get('namespace')}/{meta['name']}"
                invalid.append(f"{self._resource.kind} {name} is not valid: {first_problem(error)}")
        return found, invalid

    def find(self, namespace: str, name: str) -> Model | None:
        """One object; None when there is none, or it is not valid."""
        body = self._store.get(namespace, name)
        with contextlib.suppress(ValidationError):
            return None if body is None else self._parsed.get(body)
        return None

    @contextlib.contextmanager
    def telling(self, changed: asyncio.Event) -> Iterator[None]:
        """Set the event at each change from now on."""
        self._changed.add(changed)
        try:
            yield
        finally:
            self._changed.discard(changed)

    async def follow(self) -> None:
        """List and watch until cancelled; what breaks is tried again, and said in `problem`."""
        while True:
            try:
                await self._listed()
                await self._watched()
            except GoneError:
                continue  # what was watched from is too old: the list says what was missed
            except (ForbiddenError, NotFoundError) as error:
                # A role or a definition may come at any time, and asking is cheap.
                self._says(f"{self._resource.plural}: {error.said}")
            except ApiError as error:
                self._says(f"{self._resource.plural} may be out of date: {error.said}")
            # A page that says why it is empty is more use than one that never comes.
            self.loaded.set()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listed(self) -> None:
        found = await self._client.list(self._resource, namespace=self._namespace, fields=self._fields)
        # Also what was deleted while no watch was open: the list does not have it any more.
        self._store.sweep(found.items, found.resource_version)
        self._version = found.resource_version
        self._says("")
        self.loaded.set()
        self._tell()

    async def _watched(self) -> None:
        while True:
            watch = self._client.watch(
                self._resource, namespace=self._namespace, fields=self._fields, resource_version=self._version
            )
            async for event in watch:
                # Bookmarks have a version and nothing else: the next watch begins there.
                self._version = event.object["metadata"]["resourceVersion"]
                if event.type == "DELETED":
                    self._parsed.forget(event.object["metadata"]["uid"])
                    delta = self._store.remove(event.object)
                else:
                    delta = self._store.upsert(event.object) if event.type in ("ADDED", "MODIFIED") else None
                if delta is not None:
                    self._tell()

    def _says(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            changed.set()


@dataclass(slots=True)
class _Shared:
    """A watch that several pages use. `idle_since`: on the monotonic clock, None while a page needs it."""

    kind: WatchedKind[Any]
    task: asyncio.Task[None]
    users: int = 0
    idle_since: float | None = None


class Viewer:
    """One user's view of a namespace, or of all (`namespace` None). Close it when the user has left."""

    def __init__(self, client: ApiClient, target: CommandTarget) -> None:
        self._client, self.access = client, ClusterAccess(client, target)
        self.namespace = None if target.all_namespaces else self.access.namespace
        self._coordinators = Coordinators(None, complete=False)
        self._leases_read = float("-inf")
        self._shared: dict[tuple[str, str | None, str | None], _Shared] = {}
        self._rights: dict[tuple[str, ...], tuple[float, bool]] = {}

    @property
    def is_idle(self) -> bool:
        """True while no page is open."""
        return not any(shared.users for shared in self._shared.values())

    async def close(self) -> None:
        """End all watches and the connection."""
        for shared in self._shared.values():
            shared.task.cancel()
        await asyncio.gather(*(shared.task for shared in self._shared.values()), return_exceptions=True)
        self._shared.clear()
        await self._client.close()

    # What pages show.

    def policies(self) -> contextlib.AbstractAsyncContextManager[WatchedKind[CompactionPolicy]]:
        """All policies in reach."""
        return self._watching(COMPACTION_POLICIES, CompactionPolicy, self.namespace, None)

    def catalogs(self) -> contextlib.AbstractAsyncContextManager[WatchedKind[CatalogCompaction]]:
        """All catalogs in reach."""
        return self._watching(CATALOG_COMPACTIONS, CatalogCompaction, self.namespace, None)

    def policy(
        self, namespace: str, name: str
    ) -> contextlib.AbstractAsyncContextManager[WatchedKind[CompactionPolicy]]:
        """One policy."""
        return self._watching(COMPACTION_POLICIES, CompactionPolicy, namespace, f"metadata.name={name}")

    def catalog(
        self, namespace: str, name: str
    ) -> contextlib.AbstractAsyncContextManager[WatchedKind[CatalogCompaction]]:
        """One catalog."""
        return self._watching(CATALOG_COMPACTIONS, CatalogCompaction, namespace, f"metadata.name={name}")

    def jobs(
        self, namespace: str | None, fields: str
    ) -> contextlib.AbstractAsyncContextManager[WatchedKind[CompactionJob]]:
        """Jobs by fields, such as those of one policy, or all that are Faulty."""
        return self._watching(COMPACTION_JOBS, CompactionJob, namespace, fields)

    @contextlib.asynccontextmanager
    async def _watching(
        self, resource: Resource, model: type[Model], namespace: str | None, fields: str | None
    ) -> AsyncIterator[WatchedKind[Model]]:
        key = (resource.plural, namespace, fields)
        shared = self._shared.get(key)
        # The first page that needs it pays for the list; further tabs and users' reloads find it.
        if shared is None:
            kind = WatchedKind(self._client, resource, model, namespace, fields)
            shared = self._shared[key] = _Shared(kind, asyncio.create_task(kind.follow()))
        shared.users += 1
        shared.idle_since = None
        try:
            yield shared.kind
        finally:
            # Not ended yet: a user who follows a link comes back to the fleet within seconds.
            shared.users -= 1
            if not shared.users:
                shared.idle_since = time.monotonic()

    def sweep(self) -> None:
        """End watches that no page has needed for a while, and forget answers about rights that are too old."""
        now = time.monotonic()
        self._rights = {key: known for key, known in self._rights.items() if now - known[0] < RIGHTS_SECONDS}
        for key, shared in tuple(self._shared.items()):
            if shared.idle_since is not None and now - shared.idle_since > IDLE_SECONDS:
                shared.task.cancel()
                del self._shared[key]

    async def coordinators(self) -> Coordinators:
        """The coordinators, read again after some seconds: a holder that goes silent changes nothing that a watch could
        report.
        """
        if time.monotonic() - self._leases_read > LEASES_SECONDS:
            self._leases_read = time.monotonic()
            with contextlib.suppress(ApiError):  # what was known before says more than an error on each page
                self._coordinators = Coordinators(*await self.access.coordinators())
        return self._coordinators

    # What the user may do.

    async def may(self, verb: str, resource: Resource, namespace: str, name: str = "") -> bool:
        """Ask the API server (SelfSubjectAccessReview); what it does not answer is a no."""

        async def ask() -> bool:
            return not await missing_permissions(self._client, (Permission(verb, resource, namespace, name=name),))

        return await self._kept((verb, resource.plural, namespace, name), ask)

    async def _kept(self, key: tuple[str, ...], ask: Callable[[], Awaitable[bool]]) -> bool:
        """An answer about rights: a page is made again at every change, and rights change seldom."""
        known = self._rights.get(key)
        if known is not None and time.monotonic() - known[0] < RIGHTS_SECONDS:
            return known[1]
        try:
            allowed = await ask()
        except ApiError as error:
            # Not kept: the next page asks again.
            log.warning("the API server did not say what a user may do", error=str(error))
            return False
        self._rights[key] = (time.monotonic(), allowed)
        return allowed

    async def may_approve(self, policy: CompactionPolicy) -> bool:
        """True when the user has the verb `approve`, or the API server would take the annotation without it.

        The verb counts only where manifests/components/approval is installed, which a user may not be able to see: so
        the server is asked what it would do.
        """
        meta = policy.metadata
        if not await self.may("patch", COMPACTION_POLICIES, meta.namespace, meta.name):
            return False
        # Who has the verb may in either case, and no write is tried for the answer.
        if await self.may("approve", COMPACTION_POLICIES, meta.namespace, meta.name):
            return True
        hashed = policy.status.plan.hash if policy.status.plan is not None else ""
        patch = {"metadata": {"annotations": {ANNOTATION_APPROVE: hashed}}}

        async def ask() -> bool:
            try:
                await self._client.patch(COMPACTION_POLICIES, meta.name, patch, namespace=meta.namespace, dry_run=True)
            except ApiError as error:
                if not error.is_refusal:
                    raise
                return False
            return True

        return await self._kept(("approve dry run", meta.namespace, meta.name, hashed), ask)

    async def find_policy(self, namespace: str, name: str) -> CompactionPolicy | None:
        """The policy of a job; None when it is not there, not valid, or not to be read."""
        with contextlib.suppress(ApiError, ClusterCommandError):
            return await self.access.within(namespace).policy(name)
        return None

    async def log_end(self, namespace: str, worker: str) -> str:
        """The last lines of a worker's driver. Raises ApiError; NotFoundError when no pod of it is left."""
        labels = f"{LABEL_WORKER}={worker},{LABEL_APP_COMPONENT}=driver"
        pods = await self._client.list(PODS, namespace=namespace, labels=labels)
        if not pods.items:
            raise NotFoundError(f"no pod of worker {worker} is left in {namespace}")
        # A driver that was replaced under the same name may still be there, terminated.
        newest = max(pods.items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return await self._client.pod_log(namespace, newest["metadata"]["name"], lines=LOG_LINES)


# The acts of a user: each is one patch with the user's own rights.


Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
NAME: Final = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
"""Any name of an object: of a policy, a job, a catalog, a worker or a namespace."""
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
PREVIEW_SECONDS: Final = 120.0
"""For which an answer of the operator is waited for; it comes into the page also later."""


class ConsoleAct(ApiModel):
    """A button that was pressed."""

    act: Literal["run-now", "scan", "suspend", "resume", "approve", "retry"]
    kind: Literal["policy", "catalog", "job"]
    namespace: Namespace
    name: Name
    plan: Annotated[str, StringConstraints(max_length=64)] = ""
    outside_window: bool = False

    @property
    def resource(self) -> Resource:
        """The kind in the API."""
        return _RESOURCES[self.kind]


class ProposedSpec(ApiModel):
    """A spec that a user wrote into the page, as YAML: the spec alone, or a whole object."""

    kind: Literal["policy", "catalog"]
    namespace: Namespace
    name: Name
    text: Annotated[str, StringConstraints(max_length=4 * MAX_PREVIEW)]

    def spec(self) -> dict[str, Any]:
        """Raises ConsoleRefusal."""
        try:
            documents = list(documents_of(self.text, "the proposed spec"))
        except InvalidManifestError as error:
            raise ConsoleRefusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        found = documents[0].get("spec", documents[0]) if len(documents) == 1 else None
        if not isinstance(found, dict):
            raise ConsoleRefusal(HTTPStatus.BAD_REQUEST, "write one spec, or one object with a spec, as YAML")
        # Dates and the like are texts in JSON.
        written: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return written


async def carry_out_preview(proposed: ProposedSpec, viewer: Viewer) -> str:
    """Ask the operator what the spec would do now, and wait for the answer, which comes into the page by itself. Raises
    ConsoleRefusal, ApiError, ClusterCommandError.
    """
    place = viewer.access.within(proposed.namespace)
    subject = await (place.policy(proposed.name) if proposed.kind == "policy" else place.catalog(proposed.name))
    answer = await propose(place, subject, proposed.spec(), within=PREVIEW_SECONDS)
    if answer.outcome is RequestOutcome.REFUSED:
        raise ConsoleRefusal(HTTPStatus.CONFLICT, f"{answer.reason}: {answer.message}")
    return "previewed"


_RESOURCES: Final = {"policy": COMPACTION_POLICIES, "catalog": CATALOG_COMPACTIONS, "job": COMPACTION_JOBS}
_OF: Final[Mapping[str, tuple[str, ...]]] = {"approve": ("policy",), "retry": ("job",)}
"""Kinds that an act is for; all others are for policies and catalogs."""


async def carry_out(act: ConsoleAct, viewer: Viewer, now: datetime) -> str:
    """Do it, and return in words what was asked for. Raises ConsoleRefusal, ApiError, ClusterCommandError."""
    # What a page never offers: the request was made by hand.
    if act.kind not in _OF.get(act.act, ("policy", "catalog")):
        raise ConsoleRefusal(HTTPStatus.BAD_REQUEST, f"{act.act} is not for a {act.kind}")
    value, said = format_micro_time(now), f"{act.act} requested"
    patch: dict[str, Any]
    if act.act in ("suspend", "resume"):
        patch = {"spec": {"suspend": act.act == "suspend"}}
        said = "suspended: what runs ends" if act.act == "suspend" else "resumed"
    elif act.act == "approve":
        # The plan that the user has read, or none: another one may have replaced it since the page was made.
        plan = plan_to_approve(await viewer.access.within(act.namespace).policy(act.name), act.plan)
        if plan is None:
            return f"plan {act.plan} was approved already"
        patch, said = approval_patch(plan, await viewer.access.user()), f"plan {plan.hash} approved"
    elif act.act == "run-now":
        patch = {"metadata": {"annotations": run_now_annotations(value, outside_window=act.outside_window)}}
    else:
        patch = {"metadata": {"annotations": {ANNOTATION_SCAN if act.act == "scan" else ANNOTATION_RETRY: value}}}
    await viewer.access.patch(act.resource, act.name, patch, namespace=act.namespace)
    return said


# The content of each page: which objects it follows, and what it sends.

PageBuilder = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class PageStream:
    """A page: `build` makes its content, empty when there is nothing new; a change of one of `kinds` may change it."""

    build: PageBuilder
    kinds: tuple[WatchedKind[Any], ...]


SETTLE_SECONDS: Final = 0.2
"""Changes that come within this time are sent together."""
REFRESH_SECONDS: Final = 15.0
"""After this time without a change a page is made again, because ages are in its sentences and a coordinator may have
gone silent; what is the same is not sent. The line that is sent instead tells a broken connection from a quiet one.
"""


class _FleetRows:
    """Rows of the fleet: all of them first, then those that have changed."""

    def __init__(
        self, viewer: Viewer, policies: WatchedKind[CompactionPolicy], catalogs: WatchedKind[CatalogCompaction]
    ) -> None:
        self._viewer, self._policies, self._catalogs = viewer, policies, catalogs
        self._made: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        self._rest: dict[str, Any] = {}

    async def build(self) -> dict[str, Any]:
        """Return the differences from the last answer; empty when there are none."""
        now, coordinators = datetime.now(UTC), await self._viewer.coordinators()
        policies, bad_policies = self._policies.models()
        catalogs, bad_catalogs = self._catalogs.models()
        rows: dict[str, dict[str, Any]] = {}
        found: list[CompactionPolicy | CatalogCompaction] = [*policies, *catalogs]
        for item in found:
            meta = item.metadata
            state = coordinators.of(meta.namespace, now).state
            # Most objects are as they were; a row is a function of the object and the coordinator's state.
            version = (meta.uid, meta.resource_version, state)
            known = self._made.get(meta.uid)
            if known is None or known[0] != version:
                if isinstance(item, CompactionPolicy):
                    row = policy_row(item, coordinators, now)
                else:
                    row = catalog_row(item, coordinators, now)
                known = self._made[meta.uid] = (version, row)
            rows[meta.uid] = known[1]
        changed = [row | {"key": key} for key, row in rows.items() if self._sent.get(key) is not row]
        gone = [key for key in self._sent if key not in rows]
        # Rows of objects that are gone would be kept for as long as the page is open.
        for key in gone:
            self._made.pop(key, None)
        problems = [problem for kind in (self._policies, self._catalogs) if (problem := kind.problem)]
        rest = {"problems": [*problems, *bad_policies, *bad_catalogs]}
        first = not self._rest
        if not (changed or gone or first or rest != self._rest):
            return {}
        self._sent, self._rest = rows, rest
        totals = totals_data([row for row in rows.values() if row["kind"] == "policy"])
        return {"rows": changed, "gone": gone, "totals": totals, **rest, "first": first}


async def fleet_stream(viewer: Viewer, stack: contextlib.AsyncExitStack) -> PageStream:
    """The fleet: all rows first, then those that have changed."""
    policies = await stack.enter_async_context(viewer.policies())
    catalogs = await stack.enter_async_context(viewer.catalogs())
    return PageStream(_FleetRows(viewer, policies, catalogs).build, (policies, catalogs))


async def policy_stream(viewer: Viewer, stack: contextlib.AsyncExitStack, namespace: str, name: str) -> PageStream:
    """One policy and its jobs."""
    policies = await stack.enter_async_context(viewer.policy(namespace, name))
    jobs = await stack.enter_async_context(viewer.jobs(namespace, f"spec.policyRef.name={name}"))

    async def build() -> dict[str, Any]:
        policy = policies.find(namespace, name)
        problems = [problem for kind in (policies, jobs) if (problem := kind.problem)]
        if policy is None:
            return _missing("policy", namespace, name, [*problems, *policies.models()[1]])
        of_policy, invalid = jobs.models()
        page = policy_page(policy, of_policy, await viewer.coordinators(), datetime.now(UTC))
        rights = {
            "patch": await viewer.may("patch", COMPACTION_POLICIES, namespace, name),
            "retry": await viewer.may("patch", COMPACTION_JOBS, namespace),
            "approve": page["row"]["approval"] == "Pending" and await viewer.may_approve(policy),
        }
        return page | {"rights": rights, "problems": [*problems, *invalid]}

    return PageStream(build, (policies, jobs))


async def job_stream(viewer: Viewer, stack: contextlib.AsyncExitStack, namespace: str, name: str) -> PageStream:
    """One job."""
    jobs = await stack.enter_async_context(viewer.jobs(namespace, f"metadata.name={name}"))

    async def build() -> dict[str, Any]:
        job = jobs.find(namespace, name)
        problems = [jobs.problem] if jobs.problem else []
        if job is None:
            return _missing("job", namespace, name, [*problems, *jobs.models()[1]])
        coordinators = await viewer.coordinators()
        page = job_page(
            job, await viewer.find_policy(namespace, job.spec.policy_ref.name), coordinators, datetime.now(UTC)
        )
        rights = {"retry": await viewer.may("patch", COMPACTION_JOBS, namespace, name)}
        return page | {"rights": rights, "problems": problems}

    return PageStream(build, (jobs,))


async def catalog_stream(viewer: Viewer, stack: contextlib.AsyncExitStack, namespace: str, name: str) -> PageStream:
    """One catalog."""
    catalogs = await stack.enter_async_context(viewer.catalog(namespace, name))

    async def build() -> dict[str, Any]:
        catalog = catalogs.find(namespace, name)
        problems = [catalogs.problem] if catalogs.problem else []
        if catalog is None:
            return _missing("catalog", namespace, name, [*problems, *catalogs.models()[1]])
        page = catalog_page(catalog, await viewer.coordinators(), datetime.now(UTC))
        rights = {"patch": await viewer.may("patch", CATALOG_COMPACTIONS, namespace, name)}
        return page | {"rights": rights, "problems": problems}

    return PageStream(build, (catalogs,))


async def failures_stream(viewer: Viewer, stack: contextlib.AsyncExitStack) -> PageStream:
    """Failures by reason."""
    policies = await stack.enter_async_context(viewer.policies())
    catalogs = await stack.enter_async_context(viewer.catalogs())
    faulty = await stack.enter_async_context(viewer.jobs(viewer.namespace, "status.state=Faulty"))
    kinds: tuple[WatchedKind[Any], ...] = (policies, catalogs, faulty)

    async def build() -> dict[str, Any]:
        problems = [problem for kind in kinds for problem in (kind.problem, *kind.models()[1]) if problem]
        reasons = failures_page(policies.models()[0], catalogs.models()[0], faulty.models()[0])
        return {"reasons": reasons, "problems": problems}

    return PageStream(build, kinds)


def _missing(what: str, namespace: str, name: str, problems: list[str]) -> dict[str, Any]:
    said = problems[0] if problems else f"there is no {what} {name} in {namespace}, or none any more"
    return {"missing": said, "problems": problems}
