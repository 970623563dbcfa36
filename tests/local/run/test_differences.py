"""What sets `compactor run` apart from the watch: it begins at once, ends by itself, leaves to others what they have,
and does nothing that needs an approval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.enums import JobState
from compaction.api.job.job_status import JobReport
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.local.policy_file import PolicyFile, load_policies
from compaction.cli.local.run_view import problems_of
from compaction.kube.errors import PlanNotApprovedError
from compaction.local.run.job import RunResult
from compaction.local.run.once import LocalRun, at_once
from compaction.local.run.workers import ThreadEngine
from compaction.segments.commit import fence
from compaction.segments.directory import lock
from compaction.segments.generate import Pattern, generate_log
from compaction.storage.adapter import open_store
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.errors import EngineLostError, EngineStartError
from compaction.worker.ports import Assignment, HeldLease, JobRunner
from support.stores.block_commands import BlockCommands, in_folder, policy_file
from support.stores.segment_logs import content

Opening = Callable[[], AbstractContextManager[JobRunner]]
NEVER = {"schedule": "0 0 1 1 *", "windows": [{"schedule": "0 0 29 2 *", "duration": "1m"}], "cooldown": "24h"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        generate_log(
            tmp_path / "ra" / name,
            pattern=Pattern.STRIDED,
            segments=9,
            entries_per_segment=64,
            payload_bytes=128,
            sync=False,
        )
    return tmp_path / "ra"


def logs_policy(root: Path, **spec: Any) -> CompactionPolicy:
    store = {"segmentLogs": {"root": str(root), "maxEntriesPerSegment": 64}}
    kind = {"apiVersion": "compaction.dev/v1alpha1", "kind": "CompactionPolicy", "metadata": {"name": "logs"}}
    (policy,) = load_policies(yaml.safe_dump(kind | {"spec": {"store": store} | spec}), source="test")
    return policy


@contextmanager
def threads(secrets: Secrets = NO_SECRETS) -> Iterator[JobRunner]:
    with ThreadEngine(2) as engine:
        yield RunnerOfAllKinds(engine, holder="local", secrets=secrets)


def run(policy: CompactionPolicy, opening: Opening = threads, secrets: Secrets = NO_SECRETS) -> RunResult:
    with closing(open_store(policy.spec, holder="local", secrets=secrets, lock_timeout=0.1)) as store:
        return LocalRun(policy, store=store, open_runner=opening).run()


def test_it_does_not_wait_for_schedule_windows_and_cooldown(root: Path) -> None:
    result = run(logs_policy(root, trigger=NEVER))
    assert result.succeeded
    assert len(result.jobs) == 2


def test_it_takes_the_rest_of_the_policy_as_it_stands(root: Path) -> None:
    policy = logs_policy(root, trigger=NEVER, limits={"maxAttempts": 7}, approval="Manual", suspend=True)
    meant, own = at_once(policy).spec, {"trigger", "successful_jobs_history_limit", "failed_jobs_history_limit"}
    assert meant.model_dump(exclude=own) == policy.spec.model_dump(exclude=own)
    assert (meant.trigger.schedule, meant.trigger.windows, meant.trigger.cooldown) == (None, (), 0.0)


def test_a_locked_log_is_left_to_its_holder_and_named(root: Path) -> None:
    before = content(root / "a")
    policy = logs_policy(root)
    with lock.hold(root / "a", holder="somebody"):
        result = run(policy)
    assert {job.target: job.state for job in result.jobs} == {
        str(root / "a"): JobState.FAULTY,
        str(root / "b"): JobState.SUCCEEDED,
    }
    assert not result.succeeded
    (line,) = problems_of(policy, result)
    assert ": LockHeld: " in line
    assert content(root / "a") == before
    assert run(policy).succeeded


def test_an_engine_that_does_not_start_ends_it(root: Path) -> None:
    @contextmanager
    def broken() -> Iterator[JobRunner]:
        raise EngineStartError("no memory")
        yield

    with pytest.raises(EngineStartError, match="no memory"):
        run(logs_policy(root), broken)
    assert all(fence.read(log).jobs == {} for log in root.iterdir())


def test_an_engine_that_is_lost_ends_it_and_claims_are_given_up(root: Path) -> None:
    class Dying:
        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            raise EngineLostError("Spark went away")

    with pytest.raises(EngineLostError, match="Spark went away"):
        run(logs_policy(root), lambda: nullcontext(Dying()))
    for log in root.iterdir():
        assert all(claim.retired for claim in fence.read(log).jobs.values())
    assert run(logs_policy(root)).succeeded


def test_what_comes_of_an_approved_plan_needs_an_approval_of_its_own(tmp_path: Path) -> None:
    """Outputs of a merge are merged again: by another plan, which has not been reviewed."""
    blocks: BlockCommands = in_folder(tmp_path / "store")
    blocks.add(1, 2, 3, 4)
    levels = [{"maxBlocks": 2, "maxAge": "1h"}] * 2
    path = policy_file(tmp_path / "policy.yaml", blocks, levels=levels, spec={"approval": "Manual"})

    def approved(plan: str | None) -> RunResult:
        with path.open() as source:
            file = PolicyFile(source, approved=plan)
        return run(file.policy, lambda: threads(file), file)

    with pytest.raises(PlanNotApprovedError, match=r"--approve [0-9a-f]{16}$") as refused:
        approved(None)
    first = approved(str(refused.value).rpartition(" ")[2])
    assert [job.state for job in first.jobs] == [JobState.SUCCEEDED] * 2
    assert first.unapproved
    assert not first.succeeded
    with path.open() as source:
        (line,) = problems_of(PolicyFile(source).policy, first)
    assert line.endswith(f"run with --approve {first.unapproved}")
    last = approved(first.unapproved)
    assert last.succeeded
    assert [item["level"] for item in blocks.data("list")["items"]] == [2]
