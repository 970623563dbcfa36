"""The sink of CloudEvents: takes what waits in the statuses of policies and catalogs to a folder, an object store or a
webhook (docs/events.md).

Each object's events go one after another, in the order of their numbers; objects do not wait for one another. A failure
pauses everything, because one destination serves all. Reconciling never waits for any of it: it offers what stands in a
status, and learns later up to which number the sink has taken it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp
import structlog

from compaction.api.enums import JobState
from compaction.api.events import CloudEvent, EventSource, EventsStatus, PendingEvent
from compaction.api.policy.configuration import SinkFormat, SinkSpec, WebhookSink
from compaction.core.reconcile.observations import SinkView
from compaction.errors import CompactionError
from compaction.storage.errors import ObjectExistsError
from compaction.storage.objects.store import Retrying, open_objects
from compaction.storage.secrets import text_of

if TYPE_CHECKING:
    from compaction.kube.metrics.registry import Metrics

# Destinations. Each takes one event and returns only when it has it for good.


class DeliveryError(CompactionError):
    """The destination did not take an event, and may take it later. The message holds no secret.

    `retry_after`: seconds that the destination asks to be left alone.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RefusedEventError(DeliveryError):
    """The destination says that it will not take this event, whenever it is sent."""


class Destination(Protocol):
    """Takes events."""

    async def take(self, name: str, event: CloudEvent) -> None:
        """Take one; `name` is the same at each try. Raises DeliveryError."""
        ...

    async def close(self) -> None:
        """Nothing is taken any more."""
        ...


class ObjectDestination:
    """One object, or file of a folder, for each event: written once, whole, under a name that each try has."""

    def __init__(self, url: str, credentials: Path | None) -> None:
        self._url = url
        self._credentials = credentials
        # Threads of its own: a store that hangs must not take those in which stores are scanned.
        self._threads = ThreadPoolExecutor(max_workers=CONCURRENT, thread_name_prefix="sink")

    async def take(self, name: str, event: CloudEvent) -> None:
        """See `Destination`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._put, name, event.line())

    # One try: the pause between two of them is for all events, and a thread that sleeps sends none.
    def _put(self, name: str, data: bytes) -> None:
        try:
            # Read each time: a mounted Secret is replaced while the operator runs.
            objects = open_objects(self._url, options=_options(self._credentials), retrying=Retrying(tries=1))
            try:
                objects.put(name, data, if_absent=True)
            except ObjectExistsError:
                # An earlier try wrote it, and was not heard of. A machine that lost its power may have kept but a name.
                if not objects.head(name).size:
                    objects.put(name, data)
        except CompactionError as error:
            raise DeliveryError(str(error)) from error
        except OSError as error:
            raise DeliveryError(f"{error.filename or self._url}: {error.strerror}") from error

    async def close(self) -> None:
        """See `Destination`. A thread that hangs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _options(directory: Path | None) -> Mapping[str, str]:
    """The options of a mounted Secret; what kubelet keeps beside them begins with dots. Raises SecretError, OSError."""
    # Without one, the cloud's own tools say who the operator is.
    if directory is None:
        return {}
    files = (path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file())
    # By its place: which Secret is mounted there, nobody here knows.
    return {path.name: text_of(str(directory), path.name, path.read_bytes()) for path in files}


class WebhookDestination:
    """A POST for each event. Redirects are not followed: they would carry the token elsewhere."""

    def __init__(self, spec: WebhookSink) -> None:
        self._spec = spec
        self._session: aiohttp.ClientSession | None = None

    async def take(self, name: str, event: CloudEvent) -> None:
        """See `Destination`."""
        session = self._session = self._session or aiohttp.ClientSession(trust_env=True)
        slack = self._spec.format is SinkFormat.SLACK
        headers = {"Content-Type": "application/json" if slack else "application/cloudevents+json; charset=utf-8"}
        try:
            if self._spec.token_file is not None:
                headers["Authorization"] = f"Bearer {_line_of(self._spec.token_file)}"
            url = self._spec.url or _line_of(self._spec.url_file or "")
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryError(f"a file of the sink's webhook cannot be read: {type(error).__name__}") from error
        # The configuration has checked its own URL; one in a file is known only now.
        if "Authorization" in headers and not url.startswith("https:"):
            raise DeliveryError("the token of the sink's webhook would travel in clear text: use an https:// URL")
        body = json.dumps({"text": sentence(event)}).encode() if slack else event.line()
        timeout = aiohttp.ClientTimeout(total=float(self._spec.timeout))
        try:
            async with session.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                _judge(answer.status, answer.headers.get("Retry-After"))
        # It may have been taken: sent again, it has the same id.
        except TimeoutError as error:
            raise DeliveryError(f"the webhook did not answer within {self._spec.timeout}") from error
        except aiohttp.ClientConnectorError as error:
            raise DeliveryError(f"the webhook cannot be reached: {error.os_error.strerror or 'no answer'}") from error
        except (aiohttp.ClientError, ValueError) as error:
            # Their own words may hold the URL, and the URL may be a secret.
            raise DeliveryError(f"the webhook cannot be used: {type(error).__name__}") from error

    async def close(self) -> None:
        """See `Destination`."""
        if self._session is not None:
            await self._session.close()


