"""What a kind of store gives to the suite: a store of its own to fill, the view of its readers, and interrupted writes.

The suite fills a store with debt, one target at a time (`fill`), and does with it what the coordinator and a worker do
(`core.Core`): everything else goes through the kind's doors. A harness knows no test, and the suite no kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, Protocol

from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.kind import Kind
from compaction.core.planning.debt import HeldJob
from compaction.core.planning.planner import JobInventory
from compaction.core.reconcile.planning.replan import planner_of, spec_of
from compaction.registry import kind_of
from compaction.storage.adapter import Sensed, SenseRequest, StoreAdapter, Swept, open_store
from compaction.storage.secrets import Secrets
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.ports import Assignment, Engine
from support.processes.worker_ports import FakeLease


class Fault(Enum):
    """What happens at one write of an attempt."""

    DEATH = "the process dies"
    LOST = "the answer is lost: the write was carried out, and the caller sees an error"


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at call number `at` (0-based) of an attempt, whose `name` is for messages; `when`: before or after the
    call, or during it (half of a write).
    """

    at: int
    when: str
    name: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.when} call {self.at}, {self.name}"


class Calls(Protocol):
    """The calls that an attempt made at its store."""

    @property
    def calls(self) -> list[str]:
        """Names, in order."""
        ...


class Harness(Protocol):
    """An empty store of one kind.

    store: `spec.store` of the policy, as a user writes it.
    secrets: of the policy's namespace.
    death: what a process that dies raises, in the place of its end; no Exception, so that nothing may catch it.
    charged: whether an attempt that fails because the store did not answer counts against the job.
    shares_outputs: outputs are named by their content, so several attempts may write the same one: none deletes what it
        has not committed, and a sweep does when no claim stands.
    indivisible: the sources of a target are compacted together or not at all: a damaged one stops the target.
    """

    store: dict[str, Any]
    secrets: Secrets
    death: type[BaseException]
    charged: bool
    shares_outputs: bool
    indivisible: bool

    def fill(self, number: int) -> None:
        """Add a target with debt that one job works off, out of three sources or more."""
        ...

    def content(self, number: int) -> object:
        """Every record that readers find in the target that `fill(number)` made, in an order of its own."""
        ...

    def opens(self, target: str, source: str) -> bool:
        """Whether a reader that knows the name of a source can still read it."""
        ...

    def damage(self, target: str, source: str) -> Callable[[], object]:
        """Make a source unreadable; what is returned repairs it."""
        ...

    def leftovers(self) -> set[str]:
        """What attempts left on storage that did not commit it."""
        ...

    def replaced(self) -> set[str]:
        """What is on storage although a commit replaced it."""
        ...

    def check(self) -> None:
        """Assert what is true of the store at every moment."""
        ...

    def strikes(self, calls: list[str], fault: Fault) -> Sequence[Strike]:
        """The faults to try, of an attempt that makes these calls: every one of them in a deep run."""
        ...

    def struck(self, strike: Strike | None) -> AbstractContextManager[Calls]:
        """An attempt in it meets the fault; without one its calls are only counted."""
        ...

    def survives(self, strike: Strike) -> bool:
        """Whether an attempt succeeds although this answer was lost."""
        ...

    def later(self) -> AbstractContextManager[object]:
        """As if a month had passed, by the clocks that an adapter is not given."""
        ...


# The coordinator and a worker of one store, in memory: scan, plan, assign, run, end, sweep, by the kind's doors
# alone.
#
# What a cluster adds (Leases, status, the order of jobs) is not here: the suite says what holds whatever the core
# does.

MONTH: Final = 30 * 86_400.0
ROUNDS: Final = 5
"""Plans after which everything is compacted, also what a damaged source held up."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that a plan made."""

    name: str
    spec: CompactionJobSpec
    sources: tuple[str, ...]

    @property
    def target(self) -> str:
        return self.spec.target


