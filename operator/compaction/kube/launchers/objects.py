"""Workers as objects on the API server, of the kind that the policy wants or the cluster offers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import structlog

from compaction.api.enums import LauncherType, WorkerEnding
from compaction.api.names import (
    COMPONENT_EXECUTOR,
    COMPONENT_WORKER,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_WORKER,
    MANAGED_BY,
    POLICY_KIND,
)
from compaction.core.reconcile.workers.fleet import PATIENT
from compaction.errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
)
from compaction.kube.client.api import ApiClient
from compaction.kube.client.secrets import check_all_used_by
from compaction.kube.client.transport import APACHE_APPLICATIONS, KUBEFLOW_APPLICATIONS, PODS, Obj, Resource
from compaction.kube.errors import KindNotServedError, LaunchError, LaunchUncertainError
from compaction.kube.launchers.applications import left_behind
from compaction.kube.launchers.base import (
    BASELINE,
    PodAllowance,
    WorkerObservation,
    WorkerPhase,
    WorkerRef,
    WorkerRequest,
    secrets_in,
)
from compaction.kube.launchers.pod_status import Sighting, owner_of, with_executors
from compaction.storage.errors import SecretError

# The launcher of a worker: what the policy says, or what the cluster offers. Pure.
#
# `auto` takes the Spark operator that is there, because a cluster with one runs Spark through it; then pods of our
# own where the operator is a pod itself; then processes beside it.


class Availability(StrEnum):
    """The API server's answer about a kind of object."""

    ABSENT = "absent"  # it does not serve the kind
    FORBIDDEN = "forbidden"  # it does, and the operator may not list it
    USABLE = "usable"


KINDS: Final[Mapping[LauncherType, Resource]] = {
    LauncherType.KUBEFLOW: KUBEFLOW_APPLICATIONS,
    LauncherType.APACHE: APACHE_APPLICATIONS,
    LauncherType.POD: PODS,
}
"""The objects that launchers create, in the order in which `auto` prefers them."""


@dataclass(frozen=True, slots=True)
class LauncherChoice:
    """The launchers that can be used here. `in_pod`: the operator runs in a pod."""

    kinds: Mapping[LauncherType, Availability] = field(default_factory=lambda: MappingProxyType({}))
    in_pod: bool = False

    def of(self, launcher: LauncherType) -> Availability:
        """Return whether a launcher's kind can be used."""
        return self.kinds.get(launcher, Availability.ABSENT)


def choose(wanted: LauncherType, offer: LauncherChoice) -> LauncherType:
    """The launcher to use. Raises LaunchError when the one that the policy names cannot be used, with what to do."""
    if wanted is LauncherType.AUTO:
        usable = (kind for kind in KINDS if offer.of(kind) is Availability.USABLE)
        found = next((item for item in usable if item is not LauncherType.POD or offer.in_pod), LauncherType.PROCESS)
        if found is not LauncherType.PROCESS or not offer.in_pod:
            return found
        wanted = LauncherType.POD  # the operator's image has no Spark: a process of it could not work
    if wanted is LauncherType.PROCESS and offer.in_pod:
        raise LaunchError(
            "workers cannot be processes here: they would run in the operator's own pod, as the operator. Set "
            "spec.workers.launcher to auto, or leave it out"
        )
    kind = KINDS.get(wanted)
    if kind is None or offer.of(wanted) is Availability.USABLE:
        return wanted
    name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    if offer.of(wanted) is Availability.FORBIDDEN:
        raise LaunchError(
            f"workers cannot be started by the launcher {wanted}: the operator's account may not list {name}. Grant it "
            f"get, list, create and delete on {name}, or choose another one in spec.workers.launcher"
        )
    raise LaunchError(
        f"workers cannot be started by the launcher {wanted}: the API server does not serve {name} in version "
        f"{kind.version}. Install that Spark operator, or choose another one in spec.workers.launcher (auto takes what "
        "there is)"
    )


# Workers as objects on the API server: created, read, deleted, and never changed.
#
# The form and the meaning of each object are the backends' (pure); here is the traffic. Invariants:
#
# * one worker is one object of its own name; an object that exists already is never taken for a new one;
# * an object that was seen alive and is gone was deleted from outside: a fresh read confirms it before it is
#   reported;
# * looks are one LIST per kind with our labels, rarely while there is nothing to see; of executors, which may be
#   many, only those that wait.

