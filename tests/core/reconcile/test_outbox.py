"""Events for the sink: each change is told of once, with one number, and nothing is forgotten before it was taken."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from compaction.api.events import MAX_WAITING, CloudEventType, EventsStatus, PendingEvent, pending
from compaction.core.reconcile.observations import Hold, SinkView
from support.cluster.world import Crash, P, PlainCluster, cluster_with

PATIENCE = 600.0
T = CloudEventType


class Sink:
    """Takes what stands in the status, in order; what it knows of that dies with the coordinator."""

    def __init__(self, world: PlainCluster) -> None:
        self.world = world
        self.taken: list[PendingEvent] = []
        self.forget()

    def forget(self) -> None:
        self.world.sink = SinkView(0, PATIENCE)

    def take(self, most: int = 1000) -> None:
        events = self.world.status.events or EventsStatus()
        view = self.world.sink
        assert view is not None
        for event in [item for item in events.waiting if item.sequence > view.delivered][:most]:
            self.taken.append(event)
            self.world.sink = view = replace(view, delivered=event.sequence)

    def assert_nothing_lost(self) -> None:
        """Whatever has a number waits, or was taken: nothing is recorded as delivered that was not."""
        events = self.world.status.events or EventsStatus()
        waiting = {event.sequence for event in events.waiting}
        assert waiting | {event.sequence for event in self.taken} >= set(range(1, events.last + 1))

    @property
    def told(self) -> list[str]:
        """Types, each event once, in the order of first arrival."""
        return [event.type for event in {event.sequence: event for event in self.taken}.values()]

    def of(self, kind: CloudEventType) -> list[PendingEvent]:
        return [event for event in {event.sequence: event for event in self.taken}.values() if event.type == kind]


def world_with(logs: int = 1, **spec: Any) -> tuple[PlainCluster, Sink]:
    world = PlainCluster(**spec)
    sink = Sink(world)
    for number in range(logs):
        world.add_log(f"/ra/{number}")
    world.rest()
    return world, sink


def test_a_plan_waits_its_jobs_end_and_so_does_the_run() -> None:
    world, sink = world_with(logs=2, approval="Manual")
    sink.take()
    assert world.status.plan is not None
    (waits,) = sink.of(T.PLAN_WAITS)
    assert (waits.subject, waits.data["jobs"]) == (world.status.plan.hash, 2)
    world.pass_time(200)
    sink.take()
    assert sink.told == [T.PLAN_WAITS], "the same plan is told of once, however often it is made"
    world.annotate(approve=world.status.plan.hash)
    world.rest()
    world.work_off(sink.take)
    world.pass_time(30)
    sink.take()
    assert sink.told == [T.PLAN_WAITS, T.JOB_ENDED, T.JOB_ENDED, T.RUN_ENDED]
    assert [event.subject for event in sink.of(T.JOB_ENDED)] == sorted(world.jobs)
    assert all(event.data["state"] == "Succeeded" for event in sink.of(T.JOB_ENDED))
    assert sink.of(T.RUN_ENDED)[0].data["run"]["succeeded"] == 2
    world.pass_time(60)
    events = world.status.events
    assert events is not None
    assert (events.last, events.waiting, events.lost) == (4, (), 0)


def test_held_stalled_and_quarantined() -> None:
    world, sink = world_with(limits={"maxAttempts": 1})
    world.hold = Hold("the bucket moves")
    world.rest()
    world.hold = None
    world.rest()
    world.announce()
    world.rest()
    (name,) = world.in_state(P)
    skipped = [{"source": "0000000000000001.segment", "reason": "SourceCorrupt", "message": "entry 7: CRC"}]
    world.report(name, outcome="Skipped", reason="SourceCorrupt", skipped=skipped)
    world.pass_time(30)
    sink.take()
    (held,) = sink.of(T.HELD)
    assert held.data["message"].startswith("the operator is on hold: the bucket moves")
    (damaged,) = sink.of(T.QUARANTINED)
    assert damaged.subject.endswith("/0000000000000001.segment")
    assert sink.of(T.STALLED)[0].data["reason"] == "SourcesQuarantined"
    again = list(sink.told)
    world.restart()
    sink.forget()
    world.pass_time(200)
    sink.take()
    assert sink.told == again, "what stands is not told again"


def test_nothing_is_recorded_without_a_sink_and_old_events_wait_for_one() -> None:
    world = cluster_with(1)
    world.work_off()
    assert world.status.events is None


def test_a_job_stays_until_its_receipt_was_taken_but_not_for_ever() -> None:
    def another(number: int) -> None:
        world.logs["/ra/0"].groups.append(f"{number + 10:016d}.segment")
        world.pass_time(130, step=65)
        world.work_off()

    world, sink = world_with(successfulJobsHistoryLimit=0)
    world.work_off()
    first = world.only_job()
    world.pass_time(60)
    assert list(world.jobs) == [first], "beyond the history limit, and its event waits"
    sink.take()
    world.rest()
    assert not world.jobs
    another(1)
    assert len(world.jobs) == 1
    world.pass_time(PATIENCE + 200, step=100)
    assert not world.jobs, "the receiver is dead: jobs do not pile up"
    sink.take()
    assert len(sink.of(T.JOB_ENDED)) == 2, "its event has no receipt any more, and is told all the same"


def test_of_too_many_the_oldest_go_and_are_counted() -> None:
    now = PlainCluster().snapshot().now.time
    events = EventsStatus()
    for number in range(MAX_WAITING + 5):
        events = events.after((pending(T.HELD, now, str(number)),), delivered=0)
    assert (events.last, events.lost, len(events.waiting)) == (MAX_WAITING + 5, 5, MAX_WAITING)
    assert events.waiting[0].sequence == 6, "a gap in the numbers tells the receiver"
    assert events.after((), delivered=events.last).waiting == ()


def test_wherever_the_coordinator_or_the_sink_dies_each_event_arrives_under_one_number() -> None:
    """Between every two writes, and between a delivery and its record: a sink that dies forgets what it delivered."""
    for step in range(1, 60):
        world, sink = world_with(logs=2, approval="Manual")
        assert world.status.plan is not None
        world.annotate(approve=world.status.plan.hash)
        crashed = False
        for turn in range(16):
            with suppress(Crash):
                world.reconcile(crash_after=step if turn >= 2 and not crashed else None)
                world.announce()
                for name in world.in_state(P):
                    lease = world.leases.get(name)
                    if lease is not None and lease.report is None:
                        world.finish(name)
                sink.take(most=1)
                world.wall += 1
                sink.assert_nothing_lost()
                continue
            crashed = True
            sink.assert_nothing_lost()
            sink.forget()  # what was delivered and not recorded is delivered again
        world.work_off(sink.take)
        world.pass_time(30)
        sink.take()
        sink.assert_nothing_lost()
        numbers = {event.sequence: event for event in sink.taken}
        assert list(numbers) == sorted(numbers), "first arrivals are in order"
        assert all(numbers[event.sequence] == event for event in sink.taken), "a duplicate is the same event"
        assert sorted(sink.told) == sorted([T.PLAN_WAITS, T.JOB_ENDED, T.JOB_ENDED, T.RUN_ENDED])
        assert len({event.subject for event in sink.of(T.JOB_ENDED)}) == 2
        if not crashed:
            break
    assert not crashed, "every step was tried"
