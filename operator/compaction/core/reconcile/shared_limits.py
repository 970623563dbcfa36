"""The ledger of the operator's limits: who demands what, who has what, who stands where in line, who may have what.

It is rebuilt for each term of leadership from the existing workers, so a restart forgets no worker. What
was shared out is reserved: a policy that grows to what it may hold takes nothing from another, however old the sharing
is, so deciding costs nothing and sharing out is done every now and then. No I/O, no clock but the one passed in
(monotonic seconds).

Turns: a policy stands in line since it has had work to do. Where there are more policies in line than workers, some get
none; a policy that has had a turn of `TURN` seconds while others had nothing goes to the end of the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Generic, TypeVar

from compaction.api.enums import WaitReason
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.planning.scheduler import Grant, SharedDemand, share_out, worth_raising
from compaction.core.reconcile.observations import Allowance, LimitDemand, Moment, OperatorLimits

TURN: Final = 60.0
"""Seconds; a worker needs some of them to start."""
SETTLING: Final = 10.0
"""Seconds after the start of a term within which no policy gets a second worker before all have asked."""

MOST: Final = 2**31
"""More workers than any cluster has: nothing is released before it was shared out."""

Key = TypeVar("Key", bound=tuple[str, str])


@dataclass(frozen=True, slots=True)
class _Member:
    """A policy with a demand. `joined`: since when it stands in line; `turn`: since when it may have workers that
    others wait for.
    """

    demand: LimitDemand
    joined: float
    turn: float | None = None


class SharedLimits(Generic[Key]):
    """Owned by the controller of one term. `holds`: the workers of each policy when the term begins."""

    def __init__(self, limits: OperatorLimits, holds: Mapping[Key, int], *, now: float) -> None:
        self._limits = limits
        self._members = {key: _Member(LimitDemand(holds=count), now) for key, count in holds.items()}
        self._allowances: dict[Key, Allowance] = {}
        self._nothing = Allowance(
            limits,
            *(None if field is None else Grant(0, 0, MOST) for field in (limits.max_workers, limits.bytes_per_second)),
        )
        self._unheard = set(holds)
        self._settled_at = now + SETTLING
        self._changed = True

    @property
    def held(self) -> int:
        """Workers that all policies have together."""
        return sum(member.demand.holds for member in self._members.values())

    def allowance(self, key: Key) -> Allowance:
        """Return what the policy may have: what was shared out last, for one that was not there nothing yet."""
        return self._allowances.get(key, self._nothing)

    def note(self, key: Key, demand: LimitDemand, *, now: float, waited: float = 0.0) -> None:
        """A policy was heard. `waited`: seconds it has waited for a worker already, as its status knows after a
        restart; it counts when the policy is heard for the first time in this term.
        """
        before = self._members.get(key)
        first = key in self._unheard
        self._unheard.discard(key)
        if before is not None and before.demand == demand:
            return
        self._changed = True
        if not demand.wants_work and not demand.holds:
            self._members.pop(key, None)
            return
        stood = before.joined if before is not None and (first or before.demand.wants_work) else now
        joined = min(stood, now - waited) if first else stood
        turn = before.turn if before is not None and demand.wants_work else None
        self._members[key] = _Member(demand, joined, turn)

    def give_up(self, key: Key) -> None:
        """The policy cannot be read any more: it gets nothing new, and keeps what it has."""
        if (member := self._members.get(key)) is not None:
            self.note(key, LimitDemand(holds=member.demand.holds), now=member.joined)

    def share_out(self, now: float) -> tuple[Key, ...]:
        """Share out again when anything has changed or a turn has ended; the policies to which it makes a
        difference.
        """
        turned = self._end_turns(now)
        settling = bool(self._unheard) and now < self._settled_at
        if not (self._changed or turned):
            return ()
        self._changed = settling  # what was held back is shared out when everybody was heard
        line = sorted(self._members, key=lambda key: (self._members[key].joined, key))
        before, self._allowances = self._allowances, self._grants(line, settling=settling)
        self._begin_turns(line, now)
        others = (key for key in line if self._allowances[key] is not before.get(key))
        return tuple(key for key in others if self._matters(key, before.get(key, self._nothing)))

    def _matters(self, key: Key, before: Allowance) -> bool:
        """Return whether the policy can do anything new now. Shares of many change with each that comes; few can act on
        it.
        """
        demand, now = self._members[key].demand, self._allowances[key]
        if now.workers is not None and before.workers is not None:
            more = now.workers.may_hold > max(before.workers.may_hold, demand.holds)
            if more or demand.holds > now.workers.may_keep < before.workers.may_keep:
                return True
        if now.bytes is None or before.bytes is None:
            return False
        some = now.bytes.may_hold > demand.granted >= before.bytes.may_hold
        whole = now.bytes.may_hold == now.bytes.share and before.bytes.may_hold < before.bytes.share
        if some or (whole and now.bytes.may_hold > demand.granted):
            return True
        # Its running jobs may be raised, though it had not used up to the byte what it might have.
        left, had = now.bytes.may_hold - demand.granted, before.bytes.may_hold - demand.granted
        return worth_raising(left, now.bytes.share) and not worth_raising(had, now.bytes.share)

    def _grants(self, line: list[Key], *, settling: bool) -> dict[Key, Allowance]:
        """The allowance of each in line; the same object as before where nothing is different."""
        demands = [self._members[key].demand for key in line]
        workers: list[Grant | None] = [None] * len(line)
        if self._limits.max_workers is not None:
            claims = [_workers_claim(demand.workers, demand.holds) for demand in demands]
            workers = list(share_out(self._limits.max_workers, claims))
            if settling:
                workers = [_first_only(grant, claim) for grant, claim in zip(workers, claims, strict=True) if grant]
        rates: list[Grant | None] = [None] * len(line)
        if self._limits.bytes_per_second is not None:
            limit = self._limits.bytes_per_second
            pairs = zip(demands, workers, strict=True)
            rates = list(share_out(limit, [_bytes_claim(demand, grant, limit) for demand, grant in pairs]))
        allowances: dict[Key, Allowance] = {}
        for key, worker, rate in zip(line, workers, rates, strict=True):
            was = self._allowances.get(key)
            same = was is not None and (was.workers, was.bytes) == (worker, rate)
            allowances[key] = was if was is not None and same else Allowance(self._limits, worker, rate)
        return allowances

    # -- turns --------------------------------------------------------------------------------------------------------

    def _begin_turns(self, line: list[Key], now: float) -> None:
        """Turns are counted only while some policy has nothing."""
        if self._limits.max_workers is None:
            return
        shares = (grant.share if (grant := self._allowances[key].workers) is not None else 0 for key in line)
        pairs = zip(line, shares, strict=True)
        somebody_waits = any(not share and self._members[key].demand.wants_work for key, share in pairs)
        for key in line:
            member, grant = self._members[key], self._allowances[key].workers
            has_turn = somebody_waits and grant is not None and grant.share > 0 and grant.may_hold > 0
            turn = (now if member.turn is None else member.turn) if has_turn else None
            if turn != member.turn:
                self._members[key] = replace(member, turn=turn)

    def _end_turns(self, now: float) -> bool:
        """A policy that has had a turn goes to the end of the line."""
        over = [key for key, member in self._members.items() if member.turn is not None and now - member.turn >= TURN]
        for key in over:
            self._members[key] = replace(self._members[key], joined=now, turn=None)
        return bool(over)


def waited_for_worker(policy: CompactionPolicy, now: Moment) -> float:
    """Seconds that the policy has waited for a worker of the operator's, as its status says."""
    rows = (row for row in policy.status.waits if row.reason == WaitReason.OPERATOR_WORKER_LIMIT)
    return max((now.wall - row.since.timestamp() for row in rows), default=0.0)


_workers_claim: Final = lru_cache(maxsize=4096)(SharedDemand)
"""One object for all that want and hold the same."""


def _first_only(grant: Grant, claim: SharedDemand) -> Grant:
    most = max(1, claim.holds)
    return Grant(grant.share, min(grant.may_hold, most), max(most, grant.may_keep))


def _bytes_claim(demand: LimitDemand, workers: Grant | None, limit: int) -> SharedDemand:
    """Bytes are shared between those that can use them: not those whose turn to have a worker comes later."""
    if workers is not None and not (workers.share or demand.holds):
        return SharedDemand(0, demand.granted)
    return SharedDemand(
        limit if demand.bytes_per_second is None else min(limit, demand.bytes_per_second), demand.granted
    )
