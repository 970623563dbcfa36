"""Parts of the demo of block stores: ledger and reader agree on every instant, servers are stopped whatever happens,
and nothing secret is shown.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.reader import BlockReader
from compaction.blocks.store import BlockStore
from compaction.local.errors import ControlPlaneError
from compaction.local.processes.process import ProcessId
from demos import stage
from demos.blocks import writers
from demos.blocks.proof import StoreFacts, Stray, compare, look
from demos.blocks.run import Cast
from demos.blocks.writers import DAMAGED, TOP_LEVEL, BlockWriter, Ledger, LedgerEntries, Tenant, writing
from demos.cluster import DemoCluster
from demos.proving import proving
from demos.scenes import find_leaks
from support.programs import needs
from support.stores.block_churn import compact, sweep
from support.stores.block_index import a_block
from support.time.waiting import eventually

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
    with writing([writer]), proving(cast.prover):
        for number in range(5):
            sources = eventually(lambda: small_blocks(cast), "a block that is not merged")
            compact(cast.store, f"j{number}", sources[:4], number=number)
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
    compact(cast.store, "j", [first], number=1)
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
        compact(cast.store, "j", list(cast.store.live().blocks), number=1)
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
    compact(cast.store, "j", list(facts.live), number=1)
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
    text = writers.secrets({"secret_access_key": "hidden"}, "postgresql://u:p@/db")
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

    monkeypatch.setattr(stage.versitygw, "serve", fail)
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
