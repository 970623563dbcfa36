"""The hold as the coordinator reads it: what the Lease says, a change is told once, and no answer is no release."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from compaction.api.names import ANNOTATION_HOLD_DRAIN, ANNOTATION_HOLD_REASON
from compaction.core.reconcile.observations import Hold
from compaction.errors import ApiUnavailableError, NotFoundError
from compaction.kube import hold as module
from compaction.kube.hold import LONGEST_REASON, HoldWatch, hold_of, lease_of
from compaction.kube.metrics.registry import Metrics

SINCE = datetime(2026, 11, 29, 2, 0, tzinfo=UTC)
HOLD = Hold("the bucket moves", by="ada", since=SINCE, drain=True)
ABSENT = NotFoundError("leases compaction-hold", status=404, reason="NotFound")
AWAY = ApiUnavailableError("connection refused")


class Answers:
    """An API client that answers a read with the next of these; the last one stays."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.often = asyncio.Event()

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        if self.asked > 3:
            self.often.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def watch(*answers: dict[str, Any] | Exception) -> tuple[HoldWatch, Metrics, list[Hold | None]]:
    metrics, told = Metrics(), list[Hold | None]()
    found = HoldWatch(Answers(*answers), "ns", metrics=metrics)  # type: ignore[arg-type]
    found.on_change = lambda: told.append(found.hold)
    return found, metrics, told


def age(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("compaction_hold_age_seconds") or 0.0


def test_what_is_written_is_what_is_read() -> None:
    assert hold_of(lease_of(HOLD, "ns").body()) == HOLD
    assert hold_of(lease_of(Hold("x"), "ns").body()) == Hold("x")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"metadata": {"name": "compaction-hold", "namespace": "ns"}, "spec": {}}, Hold("no reason is given")),
        ({"spec": {"acquireTime": "yesterday"}}, Hold("the bucket moves", drain=True)),
        ({"spec": {"holderIdentity": 7}}, Hold("the bucket moves", drain=True)),
    ],
)
def test_a_lease_that_says_less_or_nonsense_holds_as_well(change: dict[str, Any], expected: Hold) -> None:
    assert hold_of(lease_of(HOLD, "ns").body() | change) == expected


def test_a_reason_does_no_harm_where_it_is_shown() -> None:
    body = lease_of(HOLD, "ns").body()
    body["metadata"]["annotations"] = {ANNOTATION_HOLD_REASON: "\x1b[2J" + "y" * 9000, ANNOTATION_HOLD_DRAIN: "yes"}
    found = hold_of(body)
    assert (len(found.reason), found.reason[:7], found.drain) == (LONGEST_REASON, "\\x1b[2J", False)


def test_a_change_is_told_once_and_measured() -> None:
    found, metrics, told = watch(ABSENT, lease_of(HOLD, "ns").body(), lease_of(HOLD, "ns").body(), ABSENT)

    async def reading() -> None:
        for _ in range(4):
            await found.read()

    asyncio.run(reading())
    assert told == [HOLD, None]
    assert age(metrics) == 0.0


def test_a_lease_without_a_time_counts_as_old() -> None:
    found, metrics, _ = watch(lease_of(Hold("x"), "ns").body())
    asyncio.run(found.read())
    assert age(metrics) > 86400


def test_no_answer_is_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_EVERY", 0.001)
    found, _, told = watch(lease_of(HOLD, "ns").body(), AWAY)
    client: Any = found._client

    async def reading() -> None:
        forever = asyncio.create_task(found.forever())
        await asyncio.wait({forever, asyncio.create_task(client.often.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not forever.done(), "an API server that is away ends nothing"
        forever.cancel()

    asyncio.run(reading())
    assert (told, found.hold) == ([HOLD], HOLD)
    with pytest.raises(ApiUnavailableError):
        asyncio.run(found.read())
