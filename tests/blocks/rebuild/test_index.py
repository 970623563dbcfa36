"""The index is lost, and made anew from the objects: readers find the rows they saw before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import update

from compaction.blocks.errors import IndexMismatchError, ReplaceRefusedError
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.claims import claim, high_water
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.index.queued import Fault
from compaction.blocks.index.tables import HEAD, BlockState, IndexDatabase
from compaction.blocks.model import BlockKey
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.rebuild import rebuilding
from compaction.blocks.rebuild import rebuilding as found_module
from compaction.blocks.rebuild import rebuilding as module
from compaction.blocks.rebuild.rebuilding import Lake, RebuildProgress, rebuild_index
from compaction.blocks.registration.describe import describe, said_of
from compaction.blocks.registration.foreign import assigned_id
from compaction.blocks.store import BlockStore, BlockStoreConnection, begin_anew, finish_anew, read_identity
from compaction.blocks.sweep.cleaning import sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans, find_orphans
from compaction.errors import StaleTokenError
from compaction.leases.record import MAX_TOKEN
from compaction.storage.errors import ObjectStoreUnavailableError
from support.blocks.block_histories import attempt, compact
from support.blocks.block_stores import NOON, SECOND, block_id, check, content, fill, upload
from support.blocks.blocks import parquet, rows
from support.faults.store_faults import DAY, Aging, Death, DyingStore, Interrupted, deaths, interruptions

LATER = 1_795_000_000 * SECOND
ONE, TWO, THREE, FOUR, FIVE, SIX = map(block_id, range(1, 7))


@pytest.fixture
def fresh_url(connection: BlockStoreConnection, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database of the same kind."""
    if connection.index_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/fresh.db"
    server = request.getfixturevalue("postgres")
    return str(server.url(server.create()))


@pytest.fixture
def fresh(fresh_url: str) -> Iterator[IndexDatabase]:
    database = IndexDatabase.open(fresh_url)
    yield database
    database.close()


def _history(store: BlockStore) -> None:
    """Blocks that nobody compacted, a job whose sources are swept, one whose sources are not, two levels, an attempt
    that uploaded one of two parts, one that uploaded everything and never committed, and other tenants.
    """
    fill(store, range(1, 13))
    fill(store, [20, 21], tenant="ünïcode/..", shard=7)
    compact(store, [ONE, TWO])
    swept = compact(store, [THREE, FOUR], parts=2)
    compact(store, swept[:1])
    sweep(store.objects, store.index, now=NOON + SECOND, grace=0)
    compact(store, [FIVE, SIX], parts=2)
    attempt(store, [block_id(7), block_id(8)], now=NOON, parts=2, job="half").upload(0)
    attempt(store, [block_id(9), block_id(10)], now=NOON, parts=2, job="whole").upload()
    attempt(store, [block_id(9), block_id(10)], now=NOON, parts=3, job="whole").upload()


def test_readers_find_what_they_saw(
    block_store: BlockStore, connection: BlockStoreConnection, fresh: IndexDatabase, fresh_url: str
) -> None:
    _history(block_store)
    before = content(block_store)
    blocks = {block.id: block for block in block_store.live().blocks}
    block_store.close()
    seen: list[RebuildProgress] = []
    result = rebuild_index(block_store.objects, fresh, now=LATER, report=seen.append)
    store = BlockStore.open(replace(connection, index_url=fresh_url))
    after = store.live().blocks
    assert content(store) == before
    assert (result.blocks, result.rows) == (len(after), len(before))
    assert result.bytes == sum(block.bytes for block in after)
    for block in after:
        assert blocks.get(block.id, block) == block, "nothing but what it was"
    # Of a job within the grace the sources are taken, and its outputs left aside.
    assert {FIVE, SIX} <= {block.id for block in after}
    assert (result.replaced, result.unused, result.unreadable, result.doubts) == (0, 8, {}, [])
    assert seen[-1].read == seen[-1].of == result.blocks + result.unused
    assert {(item.tenant, item.shard) for item in seen} == {("acme", 0), ("ünïcode/..", 7)}
    queue = store.queue().entries
    assert [entry.id for entry in queue if entry.tenant == "acme"] == sorted(b.id for b in after if b.tenant == "acme")
    assert len(queue) == len(after)
    check(store.index)
    store.close()