@dataclass
class Core:
    """`now`: monotonic seconds, which stand still. `quarantined`: by target, as a policy's status has them."""

    harness: Harness
    engine: Engine
    now: float = 1_000.0
    scans: int = 0
    held: dict[str, HeldJob] = field(default_factory=dict)
    quarantined: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @cached_property
    def policy(self) -> CompactionPolicy:
        """With a grace of an hour."""
        return self._policy("1h")

    @cached_property
    def adapter(self) -> StoreAdapter:
        return self.open()

    def open(self, policy: CompactionPolicy | None = None) -> StoreAdapter:
        """An adapter as another coordinator has it."""
        spec = (policy or self.policy).spec
        return open_store(
            spec,
            holder="coordinator",
            secrets=self.harness.secrets,
            lock_timeout=60.0,
            clock=lambda: self.now,
        )

    @property
    def kind(self) -> Kind:
        return kind_of(self.policy.spec.store)

    def close(self) -> None:
        self.adapter.close()

    def scan(self, adapter: StoreAdapter | None = None, **request: Any) -> Sensed:
        self.scans += 1
        aside = {target: frozenset(names) for target, names in self.quarantined.items()}
        return (adapter or self.adapter).sense(
            SenseRequest(self.scans, 1, self.now, quarantined=aside, jobs=dict(self.held), **request)
        )

    def plan(self) -> tuple[Job, ...]:
        """The jobs of a plan from a scan."""
        scan = self.scan().reading
        assert scan.problem is None, scan.problem
        planner = planner_of(self.policy, owner_uid="uid")
        plan = planner.plan(scan.candidates, {}, JobInventory(), now=scan.wall, left_out=scan.left_out)
        specs = {job.name: spec_of(job, self.policy) for job in plan.jobs}
        return tuple(Job(name, spec, self.kind.parts(spec).sources) for name, spec in specs.items())

    def filled(self, number: int) -> Job:
        """The job of a target that is filled for it."""
        self.harness.fill(number)
        (job,) = self.plan()
        return job

    def claim(self, job: Job, token: int) -> None:
        self.held[job.name] = HeldJob(job.target, job.spec.level, job.sources)
        self.adapter.claim(job.spec, job=job.name, token=token)

    def attempt(self, job: Job, token: int, lease: FakeLease | None = None) -> JobReport:
        """An attempt as a worker makes it."""
        runner = RunnerOfAllKinds(self.engine, holder=f"worker-{token}", secrets=self.harness.secrets)
        work = Assignment(job.name, "default", token, lease_seconds=60.0, spec=job.spec)
        return runner.run(work, lease or FakeLease(token=token))

    def end(self, job: Job, report: JobReport) -> None:
        """The job is over: it keeps no source, and what it skipped is in quarantine."""
        self.quarantined[job.target] |= {item.source for item in report.skipped}
        self.adapter.retire(job.target, job.name)
        self.held.pop(job.name, None)

    def is_tidy(self) -> bool:
        """Whether attempts that have ended left nothing of their own; where outputs are shared a sweep sees to it."""
        return self.harness.shares_outputs or not self.harness.leftovers()

    def compact(self) -> list[tuple[Job, JobReport]]:
        """Plan and run until nothing is left to do; all jobs with their reports."""
        done: list[tuple[Job, JobReport]] = []
        for _ in range(ROUNDS):
            jobs = self.plan()
            if not jobs:
                return done
            for job in jobs:
                token = self.adapter.high_water(job.target, job.name) + 1
                self.claim(job, token)
                done.append((job, self.attempt(job, token)))
                self.end(*done[-1])
        raise AssertionError(f"work is left after {ROUNDS} plans: {self.plan()}")

    def sweep(self, *active: tuple[str, int]) -> Swept:
        """A sweep within the grace."""
        self.scan()
        return self.adapter.sweep(active=frozenset(active))

    def sweep_later(self, *active: tuple[str, int]) -> Swept:
        """A sweep when every grace is over, and what dead attempts left is as old as it has to be."""
        adapter = self.open(self._policy("0s"))
        try:
            self.now += MONTH
            with self.harness.later():
                self.scan(adapter)
                return adapter.sweep(active=frozenset(active))
        finally:
            adapter.close()

    def _policy(self, grace: str) -> CompactionPolicy:
        spec = {"store": self.harness.store, "cleanup": {"delay": grace}}
        return CompactionPolicy.from_object({"metadata": {"name": "policy"}, "spec": spec})


def succeeded(core: Core, job: Job, report: JobReport) -> None:
    """The job is done, and its receipt names and proves all of it."""
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    receipt = report.receipt
    assert receipt is not None
    assert {*receipt.sources, *receipt.obsolete} == set(job.sources)
    assert receipt.records > 0
    assert receipt.fingerprint_before != ""
    assert core.kind.proves_equal(receipt)
    assert all(core.harness.opens(job.target, output) for output in receipt.outputs)
    core.end(job, report)
