"""The store as the coordinator sees it: what is left behind is found by a look, and gone after the next sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.policy_spec import CompactionPolicySpec
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.planner import LeftOut, PlanTrigger, TargetHistory, reason_not_due
from compaction.errors import ClaimRefusedError
from compaction.segments.commit import fence
from compaction.segments.commit.records import GroupReceipt
from compaction.segments.directory import lock
from compaction.segments.generate import generate_log
from compaction.segments.planning.plan import GroupCheck, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting.compact import compact_groups
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.storage.adapter import SenseRequest, open_store
from support.segments.ra_owner import killed, running, stopped


def work(log: Path) -> CompactionJobSpec:
    sources = {"segmentLog": {"path": str(log), "obsolete": ["0000000000000001.segment"]}}
    return CompactionJobSpec.model_validate(
        {"policyRef": {"name": "logs"}, "kind": "SegmentRewrite", "sources": sources}
    )


def test_an_orphaned_output_does_not_wait_for_a_grace_that_begins_anew_with_every_look(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generate_log(log, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "1h"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    store.claim(work(log), job="job", token=2)
    orphan = log / "0000000000000001-0000000000000002.job.1.partial"
    current = log / "0000000000000001-0000000000000002.job.2.partial"
    for path in (orphan, current):
        path.write_bytes(b"half an output")

    assert store.sense(SenseRequest(number=1, generation=1, asked=0.0)).sweep_in == 0
    swept = store.sweep(active=frozenset({("job", 2)}))

    assert swept.deleted == 1
    assert not orphan.exists()
    assert current.exists()


def test_logs_of_a_running_owner_are_named_and_neither_planned_nor_recovered_nor_swept(tmp_path: Path) -> None:
    log = tmp_path / "data" / "a"
    generated = generate_log(log, segments=5, entries_per_segment=16, payload_bytes=32, sync=False)
    write_snapshot(log, index=generated.snapshot_index, term=2, live=LiveSet.parse("1,5"))
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "0s"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    fence.claim(log, job="job", token=2, holder="test")
    orphan = log / "0000000000000001-0000000000000002.job.1.partial"
    half_done = log / "0000000000000001.link"
    orphan.write_bytes(b"half an output")
    half_done.symlink_to("0000000000000002.segment")
    with running(log.parent):
        sensed = store.sense(SenseRequest(number=1, generation=1, asked=0.0))
        (problem,) = sensed.reading.problems
        assert (problem.target, problem.reason) == (str(log), "OwnerRunning")
        assert sensed.reading.candidates == ()
        assert sensed.reading.left_out == (LeftOut("OwnerRunning", 1, str(log)),)
        assert (sensed.sweep_in, sensed.overdue) == (None, 0.0)
        assert store.sweep(active=frozenset()).deleted == 0
        with pytest.raises(ClaimRefusedError, match="the log's owner runs"):
            store.claim(work(log), job="next", token=1)
        assert orphan.exists()
        assert half_done.is_symlink()
    stopped(log.parent)
    sensed = store.sense(SenseRequest(number=2, generation=1, asked=1.0))
    assert (sensed.reading.problems, sensed.reading.left_out, sensed.sweep_in) == ((), (), 0.0)
    assert sensed.reading.measures["missingLiveEntries"] == 0
    assert [candidate.target for candidate in sensed.reading.candidates] == [str(log)]
    assert not half_done.is_symlink()
    killed(log.parent)
    (problem,) = store.sweep(active=frozenset()).problems
    assert problem.reason == "OwnerRunning"
    assert orphan.exists()
    said = {"store": {"segmentLogs": {"root": str(tmp_path), "ownership": "Stopped"}}, "cleanup": {"delay": "0s"}}
    vouched = open_store(CompactionPolicySpec.model_validate(said), holder="test")
    assert len(vouched.sense(SenseRequest(number=1, generation=2, asked=2.0)).reading.candidates) == 1
    assert vouched.sweep(active=frozenset()).deleted == 1


def test_nothing_of_a_log_whose_live_entries_are_missing_is_planned(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generated = generate_log(log, segments=5, entries_per_segment=16, payload_bytes=32, sync=False)
    write_snapshot(log, index=generated.snapshot_index, term=2, live=LiveSet.parse("0,1,5"))
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    reading = store.sense(SenseRequest(number=1, generation=1, asked=0.0)).reading
    assert [(problem.target, problem.reason) for problem in reading.problems] == [(str(log), "LiveEntriesMissing")]
    assert reading.measures["missingLiveEntries"] == 1
    assert not any(candidate.groups or candidate.obsolete for candidate in reading.candidates)


def test_a_job_is_claimed_by_what_it_was_told_of_the_owner(tmp_path: Path) -> None:
    log = tmp_path / "data" / "a"
    generate_log(log, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    killed(log.parent)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    parameters = {"segmentLog": {"ownership": "Stopped"}}
    told = CompactionJobSpec.model_validate({**work(log).to_object(), "parameters": parameters})
    store.claim(told, job="job", token=1)
    assert store.high_water(str(log), "job") == 1


def test_what_an_interrupted_write_of_a_small_file_left_is_found_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generate_log(log, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "1h"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    leftover = log / "compaction.fence.tmp"
    leftover.write_bytes(b'{"version": 1')

    assert store.sense(SenseRequest(number=1, generation=1, asked=0.0)).sweep_in == 0
    store.sweep(active=frozenset())

    assert not leftover.exists()
    assert store.sense(SenseRequest(number=2, generation=1, asked=0.0)).sweep_in is None


def test_a_reading_begins_when_it_was_asked_for(tmp_path: Path) -> None:
    """A job that ends while the look waits for its thread is newer than the reading, whose quarantine lacks it."""
    generate_log(tmp_path / "a", segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = CompactionPolicySpec.model_validate({"store": {"segmentLogs": {"root": str(tmp_path)}}})
    job_ended, thread_began = 11.0, 12.0
    store = open_store(spec, holder="test", clock=lambda: thread_began)

    first = store.sense(SenseRequest(number=1, generation=1, asked=10.0)).reading
    unchanged = store.sense(SenseRequest(number=2, generation=1, asked=10.5)).reading

    assert [(reading.started, reading.ended) for reading in (first, unchanged)] == [(10.0, 12.0), (10.5, 12.0)]
    history = TargetHistory(finished_monotonic=job_ended)
    for reading in (first, unchanged):
        (candidate,) = reading.candidates
        assert reason_not_due(candidate, PlanTrigger(), history, now=0.0) is LeftOutReason.SCAN_OUTDATED


def test_a_store_that_cannot_be_read_was_asked_then_too(tmp_path: Path) -> None:
    spec = CompactionPolicySpec.model_validate({"store": {"segmentLogs": {"root": str(tmp_path / "nowhere")}}})
    store = open_store(spec, holder="test", clock=lambda: 12.0)
    assert store.sense(SenseRequest(number=1, generation=1, asked=10.0)).reading.started == 10.0


def test_a_deletion_that_is_due_and_does_not_happen_is_overdue(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generate_log(log, segments=5, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "1h"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    request = SenseRequest(number=1, generation=1, asked=0.0)
    assert store.sense(request).overdue == 0, "nothing was replaced yet"
    store.claim(work(log), job="job", token=1)
    view = open_log(log)
    assert view.live is not None
    (outcome,) = compact_groups(
        log,
        groups=[group.sources for group in plan_log(view, SegmentLimits()).groups],
        check=GroupCheck(view, view.live),
        live=view.live,
        limits=SegmentLimits(),
        job="job",
        token=1,
        holder="test",
    )
    assert isinstance(outcome, GroupReceipt)
    assert store.sense(request).overdue == 0, "the grace has just begun"

    record = fence.read(log)
    assert record.tombstones
    long_ago = tuple(replace(tombstone, since=tombstone.since - 2 * 3600) for tombstone in record.tombstones)
    with lock.hold(log, holder="test") as held:
        fence.write(log, replace(record, tombstones=long_ago), held=held)
    assert 3590 < store.sense(request).overdue < 3700
    store.sweep(active=frozenset())
    assert store.sense(request).overdue == 0


def test_a_log_on_which_a_sweep_fails_unexpectedly_is_named_and_the_others_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        generate_log(tmp_path / name, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
        (tmp_path / name / "0000000000000001-0000000000000002.job.1.partial").write_bytes(b"half an output")
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    store.sense(SenseRequest(number=1, generation=1, asked=0.0))
    plain = SegmentLogStore.sweep
    monkeypatch.setattr(
        SegmentLogStore, "sweep", lambda self, log, **known: [][3] if log.endswith("/a") else plain(self, log, **known)
    )
    swept = store.sweep(active=frozenset())
    (problem,) = swept.problems
    assert (swept.deleted, problem.target, problem.reason) == (1, str(tmp_path / "a"), "SweepFailed")
    assert "an unexpected IndexError at segments/adapter.py:" in problem.message
