"""Kubernetes Events on transitions (core/v1, so that `kubectl describe` and `kubectl get events` show them).

An Event is a courtesy to people: posting happens in the background, failing to post never fails anything else, and
nothing reads Events back. Writes are bounded (docs/design/invariants.md, 6): a repetition within the window only
counts, and the count is written when it has doubled; many different messages for one object and reason are folded into
one.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from uuid import uuid4

import structlog

from compaction.errors import ApiError, NotFoundError
from compaction.kube.client.api import EVENTS, ApiClient, Obj
from compaction.kube.metrics.registry import Metrics

_WINDOW_SECONDS: Final = 600.0
_SIMILAR_LIMIT: Final = 10
_QUEUE_LIMIT: Final = 1000
_REMEMBERED: Final = 4096
_MESSAGE_LIMIT: Final = 1024  # the API server's own
_FOLDED: Final = "(combined from similar events): "


class EventType(StrEnum):
    """The two standard types."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(slots=True)
class _Series:
    """One posted Event and how often it happened since."""

    name: str
    namespace: str
    started: float
    count: int = 1
    written: int = 0


@dataclass(frozen=True, slots=True)
class _Post:
    series: _Series
    body: Obj


class EventRecorder:
    """`event()` from anywhere on the loop; `run()` posts until cancelled; `flush()` before the end."""

    def __init__(
        self,
        client: ApiClient,
        *,
        component: str = "compaction-operator",
        instance: str = "",
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._similar: OrderedDict[tuple[str, str], tuple[float, set[str]]] = OrderedDict()
        self._queue: asyncio.Queue[_Post] = asyncio.Queue(_QUEUE_LIMIT)

    def event(self, about: Obj, *, reason: str, message: str, type: EventType = EventType.NORMAL) -> None:
        """Say that something happened to an object. `reason` is a stable CamelCase word, `message` a sentence."""
        metadata = about["metadata"]
        uid = str(metadata.get("uid", ""))
        message = self._folded(uid, reason, message)[:_MESSAGE_LIMIT]
        key = (uid, type.value, reason, message)
        now = self._clock()
        series = self._series.get(key)
        if series is not None and now - series.started < _WINDOW_SECONDS:
            series.count += 1
            if series.count < 2 * series.written:
                return
        else:
            namespace = metadata.get("namespace") or "default"
            series = _Series(f"{metadata['name'][:200]}.{uuid4().hex[:16]}", namespace, now)
            self._series[key] = series
            _trim(self._series)
        series.written = series.count
        try:
            self._queue.put_nowait(_Post(series, self._body(about, series, reason, message, type)))
        except asyncio.QueueFull:
            # Dropped, not awaited: a reconcile does not wait for what only people read.
            self._dropped("too many events wait to be posted")

    async def run(self) -> None:
        """Post what was recorded, one at a time, until cancelled."""
        while True:
            post = await self._queue.get()
            try:
                await self._post(post)
            except ApiError as error:
                self._dropped(str(error))
            finally:
                self._queue.task_done()

    async def flush(self, *, seconds: float) -> None:
        """Wait for posting to catch up, for so long at most; `run` must be running."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._queue.join()

    async def _post(self, post: _Post) -> None:
        if post.body["count"] > 1:
            change = {"count": post.body["count"], "lastTimestamp": post.body["lastTimestamp"]}
            # Events live an hour by default; when the first one is gone, it is simply posted anew.
            with suppress(NotFoundError):
                await self._client.patch(EVENTS, post.series.name, change, namespace=post.series.namespace)
                return
        await self._client.create(EVENTS, post.body)

    def _folded(self, uid: str, reason: str, message: str) -> str:
        now = self._clock()
        started, messages = self._similar.get((uid, reason), (now, set()))
        if now - started >= _WINDOW_SECONDS:
            started, messages = now, set()
        self._similar[uid, reason] = (started, messages)
        _trim(self._similar)
        if message in messages or len(messages) < _SIMILAR_LIMIT:
            messages.add(message)
            return message
        # One fixed text per object and reason, or every message would still be an Event of its own.
        return f"{_FOLDED}{reason} happened with more than {_SIMILAR_LIMIT} different messages"

    def _body(self, about: Obj, series: _Series, reason: str, message: str, type: EventType) -> Obj:
        metadata = about["metadata"]
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        involved = {
            "apiVersion": about.get("apiVersion"),
            "kind": about.get("kind"),
            "namespace": metadata.get("namespace"),
            "name": metadata["name"],
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        return {
            "metadata": {"name": series.name, "namespace": series.namespace},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "reason": reason,
            "message": message,
            "type": type.value,
            "count": series.count,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _dropped(self, why: str) -> None:
        _log.warning("a Kubernetes Event was not posted", error=why)
        if self._metrics is not None:
            self._metrics.events_dropped.inc()


def _trim(
    memory: "OrderedDict[tuple[str, ...], _Series] | OrderedDict[tuple[str, str], tuple[float, set[str]]]",
) -> None:
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)


_log = structlog.get_logger(__name__)
