"""One bad source never holds up its siblings, whatever the kind of store."""

from __future__ import annotations

from conformance.core import Core
from conformance.harness import Harness


def test_a_damaged_source_is_named_and_its_siblings_are_compacted(core: Core, harness: Harness) -> None:
    job = core.filled(1)
    harness.fill(2)
    before = [harness.content(number) for number in (1, 2)]
    group = max(core.kind.parts(job.spec).groups, key=len)
    victim = group[0]
    repair = harness.damage(job.target, victim)
    jobs = core.compact()
    named = [item for _, report in jobs for item in report.skipped]
    assert {item.source for item in named} == {victim}
    for item in named:
        assert item.reason
        assert victim in item.message
    done = {(job.target, name) for job, report in jobs if report.receipt for name in report.receipt.sources}
    siblings = {name for target, name in done if target == job.target}
    assert bool(siblings) is not harness.indivisible
    assert siblings <= set(job.sources) - {victim}
    others = {target for target, _ in done} - {job.target}
    assert len(others) == 1, "and the other target"
    assert core.plan() == (), "it is not tried again and again"
    assert harness.content(2) == before[1]
    core.sweep_later()
    place = job.target, victim
    damaged = core.scan().reading.identity(*place)
    assert damaged
    assert {item.identity for item in named} <= {damaged, ""}, "what was found damaged, where the attempt knows it"

    # It is repaired: nothing of it was lost, and nothing of it was merged.
    repair()
    assert [harness.content(number) for number in (1, 2)] == before
    repaired = core.scan(released=frozenset({place})).reading.identity(*place)
    assert repaired != damaged, "which ends its quarantine"
    core.quarantined.clear()
    core.compact()
    assert [harness.content(number) for number in (1, 2)] == before
