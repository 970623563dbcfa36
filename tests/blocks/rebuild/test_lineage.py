"""What lives is told from what blocks say of each other: after any history, readers find the rows they saw before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from blocks.rebuild.model import StoreModel
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import retire
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.rebuild import lineage
from compaction.blocks.rebuild.lineage import LineageVerdict, Made, Relative, decide
from compaction.blocks.rebuild.rebuilding import rebuild_index
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep.cleaning import sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.storage.errors import ObjectMissingError
from support.blocks.block_histories import Attempt, attempt
from support.blocks.block_stores import NOON, SECOND, check, content, fill
from support.faults.store_faults import DAY, Aging, Death, DyingStore
from support.timing import seeds

WORLDS = 150
STEPS = 60


def _found(world: StoreModel, verdict: LineageVerdict) -> Counter[int]:
    assert verdict.live | verdict.dead | verdict.unused == world.objects.keys()
    assert len(verdict.live) + len(verdict.dead) + len(verdict.unused) == len(world.objects)
    return Counter(row for block in verdict.live for row in world.objects[block].rows)


def test_no_row_is_lost_or_comes_twice_at_any_moment_of_any_history() -> None:
    """Attempts that die at any step and go on as zombies, batches that are planned anew, deletions in any order that
    the sweeper allows, also half confirmed ones.
    """
    for seed in range(WORLDS):
        world = StoreModel(Random(seed), ending=False)
        for step in range(STEPS):
            world.step()
            verdict = decide(world.relatives())
            assert _found(world, verdict) == world.rows(), f"world {seed}, step {step}"
            assert verdict.doubts == ()


def test_what_expired_or_was_dropped_may_come_back_and_nothing_is_lost_without_a_word() -> None:
    doubts = 0
    for seed in range(WORLDS):
        world = StoreModel(Random(seed), ending=True)
        for step in range(STEPS):
            world.step()
            verdict = decide(world.relatives())
            found, before = _found(world, verdict), world.rows()
            more = {row for row in found if found[row] > max(before[row], row in world.lost)}
            assert more == set(), f"world {seed}, step {step}"
            assert verdict.doubts or not before - found, f"world {seed}, step {step}"
            doubts += bool(verdict.doubts)
    assert doubts < WORLDS * STEPS // 500


def _written(*names: str) -> list[Relative]:
    return [Relative(name, 0, None) for name in names]


def _made(
    name: str, sources: str, *, of: str = "", token: int = 1, older: str = "", level: int = 1, told: bool = True
) -> Relative:
    """Output `name` of the set `of` (names of all parts; itself by default) from `sources`."""
    outputs = tuple((of or name).split())
    ancestors = tuple(map(hash, older.split()))
    part, parts = outputs.index(name), len(outputs)
    job = "job of " + sources
    return Relative(
        name, level, Made(job, token, part, parts, tuple(sources.split()), outputs if told else (), ancestors, 0.0)
    )


CASES = {
    "nothing was compacted": (_written("a", "b"), "a b"),
    "uploaded, committed or not: the sources are there": ([*_written("a", "b"), _made("o", "a b")], "a b"),
    "the sweep has begun": ([*_written("b"), _made("o", "a b")], "o"),
    "the sweep is over": ([_made("o", "a b"), *_written("c")], "o c"),
    "an upload that never ended": ([*_written("a", "b"), _made("o", "a b", of="o p")], "a b"),
    "one that never ended, and a source that is gone: it expired": ([*_written("b"), _made("o", "a b", of="o p")], "b"),
    "the other part expired": ([_made("o", "a b", of="o p")], "o"),
    "the other part was replaced": ([_made("o", "a b", of="o p"), _made("t", "p", older="a b", level=2)], "o t"),
    "the other part was replaced twice": (
        [_made("o", "a b", of="o p"), _made("u", "t", older="p a b", level=3)], "o u",
    ),
    "a chain, nothing deleted": (
        [*_written("a", "b"), _made("o", "a b"), _made("t", "o", older="a b", level=2)], "o",
    ),
    "who was made into others lived, though they never did": (
        [*_written("a", "b"), _made("o", "a b"), _made("t", "o q", of="t v", older="a b", level=2)], "o",
    ),
    "a chain whose middle is gone": ([_made("t", "o q", older="a b c", level=2), *_written("d")], "t d"),
    "two attempts, both complete: the later one": (
        [_made("o", "a b"), _made("p", "a b", token=2)], "p",
    ),
    "two attempts, one of which became a source": (
        [_made("o", "a b"), _made("p", "a b", token=2), _made("t", "o", older="a b", level=2)], "o",
    ),
    "two attempts, one complete": ([_made("o", "a b"), _made("p", "a b", of="p q", token=2)], "o"),
    "planned anew without one of them": (
        [_made("o", "a b c"), _made("p", "a b", token=2), *_written("c")], "p c",
    ),
    "planned anew in two": ([_made("o", "a b"), _made("p", "a", token=2), _made("q", "b", token=2)], "p q"),
    "planned anew in two, and compacted on": (
        [_made("o", "a b"), _made("q", "b"), _made("t", "p c", older="a", level=2)], "q t",
    ),
    "what a dead attempt made of a block whose successor is gone": (
        [_made("o", "a b"), _made("t", "p c", older="a b", level=2)], "t",
    ),
    "an output that does not tell the ids of the others": (
        [_made("o", "a b", of="o p", told=False), _made("t", "p c", older="a b", level=2)], "o t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    blocks, live = CASES[case]
    for order in (blocks, blocks[::-1]):
        verdict = decide(order)
        assert verdict.live == set(live.split())
        assert verdict.doubts == ()


def test_of_equals_the_last_upload_is_taken() -> None:
    """Tokens of different jobs say nothing about each other; what failed is followed by what did not."""
    whole = _made("o", "a b", token=7)
    halves = [_made("p", "a"), _made("q", "b")]
    for late in (1.0, -1.0):
        blocks = [whole, *(h._replace(made=h.made._replace(modified=late)) for h in halves if h.made)]
        assert decide(blocks).live == ({"p", "q"} if late > 0 else {"o"})


def test_a_doubt_is_told() -> None:
    """Either a expired, or c did, or one of both was replaced by somebody whose output is gone: nobody knows."""
    verdict = decide([_made("o", "a b"), _made("p", "b c", token=2)])
    assert len(verdict.live) == 1
    (doubt,) = verdict.doubts
    assert "not used: " in doubt
    assert "sources a are gone" in doubt or "sources c are gone" in doubt


def test_a_contradiction_is_told() -> None:
    """A block that was replaced twice: no index of ours does that. The later attempt is believed."""
    verdict = decide(
        [_made("o", "a"), _made("t", "o", older="a", level=2), _made("p", "a", token=9), _made("u", "p", level=2)]
    )
    assert verdict.live == {"p"}
    assert len(verdict.doubts) == 1


def test_a_large_puzzle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty batches, each with three attempts, and one that had planned across all of them."""
    monkeypatch.setattr(lineage, "STEPS", 500)
    blocks = [_made(f"o{batch}.{token}", f"s{batch}", token=token) for batch in range(20) for token in (1, 2, 3)]
    across = _made("across", " ".join(f"s{batch}" for batch in range(20)) + " other")
    verdict = decide([*blocks, _made("x", "other", token=2), across])
    assert verdict.doubts == ()
    rows = sorted(block.split(".")[0] for block in verdict.live)
    assert rows in (["across"], sorted([*(f"o{batch}" for batch in range(20)), "x"]))


# Random histories of a real store: real objects and footers, the real index, sweep and collector. At any moment the
# index is lost, and what is made anew gives readers the rows they saw. `test_lineage` tries many more, of plain sets.

HISTORY_STEPS = 40
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
    for step in range(HISTORY_STEPS):
        history.step()
        if step % 4 != 3:
            continue
        before = content(store)
        database = fresh if step == HISTORY_STEPS - 1 else IndexDatabase.open(f"sqlite:///{tmp_path}/{step}.db")
        result = rebuild_index(store.objects, database, now=LATER)
        assert content(replace(store, index=database)) == before, f"step {step}"
        assert (result.doubts, result.unreadable) == ([], {})
        check(database)
        store.objects.put(IDENTITY_PATH, identity)
        if database is not fresh:
            database.close()
    assert history.attempts
