"""Seeded runs: nothing that a participant asks for was cut, every history becomes short, each wait has a name."""

from __future__ import annotations

import pytest

from catalogs.simulation.world import simulate
from compaction.api.catalog.reasons import Reason
from support.timing import DEPTH, Depth

SEEDS = range(40 if DEPTH is Depth.DEEP else 8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_holds_every_invariant(seed: int) -> None:
    tally = simulate(seed)
    assert tally.cuts > 1
    assert tally.versions > 50
    assert tally.restarts > 0


def test_runs_meet_what_they_are_about() -> None:
    """Else they would prove nothing: cuts that were late, and the waits that a cut can meet."""
    tallies = [simulate(seed) for seed in range(4)]
    reasons = frozenset[str]().union(*(tally.reasons for tally in tallies))
    assert {Reason.COMPACTED, Reason.PROPAGATED, Reason.NO_ANSWER, Reason.TRANSACTION, Reason.REPLAY} <= reasons
    assert {Reason.UNDEFINED_PARTITION, Reason.INDEX_CONSTRUCTION, Reason.CLOCK_OFF} <= reasons
    assert {Reason.MISSING_PARTICIPANT, Reason.REBALANCE} <= reasons
    assert sum(tally.terms for tally in tallies) > 8
    assert sum(tally.late for tally in tallies) > 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(3) == simulate(3)
