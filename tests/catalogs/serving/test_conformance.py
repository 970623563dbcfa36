"""The checks of any participant: the reference keeps every rule, and each breakage is found by the name of its rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.typedefs import Middleware

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.errors import ParticipantConfigError
from compaction.catalogs.model.descriptors import MINIMUM, later
from compaction.catalogs.participants.reference import PartitionKey, ReferenceParticipant
from compaction.catalogs.participants.reports import Cause, IndexBuild, Report, Role
from compaction.catalogs.serving.conformance.checks import PROTOCOL_CHECKS, ProbeSettings
from compaction.catalogs.serving.conformance.run import BEHAVIOR_CHECKS, CheckOutcome, CheckResult, run_checks
from compaction.catalogs.serving.server import ParticipantServer
from support.catalogs.participants import ready
from support.endpoints import SECRET, gate, serving

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Alter = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]
SKEW = 600_000
"""Milliseconds: a loaded machine is no skew."""


def results(port: int, *, admin: bool = True, skew: int = SKEW, **settings: Any) -> list[CheckResult]:
    found = ProbeSettings(f"http://127.0.0.1:{port}", SECRET, max_skew=skew, seconds=settings.pop("seconds", 60.0))

    async def run() -> list[CheckResult]:
        return [check async for check in run_checks(replace(found, **settings), admin=admin)]

    return asyncio.run(run())


def failed(one: ReferenceParticipant, directory: Path, alter: Alter | None = None, **options: Any) -> set[str]:
    """Names of the rules that are broken when `alter` stands in front of the participant."""

    class Altered(ParticipantServer):
        def application(self) -> web.Application:
            app = super().application()
            if alter is not None:
                app.middlewares.insert(0, cast(Middleware, web.middleware(alter)))
            return app

    def make(served: Any, gate: Any, **limits: Any) -> ParticipantServer:
        return Altered(served, gate, admin=one, **limits)

    with serving(one, lambda: gate(directory), make=make, document="/healthz") as endpoint:
        found = results(endpoint.port, **options)
    return {result.name for result in found if result.outcome is CheckOutcome.FAIL}


def test_the_reference_keeps_every_rule(tmp_path: Path) -> None:
    with serving(
        ready(),
        lambda: gate(tmp_path),
        make=lambda item, g, **o: ParticipantServer(item, g, admin=item),
        document="/healthz",
    ) as endpoint:
        found = results(endpoint.port)
    assert [(item.name, item.detail) for item in found if item.outcome is not CheckOutcome.PASS] == []
    assert [item.name for item in found] == [check.name for check in (*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS)]


def test_checks_have_names_of_their_own_and_name_what_they_depend_on() -> None:
    names = [check.name for check in (*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS)]
    assert len(set(names)) == len(names)
    for number, check in enumerate((*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS)):
        assert not check.after or check.after in names[:number]


# -- what stands in front of an honest one ----------------------------------------------------------------------------


def on(path: str, make: Callable[[web.Request], web.Response | None], method: str = "GET") -> Alter:
    """Another answer to this request, where `make` has one."""

    async def alter(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (request.path, request.method) == (path, method) and (found := make(request)) is not None:
            return found
        return await handler(request)

    return alter


def changed(**fields: Any) -> Alter:
    """Other fields in each report that is given; a function gets the old value, None removes the field."""

    async def alter(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        if request.path != "/v1/report" or answer.status != 200 or request.method != "GET":
            return answer
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        body = json.loads(answer.body)
        for name, value in fields.items():
            body[name] = value(body[name]) if callable(value) else value
        return web.json_response({name: value for name, value in body.items() if value is not None})

    return alter


def as_status(statuses: dict[int, int], path: str, method: str = "POST") -> Alter:
    """One status instead of another."""

    async def alter(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        if (request.path, request.method) == (path, method) and answer.status in statuses:
            return web.json_response({"partitions": 1}, status=statuses[answer.status])
        return answer

    return alter


def typed(kind: str) -> Alter:
    async def alter(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await handler(request)
        if request.path == "/v1/report" and answer.status == 200:
            answer.headers["Content-Type"] = kind
        return answer

    return alter


async def open_to_all(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever the caller has for a secret."""
    opened = request.clone(headers={**request.headers, "Authorization": f"Bearer {SECRET}"})
    opened._match_info = request._match_info
    return await handler(opened)


