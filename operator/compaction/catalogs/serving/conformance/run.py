"""A run of all checks against one participant."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from compaction.catalogs.serving.client import ParticipantAddress
from compaction.catalogs.serving.conformance.behavior import BEHAVIOR_CHECKS
from compaction.catalogs.serving.conformance.checks import PROTOCOL_CHECKS
from compaction.catalogs.serving.conformance.probe import BrokenRuleError, Probe, ProbeSettings
from compaction.storage.connector import ClosingConnector


class CheckOutcome(StrEnum):
    """How a check ended."""

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
