"""A run of all checks against one participant, also of how it behaves when things happen to it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import aiohttp

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import MINIMUM, later
from compaction.catalogs.participants.reports import Cause, Report
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.catalogs.serving.conformance.checks import (
    PROTOCOL_CHECKS,
    BrokenRuleError,
    Probe,
    ProbeSettings,
    ProtocolCheck,
)
from compaction.storage.connector import ClosingConnector

# Behaviour of a participant when things happen to it; for those that are driven by /v1/admin
# (docs/design/catalog-compaction.md#reference-participant).
#
# Each check works on objects of its own (table 2,000,000,000) and restores what it changed.

TABLE: Final = 2_000_000_000
SUBJECT: Final = f"table {TABLE} partition 0"
_PARTITION: Final[dict[str, Any]] = {"tableId": TABLE, "partition": 0}


def _require(holds: bool, what: str) -> None:
    """Raises BrokenRuleError."""
    if not holds:
        raise BrokenRuleError(what)


def _with_partition(body: Callable[[Probe], Awaitable[None]]) -> Callable[[Probe], Awaitable[None]]:
    """The check with a partition that the participant leads, and a watermark; the partition is removed afterwards."""

    async def check(probe: Probe) -> None:
        clock = (await probe.bare_report()).clock
        await probe.act("move-watermark", timestamp=str(later(clock, -1000)))
        await probe.act("add-partition", role="Primary", **_PARTITION)
        try:
            await body(probe)
        finally:
            await probe.act("remove-partition", **_PARTITION)

    return check


async def _published(probe: Probe) -> int:
    """The published minimum of the partition."""
    partitions = (await probe.bare_report()).partitions
    found = [partition.minimum for partition in partitions if (partition.table_id, partition.partition) == (TABLE, 0)]
    _require(len(found) == 1, f"{SUBJECT} was added and is not in the report")
    return found[0]


async def _store(probe: Probe) -> int:
    """Store the minimum of its transactions, with the token that the checks of the protocol have left."""
    wanted = (await probe.bare_report()).transactions
    reply = await probe.minimum(wanted, probe.settings.token + 1)
    reply.expect(200, "POST /v1/minimum of the minimum of its transactions")
    return wanted


async def _checkpoint(probe: Probe, *, succeeded: bool = True) -> None:
    await probe.act("begin-checkpoint")
    await probe.act("finish-checkpoint", succeeded=succeeded)


async def _undefined(probe: Probe) -> None:
    found = await probe.bare_report()
    _require(await _published(probe) == UNDEFINED, f"{SUBJECT} is new, and its minimum is not 0")
    _require(
        found.cause is Cause.NOT_READY and found.minimum == MINIMUM,
        f"{SUBJECT} is undefined, and the report has the cause {found.cause} and the minimum {found.minimum}",
    )


async def _publishes(probe: Probe) -> None:
    wanted = await _store(probe)
    _require(await _published(probe) == UNDEFINED, "a minimum is published before a checkpoint holds it")
    await _checkpoint(probe)
    _require(await _published(probe) == wanted, "a checkpoint has succeeded, and the minimum is not published")


async def _begun_before(probe: Probe) -> None:
    await probe.act("begin-checkpoint")
    await _store(probe)
    await probe.act("finish-checkpoint", succeeded=True)
    _require(await _published(probe) == UNDEFINED, "a checkpoint that began before the minimum was stored published it")


async def _failed(probe: Probe) -> None:
    await _store(probe)
    await _checkpoint(probe, succeeded=False)
    _require(await _published(probe) == UNDEFINED, "a checkpoint that failed published a minimum")


async def _transaction(probe: Probe) -> None:
    begun = await probe.act("begin")
    try:
        found = await probe.bare_report()
        _require(found.oldest_transaction != UNDEFINED, "a transaction is under way, and oldestTransaction is 0")
        _require(found.transactions <= begun, "the minimum of transactions is later than the begin of one")
    finally:
        await probe.act("finish", timestamp=str(begun))
    again = await probe.call("POST", "/v1/admin/finish", f'{{"timestamp": "{begun}"}}'.encode())
    _require(again.status == 409, "the second end of a transaction is not refused")


async def _build(probe: Probe) -> None:
    await probe.act("start-index-build", indexId=TABLE)
    _require(_builds(await probe.bare_report()), "an index is being built, and is not in the report")
    await probe.act("end-index-build", indexId=TABLE)
    _require(not _builds(await probe.bare_report()), "an index build has ended, and is in the report")


def _builds(report: Report) -> bool:
    return any(build.index_id == TABLE for build in report.index_builds)


async def _rebalance(probe: Probe) -> None:
    before = (await probe.bare_report()).clock
    await probe.act("start-rebalance", zoneId=TABLE, minimum="2")
    try:
        found = await probe.bare_report()
        _require(
            any(rebalance.zone_id == TABLE for rebalance in found.rebalances), "a zone moves, and is not in the report"
        )
        _require(found.minimum <= 2 < before, f"a zone that moves needs 2, and the minimum is {found.minimum}")
    finally:
        await probe.act("end-rebalance", zoneId=TABLE)


async def _reader(probe: Probe) -> None:
    clock = (await probe.bare_report()).clock
    await probe.act("begin-read", timestamp=str(clock))
    try:
        await probe.act("move-watermark", timestamp=str(clock + 1))
        _require((await probe.bare_report()).low_watermark <= clock, "the watermark passed a reader")
    finally:
        await probe.act("finish", timestamp=str(clock))
    _require(
        (await probe.bare_report()).low_watermark > clock, "the reader has ended, and the watermark has not moved on"
    )


async def _restart(probe: Probe) -> None:
    await _publishes(probe)
    await probe.act("begin")
    watermark = (await probe.bare_report()).low_watermark
    await probe.act("restart")
    found = await probe.bare_report()
    _require(await _published(probe) == UNDEFINED, "a published minimum survived a restart")
    _require(found.oldest_transaction == UNDEFINED, "a transaction survived a restart")
    _require(found.low_watermark >= watermark, "the low watermark fell in a restart")


_UNDEFINED: Final = "partition-begins-undefined"
BEHAVIOR_CHECKS: Final = (
    ProtocolCheck(
        _UNDEFINED, "A partition that is added has no minimum, and nothing may be cut.", _with_partition(_undefined)
    ),
    ProtocolCheck(
        "checkpoint-publishes", "A minimum counts once a checkpoint holds it.", _with_partition(_publishes), _UNDEFINED
    ),
    ProtocolCheck(
        "earlier-checkpoint-does-not-publish",
        "A checkpoint that began before the minimum was stored does not publish it.",
        _with_partition(_begun_before),
        _UNDEFINED,
    ),
    ProtocolCheck(
        "failed-checkpoint-does-not-publish",
        "A checkpoint that failed publishes nothing.",
        _with_partition(_failed),
        _UNDEFINED,
    ),
    ProtocolCheck("transaction-is-reported", "A transaction holds the version that it began with.", _transaction),
    ProtocolCheck("index-build-is-reported", "An index is in the report while it is being built.", _build),
    ProtocolCheck("rebalance-lowers-the-minimum", "A zone that moves is part of the minimum.", _rebalance),
    ProtocolCheck("reader-holds-the-watermark", "The watermark waits for readers that are older.", _reader),
    ProtocolCheck(
        "restart-forgets",
        "After a restart nothing is published, and no transaction is left.",
        _with_partition(_restart),
    ),
)


# A run of all checks against one participant.


class CheckOutcome(StrEnum):
    """The result of a check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"
    """A check that it depends on has failed."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`detail`: what is broken, or which check failed before."""

    name: str
    outcome: CheckOutcome
    rule: str
    detail: str = ""


async def run_checks(
    settings: ProbeSettings, *, admin: bool = False, tls: ssl.SSLContext | None = None, plain: bool = False
) -> AsyncIterator[CheckResult]:
    """Results in the order of the checks, as they end. admin: also those of behavior. Raises ParticipantConfigError."""
    ParticipantAddress("URL", settings.url).check(plain=plain)
    connector = ClosingConnector(limit=1, ssl=tls or True, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    broken: set[str] = set()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        probe = Probe(session, settings)
        for check in (*PROTOCOL_CHECKS, *(BEHAVIOR_CHECKS if admin else ())):
            outcome, detail = CheckOutcome.PASS, ""
            if check.after in broken:
                outcome, detail = CheckOutcome.NOT_RUN, f"{check.after} failed"
            else:
                try:
                    await check.run(probe)
                except BrokenRuleError as error:
                    outcome, detail = CheckOutcome.FAIL, str(error)
            if outcome is not CheckOutcome.PASS:
                broken.add(check.name)
            yield CheckResult(check.name, outcome, check.rule, detail)
