"""Asks all participants at once, with a bounded number of connections; each ends in a report or in a named failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from compaction.api.catalog.reasons import Reason
from compaction.catalogs.compaction.round import Answer, Unanswered
from compaction.catalogs.errors import ParticipantConfigError, ParticipantError, ParticipantFailure
from compaction.catalogs.serving.client import ParticipantAddress, ParticipantClient
from compaction.errors import CompactionError
from compaction.unexpected import defect

T = TypeVar("T")
_REASONS: Final = {
    ParticipantFailure.NO_ANSWER: Reason.NO_ANSWER,
    ParticipantFailure.LATE: Reason.ANSWER_LATE,
}
"""Of those that have no answer; every other answer is refused."""


@dataclass(frozen=True, slots=True)
class ReportRound:
    """By name, in the order asked. Every participant is in one of the two."""

    reports: Mapping[str, Answer]
    failures: Mapping[str, ParticipantError]

    @property
    def answers(self) -> tuple[Answer, ...]:
        """As a decision reads them."""
        return tuple(self.reports.values())

    @property
    def unanswered(self) -> tuple[Unanswered, ...]:
        """As a decision reads them."""
        return tuple(
            Unanswered(name, _REASONS.get(error.reason, Reason.ANSWER_REFUSED), error.explanation)
            for name, error in self.failures.items()
        )


@dataclass(frozen=True, slots=True)
class StoreRound:
    """By name: number of partitions that the minimum was stored in, or why it was not."""

    stored: Mapping[str, int]
    failures: Mapping[str, ParticipantError]


async def ask_all(client: ParticipantClient, addresses: Sequence[ParticipantAddress]) -> ReportRound:
    """The reports of all. Raises ParticipantConfigError for addresses that cannot be asked; none is asked then."""
    found, failures = await _each(client, addresses, client.ask)
    return ReportRound(found, failures)


async def store_all(
    client: ParticipantClient, addresses: Sequence[ParticipantAddress], timestamp: int, token: int
) -> StoreRound:
    """Send the minimum to all. Raises ParticipantConfigError; it is sent to none then."""
    stored, failures = await _each(client, addresses, lambda address: client.store(address, timestamp, token))
    return StoreRound(stored, failures)


async def _each(
    client: ParticipantClient,
    addresses: Sequence[ParticipantAddress],
    call: Callable[[ParticipantAddress], Awaitable[T]],
) -> tuple[dict[str, T], dict[str, ParticipantError]]:
    for address in addresses:
        address.check(plain=client.plain)
    if twice := [name for name, count in Counter(one.name for one in addresses).items() if count > 1]:
        raise ParticipantConfigError(f"participant {twice[0]} has several addresses: give it one")
    limits, loop = client.limits, asyncio.get_running_loop()
    turns, last_turn = asyncio.Semaphore(limits.connections), loop.time() + limits.turn_seconds

    async def one(address: ParticipantAddress) -> T | ParticipantError:
        # The time of a request begins with its turn: those that hang take time from the round, and not from others.
        async with turns:
            if loop.time() > last_turn:
                detail = f"its turn did not come within {limits.turn_seconds:g} s: too many others do not answer"
                return ParticipantError(address.name, address.url, ParticipantFailure.LATE, detail)
            try:
                return await call(address)
            except ParticipantError as error:
                return error
            except CompactionError:
                raise  # of the round as a whole
            except Exception as error:  # noqa: BLE001 - of one participant: the others are asked all the same
                detail = defect(error, f"participant {address.name}")
                return ParticipantError(address.name, address.url, ParticipantFailure.GARBAGE, detail)

    results = dict(
        zip((address.name for address in addresses), await asyncio.gather(*map(one, addresses)), strict=True)
    )
    failures = {name: result for name, result in results.items() if isinstance(result, ParticipantError)}
    return {name: result for name, result in results.items() if not isinstance(result, ParticipantError)}, failures