def falling(name: str) -> Alter:
    """A time that is smaller in each report."""
    given = iter(range(10**6, 0, -1))
    return changed(**{name: lambda _: str(next(given))})


names = iter(range(10**6))
FORM = "report-has-the-form"


@pytest.mark.parametrize(
    ("alter", "broken"),
    [
        (on("/healthz", lambda _: web.Response(status=500)), {"health-answers"}),
        (on("/v1/openapi.json", lambda _: web.Response(text="<html>")), {"document-is-served"}),
        (on("/v1/openapi.json", lambda _: web.json_response({"openapi": "3.1.0", "paths": {}})),
         {"document-is-served"}),
        (open_to_all, {"report-needs-the-secret", "minimum-needs-the-secret"}),
        (as_status({401: 403}, "/v1/report", "GET"), {"report-needs-the-secret"}),
        (typed("text/html"), {FORM}),
        (changed(protocol=2), {FORM}),
        (changed(clock=5), {FORM}),
        (changed(clock="-5"), {FORM}),
        (changed(sequences=[]), {FORM}),
        (changed(checkpoint=None), {FORM}),
        (on("/v1/report", lambda _: web.Response(status=302, headers={"Location": "/healthz"})),
         {FORM, "report-needs-the-secret"}),
        (on("/v1/report", lambda _: web.Response(text="[" * (5 << 20), content_type="application/json")),
         {FORM, "report-needs-the-secret"}),
        (changed(subject="a\u0007b"), {"texts-are-short"}),
        (changed(partitions=lambda found: found * 2), {"subjects-are-unique"}),
        (changed(minimum="9" * 18), {"minimum-covers-all"}),
        (changed(cause="NotReady"), {"undefined-is-not-ready"}),
        (changed(transactions=lambda found: str(int(found) + 10**9)),
         {"transactions-before-clock", "minimum-is-stored"}),
        (changed(oldestTransaction="1"), {"transactions-before-clock"}),
        (changed(clock=lambda found: str(later(int(found), 3_600_000))), {"clock-fits"}),
        (falling("lowWatermark"), {"nothing-goes-back", "older-minimum-is-harmless", "minimum-covers-all"}),
        (changed(name=lambda _: f"node{next(names)}"), {"nothing-goes-back", "older-minimum-is-harmless"}),
        (as_status({404: 200}, "/v1/no-such-path", "GET"), {"other-paths-are-refused"}),
        (as_status({405: 200}, "/v1/report", "DELETE"), {"other-paths-are-refused"}),
        (as_status({400: 200}, "/v1/minimum"), {"minimum-form-is-checked"}),
        (as_status({413: 200}, "/v1/minimum"), {"minimum-size-is-bounded"}),
        (as_status({415: 200}, "/v1/minimum"), {"minimum-type-is-checked"}),
        (as_status({409: 200}, "/v1/minimum"), {"stale-token-is-refused"}),
        (as_status({422: 200}, "/v1/minimum"), {"minimum-ahead-is-refused"}),
        (as_status({200: 503}, "/v1/minimum"), {"minimum-is-stored"}),
    ],
)  # fmt: skip
def test_an_endpoint_that_breaks_a_rule(alter: Alter, broken: set[str], tmp_path: Path) -> None:
    assert failed(ready(), tmp_path, alter, admin=False) == broken


# -- participants that are wrong themselves ---------------------------------------------------------------------------


class Forgetful(ReferenceParticipant):
    """Reports no index that it builds, no zone that moves, no partition that it holds."""

    def report(self) -> Report:
        return replace(super().report(), index_builds=(), rebalances=(), partitions=())


class Eager(ReferenceParticipant):
    """Publishes when it stores."""

    def store_minimum(self, timestamp: int) -> int:
        found = super().store_minimum(timestamp)
        for key in self.positions():
            self._minimums.record(key, timestamp)
        return found


class Confident(ReferenceParticipant):
    """Is ready while a partition is undefined."""

    def report(self) -> Report:
        found = super().report()
        return replace(found, minimum=2, cause=Cause.PARTITION) if found.cause is Cause.NOT_READY else found


class Careless(ReferenceParticipant):
    """Takes every checkpoint for one that has succeeded."""

    def finish_checkpoint(self, succeeded: bool = True) -> None:
        super().finish_checkpoint(True)


