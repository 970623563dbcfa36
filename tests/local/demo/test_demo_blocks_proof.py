"""The judgement of the demo of block stores: what it accepts as proof, and that it says NO when something is wrong."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.model import Block, RowFingerprint
from demos import scenes
from demos.blocks import proof, run, writers
from demos.blocks.proof import BlockProver, ProvedContent, StoreFacts, Stray
from demos.blocks.writers import NOISY, SHARD, TOP_LEVEL, Ledger, LedgerEntries
from demos.cluster import Accident, DemoCluster, DemoObservation
from support.stores.block_index import a_block

NOW = "2026-01-01T00:00:00Z"


def test_every_claim_holds_for_a_good_run(story: Story) -> None:
    assert [check.claim for check in story.checks() if not check.holds] == []


@pytest.mark.parametrize(
    ("claim", "spoil"),
    [
        ("noisy: the rows read", lambda s: s.change(final=None)),
        ("noisy: the rows read", lambda s: s.read(RowFingerprint(10, 6))),
        ("noisy: the rows read", lambda s: s.read(RowFingerprint(9, 5))),
        ("at every instant", lambda s: s.prover.different.append("noisy: 9 rows")),
        ("at every instant", lambda s: setattr(s.prover, "proven", 0)),
        ("at every instant", lambda s: s.prover.versions.pop()),
        ("kept writing", lambda s: s.change(moments=[])),
        ("equal fingerprints", lambda s: s.receipt(fingerprintAfter=str(RowFingerprint(10, 4)))),
        ("equal fingerprints", lambda s: s.receipt(fingerprintBefore="", fingerprintAfter="")),
        ("every job succeeded", lambda s: s.job(state="Faulty")),
        ("few large ones", lambda s: s.live([a_block(number) for number in range(5)])),
        ("few large ones", lambda s: s.status["debt"]["measures"][0].update(value=5.0)),
        ("few large ones", lambda s: s.status["debt"].pop("measures")),
        ("no debt", lambda s: s.status["debt"].update(sources=1)),
        ("no debt", lambda s: s.live([a_block(1), a_block(2)])),
        ("quarantined and named", lambda s: s.status["quarantined"][0].update(source="other")),
        ("quarantined and named", lambda s: s.change(after=dataclasses.replace(s.after, aside=frozenset()))),
        ("quarantined and named", lambda s: s.receipt(sources=["lost", "b"])),
        ("killed worker", lambda s: s.job(fencingToken=1)),
        ("killed worker", lambda s: s.change(accident=Accident(s.cluster, Path("/")))),
        ("after their grace", lambda s: s.change(after=dataclasses.replace(s.after, tombstones=1))),
        ("never registered", lambda s: s.change(found=())),
        ("never registered", lambda s: s.change(stray=Stray(objects=("x",)))),
        ("never registered", lambda s: s.change(stray=Stray(blocks=("x",)))),
        ("no password", lambda s: s.change(leaks=["worker.log"])),
        ("one replica led", lambda s: s.change(replicas_alive=1)),
    ],
)
def test_what_is_wrong_is_told(story: Story, claim: str, spoil: Any) -> None:
    spoil(story)
    failed = [check.claim for check in story.checks() if not check.holds]
    assert any(claim in text for text in failed), failed


def test_settled_only_after_the_operator_looked_once_more(story: Story) -> None:
    facts = StoreFacts(())
    assert run._settled(story.observation(), facts)
    assert not run._settled(story.observation(), StoreFacts((), tombstones=1))
    assert not run._settled(story.observation(), StoreFacts((a_block(1), a_block(2))))
    story.status["debt"]["sources"] = 1
    assert not run._settled(story.observation(), facts)
    story.status["debt"]["sources"] = 0
    story.status["lastSenseTime"] = "2025-12-31T23:59:59Z"
    assert not run._settled(story.observation(), facts)
    assert not run._settled(DemoObservation(None, (), None), facts)


@pytest.mark.parametrize("terminal", [False, True])
def test_views_show_jobs_blocks_and_reader(story: Story, terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200, force_terminal=terminal)
    with scenes.watching(console) as shown:
        shown.show(run.BlockScene(story.observation(), story.after, story.entries, story.prover))
        shown.say("killed")
    console.print(run.receipts_table(story.observation().jobs, story.story().receipts))
    console.print(run.proof_table(story.entries, story.after, story.after, story.prover))
    for text in ("job-1", "noisy", "killed", "2 instants equal", "L0 -> L1", "3 of 3 equal"):
        assert text in output.getvalue()


class Story:
    """A finished run in small: one job of a killed worker, one damaged block; each part can be spoiled."""

    def __init__(self, cluster: DemoCluster) -> None:
        self.cluster = cluster
        content = RowFingerprint(10, 5)
        self.entries = LedgerEntries({NOISY.name: content}, {NOISY.name: 20}, frozenset({"lost"}))
        self.reading = ProvedContent(1, {NOISY.name: content}, {NOISY.name: 1}, frozenset({"lost"}), self.entries, 0.1)
        self.prover = BlockProver(None, Ledger(), proven=2, last=self.reading, versions={1, 2})  # type: ignore[arg-type]
        self.after = StoreFacts((a_block(1, level=TOP_LEVEL, tenant=NOISY.name),), frozenset({"lost"}))
        self.changes: dict[str, Any] = {}
        equal = str(content)
        self.receipt_data = {
            "token": 2, "worker": "w2", "sources": ["a", "b"], "outputs": ["c"], "records": 10, "bytesBefore": 800,
            "bytesAfter": 200, "fingerprintBefore": equal, "fingerprintAfter": equal, "committedAt": NOW,
        }  # fmt: skip
        self.job_data = {"state": "Succeeded", "finishedAt": NOW, "fencingToken": 2}
        self.status = {
            "debt": {"bytes": 0, "sources": 0, "measures": [{"name": "readAmplification", "value": 1.0}]},
            "lastSenseTime": NOW,
            "quarantined": [{"target": "globex/0/L0/x", "source": "lost", "reason": "SourceCorrupt", "since": NOW}],
        }

    def change(self, **changes: Any) -> None:
        self.changes |= changes

    def read(self, content: RowFingerprint) -> None:
        self.change(final=dataclasses.replace(self.reading, content={NOISY.name: content}))

    def live(self, blocks: list[Block]) -> None:
        self.change(after=dataclasses.replace(self.after, live=tuple(blocks)))

    def receipt(self, **changes: Any) -> None:
        self.receipt_data |= changes

    def job(self, **changes: Any) -> None:
        self.job_data |= changes

    def observation(self) -> DemoObservation:
        jobs = [self._job(number) for number in range(3)]
        policy = writers.policy("s3://demo/blocks") | {"status": self.status}
        return DemoObservation(CompactionPolicy.from_object(policy), tuple(jobs), "replica-a")

    def _job(self, number: int) -> CompactionJob:
        store = {"url": "s3://demo/blocks", "index": {"secretName": "block-index"}}
        ids = [a_block(item).id for item in (1, 2)]
        sources = {"store": store, "tenant": NOISY.name, "shard": SHARD, "batch": f"noisy/0/L0/{ids[0]}", "blocks": ids}
        receipt = self.receipt_data | {"committedAt": f"2026-01-01T00:00:0{number}Z"}
        return CompactionJob.from_object(
            {
                "metadata": {"name": f"job-{number}"},
                "spec": {"policyRef": {"name": "blocks"}, "kind": "BlockRewrite", "sources": {"blocks": sources}},
                "status": self.job_data | {"receipt": receipt},
            }
        )

    def story(self) -> proof.BlockStory:
        start = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        accident = Accident(self.cluster, Path("/"), worker="w1", jobs={"job-1": 1})
        good = proof.BlockStory(
            seen=self.observation(), entries=self.entries, prover=self.prover, final=self.reading,
            before=StoreFacts(()), after=self.after, stray=Stray(), moments=[start + part / 2 for part in range(5)],
            accident=accident, lost="lost", orphan="o", found=("o",), leaks=(), amplification=20.0,
            replicas_alive=2,
        )  # fmt: skip
        return dataclasses.replace(good, **self.changes)

    def checks(self) -> list[proof.Check]:
        return proof.checks(self.story())


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(DemoCluster(tmp_path / "kubectl", tmp_path / "kubeconfig", "blocks"))
