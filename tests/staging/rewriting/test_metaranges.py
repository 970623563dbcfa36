"""Attempts at a branch: one swap with the claim's token and the lease, and what is known of it afterwards."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.api.policy.staging_area import StagingAreaReference
from compaction.staging.compaction import (
    BranchWork,
    ChangesSpool,
    claim,
    decode_changes,
    encode_changes,
    rewrite,
    swap_base,
    work_on,
)
from compaction.staging.errors import (
    CorruptRangeError,
    RewriteProofError,
    UnexpectedRangeError,
    WorkerShortageError,
    WorkOutdatedError,
)
from compaction.staging.format.columns import TOMBSTONE, RecordColumns, concatenated
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.rewriting import rewriter, tree
from compaction.staging.rewriting.report import MetarangeJob
from compaction.staging.rewriting.rewriter import COMMIT_PATIENCE, MetarangeAttempt
from compaction.staging.rewriting.tree import TreeWriter, WrittenTree
from compaction.staging.sweep import sweep_objects, sweep_tokens
from compaction.staging.tree.applying import Part, PartResult, write_part
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import DatabaseUnavailableError
from compaction.worker.errors import LeaseLostError
from compaction.worker.tasks import ObjectsPlace
from support.processes.worker_ports import FakeLease, ThreadEngine
from support.staging.staging_repos import DRAFT, Content, StagingRepo, framed
from support.timing import seeds

STORE = StagingAreaReference.model_validate({"repository": "example", "kv": {"secretName": "kv"}})
JOB = "job-1"
HEAD = {f"k/{number:02}": "1" for number in range(30)}


class Attempts:
    """Attempts at the branch `main`, and the clock that they see."""

    def __init__(self, repo: StagingRepo, folder: Path, engine: ThreadEngine) -> None:
        self.repo, self.folder, self.engine = repo, folder, engine
        record = repo.put(HEAD, sealed=[{"k/05": "2", "k/07": None}], staging={"new": "1"})
        self.work: BranchWork = work_on("example", record, staged=True)
        self.expected = repo.shown()
        self.passed = 0.0
        self.readings = 0

    def make(self, token: int, *, lease: FakeLease | None = None) -> MetarangeAttempt:
        return MetarangeAttempt(
            job=MetarangeJob(JOB, STORE, self.work),
            token=token,
            area=self.repo.area,
            place=ObjectsPlace(str(self.folder)),
            worker=f"worker-{token}",
            lease=lease or FakeLease(token=token),
            engine=self.engine,
            monotonic=self.time,
            sleep=self.pass_time,
        )

    def run(self, token: int) -> JobReport:
        return self.make(token).run()

    def claim(self, token: int) -> None:
        claim(self.repo.area, self.work, job=JOB, token=token)

    def time(self) -> float:
        self.readings += 1
        return self.passed

    def pass_time(self, seconds: float) -> None:
        self.passed += seconds

    @property
    def objects(self) -> set[str]:
        return {item.path for item in self.repo.area.ranges.stored()}

    @property
    def record(self) -> Any:
        return self.repo.area.branches.get("main").record


@pytest.fixture
def attempts(branch: StagingRepo, folder: Path, engine: ThreadEngine) -> Attempts:
    return Attempts(branch, folder, engine)


def test_the_tokens_become_the_base(attempts: Attempts) -> None:
    attempts.claim(1)
    report = attempts.run(1)
    assert (report.outcome, report.reason, report.token) == (ReportOutcome.SUCCEEDED, JobReason.COMPLETED, 1)
    record, receipt = attempts.record, report.receipt
    assert receipt is not None
    assert receipt.metarange is not None
    assert (record.compacted_base, record.sealed_tokens) == (receipt.metarange.metarange, ())
    assert (record.claim_job, record.compacted_job, record.compacted_token) == ("", JOB, 1)
    assert receipt.fingerprint_before == receipt.fingerprint_after
    assert (receipt.metarange.ranges_touched, receipt.metarange.ranges_written) == (2, 3)
    assert [(measure.name, measure.before, measure.after) for measure in receipt.measures] == [
        ("tombstones", 1, 0),
        ("sealedTokens", 2, 0),
        ("stagedWrites", 3, 0),
        ("ranges", 2, 3),
    ]
    assert (receipt.sources, receipt.worker) == (attempts.work.tokens, "worker-1")
    assert attempts.repo.shown() == attempts.expected


def test_an_attempt_without_the_claim_writes_nothing(attempts: Attempts) -> None:
    attempts.claim(1)
    attempts.claim(2)
    before, objects = attempts.record, attempts.objects
    report = attempts.run(1)
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.STALE_TOKEN)
    assert not report.charged
    assert (attempts.record, attempts.objects, attempts.engine.submitted) == (before, objects, [])
    assert attempts.run(2).outcome is ReportOutcome.SUCCEEDED


def test_work_that_a_commit_has_overtaken_writes_nothing(attempts: Attempts) -> None:
    attempts.claim(1)
    attempts.repo.committer.commit("main", DRAFT)
    objects = attempts.objects
    report = attempts.run(1)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    assert attempts.objects == objects


def test_a_base_that_the_branch_has_left_behind_is_no_damage(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset takes it from the branch while an attempt is about to read it, and the sweep deletes it."""
    repo = attempts.repo
    record = repo.put(HEAD, base=HEAD | {"k/01": "3"}, sealed=[{"k/05": "2"}])
    attempts.work = work_on("example", record, staged=False)
    attempts.claim(1)
    write = TreeWriter.write

    def outrun(self: TreeWriter, work: BranchWork) -> WrittenTree:
        repo.resetter.reset("main")
        for _ in range(2):
            sweep_tokens(repo.area, grace=0)
        sweep_objects(repo.area, grace=-1e12)
        repo.area.ranges.forget(work.base)
        return write(self, work)

    monkeypatch.setattr(TreeWriter, "write", outrun)
    report = attempts.run(1)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    with pytest.raises(WorkOutdatedError):
        rewrite(repo.area, attempts.work)


