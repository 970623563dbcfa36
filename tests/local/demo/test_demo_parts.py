"""The demo's own judgement: what it measures, what it accepts as proof, and that it says NO when something is wrong."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy
from compaction.exceptions import DemoError
from compaction.local.demo import replicas, view
from compaction.local.demo.cluster import DemoObservation
from compaction.local.demo.segments import facts, proof, run, scenario
from compaction.local.demo.segments.view import proof_table
from compaction.local.demo.stage import Stage
from compaction.local.processes.process import ProcessId
from compaction.stores.segments.generate import CorruptedAt, corrupt_entry, generate_log
from compaction.stores.segments.reading.view import open_log

NOW = "2026-01-01T00:00:00Z"
NAMES = tuple(f"{number:016d}.segment" for number in range(1, 6))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    generate_log(
        tmp_path / "random", pattern="random", segments=5, entries_per_segment=64, payload_bytes=128, sync=False
    )
    return tmp_path / "random"


def test_facts_do_not_depend_on_names_but_on_content(log):
    before = facts.measure(log)
    assert before.entries > 0
    assert before.unreadable == ()
    assert (before.segments, before.waiting) == (5, 0)
    assert before.disk_bytes == sum(path.stat().st_size for path in log.glob("*.segment"))


def test_facts_notice_one_flipped_byte_of_a_live_entry(log):
    before = facts.measure(log)
    state = open_log(log)
    record = int(state.live_mask(state.segments[1].idx).argmax())
    damage = corrupt_entry(log, segment=2, record=record)
    after = facts.measure(log)
    assert after.unreadable == (damage.index,)
    assert after.entries == before.entries - 1
    assert after.fingerprint != before.fingerprint


def test_disk_bytes_count_a_hard_link_once_and_a_symlink_never(log):
    before = facts.disk_bytes(log)
    (log / "0000000000000009.segment").hardlink_to(log / NAMES[0])
    (log / "0000000000000010.segment").symlink_to(NAMES[0])
    assert facts.disk_bytes(log) == before


@pytest.mark.parametrize("name", ["x.link", "x.compacting", "x.partial"])
def test_leftovers_wait(log, name):
    assert facts.waiting(log) == 0
    (log / name).touch()
    (log / "0000000000000010.segment").symlink_to(NAMES[0])
    assert facts.waiting(log) == 2


def test_the_policy_is_one_the_models_accept(tmp_path):
    policy = CompactionPolicy.from_object(scenario.policy(tmp_path))
    assert policy.spec.store.segment_logs is not None
    assert policy.spec.store.segment_logs.root == str(tmp_path)


def test_every_claim_holds_for_a_good_run(story):
    assert [check.claim for check in story.checks() if not check.holds] == []


@pytest.mark.parametrize(
    ("claim", "spoil"),
    [
        ("the readable live content is the same", lambda s: s.after(fingerprint="ff")),
        ("the readable live content is the same", lambda s: s.after(unreadable=(7, 8))),
        ("disk space came back", lambda s: s.after(disk_bytes=1000)),
        ("disk space came back", lambda s: s.after(disk_bytes=401)),
        ("equal fingerprints", lambda s: s.receipt(fingerprintAfter="b")),
        ("equal fingerprints", lambda s: s.receipt(fingerprintBefore="", fingerprintAfter="")),
        ("every job ended", lambda s: s.job(state="InProgress")),
        ("named in the policy's status", lambda s: s.quarantine(index=1)),
        ("named in the policy's status", lambda s: s.quarantine(source=NAMES[0])),
        ("its siblings on both sides", lambda s: s.receipt(sources=[NAMES[0], NAMES[1]])),
        ("its siblings on both sides", lambda s: s.receipt(sources=[NAMES[0], NAMES[2], NAMES[3]])),
        ("deleted after their grace", lambda s: s.after(waiting=1)),
        ("one replica led", lambda s: s.replicas(1)),
    ],
)
def test_what_is_wrong_is_told(story, claim, spoil):
    spoil(story)
    failed = [check.claim for check in story.checks() if not check.holds]
    assert any(claim in text for text in failed), failed


def test_settled_only_after_the_operator_looked_once_more(story):
    assert run._settled(story.observation())
    story.status["debt"]["sources"] = 1
    assert not run._settled(story.observation())
    story.status["debt"]["sources"] = 0
    story.status["lastSenseTime"] = "2025-12-31T23:59:59Z"
    assert not run._settled(story.observation())
    assert not run._settled(DemoObservation(None, (), None))


def test_plain_view_tells_changes_once(story):
    output = io.StringIO()
    console = Console(file=output, width=200)
    with view.watching(console) as shown:
        shown.show(story.observation())
        shown.show(story.observation())
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    assert "job job-1 random" in lines[0]
    assert "debt 0" in lines[1]


def test_tables_render_for_a_terminal(story):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with view.watching(console) as shown:
        shown.show(story.observation())
    proofs = story.proofs()
    console.print(proof_table(proofs))
    console.print(view.checks_table(story.checks()))
    assert "equal" in console.file.getvalue()


def test_foreign_directory_is_not_touched(tmp_path):
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(DemoError, match="holds other files"):
        Stage(tmp_path, Console(file=io.StringIO())).perform(run.show)
    assert (tmp_path / "mine").read_text() == "keep me"


def test_leftover_workers_are_found_by_pid_and_start(tmp_path):
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
        assert [worker.name for worker in replicas.leftover_workers(tmp_path)] == ["w"]
        replicas.stop_replicas(tmp_path)
        assert replicas.leftover_workers(tmp_path) == []
        assert child.wait() != 0
        assert not (records / "w.secrets").exists()


class Story:
    """A finished run in small: one damaged log (segment 3 of 5), one job with a receipt; each part can be spoiled."""

    def __init__(self, path: Path) -> None:
        # Of the log only the damaged file exists; the rest is numbers.
        path.mkdir()
        (path / NAMES[2]).touch()
        self.path = path
        self.before_facts = facts.LogFacts(path, "aa", 10, (7,), 5, 0, 1000)
        self.after_facts = facts.LogFacts(path, "aa", 10, (7,), 3, 0, 400)
        self.scenario = scenario.Scenario(path.parent, (path,), path, CorruptedAt(NAMES[2], 7, 99))
        self.alive = 2
        self.receipt_data = {
            "token": 1, "worker": "w", "groups": 2, "groupsCommitted": 2, "sources": [NAMES[0], NAMES[1], NAMES[3]],
            "bytesBefore": 800, "bytesAfter": 200, "bytesReclaimed": 600,
            "fingerprintBefore": "a", "fingerprintAfter": "a",
        }  # fmt: skip
        self.job_data = {"state": "Succeeded", "finishedAt": NOW}
        self.status = {
            "debt": {"bytes": 0, "sources": 0, "targets": 0},
            "lastSenseTime": NOW,
            "quarantined": [
                {"target": str(path), "source": NAMES[2], "index": 7, "reason": "SourceCorrupt", "since": NOW}
            ],
        }

    def after(self, **changes) -> None:
        self.after_facts = dataclasses.replace(self.after_facts, **changes)

    def receipt(self, **changes) -> None:
        self.receipt_data |= changes

    def job(self, **changes) -> None:
        self.job_data |= changes

    def quarantine(self, **changes) -> None:
        self.status["quarantined"][0] |= changes

    def replicas(self, alive: int) -> None:
        self.alive = alive

    def observation(self) -> DemoObservation:
        sources = {"segmentLog": {"path": str(self.path), "groups": [{"segments": [NAMES[0]]}]}}
        job = CompactionJob.from_object(
            {
                "metadata": {"name": "job-1"},
                "spec": {"policyRef": {"name": "p"}, "kind": "SegmentRewrite", "sources": sources},
                "status": self.job_data | {"receipt": self.receipt_data},
            }
        )
        policy = scenario.policy(self.path.parent) | {"status": self.status}
        return DemoObservation(CompactionPolicy.from_object(policy), (job,), "replica-a")

    def proofs(self) -> list[proof.LogProof]:
        return proof.prove_logs([self.before_facts], {self.after_facts.path: self.after_facts}, self.observation())

    def checks(self) -> list[proof.Check]:
        return proof.checks(self.proofs(), self.observation(), self.scenario, replicas_alive=self.alive)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "random")
