"""Defects of the control plane: election, leases, tokens, scheduling, reports."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_ELECTION: Final = "control-plane.md#3-election"
_CLOCKS: Final = "control-plane.md#2-clocks"
_TOKENS: Final = "control-plane.md#4-fencing-tokens"
_PREVIEWS: Final = "design/threat-model.md#previews"
_TEST_ELECTION: Final = "leases/test_election.py"

CONTROL_DEFECTS: Final = (
    Defect(
        name="preview: a spec that opens another store of the same kind is scanned with",
        promise=_PREVIEWS,
        file="core/reconcile/preview.py",
        old="    if _opened(before, policy.metadata.namespace) == _opened(after, policy.metadata.namespace):\n",
        new="    if before.name == after.name:\n",
        killers=("core/reconcile/test_preview.py",),
    ),
    Defect(
        name="preview: a spec that names another log is asked about",
        promise=_PREVIEWS,
        file="catalogs/compaction/preview.py",
        old="    if (before.catalog, before.participants) == (after.catalog, after.participants):\n",
        new="    if before.participants == after.participants:\n",
        killers=("catalogs/compaction/test_catalog_preview.py",),
    ),
    Defect(
        name="preview: its scans change the store",
        promise=_PREVIEWS,
        file="kube/scanning.py",
        old="asked=asked), recover=False)",
        new="asked=asked), recover=True)",
        killers=("kube/test_sensing.py::test_previews_take_one_thread_and_nothing_of_the_policy",),
    ),
    Defect(
        name="preview: scans of a spec that is in force no longer answer",
        promise=_PREVIEWS,
        file="core/reconcile/preview.py",
        old="(scans.mark, scans.uid, scans.generation) == this:",
        new="scans.mark == mark:",
        killers=("core/reconcile/test_preview.py",),
    ),
    Defect(
        name="election: the renew deadline counts from the answer",
        promise=_ELECTION,
        file="leases/election.py",
        old="        self._sent_at, self._lease = sent_at, renewed",
        new="        self._sent_at, self._lease = self._clock(), renewed",
        killers=(_TEST_ELECTION,),
    ),
    Defect(
        name="election: a leader that another has replaced goes on",
        promise=_ELECTION,
        file="leases/election.py",
        old="        if self._lease.record.holder != self.identity:\n            self._lose(",
        new="        if self._lease.record.holder is None:\n            self._lose(",
        killers=(_TEST_ELECTION,),
    ),
    Defect(
        name="election: a leader that slept past its deadline believes that it leads",
        promise=_ELECTION,
        file="leases/election.py",
        old=(
            "        if self._standing is ElectionState.LEADER and self._clock() >= self.deadline:\n"
            "            return ElectionState.LOST\n"
        ),
        new="",
        killers=(_TEST_ELECTION,),
    ),
    Defect(
        name="election: a takeover keeps the number of its predecessor's term",
        promise=_ELECTION,
        file="leases/election.py",
        old="        await self._take(lease, lease.record.transitions + 1)",
        new="        await self._take(lease, lease.record.transitions)",
        killers=(_TEST_ELECTION,),
    ),
    Defect(
        name="leases: a renewal by the same holder does not count as a sign of life",
        promise=_CLOCKS,
        file="leases/record.py",
        old="previous.record == record:",
        new="previous.record.holder == record.holder:",
        killers=("leases/test_record.py",),
    ),
    Defect(
        name="leases: a worker whose lease ran out has it back after a late renewal",
        promise="control-plane.md#5-the-life-of-a-job",
        file="worker/attempt.py",
        old='                self._lost = f"not renewed for {self.assignment.lease_seconds:g} s"\n',
        new='                return f"not renewed for {self.assignment.lease_seconds:g} s"\n',
        killers=("worker/test_worker_loop.py",),
    ),
    Defect(
        name="tokens: what the store remembers is overlooked",
        promise=_TOKENS,
        file="leases/record.py",
        old="for value in (lease_transitions, status_token, high_water) if",
        new="for value in (lease_transitions, status_token) if",
        killers=("leases/test_record.py",),
    ),
    Defect(
        name="scheduler: a second job starts on a target that one works on",
        promise="control-plane.md#6-who-goes-first",
        file="core/planning/scheduler.py",
        old="        if job.target in busy:",
        new="        if job.name in busy:",
        killers=("core/planning/test_scheduler.py",),
    ),
    Defect(
        name="jobs: the report of an attempt that was fenced off counts",
        promise="control-plane.md#1-two-layers-of-safety",
        file="core/reconcile/jobs/steps.py",
        old="    if report is None or report.token != token_of(status):",
        new="    if report is None:",
        killers=(
            "core/reconcile/test_lifecycle.py",
            "core/reconcile/test_state_machine.py",
            "core/reconcile/test_hazards.py",
        ),
    ),
    Defect(
        name="jobs: one attempt more than maxAttempts",
        promise="control-plane.md#5-the-life-of-a-job",
        file="core/reconcile/jobs/job.py",
        old="    final = at_once or failures >= max_attempts",
        new="    final = at_once or failures > max_attempts",
        killers=("core/reconcile/test_retry.py", "core/reconcile/test_lifecycle.py"),
    ),
)
