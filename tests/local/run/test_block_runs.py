"""`compactor run` of a block store: one run and a watch, on threads; at the end with Spark, PostgreSQL and S3."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.kind import BLOCKS
from compaction.blocks.model import RowFingerprint
from compaction.cli.local.policy_file import PolicyFile
from compaction.cli.main import main
from compaction.local.run.job import News, RunResult
from compaction.local.run.once import LocalRun, LocalWatch
from compaction.local.run.workers import ThreadEngine
from compaction.storage.adapter import open_store
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.ports import Assignment, HeldLease, JobRunner
from support.blocks.block_commands import BlockCommands, block, in_folder, policy_file
from support.clocks import PATIENCE_SECONDS, eventually
from support.object_stores import S3
from tools.servers.postgres import PostgresServer

SOON = [{"maxBlocks": 4, "maxAge": "1ms"}]
Before = Callable[[Assignment], None]


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    return in_folder(tmp_path / "store")


class Runner:
    """The worker's own runner, and what happens before each attempt."""

    def __init__(self, engine: ThreadEngine, file: PolicyFile, before: Before) -> None:
        self._runner = RunnerOfAllKinds(engine, holder="local", secrets=file)
        self._before = before

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        self._before(assignment)
        return self._runner.run(assignment, lease)


@contextmanager
def threads(file: PolicyFile, before: Before = lambda assignment: None) -> Iterator[JobRunner]:
    with ThreadEngine(2) as engine:
        yield Runner(engine, file, before)


def opened(path: Path) -> PolicyFile:
    with path.open() as source:
        return PolicyFile(source)


def run(path: Path, before: Before = lambda assignment: None) -> RunResult:
    file = opened(path)
    with closing(open_store(file.policy.spec, holder="local", secrets=file)) as store:
        return LocalRun(file.policy, store=store, open_runner=lambda: threads(file, before)).run()


def live(blocks: BlockCommands) -> list[tuple[int, int]]:
    return sorted((item["level"], item["rows"]) for item in blocks.data("list")["items"])


def content(blocks: BlockCommands) -> RowFingerprint:
    assert blocks.data("verify")["bad"] == 0
    listed = [RowFingerprint.parse(item["fingerprint"]) for item in blocks.data("list")["items"]]
    return sum(listed, RowFingerprint())


def test_a_dry_run_plans_and_changes_nothing(
    blocks: BlockCommands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks.add(1, 2, 3)
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=SOON)
    with pytest.raises(SystemExit) as end:
        main(["run", "-f", str(file), "--dry-run"])
    assert end.value.code == 0
    assert "1 job would merge 3 blocks" in capsys.readouterr().out
    assert live(blocks) == [(0, 50)] * 3


def test_an_index_that_is_not_there_ends_in_one_line(
    blocks: BlockCommands, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction.blocks.cli.run_tables.PATIENCE", 0.0)
    blocks.add(1)
    text = policy_file(tmp_path / "policy.yaml", blocks).read_text()
    (tmp_path / "away.yaml").write_text(
        text.replace(blocks.connection.index_url, "postgresql://u:hunter2@127.0.0.1:1/x")
    )
    assert main(["run", "-f", str(tmp_path / "away.yaml")]) == 1
    error = capsys.readouterr().err
    assert error.startswith('error: Index database "x" at 127.0.0.1:1 refused the connection. Check the URL in Secret ')
    assert len(error.splitlines()) == 1
    assert "hunter2" not in error


def test_blocks_that_expire_meanwhile_do_not_hold_back_the_others(blocks: BlockCommands, tmp_path: Path) -> None:
    """Their job can never be done, and what is left of it is planned anew in the same run."""
    old, *_ = blocks.add(1, 2, 3)
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=SOON)
    seen: list[str] = []

    def expire_first(assignment: Assignment) -> None:
        if not seen:
            with blocks.opened() as store:
                expire(store.index, RetentionPeriods(default=1), clock=store.now, limit=1)
        seen.append(assignment.job_name)

    result = run(file, expire_first)
    assert [job.state for job in result.jobs] == [JobState.FAULTY, JobState.SUCCEEDED]
    assert live(blocks) == [(1, 100)]
    assert old not in {item["id"] for item in blocks.data("list")["items"]}


