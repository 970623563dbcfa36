"""Requests of a user to a catalog: a round now, a round that cuts nothing, and the operator's hold."""

from __future__ import annotations

import pytest

from compaction.api.catalog.reasons import Reason, Stage, Trigger
from compaction.api.requests import RequestOutcome, RequestStatus
from compaction.catalogs.compaction.observations import Ask, Broken, CatalogMemory, Delivered, LogRead, RoundWork
from compaction.core.reconcile.observations import Hold
from support.cluster.catalog_coordinator import HISTORY, CatalogCoordinator, kinds


def at_rest(**spec: object) -> CatalogCoordinator:
    """A coordinator whose first round has ended: nothing is due for a while."""
    coordinator = CatalogCoordinator(spec={"interval": "1h", **spec})
    coordinator.run()
    coordinator.whole_round()
    assert kinds(coordinator.run()) == []
    coordinator.events.clear()
    return coordinator


def answer(coordinator: CatalogCoordinator, *, scan: bool = False) -> RequestStatus:
    found = coordinator.status.scan if scan else coordinator.status.run_now
    assert found is not None
    return found


def test_a_round_begins_now_and_its_end_is_the_answer() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "first"
    assert kinds(coordinator.run()) == ["Ask"]
    assert coordinator.memory.processes.trigger is Trigger.REQUESTED
    assert kinds(coordinator.run()) == []
    assert coordinator.status.last_handled_run_now == "", "the round has not ended"
    coordinator.whole_round()
    assert coordinator.status.last_handled_run_now == "first"
    assert answer(coordinator).outcome is RequestOutcome.ACCEPTED
    assert answer(coordinator).reason == coordinator.ready[1]
    assert coordinator.events.count("RunNow") == 1
    assert kinds(coordinator.run()) == [], "a value counts once"
    coordinator.memory, coordinator.transitions = CatalogMemory(), 4
    coordinator.run()
    coordinator.whole_round()
    assert coordinator.events.count("RunNow") == 1, "also after a restart"


def test_a_request_during_a_round_begins_the_next_one() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "first"
    coordinator.run()
    coordinator.annotations["run-now"] = "second"
    coordinator.run()
    decision = coordinator.whole_round()
    assert coordinator.status.last_handled_run_now == "first"
    assert kinds(decision) == ["Ask"], "what came too late for that round has one of its own"
    coordinator.whole_round()
    assert coordinator.status.last_handled_run_now == "second"


def test_a_restart_in_the_middle_answers_in_the_next_round() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "first"
    coordinator.run()
    coordinator.memory, coordinator.transitions = CatalogMemory(), 4
    assert kinds(coordinator.run()) == ["Ask"]
    coordinator.whole_round()
    assert coordinator.status.last_handled_run_now == "first"


def test_a_round_that_fails_refuses_with_its_reason() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "first"
    coordinator.run()
    coordinator.run(Broken(RoundWork.ASK, Reason.SECRET_MISSING, "Secret etcd is not there"))
    assert (answer(coordinator).outcome, answer(coordinator).reason) == (RequestOutcome.REFUSED, "SecretMissing")
    assert "RunNowRefused" in coordinator.events


def test_a_scan_cuts_and_propagates_nothing() -> None:
    coordinator = at_rest()
    cut = coordinator.status.versions_cut
    coordinator.annotations["scan"] = "first"
    (ask,) = coordinator.run().tasks
    assert isinstance(ask, Ask)
    assert ask.spec.dry_run
    assert kinds(coordinator.run(coordinator.heard(coordinator.idle()))) == ["ReadLog"]
    assert kinds(coordinator.run(LogRead(HISTORY, coordinator.now))) == []
    assert coordinator.status.last_handled_scan == "first"
    assert (answer(coordinator, scan=True).outcome, coordinator.status.versions_cut) == (RequestOutcome.ACCEPTED, cut)
    coordinator.seconds += 3601
    (ask,) = coordinator.run().tasks
    assert isinstance(ask, Ask)
    assert not ask.spec.dry_run, "the next round is none"