def test_what_an_earlier_attempt_has_committed_is_reported_and_not_made_again(attempts: Attempts) -> None:
    attempts.claim(1)
    first = attempts.run(1)
    before, submitted = attempts.record, list(attempts.engine.submitted)
    again = attempts.run(2)
    assert (again.outcome, again.token) == (ReportOutcome.SUCCEEDED, 2)
    assert again.receipt == first.receipt
    assert (attempts.record, attempts.engine.submitted) == (before, submitted)


def test_without_the_lease_nothing_is_swapped(attempts: Attempts) -> None:
    """It is lost when the tree is written, before the swap."""
    attempts.claim(1)
    before, lease = attempts.record, FakeLease()
    working = attempts.make(1, lease=lease)

    def lose_it() -> float:
        if attempts.readings == 1:  # the second reading: when all is written
            lease.lose_at = 0
        return attempts.time()

    working.monotonic = lose_it
    with pytest.raises(LeaseLostError):
        working.run()
    assert attempts.readings > 1
    assert attempts.record == before


def test_a_swap_whose_answer_is_lost_is_repeated(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.claim(1)
    calls: list[str] = []

    def swap(*arguments: Any, **options: Any) -> Any:
        calls.append("swap")
        done = swap_base(*arguments, **options)
        if len(calls) < 3:
            raise DatabaseUnavailableError("key-value store", "no answer, as the test wants it")
        return done

    monkeypatch.setattr(rewriter, "swap_base", swap)
    report = attempts.run(1)
    assert (report.outcome, len(calls)) == (ReportOutcome.SUCCEEDED, 3)
    assert attempts.passed > 0
    assert attempts.repo.shown() == attempts.expected


def test_a_database_that_stays_away_ends_it_uncharged(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.claim(1)
    before = attempts.record

    def away(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailableError("key-value store", "away, as the test wants it")

    monkeypatch.setattr(rewriter, "swap_base", away)
    report = attempts.run(1)
    assert (report.outcome, report.charged) == (ReportOutcome.FAILED, False)
    assert attempts.passed >= COMMIT_PATIENCE
    assert attempts.record == before


# The tree of a branch, written in parts by tasks: the same tree as in one go, proved part by part.


def write(
    repo: StagingRepo, folder: Path, engine: ThreadEngine, work: BranchWork, lease: FakeLease | None = None
) -> WrittenTree:
    """With parts as small as they can be."""
    place = ObjectsPlace(str(folder))
    writer = TreeWriter(
        area=repo.area, place=place, engine=engine, lease=lease or FakeLease(), tag="job.1", part_bytes=1
    )
    return writer.write(work)


def random_state(random: Random) -> tuple[Content, Content | None, list[Content], Content]:
    """A commit, perhaps a compacted base, and layers of changes, of up to 200 keys."""

    def content(size: int, *, deletions: float = 0.0) -> Content:
        keys = random.sample([f"k/{n:04}" for n in range(400)], size)
        return {key: None if random.random() < deletions else str(random.randrange(9)) for key in keys}

    head = content(random.randrange(200))
    base = content(random.randrange(200)) if random.random() < 0.4 else None
    sealed = [content(random.randrange(60), deletions=0.5) for _ in range(random.randrange(4))]
    return head, base, sealed, content(random.randrange(1, 60), deletions=0.3)


@pytest.mark.parametrize("seed", seeds(16))
def test_the_same_tree_as_in_one_go(branch: StagingRepo, folder: Path, engine: ThreadEngine, seed: int) -> None:
    head, base, sealed, staging = random_state(Random(seed))
    record = branch.put(head, base=base, sealed=sealed, staging=staging)
    work = work_on("example", record, staged=True)
    alone = rewrite(branch.area, work)
    lease = FakeLease()
    tree = write(branch, folder, engine, work, lease)
    assert (tree.tree, tree.counts, tree.reused) == (alone.tree, alone.applied.counts, alone.applied.reused)
    assert tree.written == alone.applied.written
    assert lease.progress == sorted(lease.progress)
    assert max(lease.progress, default=99) <= 99


def test_only_what_is_touched_is_read(branch: StagingRepo, folder: Path, engine: ThreadEngine) -> None:
    record = branch.put({f"k/{n:04}": "1" for n in range(500)}, staging={"k/0100": "2", "k/0300": None})
    tree = write(branch, folder, engine, work_on("example", record, staged=True))
    assert len(engine.submitted) == 2
    assert tree.reused > 20 * len(tree.written)
    assert tree.bytes_read < 5000


def test_a_part_that_does_not_read_back_ends_it(
    branch: StagingRepo, folder: Path, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = branch.put({"a": "1"}, staging={"b": "2"})
    monkeypatch.setattr(tree, "read_back", lambda storage, ranges: "1:another")
    with pytest.raises(RewriteProofError, match=r"read back as 1:another, the branch shows 1:"):
        write(branch, folder, engine, work_on("example", record, staged=True))
    assert branch.area.branches.get("main").record == record


def test_a_record_with_the_identity_of_the_base_is_the_tokens(
    branch: StagingRepo, folder: Path, engine: ThreadEngine
) -> None:
    """Its address and its time are visible, and no identity covers them."""
    record = branch.put({"a": "1", "b": "1"}, staging={"a": "1#moved"})
    tree = write(branch, folder, engine, work_on("example", record, staged=True))
    found = [pair for batch in branch.area.ranges.records(tree.tree) for pair in batch.pairs()]
    assert found == [(b"a", framed("1#moved")), (b"b", framed("1"))]
    assert tree.counts.total == 0


def test_a_part_that_lost_a_change_ends_it(
    branch: StagingRepo, folder: Path, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is what is read back: only the view of a reader tells that a deletion is missing."""
    record = branch.put({"a": "1"}, staging={"a": None, "b": "2"})

    def losing(storage: RangeStorage, part: Part, changes: Iterable[RecordColumns], **options: bool) -> PartResult:
        pairs = [pair for batch in changes for pair in batch.pairs()]
        return write_part(storage, part, [RecordColumns.of(pairs[1:])], **options)

    monkeypatch.setattr(tree, "write_part", losing)
    with pytest.raises(RewriteProofError, match=r"read back as 2:.*, the branch shows 1:"):
        write(branch, folder, engine, work_on("example", record, staged=True))


def test_a_metarange_that_is_not_what_was_written_ends_it(
    branch: StagingRepo, folder: Path, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from the object storage, not from what the process remembers of it."""
    record = branch.put({"a": "1"}, staging={"b": "2"})
    write_metarange = RangeStorage.write_metarange

    def damaging(self: RangeStorage, ranges: Iterable[RangeInfo]) -> str:
        tree = write_metarange(self, ranges)
        path = folder / self.path(tree)
        data = bytearray(path.read_bytes())
        data[3] ^= 0xFF
        path.write_bytes(data)
        return tree

    monkeypatch.setattr(RangeStorage, "write_metarange", damaging)
    with pytest.raises(RewriteProofError, match="checksum"):
        write(branch, folder, engine, work_on("example", record, staged=True))


def test_a_damaged_range_is_named(branch: StagingRepo, folder: Path, engine: ThreadEngine) -> None:
    record = branch.put({f"k/{n:04}": "1" for n in range(100)}, staging={"k/0050": "2"})
    tree = branch.area.references.commit("main").meta_range_id
    touched = next(item for item in branch.area.ranges.ranges(tree) if item.max_key >= b"k/0050")
    path = folder / branch.area.ranges.path(touched.id)
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptRangeError, match=touched.id):
        write(branch, folder, engine, work_on("example", record, staged=True))


def test_without_the_lease_nothing_goes_on(branch: StagingRepo, folder: Path, engine: ThreadEngine) -> None:
    record = branch.put({}, staging={"b": "2"})
    lease = FakeLease(lose_at=0)
    with pytest.raises(LeaseLostError):
        write(branch, folder, engine, work_on("example", record, staged=True), lease)


class TestSpool:
    def test_each_part_gets_its_changes(self) -> None:
        batches = [
            RecordColumns.of((b"%03d" % n, TOMBSTONE if n % 3 else framed("x")) for n in range(begin, begin + 10))
            for begin in range(0, 100, 10)
        ]
        bounds: list[bytes | None] = [b"004", b"010", b"0105", b"050", None]
        parts = [Part(after, until, (), 0, 0, 0) for after, until in zip([None, *bounds[:-1]], bounds, strict=True)]
        with ChangesSpool() as spool:
            assert concatenated(list(spool.through(batches))).pairs() == concatenated(batches).pairs()
            found = {part.until: concatenated(list(decode_changes(data))).pairs() for part, data in spool.parts(parts)}
        assert (spool.changes, spool.nbytes) == (100, concatenated(batches).nbytes)
        assert [len(pairs) for pairs in found.values()] == [5, 6, 0, 40, 49]
        assert [pair for pairs in found.values() for pair in pairs] == concatenated(batches).pairs()

    def test_no_changes_travel_as_nothing(self) -> None:
        assert list(decode_changes(encode_changes([]))) == []


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        (MemoryError(), r"example/main: out of memory: give the worker more"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"scratch space of the worker: No space left on device",
        ),
    ],
)
def test_what_a_worker_lacks_is_said_and_no_defect(
    branch: StagingRepo,
    folder: Path,
    engine: ThreadEngine,
    monkeypatch: pytest.MonkeyPatch,
    lacking: Exception,
    says: str,
) -> None:
    def fail(*args: object, **known: object) -> None:
        raise lacking

    record = branch.put({"a": "1"}, sealed=[{"b": "2"}])
    monkeypatch.setattr(tree, "write_part", fail)
    with pytest.raises(WorkerShortageError, match=says):
        write(branch, folder, engine, work_on("example", record, staged=True))


def test_a_defect_in_a_part_is_named_and_no_loss_of_the_engine(
    branch: StagingRepo, folder: Path, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = branch.put({"a": "1"}, sealed=[{"b": "2"}])
    monkeypatch.setattr(tree, "write_part", lambda *args, **known: [][3])
    with pytest.raises(UnexpectedRangeError, match=r"an unexpected IndexError at staging/rewriting/tree\.py:"):
        write(branch, folder, engine, work_on("example", record, staged=True))
