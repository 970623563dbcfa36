"""Delivery of CloudEvents: order, patience with a receiver that fails, and names and bodies on each destination."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from compaction.api.events import CloudEvent, CloudEventType, EventSource, EventsStatus, pending
from compaction.api.policy.configuration import SinkSpec
from compaction.kube.metrics.registry import Metrics
from compaction.kube.sink import (
    LONGEST_WISH,
    TRIES,
    DeliveryError,
    EventSink,
    ObjectDestination,
    RefusedEventError,
    destination_of,
)
from compaction.local.cluster.certs import ensure_authority
from compaction.storage.objects.store import open_objects
from support.clocks import PATIENCE_SECONDS
from support.programs import needs
from tools.servers.versitygw import free_port, start_versitygw

NOW = datetime(2026, 11, 29, 6, 0, tzinfo=UTC)
SECRET = "hunter2"


def source(name: str = "logs") -> EventSource:
    return EventSource(plural="compactionpolicies", namespace="ns", name=name, uid=f"uid-{name}")


def status(last: int, first: int = 1) -> EventsStatus:
    """Events `first` to `last` wait."""
    events = EventsStatus(last=first - 1)
    for number in range(first, last + 1):
        new = pending(CloudEventType.JOB_ENDED, NOW, f"job-{number}", job=f"job-{number}", state="Succeeded")
        events = events.after((new,), delivered=0)
    return events


class Receiver:
    """A destination that takes what `answer` lets through; an answer is an exception, or None."""

    def __init__(self, answer: Callable[[CloudEvent], Exception | None] = lambda _: None) -> None:
        self.answer = answer
        self.tries: list[str] = []
        self.taken: list[CloudEvent] = []
        self.closed = False

    async def take(self, name: str, event: CloudEvent) -> None:
        self.tries.append(event.id)
        await asyncio.sleep(0)
        if (error := self.answer(event)) is not None:
            raise error
        self.taken.append(event)

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def running(receiver: Any, metrics: Metrics | None = None) -> AsyncIterator[EventSink]:
    """A sink whose pauses are over at once: its clock jumps whenever something waits for it."""
    clock = [0.0]

    def monotonic() -> float:
        clock[0] += 1000.0
        return clock[0]

    sink = EventSink(receiver, patience=60.0, monotonic=monotonic, wall=lambda: NOW.timestamp() + 90)
    task = asyncio.create_task(sink.run(metrics or Metrics(), lambda: True))
    try:
        yield sink
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - conditions are about what a sink of its own does
            await asyncio.sleep(0.01)


def offer(sink: EventSink, events: EventsStatus, name: str = "logs", **more: Any) -> list[int]:
    """Returns what the sink has said since: the number up to which it has taken all, at each notice."""
    notices: list[int] = []
    uid = source(name).uid
    sink.offer(source(name), events, render=lambda _: more, notify=lambda: notices.append(sink.view(uid).delivered))
    return notices


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"compaction_cloudevents_{name}", labels)


def test_each_event_once_in_order_however_often_it_is_offered() -> None:
    async def test() -> None:
        receiver, metrics = Receiver(), Metrics()
        async with running(receiver, metrics) as sink:
            notices = offer(sink, status(3), receipt={"token": 1})
            offer(sink, status(3))
            offer(sink, status(5, first=2))
            await until(lambda: len(receiver.taken) == 5)
            assert notices == [1, 2, 3, 4, 5]
            assert (sink.view("uid-logs").delivered, sink.view("uid-other").delivered) == (5, 0)
            assert sample(metrics, "delivered_total", type="dev.compaction.job.ended") == 5
            assert sample(metrics, "without_receipt_total") == 0
            offer(sink, status(1), "of-a-deleted-job")
            await until(lambda: sample(metrics, "without_receipt_total") == 1)
            receiver.taken.pop()
            offer(sink, status(5).model_copy(update={"lost": 3}))
            assert sample(metrics, "lost_total") == 3
            assert (sample(metrics, "undelivered"), sample(metrics, "oldest_age_seconds")) == (0, 0)
        assert [event.id for event in receiver.taken] == [f"uid-logs/{number}" for number in range(1, 6)]
        assert receiver.taken[0].data == {"job": "job-1", "state": "Succeeded", "receipt": {"token": 1}}
        assert receiver.closed

    asyncio.run(test())


def test_a_failure_keeps_the_order_and_other_objects_have_their_turn() -> None:
    async def test() -> None:
        failing = {"uid-a/2": 3}

        def answer(event: CloudEvent) -> Exception | None:
            failing[event.id] = failing.get(event.id, 0) - 1
            return DeliveryError("503") if failing[event.id] >= 0 else None

        receiver, metrics = Receiver(answer), Metrics()
        async with running(receiver, metrics) as sink:
            offer(sink, status(3), "a")
            offer(sink, status(2), "b")
            await until(lambda: len(receiver.taken) == 5)
        for name, number in (("a", 3), ("b", 2)):
            mine = [event.id for event in receiver.taken if event.id.startswith(f"uid-{name}/")]
            assert mine == [f"uid-{name}/{at}" for at in range(1, number + 1)]
        assert receiver.tries.count("uid-a/2") == 4
        assert receiver.tries.index("uid-a/3") > max(at for at, each in enumerate(receiver.tries) if each == "uid-a/2")
        assert sample(metrics, "failures_total") == 3

    asyncio.run(test())


def test_a_dead_receiver_is_measured_and_an_event_that_is_refused_is_given_up() -> None:
    async def test() -> None:
        dead, metrics = Receiver(lambda _: RuntimeError("a library's own")), Metrics()
        async with running(dead, metrics) as sink:
            offer(sink, status(4))
            await until(lambda: len(dead.tries) > 3)
            assert (sample(metrics, "undelivered"), sample(metrics, "oldest_age_seconds")) == (4, 90)
            assert sink.view("uid-logs").delivered == 0, "what was not taken is never recorded"
            dead.answer = lambda event: RefusedEventError("413") if event.id == "uid-logs/2" else None
            await until(lambda: len(dead.taken) == 3)
        assert [event.sequence[-1] for event in dead.taken] == ["1", "3", "4"]
        assert dead.tries.count("uid-logs/2") == TRIES
        assert sample(metrics, "refused_total") == 1

    asyncio.run(test())


def test_what_was_taken_in_of_a_deleted_object_is_still_sent() -> None:
    async def test() -> None:
        up = False
        receiver = Receiver(lambda _: None if up else DeliveryError("away"))
        async with running(receiver) as sink:
            offer(sink, status(2))
            await until(lambda: len(receiver.tries) > 1)
            sink.forget("uid-logs")
            up = True
            await until(lambda: len(receiver.taken) == 2)
            await until(lambda: sink.view("uid-logs").delivered == 0)  # and then it is forgotten

    asyncio.run(test())


def test_a_receiver_is_left_alone_longer_and_longer_and_as_long_as_it_asks() -> None:
    now = [0.0]
    sink = EventSink(Receiver(), patience=1, monotonic=lambda: now[0], dice=lambda: 1.0)
    sink._metrics = Metrics()
    pauses = []
    for error in (*[DeliveryError("x")] * 4, DeliveryError("x", retry_after=700.0), *[DeliveryError("x")] * 9):
        now[0] = sink._not_before
        sink._failed(error)
        pauses.append(sink._not_before - now[0])
    assert pauses[:5] == [1, 2, 4, 8, 700]
    assert pauses[-1] == 300


# Webhooks: a real server, on loopback.


class Hook:
    """Answers POSTs with what `answers` has, the last of them for ever."""

    def __init__(self) -> None:
        self.answers: list[Callable[[web.Request], Awaitable[web.Response]]] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.path_qs, dict(request.headers), await request.json()))
        return await self.answers[min(len(self.requests), len(self.answers)) - 1](request)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Hook]:
        app = web.Application()
        app.router.add_post("/{tail:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/services/{SECRET}"
        try:
            yield self
        finally:
            await runner.cleanup()


def answering(status: int, **headers: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer


async def late(_request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def later(request: web.Request) -> web.Response:
    """It says at which time, as a date."""
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=1000), usegmt=True)
    return await answering(503, Retry_After=at)(request)


EVENT = source().cloud_event(status(1).waiting[0], {"message": "it has ended"})


@pytest.mark.parametrize(
    ("answer", "message", "retry_after"),
    [
        (answering(500), "the webhook answered 500 Internal Server Error", None),
        (answering(429, Retry_After="120"), "the webhook answered 429 Too Many Requests", 120.0),
        (answering(503, Retry_After="999999"), "the webhook answered 503 Service Unavailable", LONGEST_WISH),
        (answering(503, Retry_After="soon"), "the webhook answered 503 Service Unavailable", None),
        (later, "the webhook answered 503 Service Unavailable", 1000.0),
        (answering(302, Location="http://127.0.0.1:1/"), "the webhook answered 302 Found", None),
        (answering(401), "the webhook answered 401 Unauthorized", None),
        (answering(299), None, None),
        (late, "the webhook did not answer within 200ms", None),
    ],
)
def test_answers_of_a_webhook(answer: Any, message: str | None, retry_after: float | None) -> None:
    async def test() -> None:
        hook = Hook()
        hook.answers = [answer]
        async with hook.serve():
            webhook = destination_of(SinkSpec.from_object({"webhook": {"url": hook.url, "timeout": "200ms"}}))
            try:
                if message is None:
                    await webhook.take("name", EVENT)
                    return
                with pytest.raises(DeliveryError, match=f"^{message}$") as failed:
                    await webhook.take("name", EVENT)
            finally:
                await webhook.close()
        assert not isinstance(failed.value, RefusedEventError)
        assert failed.value.retry_after == (pytest.approx(retry_after, abs=60) if retry_after is not None else None)

    asyncio.run(test())


def test_the_body_is_a_cloud_event_in_structured_mode_or_a_text_for_slack(tmp_path: Path) -> None:
    async def test() -> None:
        hook = Hook()
        hook.answers = [answering(202), answering(200), answering(413)]
        async with hook.serve():
            (tmp_path / "url").write_text(f"{hook.url}\n")
            plain = destination_of(SinkSpec.from_object({"webhook": {"urlFile": str(tmp_path / "url")}}))
            slack = destination_of(SinkSpec.from_object({"webhook": {"url": hook.url, "format": "Slack"}}))
            await plain.take("name", EVENT)
            await slack.take("name", EVENT)
            with pytest.raises(RefusedEventError):
                await plain.take("name", EVENT)
            for each in (plain, slack):
                await each.close()
        (path, headers, body), (_, of_slack, text), _ = hook.requests
        assert path == f"/services/{SECRET}"
        assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
        assert body == EVENT.to_object()
        assert (of_slack["Content-Type"], text) == (
            "application/json",
            {"text": "ns/compactionpolicies/logs: job ended job-1: it has ended"},
        )

    asyncio.run(test())


def test_no_message_holds_a_url_or_a_token(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "token").write_text(SECRET)
        (tmp_path / "url").write_text(f"http://127.0.0.1:1/{SECRET}")
        for spec in (
            {"url": f"http://127.0.0.1:1/{SECRET}"},
            {"url": f"http://nowhere.invalid/{SECRET}"},
            {"urlFile": str(tmp_path / "none" / SECRET)},
            {"urlFile": str(tmp_path / "token")},
            {"urlFile": str(tmp_path / "url"), "tokenFile": str(tmp_path / "token")},
        ):
            webhook = destination_of(SinkSpec.from_object({"webhook": spec}))
            with pytest.raises(DeliveryError) as failed:
                await webhook.take("name", EVENT)
            await webhook.close()
            assert SECRET not in str(failed.value)
        assert "clear text" in str(failed.value), "a file may name another URL than the configuration could check"

    asyncio.run(test())


# Folders and object stores.


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """As on a full disk: nothing larger can be written. (A write beyond it fails, because Python ignores SIGXFSZ.)"""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_has_one_line_per_event_and_survives_a_full_disk(tmp_path: Path) -> None:
    async def test() -> None:
        folder = destination_of(SinkSpec.from_object({"folder": {"path": str(tmp_path / "events")}}))
        event = status(1).waiting[0]
        name = source().file_of(event)
        with small_files(10):
            with pytest.raises(DeliveryError):
                await folder.take(name, EVENT)
            assert not list((tmp_path / "events").rglob("*.jsonl")), "nothing that a reader takes for an event"
        await folder.take(name, EVENT)
        written = tmp_path / "events" / "ns" / "compactionpolicies" / "logs.uid-logs" / "000000000001.jsonl"
        assert written.read_bytes() == EVENT.line()
        await folder.take(name, EVENT.model_copy(update={"data": {}}))
        assert written.read_bytes() == EVENT.line(), "a second try writes nothing"
        written.write_bytes(b"")
        await folder.take(name, EVENT)
        assert written.read_bytes() == EVENT.line(), "what a loss of power left of it is no event"
        assert json.loads(EVENT.line()) == EVENT.to_object()
        await folder.close()

    asyncio.run(test())


@needs("versitygw")
def test_an_object_store_over_tls_with_credentials_of_a_mounted_secret(tmp_path: Path, versitygw_program: Path) -> None:
    async def test() -> None:
        authority = ensure_authority(tmp_path / "authority")
        mounted = tmp_path / "secret"
        mounted.mkdir()
        (mounted / "..data").mkdir()
        with start_versitygw(tmp_path / "s3", versitygw_program, port=free_port(), authority=authority) as gateway:
            for option, value in gateway.options().items():
                (mounted / option).write_text(f"{value}\n")
            url = f"s3://{gateway.make_bucket('audit')}/compaction"
            store = destination_of(
                SinkSpec.from_object({"objectStore": {"url": url, "credentialsDirectory": str(mounted)}})
            )
            assert isinstance(store, ObjectDestination)
            name = source().file_of(status(1).waiting[0])
            await store.take(name, EVENT)
            await store.take(name, EVENT)
            assert open_objects(url, options=gateway.options()).get(name) == EVENT.line()
            (mounted / "secret_access_key").write_text("another")
            with pytest.raises(DeliveryError) as refused:
                await store.take(name.replace("1.jsonl", "2.jsonl"), EVENT)
            assert not re.search(gateway.options()["secret_access_key"], str(refused.value))
            (mounted / "secret_access_key").write_bytes(b"\xff\xfe")
            with pytest.raises(
                DeliveryError, match=f"key secret_access_key of Secret {mounted}: its value is not UTF-8"
            ):
                await store.take(name, EVENT)
            mounted.rename(tmp_path / "away")
            with pytest.raises(DeliveryError, match=f"{mounted}: No such file or directory"):
                await store.take(name, EVENT)
            await store.close()

    asyncio.run(test())
