"""A block store in the words of the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Update, delete, update

from compaction.api.enums import PolicyReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.policy import CompactionPolicySpec
from compaction.blocks import adapter
from compaction.blocks.format.footer import read_footer
from compaction.blocks.index.queued import Fault
from compaction.blocks.index.registering import BlockReplacement
from compaction.blocks.index.rows import read_schemas
from compaction.blocks.index.tables import BLOCKS, SCHEMAS, IndexChange
from compaction.blocks.model import block_path
from compaction.blocks.planning.batches import BlockReason
from compaction.blocks.schema import book
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.cleaning import Cleaned
from compaction.core.planning.debt import HeldJob
from compaction.errors import ClaimRefusedError
from compaction.storage.adapter import Sensed, SenseRequest, StoreAdapter, open_store
from compaction.storage.secrets import GivenSecrets
from support.blocks.block_stores import block_id, fill, fill_units


class Ground:
    """An adapter of its own store, whose clock stands until it is moved."""

    def __init__(self, connection: BlockStoreConnection, **spec: Any) -> None:
        self.connection = connection
        self.now = 1_000.0
        self.looks = 0
        self.index_url = connection.index_url
        index = {"secretName": "index"}
        url = connection.url if "://" in connection.url else f"file://{connection.url}"
        levels = [{"maxBlocks": 3, "maxAge": "36s"}, {"maxBlocks": 2, "maxAge": "10m"}]
        self.store_spec = {
            "url": url, "index": index, "credentialsSecretName": "objects", "levels": levels, "span": "1000h",
        } | spec  # fmt: skip
        policy = {"store": {"blockStore": self.store_spec}, "cleanup": {"delay": "1h"}}
        self.adapter: StoreAdapter = open_store(
            CompactionPolicySpec.model_validate(policy), holder="test", secrets=self, clock=lambda: self.now
        )
        self.store = BlockStore.open(connection)

    def close(self) -> None:
        self.adapter.close()
        self.store.close()

    def read(self, name: str) -> dict[str, str]:
        return {"index": {"url": self.index_url}, "objects": dict(self.connection.options)}[name]

    def look(self, **request: Any) -> Sensed:
        self.looks += 1
        return self.adapter.sense(SenseRequest(self.looks, 1, self.now, **request))

    def job(self, *blocks: str, level: int = 0) -> CompactionJobSpec:
        reference = {key: self.store_spec[key] for key in ("url", "index", "credentialsSecretName")}
        sources = {
            "store": reference, "tenant": "acme", "shard": 0,
            "batch": f"acme/0/L{level}/{blocks[0]}", "blocks": sorted(blocks),
        }  # fmt: skip
        spec = {"policyRef": {"name": "p"}, "kind": "BlockRewrite", "level": level, "sources": {"blocks": sources}}
        return CompactionJobSpec.model_validate(spec)

    def held(self, spec: CompactionJobSpec) -> HeldJob:
        assert spec.sources.blocks is not None
        return HeldJob(spec.target, spec.level, spec.sources.blocks.blocks)


@pytest.fixture
def ground(connection: BlockStoreConnection) -> Iterator[Ground]:
    with closing(Ground(connection)) as ground:
        yield ground


def test_what_waits_is_offered_with_the_reasons_for_the_rest(ground: Ground) -> None:
    fill(ground.store, [1, 2, 3, 4])
    sensed = ground.look()
    (candidate,) = sensed.reading.candidates
    assert candidate.groups[0].sources == tuple(block_id(number) for number in (1, 2, 3))
    assert (candidate.tenant, candidate.level) == ("acme", 0)
    assert [(row.reason, row.count) for row in sensed.reading.left_out] == [(BlockReason.WAITING_FOR_MORE, 1)]
    assert sensed.reading.targets == {candidate.target}
    assert sensed.look_in is not None
    assert 30 < sensed.look_in <= 36
    assert (sensed.reading.measures["liveBlocks"], sensed.reading.measures["windows"]) == (4, 1)


def test_blocks_of_a_job_are_offered_in_its_lane_only(ground: Ground) -> None:
    fill(ground.store, range(1, 7))
    first, second = ground.look().reading.candidates
    job = ground.job(*first.groups[0].sources)
    assert job.target == first.target
    again = ground.look(jobs={"job": ground.held(job)}).reading
    assert {candidate.target: candidate.groups[0].sources for candidate in again.candidates} == {
        first.target: first.groups[0].sources,
        second.target: second.groups[0].sources,
    }
    assert not again.outdated


def test_a_block_is_claimed_for_one_job_until_that_is_retired(ground: Ground) -> None:
    fill(ground.store, [1, 2, 3])
    job = ground.job(*(block_id(number) for number in (1, 2, 3)))
    ground.adapter.claim(job, job="job", token=3)
    with pytest.raises(ClaimRefusedError):
        ground.adapter.claim(job, job="other", token=1)
    ground.adapter.retire(job.target, "job")
    ground.adapter.claim(job, job="other", token=1)


def commit(ground: Ground, spec: CompactionJobSpec, name: str, token: int) -> None:
    """Replace the sources by a copy of the first (the others have no rows)."""
    claimed = ground.store.claim(job=name, token=token, sources=spec.sources.blocks.blocks, output_level=1)  # type: ignore[union-attr]
    source = claimed.sources[0]
    path = block_path("acme", 0, block_id(99))
    output = replace(source, id=block_id(99), path=path, level=1)
    ground.store.objects.put(path, ground.store.objects.get(source.path))
    ground.store.replace(BlockReplacement(name, token, (source.id,), (output,), "receipt"))


def test_what_was_committed_is_not_claimed_again_and_not_outdated(ground: Ground) -> None:
    """Its worker died before it could say so: the next attempt finds the receipt."""
    fill(ground.store, [1])
    job = ground.job(block_id(1))
    commit(ground, job, "job", 1)
    reading = ground.look(jobs={"job": ground.held(job)}).reading
    assert not reading.outdated
    assert job.target in reading.targets
    ground.adapter.claim(job, job="job", token=2)


def test_a_job_whose_blocks_are_gone_is_outdated(ground: Ground) -> None:
    fill(ground.store, [1, 2])
    commit(ground, ground.job(block_id(1)), "other", 1)
    ground.store.set_aside({block_id(2): Fault("Corrupt", "bad")})
    late, aside = ground.job(block_id(1)), ground.job(block_id(2))
    reading = ground.look(jobs={"late": ground.held(late), "aside": ground.held(aside)}).reading
    assert reading.outdated == {"late", "aside"}
    assert reading.targets == set()


def test_the_claim_of_a_deleted_job_is_given_up(ground: Ground) -> None:
    fill(ground.store, [1, 2])
    mine = ground.job(block_id(1))
    ground.adapter.claim(mine, job="mine", token=1)
    ground.store.claim(job="other", token=1, sources=[block_id(2)], output_level=1)
    ground.look(jobs={"mine": ground.held(mine)})
    assert {job.job for job in ground.store.open_jobs()} == {"mine", "other"}
    ground.look(recover=False)
    assert {job.job for job in ground.store.open_jobs()} == {"mine", "other"}
    ground.look()
    assert {job.job for job in ground.store.open_jobs()} == {"other"}


def test_a_claim_made_while_a_look_waited_is_no_stray(ground: Ground) -> None:
    """The look was asked for before the job was made, so it cannot know of it."""
    fill(ground.store, [1])
    ground.adapter.claim(ground.job(block_id(1)), job="mine", token=1)
    ground.adapter.sense(SenseRequest(1, 1, ground.now - 60.0))
    assert [job.job for job in ground.store.open_jobs()] == ["mine"]
    ground.look()
    assert ground.store.open_jobs() == ()


def test_figures_follow_the_store(ground: Ground) -> None:
    for number in (1, 2):
        fill(ground.store, [number])
        found = [ground.look().reading.measures for _ in range(2)]
        assert [(item["liveBlocks"], item["windows"]) for item in found] == [(number, 1)] * 2


def test_blocks_that_cannot_be_merged_with_one_another_are_in_no_batch_together(ground: Ground) -> None:
    """Eighteen blocks of three units of time: each unit is planned by itself, and the store says once what differs."""
    fill_units(ground.store, range(18))
    reading = ground.look().reading
    numbers = {block_id(number): number for number in range(18)}
    found = [[numbers[source] for source in candidate.groups[0].sources] for candidate in reading.candidates]
    assert sorted(len(batch) for batch in found) == [3] * 6
    assert all(len({number % 3 for number in batch}) == 1 for batch in found)
    (conflict,) = reading.conflicts
    kinds = " | ".join(f"timestamp[{unit}, tz=UTC]" for unit in ("ms", "ns", "us"))
    assert conflict.message == f"3 schemas of `acme` cannot be merged: column time {kinds}"
    assert (conflict.sources, conflict.alone) == (18, 0)


def forget_schemas(store: BlockStore) -> None:
    """The index as one from before it kept schemas was brought up to date."""
    store.index.change(lambda change: change.connection.execute(delete(SCHEMAS)))


def test_schemas_of_older_blocks_are_learnt_from_footers(ground: Ground) -> None:
    fill_units(ground.store, range(6))
    forget_schemas(ground.store)
    ids = {block.schema_id for block in ground.store.live().blocks}
    ground.look(recover=False)
    assert read_schemas(ground.store.index, ids) == {}, "who only looks changes nothing"
    with closing(Ground(ground.connection)) as other:
        assert len(other.look().reading.candidates) == 0
    assert read_schemas(ground.store.index, ids).keys() == ids


def test_a_schema_that_no_footer_tells_keeps_its_blocks_by_themselves(ground: Ground) -> None:
    fill_units(ground.store, range(9))
    forget_schemas(ground.store)
    ground.store.objects.delete([block_path("acme", 0, block_id(number)) for number in (0, 3, 6)])
    reading = ground.look().reading
    assert reading.problem is None
    assert len(reading.candidates) == 3
    (conflict,) = reading.conflicts
    assert (conflict.classes, conflict.sources) == (3, 9)


def test_quarantine_is_the_index_s_and_is_ended_there(ground: Ground) -> None:
    fill(ground.store, [1, 2, 3])
    lane = ground.job(block_id(1)).target
    ground.store.set_aside({block_id(1): Fault("Corrupt", "bad")})
    known = {lane: frozenset({block_id(1), block_id(2)})}
    identities = ground.look(quarantined=known).reading.identities
    assert dict(identities) == {(lane, block_id(1)): block_id(1), (lane, block_id(2)): ""}
    reading = ground.look(quarantined=known, released=frozenset({(lane, block_id(1)), (lane, block_id(77))})).reading
    assert reading.identity(lane, block_id(1)) == ""
    assert len(reading.candidates[0].groups[0].sources) == 3


def test_a_changed_secret_leads_to_another_database(ground: Ground, tmp_path: Any) -> None:
    fill(ground.store, [1])
    assert ground.look().reading.problem is None
    ground.index_url = f"sqlite:///{tmp_path}/another.db"
    problem = ground.look().reading.problem
    assert problem is not None
    assert "rebuild-index" in problem.message
    ground.index_url = ground.connection.index_url
    assert ground.look().reading.problem is None


def test_a_missing_secret_is_named(connection: BlockStoreConnection) -> None:
    spec = {"url": connection.url, "index": {"secretName": "index"}}
    policy = CompactionPolicySpec.model_validate({"store": {"blockStore": spec}})
    adapter = open_store(policy, holder="test", secrets=GivenSecrets({}, "the file"))
    problem = adapter.sense(SenseRequest(1, 1, 0.0)).reading.problem
    assert problem is not None
    assert problem.reason == PolicyReason.SECRET_MISSING
    assert "index" in problem.message
    (swept,) = adapter.sweep(active=frozenset()).problems
    assert "index" in swept.message


def test_retention_ends_what_is_old(connection: BlockStoreConnection) -> None:
    ground = Ground(connection, retention={"tenants": [{"tenant": "acme", "keep": "1h"}]})
    fill(ground.store, [1])
    fill(ground.store, [2], tenant="other")
    sensed = ground.look()
    assert sensed.sweep_in == 0
    ground.adapter.sweep(active=frozenset())
    assert [block.tenant for block in ground.store.live().blocks] == ["other"]
    assert not ground.look().reading.candidates
    ground.close()


def test_what_is_under_way_when_it_is_closed_goes_on_and_is_the_last_to_let_go(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that stops cannot wait for its threads."""
    fill(ground.store, range(1, 4))
    closed: list[BlockStore] = []
    close, high_water = BlockStore.close, BlockStore.high_water

    def noted(store: BlockStore) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(BlockStore, "close", noted)

    def in_the_middle(store: BlockStore, job: str) -> int:
        ground.adapter.close()
        assert closed == []
        return high_water(store, job)

    monkeypatch.setattr(BlockStore, "high_water", in_the_middle)
    assert ground.adapter.high_water("acme/0/L0/x", "job") == 0
    assert len(closed) == 1
    monkeypatch.setattr(BlockStore, "high_water", high_water)
    assert len(ground.look().reading.candidates) == 1, "a later call opens it anew"
    assert len(closed) == 2, "and lets go at its end"


