"""The two decisions of a round: whether to cut, and what to propagate. Each is made, and ends, without the other
(docs/design/catalog-compaction.md#decision).
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.catalog.reasons import Finding, Reason
from compaction.catalogs.compaction.answers import absent, unanswered, unready
from compaction.catalogs.compaction.checks import CHECKS, Attempt
from compaction.catalogs.compaction.history import is_shortest, snapshot_candidate
from compaction.catalogs.compaction.minimum import Pin, required, transactions_minimum
from compaction.catalogs.compaction.round import Round
from compaction.catalogs.manager.history import History
from compaction.catalogs.model.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Cut:
    """Make `candidate` the snapshot: `versions` of them go, those before it; with `trim` also the column sets of tables
    that no retained version uses.
    """

    candidate: Catalog
    versions: int
    trim: bool


@dataclass(frozen=True, slots=True)
class Propagate:
    """Have every partition publish `minimum` after its next checkpoint. Hybrid timestamp."""

    minimum: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The decision to cut, or why not. `pin` is None while answers are missing: the required time is not known."""

    step: Cut | Finding
    pin: Pin | None


def propagating(round: Round) -> Propagate | Finding:
    """What to propagate. A participant that is not ready, or missing, has no transactions: it stands in the way of a
    cut, not of this; one without an answer may have some.
    """
    found = unanswered(round)
    if found is not None:
        return found
    if round.topology.alone:
        return Finding(Reason.NOTHING_TO_PROPAGATE, "the catalog has no participants that could publish a minimum")
    if not round.answers:
        return Finding(Reason.NO_PARTICIPANTS, "there are no participants to publish a minimum")
    return Propagate(transactions_minimum(round))


def unusable(round: Round) -> Finding | None:
    """Why the required time is not known: an answer or a participant is missing, or one is not ready."""
    return unanswered(round) or absent(round) or unready(round)


def compacting(round: Round, history: History, now: int) -> Compaction:
    """Whether to cut. `history` was read, and `now` taken from the coordinator's clock, after the last answer: a table
    that a participant does not hold any more is deleted in it.
    """
    found = unusable(round)
    if found is not None:
        return Compaction(found, None)
    pin = required(round)
    earliest = history.earliest.version
    if is_shortest(history):
        message = f"versions {earliest} to {history.latest.version} are the shortest history there is"
        return Compaction(Finding(Reason.NOTHING_TO_COMPACT, message), pin)
    candidate = snapshot_candidate(history, pin.time)
    current = history.find_active(now)
    following = None if candidate is None else history.find(candidate.version + 1)
    if candidate is None or following is None or current is None:
        return Compaction(pin.finding(), pin)
    attempt = Attempt(round, history, candidate, following, current, now)
    for check in CHECKS:
        found = check(attempt)
        if found is not None:
            return Compaction(found, pin)
    cut = Cut(candidate, candidate.version - earliest, round.trims)
    if round.dry_run:
        message = f"versions {earliest} to {candidate.version - 1} would be cut; dryRun keeps them"
        return Compaction(Finding(Reason.DRY_RUN, message), pin)
    return Compaction(round.unclaimed or cut, pin)