def test_what_dead_attempts_leave_does_not_come_back_when_their_successors_are_gone(
    block_store: BlockStore, fresh: IndexDatabase
) -> None:
    """The leftover names sources that nothing else names any more, but as ancestors."""
    store = block_store
    fill(store, [1, 2, 3])
    before = content(store)
    left = attempt(store, [ONE, TWO], now=NOON, job="job")
    left.upload()
    again = attempt(store, [ONE, TWO], now=NOON, job="job")
    again.upload()
    (middle,) = again.commit(now=NOON)
    (top,) = compact(store, [middle])
    sweep(store.objects, store.index, now=NOON + SECOND, grace=0)
    result = rebuild_index(store.objects, fresh, now=LATER)
    new = replace(store, index=fresh)
    assert content(new) == before
    assert {block.id for block in new.live().blocks} == {top, THREE}
    assert result.unused == 1


def test_nothing_from_before_commits(block_store: BlockStore, fresh: IndexDatabase) -> None:
    fill(block_store, [1, 2])
    before = content(block_store)
    late = attempt(block_store, [ONE, TWO], now=NOON, job="job")
    late.upload()
    rebuild_index(block_store.objects, fresh, now=LATER)
    new = replace(block_store, index=fresh)
    with pytest.raises(ReplaceRefusedError, match="nothing is claimed"):
        replace(late, store=new).commit(now=LATER)
    assert 200_000_000 < high_water(fresh, "job") < MAX_TOKEN // 2, "a Lease has to hold it"
    with pytest.raises(StaleTokenError):
        claim(fresh, job="job", token=late.token + 1, sources=[ONE, TWO], now=LATER)
    compact(new, [ONE, TWO])
    assert content(new) == before
    check(fresh)


def test_the_lost_index_does_not_come_back(
    block_store: BlockStore, connection: BlockStoreConnection, fresh: IndexDatabase, fresh_url: str
) -> None:
    """Restored from a backup it would delete what it believes to be replaced."""
    fill(block_store, [1])
    old = read_identity(block_store.objects)
    block_store.close()
    rebuild_index(block_store.objects, fresh, now=LATER)
    assert read_identity(block_store.objects) != old
    with pytest.raises(IndexMismatchError, match="another store"):
        BlockStore.open(connection)
    BlockStore.open(replace(connection, index_url=fresh_url)).close()


def test_an_index_that_exists_is_never_replaced(block_store: BlockStore, fresh: IndexDatabase, tmp_path: Path) -> None:
    fill(block_store, [1])
    with pytest.raises(IndexMismatchError, match="it is not lost"):
        rebuild_index(block_store.objects, block_store.index, now=LATER)
    other = BlockStore.open(BlockStoreConnection(f"{tmp_path}/other", f"sqlite:///{tmp_path}/other.db"))
    fill(other, [2])
    with pytest.raises(IndexMismatchError, match="not empty"):
        rebuild_index(block_store.objects, other.index, now=LATER)
    assert len(other.live().blocks) == 1
    rebuild_index(block_store.objects, fresh, now=LATER)
    with pytest.raises(IndexMismatchError, match="it is not lost"):
        rebuild_index(block_store.objects, fresh, now=LATER)
    with pytest.raises(IndexMismatchError, match="not empty"):
        rebuild_index(other.objects, fresh, now=LATER)
    other.close()


def test_without_an_identity_too(block_store: BlockStore, fresh: IndexDatabase) -> None:
    """Somebody deleted everything that is no block."""
    fill(block_store, [1])
    block_store.objects.delete([IDENTITY_PATH])
    assert rebuild_index(block_store.objects, fresh, now=LATER).blocks == 1


def test_an_index_that_was_opened_in_vain_will_do(
    block_store: BlockStore, connection: BlockStoreConnection, fresh: IndexDatabase, fresh_url: str
) -> None:
    """Opening the store with a new database made its tables, and refused it."""
    fill(block_store, [1])
    with pytest.raises(IndexMismatchError, match="rebuild-index"):
        BlockStore.open(replace(connection, index_url=fresh_url))
    assert rebuild_index(block_store.objects, fresh, now=LATER).blocks == 1


