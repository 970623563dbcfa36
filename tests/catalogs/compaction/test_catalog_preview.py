"""Previews of a catalog: how a round with another spec would end now; the rounds go on beside it."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.catalog.catalog import CatalogPreview
from compaction.api.catalog.reasons import Reason
from compaction.api.requests import RequestOutcome
from compaction.catalogs.compaction.observations import (
    Broken,
    CatalogMemory,
    PreviewRound,
    RoundWork,
)
from compaction.core.reconcile.observations import Hold
from support.cluster.catalog_coordinator import CatalogCoordinator, kinds


def at_rest(**spec: object) -> CatalogCoordinator:
    """A coordinator whose first round has ended: nothing is due for a while."""
    coordinator = CatalogCoordinator(spec={"interval": "1h", **spec})
    coordinator.run()
    if not spec.get("suspend"):
        coordinator.whole_round()
    assert kinds(coordinator.run()) == []
    coordinator.events.clear()
    return coordinator


def answer(coordinator: CatalogCoordinator) -> CatalogPreview:
    assert coordinator.status.preview is not None
    return coordinator.status.preview


def test_both_cuts_stand_beside_each_other_and_no_round_begins() -> None:
    coordinator = at_rest()
    before, memory = coordinator.status, coordinator.memory
    (task,) = coordinator.propose(topology={"participants": ["a", "c"]})
    assert kinds(coordinator.run()) == [], "once"
    coordinator.run(coordinator.forecast(task))
    got = answer(coordinator)
    assert (got.outcome, got.reason, got.id, got.participants, got.answered) == (
        RequestOutcome.ACCEPTED,
        "Previewed",
        "first",
        1,
        1,
    )
    assert got.in_force is not None
    assert got.proposed is not None
    assert (got.in_force.reason, got.in_force.versions, got.in_force.begins.reason) == ("Compacted", 4, "Due")
    assert got.in_force.message == "versions 1 to 4 would be cut; version 5 would be the earliest"
    assert (got.proposed.reason, got.proposed.participant, got.proposed.versions) == ("MissingParticipant", "c", 0)
    assert got.proposed.begins.reason == "NothingDue"
    assert [change.field for change in got.changes] == ["spec.topology.participants"]
    after = coordinator.status
    answered = {"preview": after.preview, "last_handled_preview": after.last_handled_preview}
    assert before.model_copy(update=answered) == after
    assert (coordinator.memory.processes, coordinator.memory.watermark) == (memory.processes, memory.watermark)
    assert coordinator.events == ["Preview"]
    assert kinds(coordinator.run()) == [], "a value counts once"


def test_a_longer_availability_keeps_more_and_no_watermark_moves_back() -> None:
    coordinator = at_rest()
    watermark = coordinator.memory.watermark
    coordinator.seconds += 600
    (task,) = coordinator.propose(lowWatermark={"updateInterval": "5m", "dataAvailability": "10h"})
    assert task.watermarks[0] > watermark
    assert task.watermarks[1] == watermark


def test_a_round_that_runs_goes_on_beside_it() -> None:
    coordinator = at_rest()
    coordinator.annotations["run-now"] = "now"
    assert kinds(coordinator.run()) == ["Ask"]
    (task,) = coordinator.propose()
    coordinator.run(Broken(RoundWork.PREVIEW, Reason.LOG_UNAVAILABLE, "etcd does not answer"))
    assert (answer(coordinator).outcome, answer(coordinator).reason) == (RequestOutcome.REFUSED, "LogUnavailable")
    assert coordinator.status.last_handled_run_now == ""
    coordinator.whole_round()
    assert coordinator.status.last_handled_run_now == "now"
    assert task.generation == 1


@pytest.mark.parametrize("held", [False, True])
def test_suspended_and_on_hold_it_is_answered(held: bool) -> None:
    coordinator = at_rest()
    if held:
        coordinator.hold = Hold("etcd moves")
    else:
        coordinator.spec["suspend"], coordinator.generation = True, 2
    coordinator.run()
    (task,) = coordinator.propose(suspend=False, dryRun=True)
    coordinator.run(coordinator.forecast(task))
    got = answer(coordinator)
    assert got.in_force is not None
    assert got.proposed is not None
    assert got.in_force.begins.reason == ("Held" if held else "Suspended")
    assert got.proposed.begins.reason == ("Held" if held else "DryRun")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"catalog": {"endpoints": ["https://elsewhere:2379"]}}, "spec.catalog"),
        (
            {
                "participants": {
                    "urls": [{"name": "mine", "url": "https://mine.example"}],
                    "token": {"secretName": "theirs"},
                }
            },
            "spec.participants",
        ),
    ],
)
def test_another_log_and_other_participants_are_refused_before_they_are_asked(
    changes: dict[str, Any], names: str
) -> None:
    coordinator = at_rest()
    assert coordinator.propose(**changes) == []
    got = answer(coordinator)
    assert (got.outcome, got.reason) == (RequestOutcome.REFUSED, "OtherStore")
    assert names in got.message
    assert coordinator.events == ["PreviewRefused"]


def test_the_last_of_two_wins_and_a_restart_asks_again() -> None:
    coordinator = at_rest()
    (first,) = coordinator.propose()
    assert coordinator.propose("second", dryRun=True) == [], "one at a time"
    (second,) = [task for task in coordinator.run(coordinator.forecast(first)).tasks if isinstance(task, PreviewRound)]
    assert second.proposed.dry_run
    coordinator.memory, coordinator.transitions = CatalogMemory(), 4
    tasks = [task for task in coordinator.run().tasks if isinstance(task, PreviewRound)]
    coordinator.run(coordinator.forecast(tasks[0]))
    assert answer(coordinator).id == "second"
    coordinator.memory, coordinator.transitions = CatalogMemory(), 5
    assert "PreviewRound" not in kinds(coordinator.run()), "answered"


def test_a_spec_that_changes_meanwhile_is_compared_again() -> None:
    coordinator = at_rest()
    (task,) = coordinator.propose()
    coordinator.spec["dryRun"], coordinator.generation = True, 2
    again = [item for item in coordinator.run(coordinator.forecast(task)).tasks if isinstance(item, PreviewRound)]
    assert again[0].spec.dry_run
    coordinator.run(coordinator.forecast(again[0]))
    assert answer(coordinator).generation == 2