def _line_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


_REFUSALS: Final = frozenset({400, 405, 406, 409, 411, 413, 415, 422, 431})
"""Answers about one request. Others of 4xx are about who asks, or where: once corrected, all is sent."""
LONGEST_WISH: Final = 3600.0
"""Seconds of Retry-After that are honoured at most."""


def _judge(status: int, retry_after: str | None) -> None:
    if 200 <= status < 300:
        return
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    message = f"the webhook answered {status} {phrase}".rstrip()
    if status in _REFUSALS:
        raise RefusedEventError(message)
    raise DeliveryError(message, retry_after=_seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After: seconds, or a date."""
    if retry_after is None:
        return None
    with suppress(ValueError, TypeError, OverflowError):
        if retry_after.strip().isdecimal():
            return min(float(retry_after), LONGEST_WISH)
        at = parsedate_to_datetime(retry_after)
        return min(max(0.0, (at - datetime.now(UTC)).total_seconds()), LONGEST_WISH)
    return None


def sentence(event: CloudEvent) -> str:
    """The event for a chat."""
    _, _, place = event.source.partition("/namespaces/")
    what = event.type.removeprefix("dev.compaction.").replace(".", " ")
    about = f" {event.subject}" if event.subject else ""
    told = event.data.get("message") or ", ".join(
        f"{name} {value}" for name, value in event.data.items() if isinstance(value, str | int) and name != "uid"
    )
    return f"{place}: {what}{about}" + (f": {told}" if told else "")


def destination_of(spec: SinkSpec) -> Destination:
    """The destination that the configuration names."""
    if spec.folder is not None:
        return ObjectDestination(Path(spec.folder.path).as_uri(), None)
    if (store := spec.object_store) is not None:
        directory = Path(store.credentials_directory) if store.credentials_directory is not None else None
        return ObjectDestination(store.url, directory)
    assert spec.webhook is not None, "the model demands one of the three"
    return WebhookDestination(spec.webhook)


# Delivery.

CONCURRENT: Final = 4
"""Objects whose events are sent at a time."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
TRIES: Final = 5
"""Of an event that the destination refuses: after these it is given up, so that those behind it are sent."""
MOST_IN_MEMORY: Final = 20_000
"""Events of all objects together; beyond it none are taken in: they stand in a status, and are offered again."""

Render = Callable[[PendingEvent], dict[str, Any]]
"""What is added to the data of an event when it is sent: the receipt of a job."""


@dataclass(slots=True)
class _Lane:
    """The events of one object. `offered` and `delivered` are numbers: up to which they were taken in, and sent."""

    source: EventSource
    notify: Callable[[], None]
    render: Render
    waiting: deque[PendingEvent] = field(default_factory=deque)
    offered: int = 0
    delivered: int = 0
    lost: int = 0
    refusals: int = 0
    busy: bool = False
    gone: bool = False


class EventSink:
    """Belongs to the loop that runs it, from election to the end of the term; what it knows is of that term alone."""

    def __init__(
        self,
        destination: Destination,
        *,
        patience: float,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._destination = destination
        self._patience = patience
        self._monotonic = monotonic
        self._wall = wall
        self._dice = dice
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[str] = deque()
        self._count = 0
        self._wake = asyncio.Event()
        self._failures = 0
        self._not_before = 0.0
        self._metrics: Metrics | None = None
        self._is_leader: Callable[[], bool] = lambda: True

    def view(self, uid: str) -> SinkView:
        """See `SinkView`, of the object with this uid."""
        lane = self._lanes.get(uid)
        return SinkView(lane.delivered if lane is not None else 0, self._patience)

    def offer(
        self, source: EventSource, events: EventsStatus | None, *, render: Render, notify: Callable[[], None]
    ) -> None:
        """Take in what waits in the status of an object, as the API server has it. `notify`: called when the sink has
        taken some of it. Never blocks.
        """
        if events is None or not (events.waiting or source.uid in self._lanes):
            return
        lane = self._lanes.setdefault(source.uid, _Lane(source, notify, render, lost=events.lost))
        # Offers come from the start of a term on, and its metrics with the first turn of the task.
        if self._metrics is not None:
            self._metrics.sink_lost.inc(max(0, events.lost - lane.lost))
        lane.lost = events.lost
        for event in events.waiting:
            if event.sequence > max(lane.offered, lane.delivered) and self._count < MOST_IN_MEMORY:
                lane.waiting.append(event)
                self._count += 1
                lane.offered = event.sequence
        self._schedule(source.uid, lane)

    def forget(self, uid: str) -> None:
        """The object is gone. What was taken in of it is still sent."""
        lane = self._lanes.get(uid)
        if lane is not None:
            lane.notify, lane.gone = (lambda: None), True
            if not lane.waiting and not lane.busy:
                del self._lanes[uid]

    def _schedule(self, uid: str, lane: _Lane) -> None:
        if lane.waiting and not lane.busy:
            lane.busy = True
            self._ready.append(uid)
            self._wake.set()

    def oldest(self) -> float:
        """Seconds since the oldest event that waits happened; 0 when none does."""
        times = [lane.waiting[0].time.timestamp() for lane in self._lanes.values() if lane.waiting]
        # One second at least, so that what waits is told from nothing where clocks differ.
        return max(1.0, self._wall() - min(times)) if times else 0.0

    async def run(self, metrics: Metrics, is_leader: Callable[[], bool]) -> None:
        """Send, until it is cancelled."""
        self._metrics, self._is_leader = metrics, is_leader
        metrics.sink_waiting.set_function(lambda: self._count)
        metrics.sink_oldest.set_function(self.oldest)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENT):
                    group.create_task(self._send_forever())
        finally:
            await self._destination.close()

    async def _send_forever(self) -> None:
        while True:
            while not self._ready:
                self._wake.clear()
                await self._wake.wait()
            uid = self._ready.popleft()
            lane = self._lanes[uid]
            try:
                await self._drain(lane)
            finally:
                lane.busy = False
            # An object of the same name has another uid, and a lane of its own.
            if lane.gone and not lane.waiting:
                self._lanes.pop(uid, None)
            self._schedule(uid, lane)

    async def _drain(self, lane: _Lane) -> None:
        """Send what waits of one object, in order; returns early after a failure, and others have their turn."""
        while lane.waiting:
            if (left := self._not_before - self._monotonic()) > 0:
                await asyncio.sleep(left)
                continue
            if not self._is_leader():
                await asyncio.sleep(FIRST_PAUSE)  # another one sends; this term is about to end
                continue
            if not await self._one(lane, lane.waiting[0]):
                return

    async def _one(self, lane: _Lane, event: PendingEvent) -> bool:
        assert self._metrics is not None, "run() comes first"
        try:
            more = lane.render(event)
            cloud_event = lane.source.cloud_event(event, more)
            await self._destination.take(lane.source.file_of(event), cloud_event)
        except RefusedEventError as error:
            lane.refusals += 1
            # It may be the receiver that is wrong, for a while.
            if lane.refusals < TRIES:
                self._failed(error)
                return False
            _log.error("an event is given up: it was refused", type=event.type, number=event.sequence, why=str(error))
            self._metrics.sink_refused.inc()
        except DeliveryError as error:
            self._failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the other events are still to be sent
            self._failed(DeliveryError(f"an unexpected failure: {type(error).__name__}"))
            return False
        else:
            self._metrics.sink_delivered.labels(event.type).inc()
            if event.data.get("state") == JobState.SUCCEEDED and "receipt" not in more:
                self._metrics.sink_bare.inc()
            self._failures = 0
        lane.refusals = 0
        lane.waiting.popleft()
        self._count -= 1
        lane.delivered = event.sequence
        lane.notify()
        return True

    def _failed(self, error: DeliveryError) -> None:
        """Pause everything: exponentially longer, with jitter, and as long as the destination asks for."""
        assert self._metrics is not None, "run() comes first"
        self._metrics.sink_failures.inc()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 16)) * (0.5 + self._dice() / 2)
        pause = max(pause, error.retry_after or 0.0)
        self._failures += 1
        self._not_before = max(self._not_before, self._monotonic() + pause)
        _log.warning("events wait: the sink did not take one", why=str(error), again_in=round(pause, 1))


def sink_of(spec: SinkSpec) -> EventSink:
    """The sink of a configuration."""
    return EventSink(destination_of(spec), patience=float(spec.patience))


_log = structlog.get_logger(__name__)
