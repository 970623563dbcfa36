"""Parts of the demo of block stores: ledger and reader agree on every instant, servers are stopped whatever happens,
and nothing secret is shown.
"""

from __future__ import annotations

import dataclasses
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore
from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId
from compaction.local.tenants import Check
from demos import scenes, stage
from demos.blocks import proof, run, writers
from demos.blocks.proof import BlockProver, ProvedContent, StoreFacts, Stray, compare, look
from demos.blocks.run import Cast
from demos.blocks.writers import DAMAGED, NOISY, SHARD, TOP_LEVEL, BlockWriter, Ledger, LedgerEntries, Tenant
from demos.cluster import Accident, DemoCluster, DemoObservation, secrets_yaml
from demos.proving import beside
from demos.scenes import find_leaks
from support.blocks.block_histories import compact_meanwhile, sweep
from support.blocks.block_stores import a_block
from support.clocks import eventually
from support.programs import needs
from tools.servers import versitygw

SMALL = Tenant("small", pause=0.03, rows=50, backlog=3)


@pytest.fixture
def cast(block_store: BlockStore) -> Cast:
    return Cast.of(block_store)


def small_writer(cast: Cast) -> BlockWriter:
    return BlockWriter(cast.store, cast.ledger, SMALL, seed=1)


def test_the_rows_of_an_instant_are_those_in_the_ledger(cast: Cast) -> None:
    small_writer(cast).write(3)
    reading = cast.prover.prove()
    assert reading is not None
    assert reading.equal
    assert (reading.rows, reading.blocks) == (150, 3)
    assert (cast.prover.proven, cast.prover.different) == (1, [])


def small_blocks(cast: Cast) -> list[Block]:
    """Those that no job has merged: on a busy machine the writer may not have written one since the last job."""
    return [block for block in cast.store.live().blocks if block.level == 0]


def test_they_are_so_while_writers_write_and_blocks_are_merged(cast: Cast) -> None:
    writer = small_writer(cast)
    writer.write(4)
    with beside(writer, cast.prover):
        for number in range(5):
            sources = eventually(lambda: small_blocks(cast), "a block that is not merged")
            compact_meanwhile(cast.store, f"j{number}", sources[:4], number=number)
            while cast.prover.error is None and cast.prover.proven <= number:
                cast.prover.stopped.wait(0.01)
    assert (writer.error, cast.prover.error, cast.prover.different) == (None, None, [])
    assert cast.prover.proven >= 5
    final = cast.prover.prove()
    assert final is not None
    assert final.equal
    assert final.rows == 50 * len(writer.written)


def test_a_block_that_is_missing_or_there_twice_is_noticed(cast: Cast) -> None:
    writer = small_writer(cast)
    writer.write(2)
    first, _ = cast.store.live().blocks
    compact_meanwhile(cast.store, "j", [first], number=1)
    cast.ledger.enter(SMALL.name, writer.written[0].content, lambda: None)
    reading = cast.prover.prove()
    assert reading is not None
    assert not reading.equal
    assert f"{SMALL.name}: 100:" in cast.prover.different[0]
    assert "registered 150:" in cast.prover.different[0]
    assert cast.prover.proven == 0


