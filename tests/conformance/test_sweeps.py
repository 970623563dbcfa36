"""What a sweep of every kind of store deletes, and what it does not."""

from __future__ import annotations

import pytest

from conformance.core import Core, Job, succeeded
from conformance.harness import Fault, Harness


def test_what_was_replaced_stays_for_its_grace(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    before = harness.content(1)
    core.claim(job, 1)
    succeeded(core, job, core.attempt(job, 1))
    replaced = harness.replaced()
    assert replaced

    scan = core.scan()
    assert scan.sweep_in is not None
    assert 0 < scan.sweep_in <= 3600
    assert scan.overdue == 0
    swept = core.sweep()
    assert (swept.deleted, swept.problems) == (0, ())
    assert harness.replaced() == replaced
    assert all(harness.opens(job.target, source) for source in job.sources), "old names stay readable"

    swept = core.sweep_later()
    assert (swept.deleted, swept.problems) == (len(replaced), ())
    assert harness.replaced() == set()
    assert harness.content(1) == before
    harness.check()

    harness.fill(2)
    waiting = harness.content(2)
    assert core.sweep_later().deleted == 0, "nothing more, and nothing of what waits to be compacted"
    assert (harness.content(1), harness.content(2)) == (before, waiting)


def test_leftovers_of_dead_attempts_are_collected_and_those_of_the_current_one_are_not(
    core: Core, harness: Harness
) -> None:
    job, token = dead_halfway(core, harness)
    left, before = harness.leftovers(), harness.content(1)
    assert left
    core.sweep_later((job.name, token))
    assert harness.leftovers() == left, "the attempt may still commit it"
    core.claim(job, token + 1)
    core.sweep_later((job.name, token + 1))
    assert core.is_tidy(), "the current attempt has not begun"
    assert harness.content(1) == before
    succeeded(core, job, core.attempt(job, token + 1))
    core.sweep_later()
    assert harness.leftovers() == set()
    assert harness.content(1) == before


def test_leftovers_of_a_job_that_was_given_up_are_collected(core: Core, harness: Harness) -> None:
    job, _ = dead_halfway(core, harness)
    before = harness.content(1)
    core.adapter.retire(job.target, job.name)
    core.held.clear()
    core.sweep_later()
    assert harness.leftovers() == set()
    assert harness.content(1) == before
    core.compact()
    assert harness.content(1) == before


def dead_halfway(core: Core, harness: Harness) -> tuple[Job, int]:
    """The job of target 1, and the token of the attempt that has died and left something."""
    counted = core.filled(0)
    core.claim(counted, 1)
    with harness.struck(None) as undisturbed:
        succeeded(core, counted, core.attempt(counted, 1))
    core.sweep_later()
    harness.fill(1)
    (job,) = core.plan()
    for token, strike in enumerate(harness.strikes(undisturbed.calls, Fault.DEATH), start=1):
        core.claim(job, token)
        with pytest.raises(harness.death), harness.struck(strike):
            core.attempt(job, token)
        if harness.leftovers():
            return job, token
    raise AssertionError("no attempt leaves anything")