_OF_WORKERS: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
SELECTOR: Final = f"{_OF_WORKERS},{LABEL_COMPONENT}={COMPONENT_WORKER}"
_EXECUTORS: Final = f"{_OF_WORKERS},{LABEL_COMPONENT}={COMPONENT_EXECUTOR}"
VERBS: Final = ("get", "list", "create", "delete")
"""What the operator does with pods and SparkApplications."""
BUSY_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 10.0
OFFER_SECONDS: Final = 30.0
"""How often the API server is asked which kinds it serves: an operator that is installed later is found so soon."""
_SPARK_ROLE: Final = "spark-role"
_REMEDIES: Final = (
    (r"no PriorityClass with name", "create it, or correct spec.workers.priorityClassName"),
    (
        r"(maximum|minimum) \S+ usage per|limit to request ratio per",
        "a LimitRange of the namespace allows no such pod: change cpu and memory of spec.workers.driver or "
        "spec.workers.executor, or the LimitRange (kubectl describe limitrange -n {namespace})",
    ),
    (
        r"must specify (limits|requests|cpu|memory)",
        "a ResourceQuota of the namespace counts what these pods do not say: have a LimitRange give it a default "
        "(kubectl describe quota -n {namespace})",
    ),
    (
        r"exceeded quota",
        "a ResourceQuota of the namespace leaves no room: lower what spec.workers asks for, or raise it (kubectl "
        "describe quota -n {namespace})",
    ),
    (
        r"violates PodSecurity",
        "the namespace enforces a Pod Security Standard: correct spec.workers.podTemplate",
    ),
    (
        r"serviceaccount .*not found|error looking up service account",
        "the namespace lacks the accounts of workers (docs/install.md#policies-in-other-namespaces)",
    ),
)
"""What a refusal of a pod says, in the words of the API server's admission plugins -> what to do about it."""
KEPT_SECONDS: Final = 600.0
"""How long a worker that failed stays for those who read its log."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The form of one kind of object, and what it says about its worker. Both are pure."""

    build: Callable[[WorkerRequest], Obj]
    """The object to create, from the request and the image of workers whose policy names none. Raises LaunchError."""
    observe: Callable[[Obj, Obj | None, Sighting], WorkerObservation]
    """The worker, from its object and its driver pod, if that is seen."""


_Key = tuple[str, str]
"""Namespace and name of a worker."""


@dataclass(slots=True)
class _Seen:
    """The last sight of one worker."""

    launcher: LauncherType
    observation: WorkerObservation
    uid: str
    first: datetime  # wall
    first_at: float  # monotonic
    forgotten: float | None = None  # monotonic
    left: tuple[str, str] | None = None  # see `applications.left_behind`


@dataclass(slots=True)
class _Look:
    """One reading: the objects of each kind, which kinds could be read, and the executors that wait, by worker."""

    kinds: dict[LauncherType, Availability] = field(default_factory=dict)
    objects: list[tuple[LauncherType, Obj, Obj | None]] = field(default_factory=list)
    waiting: dict[_Key, list[Obj]] = field(default_factory=dict)


