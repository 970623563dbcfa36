"""Who coordinates: the Lease of the namespace says, else any that leads; what is not known is not said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.api.names import COORDINATOR_LEASE
from compaction.core.explain.explanation import MISSING, Leadership, coordination
from compaction.leases.record import Lease
from support.cluster.explained import NOW, lease_with

LEADS = lease_with(COORDINATOR_LEASE, holder="a")
SILENT = lease_with(COORDINATOR_LEASE, holder="b", seconds=300)
RELEASED = lease_with(COORDINATOR_LEASE, holder=None)


def elsewhere(lease: Lease) -> Lease:
    return replace(lease, namespace="compaction-system")


@pytest.mark.parametrize(
    ("leases", "complete", "state"),
    [
        (None, False, Leadership.UNKNOWN),
        ([], False, Leadership.UNKNOWN),
        ([], True, Leadership.ABSENT),
        ([LEADS], False, Leadership.LEADS),
        ([SILENT], False, Leadership.SILENT),
        ([RELEASED], False, Leadership.RELEASED),
        ([SILENT, elsewhere(LEADS)], True, Leadership.SILENT),  # its own operator is away: others may not watch it
        ([elsewhere(LEADS)], True, Leadership.LEADS),
        ([elsewhere(SILENT), elsewhere(LEADS)], True, Leadership.LEADS),
        ([elsewhere(SILENT)], True, Leadership.SILENT),
        ([elsewhere(SILENT)], False, Leadership.UNKNOWN),
        ([lease_with("logs-1", holder="w")], True, Leadership.ABSENT),
    ],
)
def test_who_coordinates(leases: list[Lease] | None, complete: bool, state: Leadership) -> None:
    found = coordination(leases, "storage", NOW, complete=complete)
    assert found.state is state
    assert found.is_missing is (state in MISSING)
    assert bool(found.sentence(NOW)) is found.is_missing


def test_a_silent_one_is_named_with_its_age() -> None:
    said = coordination([SILENT], "storage", NOW, complete=False).sentence(NOW)
    assert said == "No operator coordinates: b last renewed its Lease 5m ago, by its own clock."
