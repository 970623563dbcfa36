"""Random histories of a real store: real objects and footers, the real index, sweep and collector. At any moment the
index is lost, and what is made anew gives readers the rows they saw. `test_lineage` tries many more, of plain sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import retire
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.rebuild.rebuilding import rebuild_index
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.cleaning import sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.storage.errors import ObjectMissingError
from support.depth import seeds
from support.faults.aged import DAY, Aging, DyingStore
from support.faults.index_faults import Death
from support.stores.block_histories import Attempt, attempt
from support.stores.block_index import NOON, SECOND, check
from support.stores.block_stores import content, fill

STEPS = 40
LATER = 1_795_000_000 * SECOND


@dataclass
class History:
    store: BlockStore
    age: Aging
    chance: Random
    written: int = 0
    attempts: list[Attempt] = field(default_factory=list)

    def step(self) -> None:
        steps = [self.write, self.begin, self.begin, self.go_on, self.go_on, self.go_on, self.clean, self.give_up]
        self.chance.choice(steps)()

    def write(self) -> None:
        count = self.chance.randint(1, 3)
        fill(self.store, range(self.written, self.written + count))
        self.written += count

    def begin(self) -> None:
        """A new job; or the next attempt at one that is believed dead."""
        if self.attempts and self.chance.random() < 0.3:
            old = self.chance.choice(self.attempts)
            ids, job = [block.id for block in old.sources], old.job
        else:
            live = [block for block in self.store.live().blocks if block.level < 3]
            if not live:
                return
            first = self.chance.choice(live)
            same = [block.id for block in live if block.level == first.level]
            ids, job = self.chance.sample(same, min(len(same), self.chance.randint(1, 3))), f"job-{len(self.attempts)}"
        try:
            self.attempts.append(attempt(self.store, ids, now=NOON, job=job, parts=self.chance.randint(1, 2)))
        except BlockClaimError:
            return

    def go_on(self) -> None:
        """An attempt uploads some parts, or all, and commits; one that is believed dead only uploads."""
        if not self.attempts:
            return
        one = self.chance.choice(self.attempts)
        record = self.store.job(one.job)
        assert record is not None
        alive = (record.state, record.token) == ("claimed", one.token)
        try:
            if not alive or self.chance.random() < 0.4:
                one.upload(self.chance.randrange(one.parts))
            else:
                one.upload()
                one.commit(now=NOON)
        except ObjectMissingError:
            assert not alive, "its sources are live"

    def give_up(self) -> None:
        if self.attempts:
            retire(self.store.index, self.chance.choice(self.attempts).job, now=NOON)

    def clean(self) -> None:
        """A sweep or a collection, which may die at one of its first calls of the object store."""
        for info in list(self.store.objects.list()):
            self.age(self.store.objects, info.path, DAY if info.path != IDENTITY_PATH else 9 * DAY)
        dies = self.chance.randrange(8)
        try:
            with DyingStore(at=dies):
                if self.chance.random() < 0.7:
                    sweep(self.store.objects, self.store.index, now=NOON, grace=0, limit=self.chance.randint(1, 6))
                else:
                    collect_orphans(self.store.objects, self.store.index, now=NOON, older_than=0)
        except Death:
            return


@pytest.fixture
def fresh(connection: BlockStoreConnection, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexDatabase]:
    """A second database of the same kind."""
    url = f"sqlite:///{tmp_path}/fresh.db"
    if not connection.index_url.startswith("sqlite"):
        server = request.getfixturevalue("postgres")
        url = server.url(server.create())
    database = IndexDatabase.open(url)
    yield database
    database.close()


@pytest.mark.parametrize("seed", seeds(8))
def test_the_index_is_lost_at_any_moment(
    seed: int, block_store: BlockStore, fresh: IndexDatabase, age: Aging, tmp_path: Path
) -> None:
    """The real one goes on afterwards: the store is bound to it again."""
    store = block_store
    identity = store.objects.get(IDENTITY_PATH)
    history = History(store, age, Random(seed))
    for step in range(STEPS):
        history.step()
        if step % 4 != 3:
            continue
        before = content(store)
        database = fresh if step == STEPS - 1 else IndexDatabase.open(f"sqlite:///{tmp_path}/{step}.db")
        result = rebuild_index(store.objects, database, now=LATER)
        assert content(replace(store, index=database)) == before, f"step {step}"
        assert (result.doubts, result.unreadable) == ([], {})
        check(database)
        store.objects.put(IDENTITY_PATH, identity)
        if database is not fresh:
            database.close()
    assert history.attempts