class ObjectLauncher:
    """Implements `launchers.base.Launcher` for every kind of object at once; `launch_as` gets the one to create."""

    def __init__(
        self,
        client: ApiClient,
        backends: Mapping[LauncherType, Backend],
        *,
        namespace: str | None,
        allowance: PodAllowance = BASELINE,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._backends = backends
        self._namespace = namespace
        self._allowance = allowance
        self._monotonic = monotonic
        self._wall = wall
        self._seen: dict[_Key, _Seen] = {}
        self._deleted: set[str] = set()
        self._kinds: dict[LauncherType, Availability] = {}
        self._asked_at = self._looked_at = float("-inf")

    async def offer(self) -> Mapping[LauncherType, Availability]:
        """Return the kinds of objects that can be used, as of a short while ago."""
        if self._monotonic() - self._asked_at >= OFFER_SECONDS:
            asked = {launcher: await self._availability(launcher) for launcher in self._backends}
            if asked != self._kinds:
                log.info("launchers of workers", **{launcher.value: found.value for launcher, found in asked.items()})
            self._kinds, self._asked_at = asked, self._monotonic()
        return self._kinds

    async def launch_as(self, launcher: LauncherType, request: WorkerRequest) -> WorkerRef:
        """Create the object. Raises LaunchError with what the API server (or an admission rule) said."""
        kind = KINDS[launcher]
        if request.pod is not None:
            request = replace(request, pod=replace(request.pod, allowance=self._allowance))
        body = self._backends[launcher].build(request)
        namespace, policy = request.policy
        try:
            await check_all_used_by(self._client, namespace, secrets_in(body), f"{POLICY_KIND}/{policy}")
            made = await self._client.create(kind, body, strict=True)
        except SecretError as error:
            raise LaunchError(str(error)) from error
        except AlreadyExistsError as error:
            raise LaunchError(f"worker {request.name} was launched before; names are used once") from error
        except ApiUnavailableError as error:
            raise LaunchUncertainError(f"the {kind.kind} of worker {request.name}: {error}") from error
        except ApiError as error:
            refused = "was refused" if isinstance(error, ForbiddenError | InvalidObjectError) else "could not be made"
            message = f"the {kind.kind} of worker {request.name} {refused}: {error}{_remedy(str(error), namespace)}"
            if isinstance(error, NotFoundError | ForbiddenError) and error.is_of_kind:
                # Discovery lags behind what is served, and lists a kind that goes away: this answer is truer.
                self._kinds = {**self._kinds, launcher: Availability.ABSENT}
                raise KindNotServedError(message) from error
            raise LaunchError(message) from error
        key = request.policy.namespace, request.name
        self._seen[key] = self._sighted(launcher, made, None, known=None)
        self._looked_at = float("-inf")
        log.info("worker launched", worker=request.name, kind=kind.kind, launcher=launcher.value)
        return WorkerRef(request.name, request.policy, f"{kind.kind}, launcher {launcher}")

    async def observe(self) -> list[WorkerObservation]:
        """Every worker with an object, and those whose object has just gone."""
        pause = BUSY_SECONDS if self._seen else IDLE_SECONDS
        if self._monotonic() - self._looked_at >= pause:
            self._looked_at = self._monotonic()
            try:
                await self._take(await self._look())
                await self._clear_away()
            except ApiUnavailableError as error:
                # What was seen last stands: nothing is decided on the absence of an answer.
                log.warning("workers could not be read", error=str(error))
        return [seen.observation for seen in self._seen.values() if seen.forgotten is None]

    def knows(self, ref: WorkerRef) -> bool:
        """True for a worker that has an object here."""
        return _key(ref) in self._seen

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        """Delete the object; its pods get `grace` seconds where they are ours. What is not there has stopped."""
        seen = self._seen.get(_key(ref))
        if seen is not None and not seen.observation.ended:
            await self._delete(seen, grace=grace)

    async def forget(self, ref: WorkerRef) -> None:
        """The worker's end was acted upon. What succeeded is deleted, what failed stays a while for its log."""
        seen = self._seen.get(_key(ref))
        if seen is None or not seen.observation.ended or seen.forgotten is not None:
            return
        if seen.observation.phase is not WorkerPhase.FAILED:
            await self._delete(seen)
            self._drop(_key(ref), seen)
            return
        seen.forgotten = self._monotonic()

    # -- traffic -----------------------------------------------------------------------------------------------------

    async def _availability(self, launcher: LauncherType) -> Availability:
        kind = KINDS[launcher]
        try:
            if kind.group:
                served = await self._client.request("GET", f"/apis/{kind.group}/{kind.version}")
                if kind.plural not in {item["name"] for item in served.get("resources", ())}:
                    return Availability.ABSENT
            await self._client.list(kind, namespace=self._namespace, labels=SELECTOR)
        except NotFoundError:
            # The whole API group is unknown where that Spark operator is not installed.
            return Availability.ABSENT
        except ForbiddenError:
            return Availability.FORBIDDEN
        return Availability.USABLE

    async def _look(self) -> _Look:
        look = _Look(dict(await self.offer()))
        pods = await self._list(PODS) if look.kinds.get(LauncherType.POD) is Availability.USABLE else ()
        drivers = {(_namespace(pod), _worker(pod)): pod for pod in pods if _is_driver(pod)}
        for pod in await self._list(PODS, labels=_EXECUTORS, fields="status.phase=Pending") if pods else ():
            look.waiting.setdefault((_namespace(pod), _worker(pod)), []).append(pod)
        found: list[tuple[Obj, Obj | None]]
        for launcher, available in look.kinds.items():
            if available is not Availability.USABLE:
                continue
            if launcher is LauncherType.POD:
                # A driver pod that somebody else made for his application is looked at with that application.
                found = [(pod, None) for pod in pods if pod["metadata"]["name"] == _worker(pod)]
            else:
                bodies = await self._list(KINDS[launcher])
                found = [(body, drivers.get((_namespace(body), body["metadata"]["name"]))) for body in bodies]
            # Labels are anybody's to write; what a policy owns is ours to delete.
            look.objects += [(launcher, body, pod) for body, pod in found if owner_of(body)]
        return look

    async def _list(self, kind: Resource, *, labels: str = SELECTOR, fields: str | None = None) -> Sequence[Obj]:
        try:
            return (await self._client.list(kind, namespace=self._namespace, labels=labels, fields=fields)).items
        except (NotFoundError, ForbiddenError):
            self._asked_at = float("-inf")  # it is not what it was: ask again
            return ()

    async def _take(self, look: _Look) -> None:
        # Workers may be launched and forgotten between any two awaits.
        before = dict(self._seen)
        found: dict[_Key, _Seen] = {}
        # A finalizer of somebody else's may keep what was deleted for long: it is not our worker any more.
        self._deleted &= {body["metadata"]["uid"] for _, body, _ in look.objects}
        for launcher, body, pod in look.objects:
            if body["metadata"]["uid"] in self._deleted:
                continue
            key = _namespace(body), body["metadata"]["name"]
            executors = look.waiting.get(key, ())
            found[key] = self._sighted(launcher, body, pod, known=before.get(key), executors=executors)
        for key, seen in before.items():
            if key not in found and seen.forgotten is None:
                gone = not await self._exists(seen)
                found[key] = replace(seen, observation=_gone(seen.observation)) if gone else seen
        kept = {key: seen for key, seen in found.items() if key in self._seen or key not in before}
        self._seen = kept | {key: seen for key, seen in self._seen.items() if key not in before}

    def _sighted(
        self,
        launcher: LauncherType,
        body: Obj,
        pod: Obj | None,
        *,
        known: _Seen | None,
        executors: Sequence[Obj] = (),
    ) -> _Seen:
        uid = body["metadata"]["uid"]
        if known is None or known.uid != uid:
            first, first_at, forgotten = self._wall(), self._monotonic(), None
        else:
            first, first_at, forgotten = known.first, known.first_at, known.forgotten
        since = Sighting(first, max(0.0, self._monotonic() - first_at))
        observation = with_executors(self._backends[launcher].observe(body, pod, since), executors)
        if observation.trouble in PATIENT:
            observation = replace(observation, waited=since.age)
        elif known is not None and known.uid == uid:
            observation = replace(observation, waited=max(observation.waited, known.observation.waited))
        return _Seen(launcher, observation, uid, first, first_at, forgotten, left_behind(body, pod, observation))

    async def _exists(self, seen: _Seen) -> bool:
        worker = seen.observation
        try:
            body = await self._client.get(KINDS[seen.launcher], worker.name, namespace=worker.policy.namespace)
        except NotFoundError:
            return False
        # A namesake that was created since is not this worker.
        return bool(body["metadata"]["uid"] == seen.uid)

    async def _delete(self, seen: _Seen, *, grace: float | None = None) -> None:
        kind, worker = KINDS[seen.launcher], seen.observation
        seconds = int(grace) if grace is not None and kind is PODS else None
        with suppress(NotFoundError, ConflictError):  # a namesake is not ours to delete
            await self._client.delete(
                kind, worker.name, namespace=worker.policy.namespace, uid=seen.uid, grace_seconds=seconds
            )

    def _drop(self, key: _Key, seen: _Seen) -> None:
        self._seen.pop(key, None)
        self._deleted.add(seen.uid)

    async def _clear_away(self) -> None:
        """Delete failed workers whose time is over, and at once a driver pod that one left: it takes from the quota."""
        now = self._monotonic()
        for key, seen in tuple(self._seen.items()):
            if seen.forgotten is not None and seen.left is not None:
                name, uid = seen.left
                log.info("its submission has failed: its driver pod is deleted", worker=key[1], pod=name)
                with suppress(NotFoundError, ConflictError):
                    await self._client.delete(PODS, name, namespace=key[0], uid=uid)
            if seen.forgotten is not None and now - seen.forgotten >= KEPT_SECONDS:
                await self._delete(seen)
                self._drop(key, seen)


def _remedy(refusal: str, namespace: str) -> str:
    found = (words for pattern, words in _REMEDIES if re.search(pattern, refusal))
    return next((f"; {words.format(namespace=namespace)}" for words in found), "")


def _gone(last: WorkerObservation) -> WorkerObservation:
    """Return what is said of a worker whose object has gone; one that had ended, ended as it did."""
    if last.ended:
        return last
    disrupted = last.ending is WorkerEnding.DISRUPTED
    words = last.message if disrupted else "its object was deleted from outside"
    return replace(
        last,
        phase=WorkerPhase.LOST,
        reason="Disrupted" if disrupted else "Deleted",
        message=words,
        trouble=None,
        ending=WorkerEnding.DISRUPTED if disrupted else WorkerEnding.DELETED,
        ui="",
    )


def _key(worker: WorkerRef | WorkerObservation) -> _Key:
    return worker.policy.namespace, worker.name


def _worker(body: Obj) -> str:
    return str((body["metadata"].get("labels") or {}).get(LABEL_WORKER, ""))


def _is_driver(pod: Obj) -> bool:
    """True for the driver's pod, whatever other labels say: Spark gives every pod that it makes its role."""
    return str((pod["metadata"].get("labels") or {}).get(_SPARK_ROLE, "driver")) == "driver"


def _namespace(body: Obj) -> str:
    return str(body["metadata"].get("namespace", ""))


log = structlog.get_logger(__name__)