def test_blocks_with_which_a_merge_fails_do_not_hold_back_their_siblings(blocks: BlockCommands, tmp_path: Path) -> None:
    """The job is halved as long as both halves have two blocks: none is rewritten alone."""
    pair = set(blocks.add(*range(1, 9))[:2])
    path = policy_file(tmp_path / "policy.yaml", blocks, levels=[{"maxBlocks": 8, "maxAge": "1ms"}])
    file = opened(path)

    class Failing(Runner):
        def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
            sources = assignment.spec.sources.blocks
            assert sources is not None
            if pair <= set(sources.blocks):
                return JobReport(
                    token=assignment.token,
                    outcome=ReportOutcome.FAILED,
                    reason=JobReason.INTERNAL_ERROR,
                    message="an unexpected error",
                )
            return super().run(assignment, lease)

    @contextmanager
    def runner() -> Iterator[JobRunner]:
        with ThreadEngine(2) as engine:
            yield Failing(engine, file, lambda assignment: None)

    with closing(open_store(file.policy.spec, holder="local", secrets=file)) as store:
        result = LocalRun(file.policy, store=store, open_runner=runner).run()
    assert [job.state for job in result.jobs].count(JobState.FAULTY) == 3
    assert live(blocks) == [(0, 50), (0, 50), (1, 100), (1, 200)]


def test_blocks_of_three_units_of_time_are_merged_in_three_jobs(blocks: BlockCommands, tmp_path: Path) -> None:
    """No job fails, none has a single block, levels are not used up, and what is equal meets again."""
    kinds = [pa.timestamp(unit, "UTC") for unit in ("ms", "us", "ns")]
    for first, kind in enumerate(kinds):
        blocks.add_of(kind, *range(first, 18, 3))
    levels = [{"maxBlocks": most, "maxAge": "1ms"} for most in (20, 10, 10)]
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=levels)
    before = content(blocks)
    result = run(file)
    assert [(job.state, len(job.sources)) for job in result.jobs] == [(JobState.SUCCEEDED, 6)] * 3
    assert live(blocks) == [(1, 300)] * 3
    for first, kind in enumerate(kinds):
        blocks.add_of(kind, 20 + first, 30 + first)
    again = run(file)
    assert {job.state for job in again.jobs} == {JobState.SUCCEEDED}
    assert min(len(job.sources) for job in again.jobs) > 1
    assert [rows for _, rows in live(blocks)] == [400] * 3
    assert content(blocks).rows == before.rows + 6 * 50
    assert run(file).jobs == ()


def test_an_interrupt_gives_the_blocks_back(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1, 2)
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=SOON)

    def interrupt(assignment: Assignment) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(file, interrupt)
    with blocks.opened() as store:
        assert store.open_jobs() == ()
    assert [job.state for job in run(file).jobs] == [JobState.SUCCEEDED]
    assert live(blocks) == [(1, 100)]


def test_a_job_that_another_run_took_over_is_left_to_that_one(blocks: BlockCommands, tmp_path: Path) -> None:
    """Two runs at the same moment plan the same job; one of them wins, and the other does not get in its way."""
    blocks.add(1, 2)
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=SOON)
    claimed: list[str] = []

    def take_over(assignment: Assignment) -> None:
        sources = assignment.spec.sources.blocks
        assert sources is not None
        with blocks.opened() as store:
            store.claim(job=assignment.job_name, token=assignment.token + 1, sources=sources.blocks, output_level=1)
        claimed.append(assignment.job_name)

    result = run(file, take_over)
    assert [job.state for job in result.jobs] == [JobState.FAULTY]
    with blocks.opened() as store:
        assert [job.job for job in store.open_jobs()] == claimed


def test_a_lone_block_without_rows_is_dropped_with_a_receipt(blocks: BlockCommands, tmp_path: Path) -> None:
    path = blocks.write(1, count=0)
    blocks.data("register", path, "--tenant", "acme")
    blocks.add(2)
    (job,) = run(policy_file(tmp_path / "policy.yaml", blocks, levels=SOON)).jobs
    assert job.state is JobState.SUCCEEDED
    receipt = job.status.receipt
    assert receipt is not None
    assert (receipt.sources, receipt.outputs, receipt.records, BLOCKS.proves_equal(receipt)) == (
        (block(1),),
        (),
        0,
        True,
    )
    assert job.status.attempts[-1].message.startswith("1 block without rows dropped")
    assert live(blocks) == [(0, 50)]
    assert [item["block"] for item in blocks.data("sweep")["tombstones"]["items"]] == [block(1)]


