"""The demo's own judgement: what it measures, what it accepts as proof, and that it says NO when something is wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rich.console import Console

from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, wait_gone
from compaction.local.tenants import Check
from compaction.segments.generate import CorruptedAt, corrupt_entry, generate_log
from compaction.segments.reading.view import open_log
from demos import cluster, scenes
from demos.cluster import Accident, DemoCluster, DemoObservation
from demos.segments import owners, proof, run
from demos.segments import proof as losses_module
from demos.segments.proof import KeyReader, Loss
from demos.segments.run import LogScene, proof_table, receipts_table
from demos.stage import DemoStage, stop_servers
from replicated_kv.errors import UnavailableError
from replicated_kv.messages import Status
from replicated_kv.workload import Comparison, Workload
from support.clocks import PATIENCE_SECONDS

NOW = "2026-01-01T00:00:00Z"
Part = TypeVar("Part", Comparison, proof.MeasuredLog)
NAMES = tuple(f"{number:016d}.segment" for number in range(1, 6))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    generate_log(
        tmp_path / "random", pattern="random", segments=5, entries_per_segment=64, payload_bytes=128, sync=False
    )
    return tmp_path / "random"


def test_facts_do_not_depend_on_names_but_on_content(log: Path) -> None:
    before = proof.measure(log)
    assert before.entries > 0
    assert before.unreadable == ()
    assert (before.segments, before.waiting) == (5, 0)
    assert before.disk_bytes == sum(path.stat().st_size for path in log.glob("*.segment"))


def test_facts_notice_one_flipped_byte_of_a_live_entry(log: Path) -> None:
    before = proof.measure(log)
    state = open_log(log)
    record = int(state.live_mask(state.segments[1].idx).argmax())
    damage = corrupt_entry(log, segment=2, record=record)
    after = proof.measure(log)
    assert after.unreadable == (damage.index,)
    assert after.entries == before.entries - 1
    assert after.fingerprint != before.fingerprint


def test_disk_bytes_count_a_hard_link_once_and_a_symlink_never(log: Path) -> None:
    before = proof.disk_bytes(log)
    (log / "0000000000000009.segment").hardlink_to(log / NAMES[0])
    (log / "0000000000000010.segment").symlink_to(NAMES[0])
    assert proof.disk_bytes(log) == before


@pytest.mark.parametrize("name", ["x.link", "x.compacting", "x.partial"])
def test_leftovers_wait(log: Path, name: str) -> None:
    assert proof.waiting(log) == 0
    (log / name).touch()
    (log / "0000000000000010.segment").symlink_to(NAMES[0])
    assert proof.waiting(log) == 2


def test_the_policy_is_one_the_models_accept(tmp_path: Path) -> None:
    policy = CompactionPolicy.from_object(owners.policy(tmp_path))
    assert policy.spec.store.segment_logs is not None
    assert policy.spec.store.segment_logs.root == str(tmp_path)


def test_every_claim_holds_for_a_good_run(story: Story) -> None:
    assert [check.claim for check in story.checks() if not check.holds] == []


@pytest.mark.parametrize(
    ("claim", "spoil"),
    [
        ("a: every key, read back from its log", lambda s: s.member("a", different=("load-000007",))),
        ("c: every key, read back from its log", lambda s: s.member("c", keys=0)),
        ("b: its log was compacted while it was written", lambda s: s.member("b", unreadable=(7,))),
        ("b: its log was compacted while it was written", lambda s: s.moments.clear()),
        ("a: its log was compacted while it was written", lambda s: s.job_of("a", bytesReclaimed=0)),
        ("a reader found what was acknowledged", lambda s: s.reader.wrong.append("load-000001 holds nothing")),
        ("a reader found what was acknowledged", lambda s: setattr(s.reader, "read", 0)),
        ("a reader found what was acknowledged", lambda s: setattr(s.reader, "error", UnavailableError("no leader"))),
        ("the owner a was killed", lambda s: setattr(s.losses, "killed_at", None)),
        ("the owner a was killed", lambda s: setattr(s.losses, "killed_at", moment(25))),
        ("the owner c was down", lambda s: setattr(s.losses, "installed", 0)),
        ("the owner c was down", lambda s: setattr(s.losses, "skipped", 90)),
        ("a worker was killed", lambda s: setattr(s.accident, "worker", "")),
        ("a worker was killed", lambda s: s.accident.jobs.clear()),
        ("a worker was killed", lambda s: s.accident.jobs.update({"job-b-1": 2})),
        ("a worker was killed", lambda s: s.accident.jobs.update({"job-b-3": 1})),
        ("the readable live content is the same", lambda s: s.after(fingerprint="ff")),
        ("the readable live content is the same", lambda s: s.after(unreadable=(7, 8))),
        ("disk space came back", lambda s: s.after(disk_bytes=1000)),
        ("disk space came back", lambda s: s.after(disk_bytes=401)),
        ("equal fingerprints", lambda s: s.receipt(fingerprintAfter="b")),
        ("equal fingerprints", lambda s: s.receipt(fingerprintBefore="", fingerprintAfter="")),
        ("every job ended", lambda s: s.job(state="InProgress")),
        ("every job ended", lambda s: s.ended("b", "TooManyAttempts")),
        ("named in the policy's status", lambda s: s.quarantine(index=1)),
        ("named in the policy's status", lambda s: s.quarantine(source=NAMES[0])),
        ("its siblings on both sides", lambda s: s.receipt(sources=[NAMES[0], NAMES[1]])),
        ("its siblings on both sides", lambda s: s.receipt(sources=[NAMES[0], NAMES[2], NAMES[3]])),
        ("deleted after their grace", lambda s: s.after(waiting=1)),
        ("deleted after their grace", lambda s: s.member("b", waiting=1)),
        ("one replica led", lambda s: s.replicas(1)),
    ],
)
def test_what_is_wrong_is_said(story: Story, claim: str, spoil: Callable[[Story], object]) -> None:
    spoil(story)
    failed = [check.claim for check in story.checks() if not check.holds]
    assert any(claim in text for text in failed), failed


def test_a_job_whose_sources_an_owner_has_deleted_is_planned_again(story: Story) -> None:
    story.ended("b", "SourcesChanged")
    story.accident.jobs["job-b-3"] = 1
    assert [check.claim for check in story.checks() if not check.holds] == []
    (said,) = [check.fact for check in story.checks() if check.claim.startswith("every job ended")]
    assert said == "7 succeeded, 0 faulty, 1 planned again: an owner came first"
    (said,) = [check.fact for check in story.checks() if check.claim.startswith("a worker was killed")]
    assert said == "dead was killed; 1 of 2 jobs done since, 1 planned again"


def test_settled_only_after_the_operator_looked_once_more(story: Story) -> None:
    assert story.observation().settled
    story.status["debt"]["sources"] = 1
    assert not story.observation().settled
    story.status["debt"]["sources"] = 0
    story.status["lastSenseTime"] = "2025-12-31T23:59:59Z"
    assert not story.observation().settled
    assert not DemoObservation(None, (), None).settled


def test_plain_view_shows_changes_once(story: Story) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    with scenes.watching(console) as shown:
        shown.show(story.scene())
        shown.show(story.scene())
    lines = output.getvalue().splitlines()
    assert [line.split()[2:5] for line in lines[:7]] == [["job", "job-archive", "archive"]] + [
        ["job", f"job-{name}-{number}", f"kv-{name}"] for name in owners.NAMES for number in (1, 2)
    ]
    # The policy and the store once: they are the same the second time.
    assert [line.split()[2] for line in lines[7:]] == ["policy", "store"]
    assert "a 4 entries in 2, b 4 entries in 2; reader: 9 keys right" in lines[-1]


def test_tables_render_for_a_terminal(story: Story) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200)
    with scenes.watching(console) as shown:
        shown.show(story.scene())
    told = story.told()
    console.print(proof_table(told))
    console.print(receipts_table(told))
    console.print(scenes.checks_table(story.checks()))
    seen = output.getvalue()
    assert "does not run" in seen
    assert "equal" in seen
    assert "reader: 9 keys right" in seen


def test_losses_come_one_after_the_other_each_when_it_is_due(tmp_path: Path, story: Story) -> None:
    """With processes that only sleep: what they say of themselves is given."""
    losses = story.losses
    losses.stage, losses.killed_at = Loss.NONE, None
    losses.owners = sleeping = Sleeping(tmp_path / "servers", tmp_path)
    sleeping.start(*owners.NAMES)
    try:
        before = dict(sleeping.running)
        statuses = {name: status(name, last=100) for name in owners.NAMES}
        story.batches(owners_enough - 1)
        assert losses.happen(story.observation(), statuses) == ""
        story.batches(owners_enough)
        assert "member a, the leader" in losses.happen(story.observation(), statuses)
        assert not before["a"].alive()
        assert sleeping.running["a"].alive()
        assert losses.happen(story.observation(), statuses) == ""
        story.batches(2 * owners_enough)
        assert losses.happen(story.observation(), statuses) == "killed (SIGKILL): member c, at entry 100"
        assert not before["c"].alive()
        sleeping.check()
        down = {"a": status("a", snapshot=100), "b": status("b")}
        assert losses.happen(story.observation(), down) == ""
        down["a"] = status("a", snapshot=101)
        assert "starts again" in losses.happen(story.observation(), down)
        assert losses.happen(story.observation(), statuses) == ""
        back = statuses | {"c": status("c", snapshot=101, installed=1)}
        assert "is installed" in losses.happen(story.observation(), back)
        assert (losses.stage, losses.behind, losses.skipped, losses.installed) == (Loss.OVER, 100, 101, 1)
        sleeping.running["b"].send(signal.SIGKILL)
        assert wait_gone(sleeping.running["b"], timeout=PATIENCE_SECONDS)
        with pytest.raises(DemoError, match="member b of the key-value store has ended"):
            sleeping.check()
    finally:
        stop_servers(tmp_path / "servers")
    assert [item for item in sleeping.running.values() if item.alive()] == []


def test_foreign_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(DemoError, match="holds other files"):
        DemoStage(tmp_path, Console(file=io.StringIO())).perform(run.show)
    assert (tmp_path / "mine").read_text() == "keep me"


def test_leftover_workers_are_found_by_pid_and_start(tmp_path: Path) -> None:
    records = tmp_path / "state" / "workers"
    records.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as child:
        process = ProcessId.of("w", child.pid)
        assert process is not None
        ticks = int(process.started.rpartition(":")[2])
        (records / "w.json").write_text(json.dumps({"name": "w", "pid": child.pid, "startTicks": ticks}))
        (records / "stranger.json").write_text(json.dumps({"name": "s", "pid": child.pid, "startTicks": ticks + 1}))
        (records / "reserved.json").write_text("")
        (records / "w.secrets").mkdir()
        assert [worker.name for worker in cluster.leftover_workers(tmp_path)] == ["w"]
        cluster.stop_replicas(tmp_path)
        assert cluster.leftover_workers(tmp_path) == []
        assert child.wait() != 0
        assert not (records / "w.secrets").exists()


owners_enough = losses_module.ENOUGH_BATCHES


def moment(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def status(name: str, *, last: int = 0, snapshot: int = 0, installed: int = 0) -> Status:
    return Status(
        name=name, term=1, leader="a", last=last, commit=last, applied=last, snapshot=snapshot, keys=3, entries=4,
        segments=2, installed=installed,
    )  # fmt: skip


class Sleeping(owners.Owners):
    """In the place of members, processes that do nothing."""

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]


def spoiled(part: Part, changes: Mapping[str, Any]) -> Part:
    """With those of the changes that are of its fields."""
    return dataclasses.replace(part, **{key: value for key, value in changes.items() if hasattr(part, key)})


class Story:
    """A finished run in small: the archive is damaged (segment 3 of 5), each log has jobs with receipts, those of the
    members at the seconds 10 and 20; each part can be spoiled.
    """

    def __init__(self, root: Path) -> None:
        # Of the logs only the damaged file exists; the rest is numbers.
        path = root / "archive"
        path.mkdir()
        (path / NAMES[2]).touch()
        self.path = path
        self.before_facts = proof.MeasuredLog(path, "aa", 10, (7,), 5, 0, 1000)
        self.after_facts = proof.MeasuredLog(path, "aa", 10, (7,), 3, 0, 400)
        self.archive = owners.Archive(path, CorruptedAt(NAMES[2], 7, 99))
        self.owners = owners.Owners(root / "servers", root, members=dict.fromkeys(owners.NAMES, ("127.0.0.1", 1)))
        self.workload = Workload(self.owners.members)
        self.reader = KeyReader(self.workload, read=9)
        self.losses = losses_module.OwnerLosses(
            self.owners, self.workload, Loss.OVER, moment(15), batches=3, behind=100, skipped=200, installed=1
        )
        self.accident = Accident(DemoCluster(root, root, "p"), root, worker="dead", jobs={"job-a-1": 1})
        self.moments = [moment(second).timestamp() for second in range(9, 22)]
        self.members = {
            name: (Comparison(name, 5, ()), proof.MeasuredLog(self.owners.log_of(name), "bb", 9, (), 2, 0, 500))
            for name in owners.NAMES
        }
        self.alive = 2
        self.faulty: dict[str, str] = {}
        self.receipt_data: dict[str, Any] = {
            "token": 1, "worker": "w", "groups": 2, "groupsCommitted": 2, "sources": [NAMES[0], NAMES[1], NAMES[3]],
            "bytesBefore": 800, "bytesAfter": 200, "bytesReclaimed": 600, "committedAt": NOW,
            "fingerprintBefore": "a", "fingerprintAfter": "a",
        }  # fmt: skip
        self.of_members = {(name, number): dict(self.receipt_data) for name in owners.NAMES for number in (1, 2)}
        self.job_data = {"state": "Succeeded", "finishedAt": NOW}
        self.status: dict[str, Any] = {
            "debt": {"bytes": 0, "sources": 0, "targets": 0},
            "lastSenseTime": "2026-01-01T00:01:00Z",
            "quarantined": [
                {"target": str(path), "source": NAMES[2], "index": 7, "reason": "SourceCorrupt", "since": NOW}
            ],
        }

    def after(self, **changes: Any) -> None:
        self.after_facts = dataclasses.replace(self.after_facts, **changes)

    def member(self, name: str, **changes: Any) -> None:
        comparison, measured = self.members[name]
        self.members[name] = spoiled(comparison, changes), spoiled(measured, changes)

    def job_of(self, name: str, **changes: Any) -> None:
        for number in (1, 2):
            self.of_members[name, number] |= changes

    def ended(self, name: str, reason: str) -> None:
        """One more job of a member's log, that found no sources any more, or failed."""
        self.faulty[name] = reason

    def batches(self, count: int) -> None:
        self.workload.moments[:] = [0.0] * count

    def receipt(self, **changes: Any) -> None:
        self.receipt_data |= changes

    def job(self, **changes: Any) -> None:
        self.job_data |= changes

    def quarantine(self, **changes: Any) -> None:
        self.status["quarantined"][0] |= changes

    def replicas(self, alive: int) -> None:
        self.alive = alive

    def observation(self) -> DemoObservation:
        jobs = [self._job("job-archive", self.path, self.job_data | {"receipt": self.receipt_data})]
        for (name, number), receipt in self.of_members.items():
            at = f"2026-01-01T00:00:{number}0Z"
            done = {"state": "Succeeded", "finishedAt": at, "fencingToken": 2, "receipt": receipt | {"committedAt": at}}
            jobs.append(self._job(f"job-{name}-{number}", self.owners.log_of(name), done))
        for name, reason in self.faulty.items():
            attempt = {"token": 1, "worker": "w", "startedAt": NOW, "endedAt": NOW, "reason": reason, "message": ""}
            failed = {"state": "Faulty", "finishedAt": NOW, "attempts": [attempt]}
            jobs.append(self._job(f"job-{name}-3", self.owners.log_of(name), failed))
        policy = owners.policy(self.path.parent) | {"status": self.status}
        return DemoObservation(CompactionPolicy.from_object(policy), tuple(jobs), "replica-a")

    def _job(self, name: str, path: Path, status: Mapping[str, object]) -> CompactionJob:
        sources = {"segmentLog": {"path": str(path), "groups": [{"segments": [NAMES[0]]}]}}
        return CompactionJob.from_object(
            {
                "metadata": {"name": name},
                "spec": {"policyRef": {"name": "p"}, "kind": "SegmentRewrite", "target": str(path), "sources": sources},
                "status": status,
            }
        )

    def scene(self) -> LogScene:
        statuses = {"a": status("a", last=5), "b": status("b", last=5)}
        for name in statuses:
            self.owners.log_of(name).mkdir(parents=True, exist_ok=True)
        return LogScene(self.observation(), statuses, self.owners, self.reader, 7)

    def told(self) -> proof.LogStory:
        return proof.LogStory(
            seen=self.observation(),
            archive=self.archive,
            before=self.before_facts,
            after=self.after_facts,
            members=self.members,
            moments=self.moments,
            changes=7,
            reader=self.reader,
            losses=self.losses,
            accident=self.accident,
            replicas_alive=self.alive,
        )

    def checks(self) -> list[Check]:
        return proof.checks(self.told())


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)
