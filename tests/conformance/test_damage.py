"""One bad source never holds up its siblings, whatever the kind of store."""

from __future__ import annotations

from compaction.api.enums import JobReason
from compaction.api.job.report import ReportOutcome
from conformance.core import Core
from conformance.harness import Harness


def test_a_damaged_source_is_named_and_its_siblings_are_compacted(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    harness.fill(2)
    before = [harness.content(number) for number in (1, 2)]
    group = max(core.kind.parts(job.spec).groups, key=len)
    victim = group[0]
    repair = harness.damage(job.target, victim)
    if harness.indivisible:
        stops_its_target_alone(core, harness, job.target, victim)
        repair()
        assert [harness.content(number) for number in (1, 2)] == before
        core.compact()
        assert [harness.content(number) for number in (1, 2)] == before
        return

    jobs = core.compact()
    named = [one for _, report in jobs for one in report.skipped]
    assert {one.source for one in named} == {victim}
    for one in named:
        assert one.reason
        assert victim in one.message
    done = {(job.target, name) for job, report in jobs if report.receipt for name in report.receipt.sources}
    siblings = {name for target, name in done if target == job.target}
    assert siblings
    assert siblings <= set(job.sources) - {victim}
    assert len({target for target, _ in done}) == 2, "and the other target"
    assert core.plan() == (), "it is not tried again and again"
    assert harness.content(2) == before[1]
    core.sweep_later()
    place = job.target, victim
    damaged = core.scan().reading.identity(*place)
    assert damaged
    assert {one.identity for one in named} <= {damaged, ""}, "what was found damaged, where the attempt knows it"

    # It is repaired: nothing of it was lost, and nothing of it was merged.
    repair()
    assert [harness.content(number) for number in (1, 2)] == before
    repaired = core.scan(released=frozenset({place})).reading.identity(*place)
    assert repaired != damaged, "which ends its quarantine"
    core.quarantined.clear()
    core.compact()
    assert [harness.content(number) for number in (1, 2)] == before


def stops_its_target_alone(core: Core, harness: Harness, target: str, victim: str) -> None:
    """The job of the damaged source's target fails, names it, and changes nothing; the other target is compacted."""
    done = []
    for job in core.plan():
        core.claim(job, 1)
        report = core.attempt(job, 1)
        if job.target == target:
            assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.SOURCE_CORRUPT)
            assert victim in report.message
            assert report.receipt is None
        else:
            assert report.outcome is ReportOutcome.SUCCEEDED, report.message
        core.end(job, report)
        done.append(job.target)
    assert len(done) == 2
    assert target in done