def test_death_at_every_call(block_store: BlockStore, connection: BlockStoreConnection, fresh: IndexDatabase) -> None:
    """A rebuild that died is begun anew; before it is done, the store does not open with the index."""
    store = block_store
    fill(store, [1, 2, 3])
    compact(store, [ONE, TWO], parts=2)
    before = content(store)
    identity = read_identity(store.objects) or ""
    rebuild_index(store.objects, fresh, now=LATER)
    store.objects.put(IDENTITY_PATH, identity.encode())
    _half_made(fresh, identity)
    with DyingStore() as objects, Interrupted(fresh) as statements:
        rebuild_index(store.objects, fresh, now=LATER)
    places = [("objects", n, w) for n, w in deaths(objects.calls)]
    places += [("statements", n, w) for n, w, _ in interruptions(statements.calls)]
    new = replace(store, index=fresh)
    for kind, number, when in places:
        store.objects.put(IDENTITY_PATH, identity.encode())
        _half_made(fresh, identity)
        dying = DyingStore(number, when) if kind == "objects" else Interrupted(fresh, at=number, when=when)
        with dying, pytest.raises(Death):
            rebuild_index(store.objects, fresh, now=LATER)
        if read_identity(store.objects) == identity:
            rebuild_index(store.objects, fresh, now=LATER)
        assert content(new) == before, f"{kind} {number} {when}"
        check(fresh)


def _half_made(index: IndexDatabase, identity: str) -> None:
    """As a rebuild leaves it that died."""
    index.change(lambda change: change.connection.execute(update(HEAD).values(identity=f"X-after-{identity[:26]}")))