class Watched:
    """A watch in a thread of its own, and all that it told."""

    def __init__(self, path: Path, before: Before = lambda assignment: None) -> None:
        self.file = opened(path)
        self.news: list[News] = []
        self.watch = LocalWatch(
            self.file.policy,
            open_store=lambda policy: open_store(policy.spec, holder="local", secrets=self.file),
            open_runner=lambda policy: threads(self.file, before),
            reread=self.file.reread,
            tell=self.news.append,
        )
        self._thread = threading.Thread(target=self.watch.run, name="watch")
        self._thread.start()

    def stop(self) -> None:
        self.watch.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def begin() -> Iterator[Callable[..., Watched]]:
    watches: list[Watched] = []

    def begin(*args: Any) -> Watched:
        watches.append(Watched(*args))
        return watches[-1]

    yield begin
    for watch in watches:
        watch.stop()


def watch_policy(path: Path, blocks: BlockCommands, **changes: Any) -> Path:
    spec = {"trigger": {"interval": "200ms"}, "workers": {"idleSeconds": 1}, "cleanup": {"delay": "0s"}}
    return policy_file(path, blocks, spec=spec, **({"levels": SOON} | changes))


def test_a_watch_merges_what_comes_and_deletes_what_was_replaced(
    blocks: BlockCommands, tmp_path: Path, begin: Callable[..., Watched]
) -> None:
    blocks.add(1, 2)
    watched = begin(watch_policy(tmp_path / "policy.yaml", blocks))
    eventually(lambda: live(blocks) == [(1, 100)], "the first two are merged")
    blocks.add(3, 4, 5)
    eventually(lambda: live(blocks) == [(1, 100), (1, 150)], "and those that came later")
    eventually(lambda: len(list(blocks.objects.list("acme"))) == 2, "what was replaced is deleted")
    watched.stop()
    assert watched.watch.objects.policy.status.succeeded == 2
    assert not [item for item in watched.news if item.warning]
    said = [item.message for item in watched.news if item.reason == "Succeeded"]
    assert said[0].startswith("2 blocks merged into 1 with token 1, ")
    assert any(item.message.endswith(" deleted after the grace") for item in watched.news if item.reason == "Swept")


def test_a_watch_drops_a_lone_block_without_rows(
    blocks: BlockCommands, tmp_path: Path, begin: Callable[..., Watched]
) -> None:
    """Its decisions are the operator's."""
    blocks.add(1)
    blocks.data("register", blocks.write(2, count=0), "--tenant", "acme")
    watched = begin(watch_policy(tmp_path / "policy.yaml", blocks))
    eventually(lambda: live(blocks) == [(0, 50)], "it is live no more")
    eventually(lambda: watched.watch.objects.policy.status.succeeded == 1, "it is counted")
    watched.stop()
    said = [item.message for item in watched.news if item.reason == "Succeeded"]
    assert said[0].startswith("1 block without rows dropped")


def test_a_watch_sets_a_bad_block_aside_and_says_so(
    blocks: BlockCommands, tmp_path: Path, begin: Callable[..., Watched]
) -> None:
    _, bad, _ = blocks.add(1, 2, 3)
    blocks.objects.delete([blocks.data("inspect", bad)["path"]])
    watched = begin(watch_policy(tmp_path / "policy.yaml", blocks))
    eventually(lambda: live(blocks) == [(0, 50), (1, 100)], "the others are merged")
    eventually(lambda: bool(watched.watch.objects.policy.status.quarantined), "it is named in the status")
    watched.stop()
    assert [each.source for each in watched.watch.objects.policy.status.quarantined] == [bad]
    assert [item["block"] for item in blocks.data("quarantine")["items"]] == [bad]