def execute(change: IndexChange, changed: Update) -> None:
    change.connection.execute(changed)


def test_rows_that_no_job_can_name_park_themselves(connection: BlockStoreConnection) -> None:
    """Written by another program, or before there was a rule: they are named, and the others are planned."""
    with closing(Ground(connection)) as ground:
        fill(ground.store, range(9))
        bad: dict[int, dict[str, object]] = {0: {"tenant": "a\nb"}, 1: {"tenant": "a\nb"}, 2: {"shard": 2**31}}
        for number, values in bad.items():
            changed = update(BLOCKS).where(BLOCKS.c.id == block_id(number)).values(**values)
            ground.store.index.change(partial(execute, changed=changed))
        reading = ground.look().reading
        planned = {source for candidate in reading.candidates for group in candidate.groups for source in group.sources}
        assert planned == {block_id(number) for number in range(3, 9)}
        assert [(problem.target, problem.message.partition(":")[0]) for problem in reading.problems] == [
            ("a\\nb/0", "compaction passes over 2 blocks"),
            (f"acme/{2**31}", "compaction passes over 1 block"),
        ]
        ground.store.set_aside({block_id(0): Fault("Asked", "to be dropped")})
        assert len(ground.look().reading.problems) == 2
        assert "passes over 1 block:" in ground.look().reading.problems[0].message


def test_a_block_on_which_the_code_fails_tells_no_schema_and_stops_no_scan(
    connection: BlockStoreConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ground(connection)) as ground:
        fill_units(ground.store, range(6))
        forget_schemas(ground.store)
        bad = block_path("acme", 0, block_id(0))
        monkeypatch.setattr(book, "read_footer", lambda store, path: [][3] if path == bad else read_footer(store, path))
        assert ground.look().reading.problem is None


def test_deletions_that_a_store_refuses_are_one_problem_for_each_reason(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand in a request: the status has room for a few."""
    monkeypatch.setattr(
        adapter, "sweep", lambda *args, **known: Cleaned(0, 0, {"A": "denied", "B": "denied", "C": "away"}, None, False)
    )
    swept = ground.adapter.sweep(active=frozenset())
    assert [(problem.target, problem.message) for problem in swept.problems] == [
        ("A", "block A and 1 more could not be deleted: denied"),
        ("C", "block C could not be deleted: away"),
    ]
