"""What anybody may have written on a Lease never stops the coordinator: it reads it, or passes over it."""

from __future__ import annotations

import pytest

from compaction.kube.gather import job_lease, worker_lease
from compaction.leases.record import LeaseObserver


def body(**annotations: str) -> dict[str, object]:
    return {
        "metadata": {
            "name": "x",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {f"compaction.dev/{key}": value for key, value in annotations.items()},
        },
        "spec": {"holderIdentity": "w", "leaseTransitions": 1, "leaseDurationSeconds": 15},
    }


@pytest.mark.parametrize(
    ("text", "slots"),
    [("3", 3), ("256", 256), ("257", 0), ("9" * 5000, 0), ("-1", 0), ("٣", 0), ("", 0), ("1e3", 0), ("0x1", 0)],
)
def test_slots(text: str, slots: int) -> None:
    """5000 digits once were an error of Python that ended every look at the policy; a billion slots took all jobs."""
    assert worker_lease(body(slots=text), LeaseObserver[str](), now=0.0).slots == slots


@pytest.mark.parametrize(("text", "progress"), [("0", 0), ("100", 100), ("101", None), ("9" * 5000, None), ("x", None)])
def test_progress(text: str, progress: int | None) -> None:
    """A progress of 101 would be refused by the status of the job."""
    assert job_lease(body(progress=text), LeaseObserver[str](), now=0.0).progress == progress


@pytest.mark.parametrize("report", ["", "5", "[" * 5000, '{"token":' + "9" * 5000 + "}", '{"token":1}'])
def test_an_unreadable_report_is_an_error_of_its_lease(report: str) -> None:
    lease = job_lease(body(report=report), LeaseObserver[str](), now=0.0)
    assert lease.report is None
    assert lease.report_error.startswith("the worker's report cannot be read: ")
    assert len(lease.report_error) < 500