def test_a_scan_beside_a_run_cuts() -> None:
    coordinator = at_rest()
    coordinator.annotations |= {"scan": "s", "run-now": "r"}
    (ask,) = coordinator.run().tasks
    assert isinstance(ask, Ask)
    assert not ask.spec.dry_run
    coordinator.whole_round()
    assert (coordinator.status.last_handled_scan, coordinator.status.last_handled_run_now) == ("s", "r")


@pytest.mark.parametrize("held", [False, True])
def test_a_suspended_catalog_and_a_held_operator_refuse(held: bool) -> None:
    coordinator = at_rest()
    if held:
        coordinator.hold = Hold("etcd moves", by="ada")
    else:
        coordinator.spec["suspend"], coordinator.generation = True, 2
    coordinator.annotations |= {"scan": "s", "run-now": "r"}
    assert kinds(coordinator.run()) == []
    reason = "Held" if held else "Suspended"
    assert coordinator.ready == ("True", reason)
    for scan in (False, True):
        found = answer(coordinator, scan=scan)
        assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, reason)
    coordinator.seconds += 7200
    assert kinds(coordinator.run()) == []
    coordinator.hold = None
    coordinator.spec.pop("suspend", None)
    coordinator.generation = 3
    assert kinds(coordinator.run()) == ["Ask"]
    assert coordinator.memory.processes.trigger is not Trigger.REQUESTED, "a refused request is over"


def test_on_hold_a_round_ends_none_begins_and_a_new_coordinator_begins_none() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "first"
    coordinator.run()
    coordinator.hold = Hold("etcd moves")
    coordinator.run()
    assert coordinator.status.last_handled_run_now == "", "its round runs, and answers"
    coordinator.whole_round()
    assert (answer(coordinator).outcome, coordinator.ready) == (RequestOutcome.ACCEPTED, ("True", "Held"))
    assert coordinator.memory.processes.stage is Stage.IDLE
    coordinator.memory, coordinator.transitions = CatalogMemory(), 4
    assert kinds(coordinator.run()) == []
    coordinator.hold = None
    assert kinds(coordinator.run()) == ["Ask"], "its first round"


def test_a_message_of_a_round_is_the_message_of_the_answer() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "x" * 2000
    coordinator.run()
    coordinator.run(coordinator.heard(coordinator.idle()))
    coordinator.run(Broken(RoundWork.READ, Reason.LOG_UNAVAILABLE, "etcd does not answer"), Delivered(coordinator.now))
    assert coordinator.status.last_handled_run_now.startswith("sha256:")
    assert answer(coordinator).message == "etcd does not answer"


def test_the_history_keeps_rounds_that_changed_something_or_were_asked_for() -> None:
    coordinator = at_rest()
    (first,) = coordinator.status.history
    assert (first.trigger, first.compaction, first.versions_cut) == (Trigger.NEW_TERM, "Compacted", 4)
    for _ in range(3):
        coordinator.seconds += 3601
        coordinator.run()
        coordinator.run(coordinator.heard(coordinator.idle()))
        coordinator.run(LogRead(HISTORY, coordinator.now), Delivered(coordinator.now))
        coordinator.run(Broken(RoundWork.SAVE, Reason.LOG_UNAVAILABLE, "etcd does not answer"))
    assert [record.compaction for record in coordinator.status.history] == ["Compacted", "LogUnavailable"]
    coordinator.annotations["run-now"] = "first"
    coordinator.run()
    coordinator.whole_round()
    assert coordinator.status.history[-1].trigger is Trigger.REQUESTED
    assert coordinator.status.history[-1].ended_at >= coordinator.status.history[-1].started_at
    for number in range(30):
        coordinator.annotations["run-now"] = f"again {number}"
        coordinator.run()
        coordinator.whole_round()
    assert len(coordinator.status.history) == 20
