"""Claims: tokens that only grow, blocks that belong to one job, and jobs that are given up."""

from __future__ import annotations

import threading

import pytest

from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import (
    ClaimedJob,
    IndexRefusal,
    claim,
    forget_jobs,
    high_water,
    job_record,
    open_jobs,
    retire,
)
from compaction.blocks.index.queued import Fault, density, quarantine, read_changes, read_queue
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import IndexDatabase, IndexJobState
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.model import BlockKey
from compaction.errors import StaleTokenError
from support.blocks.block_stores import NOON, SECOND, a_block, block_id, blocks_of, check, tables


def _claim(index: IndexDatabase, job: str, token: int, *numbers: int, level: int | None = None) -> ClaimedJob:
    sources = [block_id(number) for number in numbers]
    return claim(index, job=job, token=token, sources=sources, now=NOON, output_level=level)


def _owners(index: IndexDatabase) -> dict[str, str | None]:
    return {entry.id: entry.job for entry in read_queue(index).entries}


def test_a_claim_tells_what_may_be_replaced(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2, 3, level=1), now=NOON)
    claimed = _claim(index, "job", 7, 3, 1)
    assert claimed == ClaimedJob("job", 7, (a_block(1, level=1), a_block(3, level=1)), 2)
    assert high_water(index, "job") == 7
    assert high_water(index, "other") == 0
    assert _owners(index) == {block_id(1): "job", block_id(2): None, block_id(3): "job"}, "they keep their places"
    (record,) = open_jobs(index)
    assert (record.job, record.state, record.token, record.key) == (
        "job",
        IndexJobState.CLAIMED,
        7,
        BlockKey("t", 0, 1),
    )
    assert (record.sources, record.output_level, record.receipt) == ((block_id(1), block_id(3)), 2, None)
    check(index)


@pytest.mark.parametrize("token", [1, 6, 7])
def test_a_token_must_grow(index: IndexDatabase, token: int) -> None:
    register(index, blocks_of(1), now=NOON)
    _claim(index, "job", 7, 1)
    before = tables(index)
    with pytest.raises(StaleTokenError, match="token 7 is claimed"):
        _claim(index, "job", token, 1)
    retire(index, "job", now=NOON)
    with pytest.raises(StaleTokenError):
        _claim(index, "job", token, 1)
    assert high_water(index, "job") == 7
    assert len(before["jobs"]) == 1


def test_tokens_grow_also_over_jobs_that_are_forgotten(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2, 3), now=NOON)
    _claim(index, "old", 40, 1)
    _claim(index, "open", 50, 2)
    retire(index, "old", now=NOON)
    assert forget_jobs(index, before=NOON) == 0
    assert forget_jobs(index, before=NOON + 1) == 1, "an open one is never forgotten"
    assert job_record(index, "old") is None
    assert high_water(index, "old") == high_water(index, "new") == 40
    with pytest.raises(StaleTokenError):
        _claim(index, "old", 40, 1)
    _claim(index, "old", 41, 1)
    assert forget_jobs(index, before=NOON + 1) == 0
    check(index)