def test_a_watch_that_is_stopped_gives_the_blocks_back(
    blocks: BlockCommands, tmp_path: Path, begin: Callable[..., Watched]
) -> None:
    blocks.add(1, 2)
    reached, go = threading.Event(), threading.Event()

    def wait(assignment: Assignment) -> None:
        reached.set()
        assert go.wait(PATIENCE_SECONDS)

    watched = begin(watch_policy(tmp_path / "policy.yaml", blocks), wait)
    assert reached.wait(PATIENCE_SECONDS)
    with blocks.opened() as store:
        assert len(store.open_jobs()) == 1
    watched.watch.stop()
    go.set()
    watched.stop()
    with blocks.opened() as store:
        assert store.open_jobs() == ()
    assert live(blocks) == [(0, 50), (0, 50)]


def test_a_changed_secret_is_in_force_without_a_restart(
    blocks: BlockCommands, tmp_path: Path, begin: Callable[..., Watched]
) -> None:
    blocks.add(1, 2)
    path = watch_policy(tmp_path / "policy.yaml", blocks)
    right = path.read_text()
    path.write_text(right.replace(blocks.connection.index_url, f"sqlite:///{tmp_path}/no/such/place.db"))
    watched = begin(path)
    eventually(lambda: any(item.warning for item in watched.news), "it is told what is wrong")
    assert live(blocks) == [(0, 50), (0, 50)]
    fresh = tmp_path / "fresh.yaml"
    fresh.write_text(right)
    fresh.replace(path)
    eventually(lambda: live(blocks) == [(1, 100)], "the blocks are merged")


@pytest.mark.spark
def test_the_commands_on_postgresql_and_s3(postgres: PostgresServer, s3: S3, tmp_path: Path) -> None:
    """Real processes, secrets from the environment and from files: register, plan, run with Spark, compact, verify."""
    bucket, database = s3.bucket(), postgres.create()
    options = tmp_path / "options.yaml"
    options.write_text(yaml.safe_dump(dict(s3.gateway.options())))
    index_url = postgres.url(database)
    environment = {
        "COMPACTION_STORE_URL": f"{bucket}/blocks",
        "COMPACTION_INDEX_URL": index_url,
        "COMPACTION_STORE_OPTIONS_FILE": str(options),
    }
    blocks = BlockCommands.on(f"{bucket}/blocks", index_url, dict(s3.gateway.options()), environment)
    ids = blocks.add(*range(1, 9))
    before = content(blocks)
    blocks.objects.delete([blocks.data("inspect", ids[3])["path"]])
    levels = [{"maxBlocks": 4, "maxAge": "1h"}, {"maxBlocks": 2, "maxAge": "1h"}]
    file = policy_file(tmp_path / "policy.yaml", blocks, levels=levels, spec={"workers": {"sparkMaster": "local[2]"}})
    assert blocks.data("inspect")["items"][0]["blocks"] == 8
    left = blocks.data("sweep", "--keep", "999999h")
    assert left["orphans"] == {"protected": 0, "waiting": 0, "more": False, "items": [], "owned": []}
    assert left["retention"]["blocks"] == 0
    planned = blocks.data("plan", "-f", file)
    assert [len(job["sources"]) for job in planned["jobs"]] == [4, 4]
    first = _process("run", "-f", str(file), "-o", "yaml", TMPDIR=str(tmp_path))
    assert first.returncode == 1, first.stderr
    assert ids[3] in first.stdout
    data = yaml.safe_load(first.stdout)
    assert {job["verified"] for job in data["jobs"]} == {"equal"}
    assert [item["source"] for item in data["quarantined"]] == [ids[3]]
    assert live(blocks) == [(0, 50), (2, 350)]
    assert blocks.run("quarantine", ids[3], "--drop", "--yes").exit_code == 0
    again = blocks.add(20, 21)
    compacted = _process("blocks", "compact", "--all", "--levels", "2:1h,2:1h", "-o", "json", **environment)
    assert compacted.returncode == 0, compacted.stderr
    assert live(blocks) == [(1, 100), (2, 350)]
    assert content(blocks).rows == before.rows - 50 + 50 * len(again)
    password = str(s3.gateway.options()["secret_access_key"])
    for output in (first.stdout + first.stderr, compacted.stdout + compacted.stderr):
        assert postgres.password not in output
        assert password not in output
        assert "Traceback" not in output
    swept = blocks.data("sweep", "--apply", "--grace", "0s")
    assert swept["tombstones"]["blocks"] == 0
    assert len(list(blocks.objects.list("acme"))) == 2


def _process(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "compaction.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