def test_blocks_of_writers_that_say_nothing(
    block_store: BlockStore, fresh: IndexDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Described by their path and by reading them; of level 0."""
    monkeypatch.setattr(module, "PAGE", 2)
    fill(block_store, [1, 2, 3])
    fill(block_store, [4], tenant="other", shard=3)
    two_times = rows(10).append_column("seen", pa.array(range(10), pa.timestamp("us", "UTC")))
    table = two_times.rename_columns(["service", "begin", "value", "seen"])
    path = upload(block_store, 5)
    block_store.objects.put(path, parquet(table))
    before = block_store.live().blocks
    result = rebuild_index(block_store.objects, fresh, now=LATER)
    assert replace(block_store, index=fresh).live().blocks == before
    assert list(result.unreadable) == [path]
    assert "which column is the time" in result.unreadable[path]


def test_what_cannot_be_read_is_named_and_no_reason_to_stop(
    block_store: BlockStore, fresh: IndexDatabase, age: Aging
) -> None:
    store = block_store
    fill(store, [1, 2, 3])
    whole = store.objects.get(store.live().blocks[0].path)
    cut = upload(store, 7)
    store.objects.put(cut, whole[:100])
    stranger = upload(
        store, 8, metadata=BlockMetadata(tenant="somebody else", fingerprint=fingerprint(rows(100, start=800)))
    )
    twice = f"acme/1/{ONE}.parquet"
    store.objects.put(twice, whole)
    store.objects.put("lake/day=1/part-0.parquet", parquet(rows(3)))
    result = rebuild_index(store.objects, fresh, now=LATER)
    assert set(result.unreadable) == {cut, stranger, twice}
    assert "truncated" in result.unreadable[cut] or "PAR1" in result.unreadable[cut]
    assert "tenant" in result.unreadable[stranger]
    assert "registered" in result.unreadable[twice]
    assert (result.blocks, result.foreign, result.examples) == (3, 1, ["lake/day=1/part-0.parquet"])
    for info in list(store.objects.list()):
        age(store.objects, info.path, 2 * DAY)
    store.objects.put(IDENTITY_PATH, store.objects.get(IDENTITY_PATH))
    assert find_orphans(store.objects, fresh).waiting == 3, "a person has a week to look at them"
    assert collect_orphans(store.objects, fresh, now=LATER).objects == 0


def test_a_block_on_which_the_code_fails_is_named_and_the_others_found(
    block_store: BlockStore, fresh: IndexDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(block_store, [1, 2, 3])
    bad = block_store.live().blocks[1].path
    monkeypatch.setattr(found_module, "said_of", lambda footer: [][3] if footer.info.path == bad else said_of(footer))
    result = rebuild_index(block_store.objects, fresh, now=LATER)
    assert (result.blocks, list(result.unreadable)) == (2, [bad])
    assert "an unexpected IndexError at blocks/rebuild/rebuilding.py:" in result.unreadable[bad]


def test_files_of_a_lake_that_were_registered_where_they_lay(block_store: BlockStore, fresh: IndexDatabase) -> None:
    """Neither tenant nor shard is in their paths: who makes the index anew says it, as at the registration."""
    store = block_store
    paths = [f"lake/day={day}/part-0.parquet" for day in range(4)]
    for number, path in enumerate([*paths, "lake/_temporary/x.parquet", "lake/other/y.parquet"]):
        store.objects.put(path, parquet(rows(50, start=100 * number), sorted_by=["service", "time"]))
    ids = [assigned_id(store.objects.head(path)) for path in paths]
    blocks = [
        describe(store.objects, path, tenant="acme", shard=2, level=0, block=block, given_up=["day"])
        for path, block in zip(paths, ids, strict=True)
    ]
    store.register_blocks(blocks)
    fill(store, [1])
    compact(store, ids[:2], now=NOON)
    sweep(store.objects, store.index, now=NOON + SECOND, grace=0)
    (swept,) = compact(store, ids[2:3], now=NOON)
    before = content(store)
    store.objects.delete([paths[2]])
    lakes = [Lake("lake", "acme", 2), Lake("lake/other/", "else", 0), Lake("lak", "nobody", 0)]
    result = rebuild_index(store.objects, fresh, now=LATER, lakes=lakes, given_up=("day",))
    new = replace(store, index=fresh)
    live = {block.id: block for block in new.live().blocks}
    assert content(new, BlockFilter(tenant="acme")) == before
    assert [block.path for block in live.values() if block.tenant == "else"] == ["lake/other/y.parquet"]
    assert live[ids[3]] == blocks[3]
    assert swept in live
    assert (result.foreign, result.examples, result.left) == (1, ["lake/_temporary/x.parquet"], [])


def test_a_file_of_a_lake_that_was_replaced_is_named(block_store: BlockStore, fresh: IndexDatabase) -> None:
    """The orphan collector never touches it."""
    store = block_store
    path = "lake/part-0.parquet"
    store.objects.put(path, parquet(rows(50), sorted_by=["service", "time"]))
    block = assigned_id(store.objects.head(path))
    store.register_blocks([describe(store.objects, path, tenant="acme", shard=0, level=0, block=block)])
    fill(store, [1])
    before = content(store)
    (middle,) = compact(store, [block, ONE], now=NOON)
    compact(store, [middle], now=NOON)
    store.objects.delete([f"acme/0/{middle}.parquet"])
    result = rebuild_index(store.objects, fresh, now=LATER, lakes=[Lake("", "acme", 0)])
    assert content(replace(store, index=fresh)) == before
    assert (result.replaced, result.left) == (2, [path])


def test_what_nobody_knows_comes_back(block_store: BlockStore, fresh: IndexDatabase) -> None:
    """Said in the documentation: an upload that was not registered, a block that expired and is not swept."""
    store = block_store
    fill(store, [1, 2])
    upload(store, 3)
    store.set_aside({TWO: Fault("Corrupt", "bad")})
    store.drop(TWO)
    rebuild_index(store.objects, fresh, now=LATER)
    new = replace(store, index=fresh)
    assert [block.id for block in new.live().blocks] == [ONE, TWO, THREE]
    assert new.quarantined() == ()
    record = new.inspect(TWO)
    assert record is not None
    assert record.state is BlockState.LIVE
    assert record.block.key == BlockKey("acme", 0, 0)


def test_an_outage_ends_it(block_store: BlockStore, fresh: IndexDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for damage, it would leave blocks out."""
    fill(block_store, [1])

    def away(*_: object, **__: object) -> None:
        raise ObjectStoreUnavailableError("acme/0", "503")

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "read_footer", away)
        with pytest.raises(ObjectStoreUnavailableError):
            rebuild_index(block_store.objects, fresh, now=LATER)
    assert rebuild_index(block_store.objects, fresh, now=LATER).blocks == 1


def test_two_at_once(block_store: BlockStore, fresh: IndexDatabase) -> None:
    """The one that began first does not end it."""
    first = begin_anew(block_store.objects, fresh)
    rebuild_index(block_store.objects, fresh, now=LATER)
    with pytest.raises(IndexMismatchError, match="another process"):
        finish_anew(block_store.objects, fresh, first)