def test_a_snapshot_that_was_read_for_too_long_is_taken_anew(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    small_writer(cast).write(2)
    taken = BlockReader.snapshot

    def slow(reader: BlockReader) -> Any:
        snapshot = taken(reader)
        compact_meanwhile(cast.store, "j", list(cast.store.live().blocks), number=1)
        assert sweep(cast.store, grace=0) == 2
        return snapshot

    with monkeypatch.context() as patch:
        patch.setattr(BlockReader, "snapshot", slow)
        assert cast.prover.prove() is None
    assert (cast.prover.expired, cast.prover.proven) == (1, 0)
    assert cast.prover.prove() is not None
    assert cast.prover.proven == 1


def test_what_a_registration_refuses_is_not_in_the_ledger() -> None:
    ledger = Ledger()

    def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        ledger.enter("t", RowFingerprint(1, 1), refuse)
    assert ledger.entries() == LedgerEntries({}, {})


def test_an_instant_waits_for_a_registration_that_has_begun() -> None:
    ledger, begun, go_on = Ledger(), threading.Event(), threading.Event()

    def register() -> None:
        begun.set()
        go_on.wait()

    with ThreadPoolExecutor(2) as pool:
        entered = pool.submit(ledger.enter, "t", RowFingerprint(7, 1), register)
        begun.wait()
        taken = pool.submit(ledger.entries)
        assert not taken.done()
        go_on.set()
        entered.result()
    assert taken.result().content == {"t": RowFingerprint(7, 1)}


def test_the_backlog_has_one_damaged_block_and_one_orphan(cast: Cast) -> None:
    cast.begin()
    assert len(cast.store.live().blocks) == sum(writer.tenant.backlog for writer in cast.writers)
    reading = cast.prover.prove()
    assert reading is not None
    assert reading.equal
    assert reading.unreadable == {cast.lost}
    assert compare(cast.store) == Stray(objects=(cast.orphan,))
    assert cast.moments == sorted(cast.moments)


def test_facts_tell_what_will_still_be_merged(cast: Cast) -> None:
    small_writer(cast).write(3)
    facts = look(cast.store)
    assert (facts.of(SMALL.name), facts.mergeable, facts.tombstones) == (3, 3, 0)
    compact_meanwhile(cast.store, "j", list(facts.live), number=1)
    facts = look(cast.store)
    assert (facts.by_level, facts.mergeable, facts.tombstones) == ({SMALL.name: {1: 1}}, 0, 3)


def test_what_is_left_alone_in_two_windows_is_not_merged() -> None:
    hour = 3600 * 1_000_000
    first, second, third = (a_block(number, min_time=hour * number) for number in (1, 2, 3))
    assert StoreFacts((first, second)).mergeable == 2
    assert StoreFacts((second, third)).mergeable == 0
    assert StoreFacts((first, second), aside=frozenset({first.id})).mergeable == 0


def test_a_block_without_an_object_is_stray(cast: Cast) -> None:
    small_writer(cast).write(1)
    (block,) = cast.store.live().blocks
    cast.store.objects.delete([block.path])
    assert compare(cast.store) == Stray(blocks=(block.path,))


def test_the_policy_is_one_the_models_accept() -> None:
    policy = CompactionPolicy.from_object(writers.policy("s3://demo/blocks"))
    store = policy.spec.store.block_store
    assert store is not None
    assert len(store.levels) == TOP_LEVEL


def test_secrets_are_in_their_documents_and_nowhere_else() -> None:
    text = secrets_yaml(writers.secrets({"secret_access_key": "hidden"}, "postgresql://u:p@/db"))
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(text)]
    assert names == [writers.CREDENTIALS_SECRET, writers.INDEX_SECRET]
    assert "hidden" not in yaml.safe_dump(writers.policy("s3://demo/blocks"))


def test_leaks_are_found_in_objects_logs_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = DemoCluster(tmp_path / "kubectl", tmp_path / "kubeconfig", "blocks")
    monkeypatch.setattr(DemoCluster, "run", lambda *_, **__: "all is well")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "worker.log").write_text("connected with s3cret\n")
    (tmp_path / "fine.log").write_text("connected\n")
    here = ProcessId.of("us", int(Path("/proc/self").resolve().name))
    assert here is not None
    assert find_leaks(["s3cret"], cluster, tmp_path, [here]) == [str(tmp_path / "state" / "worker.log")]
    program = Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode()
    (argument,) = find_leaks([program], cluster, tmp_path / "state", [here])[:1]
    assert argument == "cmdline of us"
    monkeypatch.setattr(DemoCluster, "run", lambda *_, **__: '{"message": "s3cret"}')
    assert find_leaks(["s3cret"], cluster, tmp_path / "nothing", [])[0].startswith("kubectl get")


@needs("versitygw")
def test_servers_are_started_recorded_and_stopped(tmp_path: Path) -> None:
    place = tmp_path / "servers"
    running = stage.start_servers(place, detached=False, report=print)
    scratch = (place / "postgres").readlink()
    try:
        assert running.database.execute("SELECT 1", database=stage.DATABASE) == [(1,)]
        assert not any(secret in repr(running) for secret in running.secrets)
    finally:
        stage.stop_servers(place)
    assert not scratch.exists()
    assert not running.objects.process.alive()
    assert not running.database.process.alive()
    stage.stop_servers(place)


@needs("versitygw")
def test_what_was_started_before_the_other_failed_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ControlPlaneError("versitygw", "does not answer")

    monkeypatch.setattr(versitygw, "serve", fail)
    with pytest.raises(ControlPlaneError):
        stage.start_servers(tmp_path / "servers", detached=False, report=print)
    scratch = (tmp_path / "servers" / "postgres").readlink()
    assert scratch.is_dir()
    stage.stop_servers(tmp_path / "servers")
    assert not scratch.exists()


def test_a_link_to_a_directory_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "postgres").symlink_to(tmp_path / "mine")
    stage.stop_servers(tmp_path / "servers")
    assert (tmp_path / "mine").is_dir()


def test_the_damaged_tenant_has_a_block_on_both_sides() -> None:
    assert 0 < writers.DAMAGED_BLOCK < DAMAGED.backlog - 1


# The judgement of the demo of block stores: what it accepts as proof, and that it says NO when something is wrong.

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
        self.status: dict[str, Any] = {
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

    def checks(self) -> list[Check]:
        return proof.checks(self.story())


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(DemoCluster(tmp_path / "kubectl", tmp_path / "kubeconfig", "blocks"))
