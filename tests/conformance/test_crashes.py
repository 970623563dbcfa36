"""Death of a worker, and answers that get lost, at every call of an attempt at its store.

Whatever the call: readers find the same records before and after; the next attempt, with a larger token, ends the job;
and when the coordinator has swept, nothing is left on storage but what readers need.
"""

from __future__ import annotations

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from conformance.core import Core, Job, succeeded
from conformance.harness import Fault, Harness, Strike


def strikes(core: Core, harness: Harness, fault: Fault) -> list[tuple[int, Strike]]:
    """The faults, from those of an attempt that nothing happens to, each with the number of a target for it."""
    job = core.filled(0)
    core.claim(job, 1)
    with harness.struck(None) as counted:
        report = core.attempt(job, 1)
    succeeded(core, job, report)
    found = harness.strikes(counted.calls, fault)
    assert len(found) > 5, "the calls of the store are not those that are counted"
    return list(enumerate(found, start=1))


def test_death_at_every_call(core: Core, harness: Harness) -> None:
    contents = {}
    for number, strike in strikes(core, harness, Fault.DEATH):
        job = core.filled(number)
        contents[number] = harness.content(number)
        core.claim(job, 1)
        with pytest.raises(harness.death), harness.struck(strike):
            core.attempt(job, 1)
        assert harness.content(number) == contents[number], f"{strike}: as it was left"
        harness.check()
        core.scan()
        assert harness.content(number) == contents[number], f"{strike}: after a scan"
        is_finished(core, harness, job, strike)
        assert harness.content(number) == contents[number], strike
    is_tidy(core, harness, contents)


def test_lost_answer_at_every_call(core: Core, harness: Harness) -> None:
    contents = {}
    for number, strike in strikes(core, harness, Fault.LOST):
        job = core.filled(number)
        contents[number] = harness.content(number)
        core.claim(job, 1)
        with harness.struck(strike):
            report = core.attempt(job, 1)
        assert harness.content(number) == contents[number], strike
        assert core.is_tidy(), strike
        if report.outcome is not ReportOutcome.SUCCEEDED:
            assert not harness.survives(strike), strike
            assert (report.reason, report.charged) == (JobReason.STORE_UNREADABLE, harness.charged), strike
        is_finished(core, harness, job, strike)
        assert harness.content(number) == contents[number], strike
    is_tidy(core, harness, contents)


def is_finished(core: Core, harness: Harness, job: Job, strike: Strike) -> None:
    """What the coordinator and the next worker do ends the job, whether it was committed or not."""
    assert core.adapter.high_water(job.target, job.name) == 1
    core.claim(job, 2)
    report = core.attempt(job, 2)
    assert report.outcome is ReportOutcome.SUCCEEDED, f"{strike}: {report.message}"
    succeeded(core, job, report)
    harness.check()


def is_tidy(core: Core, harness: Harness, contents: dict[int, object]) -> None:
    assert core.plan() == (), "all is done"
    assert core.sweep_later().problems == ()
    assert (harness.leftovers(), harness.replaced()) == (set(), set())
    assert {number: harness.content(number) for number in contents} == contents