class Late(ReferenceParticipant):
    """Its checkpoints hold what was stored while they were under way."""

    def finish_checkpoint(self, succeeded: bool = True) -> None:
        if succeeded:
            super().finish_checkpoint(False)
            self.begin_checkpoint()
        super().finish_checkpoint(succeeded)


class Lazy(ReferenceParticipant):
    """Publishes nothing."""

    def finish_checkpoint(self, succeeded: bool = True) -> None:
        super().finish_checkpoint(False)


class Blind(ReferenceParticipant):
    """Does not count transactions."""

    def report(self) -> Report:
        return replace(super().report(), oldest_transaction=UNDEFINED)


class Tolerant(ReferenceParticipant):
    """A transaction may end twice."""

    def finish(self, timestamp: int) -> None:
        if timestamp in self._readers or len(self._transactions):
            super().finish(timestamp)


class Hoarder(ReferenceParticipant):
    """Keeps index builds that have ended."""

    def report(self) -> Report:
        found = super().report()
        return replace(found, index_builds=found.index_builds or (IndexBuild(2_000_000_000, MINIMUM),))


class Rushing(ReferenceParticipant):
    """Its watermark waits for no reader."""

    def begin_read(self, timestamp: int) -> None:
        super().begin_read(timestamp)
        self.watermark.release(timestamp)


class Immortal(ReferenceParticipant):
    """A restart forgets nothing."""

    def restart(self, earliest: int = UNDEFINED) -> None:
        return


class Reviving(ReferenceParticipant):
    """What was published is published again after a restart."""

    def restart(self, earliest: int = UNDEFINED) -> None:
        before = {
            (partition.table_id, partition.partition): partition.minimum for partition in self.report().partitions
        }
        super().restart(earliest)
        for key, minimum in before.items():
            self._minimums.record(PartitionKey(*key), minimum)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Forgetful, {"partition-begins-undefined", "index-build-is-reported", "rebalance-lowers-the-minimum",
                     "restart-forgets"}),
        (Eager, {"checkpoint-publishes", "earlier-checkpoint-does-not-publish", "failed-checkpoint-does-not-publish",
                 "restart-forgets"}),
        (Confident, {"partition-begins-undefined"}),
        (Careless, {"failed-checkpoint-does-not-publish"}),
        (Late, {"earlier-checkpoint-does-not-publish"}),
        (Lazy, {"checkpoint-publishes", "restart-forgets"}),
        (Blind, {"transaction-is-reported"}),
        (Tolerant, {"transaction-is-reported"}),
        (Hoarder, {"index-build-is-reported"}),
        (Rushing, {"reader-holds-the-watermark"}),
        (Immortal, {"restart-forgets"}),
        (Reviving, {"restart-forgets"}),
    ],
)  # fmt: skip
def test_a_participant_that_breaks_a_rule(kind: type[ReferenceParticipant], broken: set[str], tmp_path: Path) -> None:
    one = kind("node1")
    one.add_partition(5, 0, Role.PRIMARY)
    one.versions.add(1, 5)
    one.move_watermark(later(one.now(), -100_000))
    one.store_minimum(later(one.now(), -50_000))
    one.checkpoint()
    assert failed(one, tmp_path) == broken


def test_a_participant_that_is_not_there() -> None:
    found = results(1, admin=False, seconds=5.0)
    assert {item.outcome for item in found} == {CheckOutcome.FAIL, CheckOutcome.NOT_RUN}
    assert "has no answer" in found[0].detail
    waiting = next(item for item in found if item.outcome is CheckOutcome.NOT_RUN)
    assert waiting.detail == f"{FORM} failed"


def test_a_clock_is_compared_with_the_skew_that_is_allowed(tmp_path: Path) -> None:
    one = ready()
    one.set_clock_offset(3_600_000)
    one.restart()
    assert failed(one, tmp_path, admin=False) == {"clock-fits"}
    assert failed(one, tmp_path, admin=False, skew=4 * 3_600_000) == set()


def test_a_secret_does_not_travel_readably() -> None:
    async def run() -> None:
        async for _ in run_checks(ProbeSettings("http://10.0.0.3:80", SECRET)):
            pytest.fail("it was asked")

    with pytest.raises(ParticipantConfigError, match="readably"):
        asyncio.run(run())