def test_the_next_attempt_takes_over(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    _claim(index, "job", 1, 1, 2)
    assert _claim(index, "job", 2, 1, 2).token == 2
    assert _claim(index, "job", 3, 2).sources == (a_block(2),), "after one was taken out"
    assert _owners(index) == {block_id(1): None, block_id(2): "job"}
    check(index)


def test_a_retired_job_frees_its_blocks(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    _claim(index, "job", 1, 1, 2)
    known = read_queue(index)
    retire(index, "job", now=NOON)
    changes = read_changes(index, known.version)
    assert changes is not None
    assert [(entry.id, entry.job) for entry in changes.entries] == [(block_id(1), None), (block_id(2), None)]
    assert [entry.arrival for entry in changes.entries] == [entry.arrival for entry in known.entries]
    before = tables(index)
    retire(index, "job", now=NOON + SECOND)
    retire(index, "unknown", now=NOON)
    assert tables(index) == before
    _claim(index, "other", 1, 1)
    _claim(index, "job", 2, 2)
    check(index)


def test_what_cannot_be_claimed(index: IndexDatabase) -> None:
    register(
        index, [*blocks_of(1, 2, 3, 4), a_block(5, level=1), a_block(6, shard=1), a_block(7, tenant="u")], now=NOON
    )
    register(index, [a_block(8, min_time=0, max_time=1, at=0)], now=NOON)
    _claim(index, "other", 1, 2)
    quarantine(index, {block_id(3): Fault("Corrupt", "bad")}, now=NOON)
    assert [item.block for item in expire(index, RetentionPeriods(default=SECOND), clock=lambda: NOON)] == [
        block_id(8, at=0)
    ]
    before = tables(index)
    expected = {
        IndexRefusal.SOURCE_UNKNOWN: [block_id(1), block_id(99)],
        IndexRefusal.SOURCE_CLAIMED: [block_id(1), block_id(2)],
        IndexRefusal.SOURCE_QUARANTINED: [block_id(1), block_id(3)],
        IndexRefusal.SOURCE_GONE: [block_id(1), block_id(8, at=0)],
        IndexRefusal.MALFORMED: [],
    }
    for reason, sources in expected.items():
        with pytest.raises(BlockClaimError) as caught:
            claim(index, job="job", token=1, sources=sources, now=NOON)
        assert caught.value.reason == reason
        assert str(caught.value).endswith("; nothing was changed")
    for number in (6, 7):
        with pytest.raises(BlockClaimError) as caught:
            _claim(index, "job", 1, 1, number)
        assert caught.value.reason == IndexRefusal.SOURCES_MIXED
    for job, token, numbers, level in [
        ("", 1, (1,), None), ("a\0", 1, (1,), None), ("job", 0, (1,), None), ("job", 2**63, (1,), None),
        ("job", 1, (1, 1), None), ("job", 1, (1,), 0), ("job", 1, (5,), 1),
    ]:  # fmt: skip
        with pytest.raises(BlockClaimError) as caught:
            _claim(index, job, token, *numbers, level=level)
        assert caught.value.reason == IndexRefusal.MALFORMED
    assert tables(index) == before


def test_levels_can_be_skipped(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    assert _claim(index, "job", 1, 1, level=3).output_level == 3


def test_one_of_many_wins_each_block(index_url: str) -> None:
    """Jobs that overlap in a ring, claimed by many at once: never two neighbours, and no one is stuck."""
    database = IndexDatabase.open(index_url)
    count = 8
    register(database, blocks_of(*range(count)), now=NOON)
    start = threading.Barrier(count)
    won: list[int] = []
    reasons: list[str] = []

    def compete(number: int) -> None:
        mine = IndexDatabase.open(index_url)
        start.wait()
        try:
            _claim(mine, f"job-{number}", 1, number, (number + 1) % count)
            won.append(number)
        except BlockClaimError as refused:
            reasons.append(refused.reason)
        mine.close()

    threads = [threading.Thread(target=compete, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won
    assert reasons == [IndexRefusal.SOURCE_CLAIMED] * (count - len(won))
    assert all((number + 1) % count not in won for number in won)
    taken = {block_id(n) for number in won for n in (number, (number + 1) % count)}
    assert {block for block, job in _owners(database).items() if job is not None} == taken
    check(database)
    database.close()


def test_one_of_many_wins_each_token(index_url: str) -> None:
    """Two coordinators that read the same high water hand out the same token: one claim holds."""
    database = IndexDatabase.open(index_url)
    register(database, blocks_of(1), now=NOON)
    start = threading.Barrier(6)
    won: list[int] = []

    def compete() -> None:
        mine = IndexDatabase.open(index_url)
        start.wait()
        for _ in range(5):
            token = high_water(mine, "job") + 1
            try:
                _claim(mine, "job", token, 1)
                won.append(token)
            except StaleTokenError:
                pass
        mine.close()

    threads = [threading.Thread(target=compete) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert high_water(database, "job") == len(won)
    check(database)
    database.close()


# Read amplification, as the index knows it.

HOUR = 3600 * SECOND
BEGIN = NOON // HOUR * HOUR


def test_how_many_blocks_a_query_opens(index: IndexDatabase) -> None:
    assert density(index, span=HOUR) == (0, 0)
    blocks = [
        *(a_block(number, min_time=BEGIN + number, max_time=BEGIN + HOUR) for number in range(4)),
        a_block(4, min_time=BEGIN, max_time=BEGIN, shard=1),
        a_block(5, min_time=BEGIN, max_time=BEGIN, tenant="u"),
        a_block(6, min_time=BEGIN + HOUR, max_time=BEGIN + HOUR),
    ]
    register(index, blocks, now=NOON)
    expire(index, RetentionPeriods(tenants={"u": SECOND}), clock=lambda: NOON + HOUR * 24 * 365)
    assert density(index, span=HOUR) == (6, 3)
    assert density(index, span=0) == (6, 2)
