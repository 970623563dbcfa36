"""The commit: sources out and outputs in at one instant; whatever is late, fenced or wrong changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace as with_fields
from typing import Any

import pytest
from sqlalchemy import update

from compaction.blocks.errors import InvalidBlockError, ReplaceRefusedError
from compaction.blocks.index.claims import IndexRefusal, claim, job_record, retire
from compaction.blocks.index.live_blocks import inspect, live_blocks
from compaction.blocks.index.queued import Fault, drop, quarantine, quarantined, read_changes, read_queue
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.tables import BLOCKS, BlockState, IndexDatabase, IndexJobState, TombstoneReason
from compaction.blocks.index.tombstones import RetentionPeriods, condemn, confirm_gone, due, expire
from compaction.blocks.model import Block, RowFingerprint
from compaction.errors import StaleTokenError
from support.blocks.block_stores import NOON, SECOND, a_block, block_id, blocks_of, check, output_of, tables

SOURCES = blocks_of(1, 2, 3)
IDS = tuple(block.id for block in SOURCES)
OUTPUT = output_of(100, SOURCES)
RESULT = BlockReplacement(job="job", token=5, sources=IDS, outputs=(OUTPUT,), receipt='{"rows": 30}')
YEARS = RetentionPeriods(default=365 * 86_400 * SECOND)


@pytest.fixture
def claimed(index: IndexDatabase) -> IndexDatabase:
    """Three blocks claimed by the job with token 5, and one beside them."""
    register(index, [*SOURCES, a_block(4)], now=NOON)
    claim(index, job="job", token=5, sources=IDS, now=NOON)
    return index


def _refused(index: IndexDatabase, result: BlockReplacement, reason: IndexRefusal) -> str:
    before = tables(index)
    with pytest.raises(ReplaceRefusedError) as caught:
        replace(index, result, clock=lambda: NOON + SECOND)
    assert caught.value.reason == reason
    assert tables(index) == before, "a refused result changed something"
    check(index)
    return str(caught.value)


def test_sources_become_outputs(claimed: IndexDatabase) -> None:
    known = read_queue(claimed).version
    done = replace(claimed, RESULT, clock=lambda: NOON + SECOND)
    assert (done.receipt, done.repeated) == (RESULT.receipt, False)
    listing = live_blocks(claimed)
    assert listing.blocks == (a_block(4), OUTPUT)
    assert listing.version >= done.version
    assert [entry.id for entry in read_queue(claimed).entries] == [block_id(4), OUTPUT.id], "at the end of the queue"
    changes = read_changes(claimed, known)
    assert changes is not None
    assert [entry.id for entry in changes.entries] == [OUTPUT.id]
    assert sorted(changes.left) == [(block.id, block.key) for block in SOURCES]
    buried = due(claimed, now=NOON + SECOND, grace=0)
    assert [(item.block, item.reason, item.job) for item in buried] == [
        (i, TombstoneReason.REPLACED, "job") for i in IDS
    ]
    record = job_record(claimed, "job")
    assert record is not None
    assert (record.state, record.receipt) == (IndexJobState.COMMITTED, RESULT.receipt)
    source = inspect(claimed, IDS[0])
    assert source is not None
    assert (source.state, source.job, source.ended) == (BlockState.TOMBSTONED, "job", "replaced")
    check(claimed)


def test_a_repetition_returns_the_receipt(claimed: IndexDatabase) -> None:
    replace(claimed, RESULT, clock=lambda: NOON + SECOND)
    before = tables(claimed)
    other_order = with_fields(RESULT, sources=IDS[::-1], receipt="written by another hand")
    for again in (RESULT, other_order):
        done = replace(claimed, again, clock=lambda: NOON + 99 * SECOND)
        assert (done.receipt, done.repeated) == (RESULT.receipt, True)
    retire(claimed, "job", now=NOON + 99 * SECOND)
    assert replace(claimed, RESULT, clock=lambda: NOON).repeated, "what is committed stays committed"
    assert tables(claimed) == before


def test_the_repetition_also_works_after_the_outputs_were_compacted_on(claimed: IndexDatabase) -> None:
    replace(claimed, RESULT, clock=lambda: NOON)
    claim(claimed, job="next", token=1, sources=[OUTPUT.id], now=NOON)
    top = output_of(200, [OUTPUT])
    replace(claimed, BlockReplacement("next", 1, (OUTPUT.id,), (top,), "{}"), clock=lambda: NOON)
    before = tables(claimed)
    assert replace(claimed, RESULT, clock=lambda: NOON).repeated
    assert tables(claimed) == before
    assert live_blocks(claimed).blocks == (a_block(4), top)


@pytest.mark.parametrize("token", [4, 6])
def test_only_the_equal_token_commits(claimed: IndexDatabase, token: int) -> None:
    """A larger one was never handed out here (docs/design/block-replace.md#claim: accepted there)."""
    before = tables(claimed)
    with pytest.raises(StaleTokenError, match="token 5 is claimed"):
        replace(claimed, with_fields(RESULT, token=token), clock=lambda: NOON)
    assert tables(claimed) == before


def test_a_fenced_attempt(claimed: IndexDatabase) -> None:
    claim(claimed, job="job", token=6, sources=IDS, now=NOON)
    before = tables(claimed)
    with pytest.raises(StaleTokenError):
        replace(claimed, RESULT, clock=lambda: NOON)
    assert tables(claimed) == before
    replace(claimed, with_fields(RESULT, token=6), clock=lambda: NOON)
    assert "with token 6" in _refused(claimed, RESULT, IndexRefusal.JOB_COMMITTED)


def test_jobs_that_may_not_commit(claimed: IndexDatabase) -> None:
    _refused(claimed, with_fields(RESULT, job="unknown"), IndexRefusal.JOB_UNKNOWN)
    retire(claimed, "job", now=NOON)
    _refused(claimed, RESULT, IndexRefusal.JOB_RETIRED)
    claim(claimed, job="other", token=1, sources=IDS[:2], now=NOON)
    _refused(claimed, RESULT, IndexRefusal.JOB_RETIRED)


def _expire(index: IndexDatabase) -> None:
    assert len(expire(index, YEARS, clock=lambda: NOON + 800 * 86_400 * SECOND)) == 4


def _drop(index: IndexDatabase) -> None:
    quarantine(index, {IDS[1]: Fault("Corrupt", "bad")}, now=NOON)
    assert drop(index, IDS[1], clock=lambda: NOON)


@pytest.mark.parametrize(("end", "why"), [(_expire, "expired"), (_drop, "dropped")])
def test_a_late_success_brings_nothing_back(
    claimed: IndexDatabase, end: Callable[[IndexDatabase], None], why: str
) -> None:
    """docs/design/block-replace.md#replacement: there, retention plus a late success resurrects deleted rows."""
    end(claimed)
    assert f"is {why}" in _refused(claimed, RESULT, IndexRefusal.SOURCE_GONE)
    live = live_blocks(claimed).blocks
    assert OUTPUT not in live
    retire(claimed, "job", now=NOON)
    check(claimed)


def test_a_source_that_was_given_to_another_job_is_not_replaced(claimed: IndexDatabase) -> None:
    """No call does that while the claim is open; a person with SQL, or a database restored in parts, may."""
    given = update(BLOCKS).where(BLOCKS.c.id == IDS[1]).values(job="other")
    claimed.change(lambda change: change.connection.execute(given))
    before = live_blocks(claimed).blocks
    with pytest.raises(ReplaceRefusedError, match=f"source {IDS[1]} is not its own") as caught:
        replace(claimed, RESULT, clock=lambda: NOON + SECOND)
    assert caught.value.reason == IndexRefusal.SOURCE_GONE
    assert live_blocks(claimed).blocks == before


@pytest.mark.parametrize(
    "change",
    [
        {"sources": IDS[:2]}, {"sources": (*IDS, block_id(4))}, {"sources": (*IDS[:2], block_id(4))},
        {"sources": (*IDS, IDS[0])}, {"sources": ()}, {"sources": (*IDS[:2], block_id(99))},
        {"skipped": {block_id(4): Fault("x", "y")}}, {"skipped": {IDS[0]: Fault("x", "y")}},
    ],
)  # fmt: skip
def test_the_sources_are_those_of_the_plan(claimed: IndexDatabase, change: dict[str, Any]) -> None:
    _refused(claimed, with_fields(RESULT, **change), IndexRefusal.NOT_THE_SOURCES)


@pytest.mark.parametrize("change", [{"tenant": "u"}, {"shard": 1}, {"level": 0}, {"level": 2}])
def test_outputs_are_where_they_belong(claimed: IndexDatabase, change: dict[str, Any]) -> None:
    wrong = with_fields(OUTPUT, **change)
    _refused(claimed, with_fields(RESULT, outputs=(wrong,)), IndexRefusal.OUTPUT_MISPLACED)


def test_outputs_are_new(claimed: IndexDatabase) -> None:
    for change in ({"id": block_id(4)}, {"id": IDS[0]}, {"path": a_block(4).path}, {"path": SOURCES[0].path}):
        wrong = with_fields(OUTPUT, **change)  # type: ignore[arg-type]
        _refused(claimed, with_fields(RESULT, outputs=(wrong,)), IndexRefusal.OUTPUT_KNOWN)


def test_outputs_are_blocks(claimed: IndexDatabase) -> None:
    before = tables(claimed)
    with pytest.raises(InvalidBlockError):
        replace(claimed, with_fields(RESULT, outputs=(with_fields(OUTPUT, path=""),)), clock=lambda: NOON)
    assert tables(claimed) == before


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        (RowFingerprint(0, 1), RowFingerprint()),  # another content
        (RowFingerprint(1, 0), RowFingerprint()),  # a row more
        (RowFingerprint(-1, 0), RowFingerprint()),  # a row less
        (RowFingerprint(0, 0), RowFingerprint(1, 77)),  # nothing was dropped after all
        (RowFingerprint(-1, -77), RowFingerprint(1, 78)),
    ],
)
def test_no_row_is_lost_or_invented(claimed: IndexDatabase, change: RowFingerprint, dropped: RowFingerprint) -> None:
    whole = OUTPUT.fingerprint + change
    wrong = with_fields(OUTPUT, rows=whole.rows, fingerprint=whole)
    _refused(claimed, with_fields(RESULT, outputs=(wrong,), dropped=dropped), IndexRefusal.CONTENT_DIFFERS)
    _refused(claimed, with_fields(RESULT, outputs=()), IndexRefusal.CONTENT_DIFFERS)


def test_duplicates_that_were_dropped_are_counted_and_hashed(claimed: IndexDatabase) -> None:
    dropped = RowFingerprint(2, 12345)
    whole = OUTPUT.fingerprint - dropped
    output = with_fields(OUTPUT, rows=whole.rows, fingerprint=whole)
    replace(claimed, with_fields(RESULT, outputs=(output,), dropped=dropped), clock=lambda: NOON)
    assert output in live_blocks(claimed).blocks


def test_several_outputs(claimed: IndexDatabase) -> None:
    part = RowFingerprint(12, 999)
    outputs = tuple(
        with_fields(a_block(100 + n, level=1), rows=f.rows, fingerprint=f)
        for n, f in enumerate((part, OUTPUT.fingerprint - part))
    )
    replace(claimed, with_fields(RESULT, outputs=outputs), clock=lambda: NOON)
    assert live_blocks(claimed).blocks == (a_block(4), *outputs)
    check(claimed)


def test_empty_blocks_become_nothing(index: IndexDatabase) -> None:
    empty = blocks_of(1, 2, fingerprint=RowFingerprint())
    register(index, empty, now=NOON)
    claim(index, job="job", token=5, sources=IDS[:2], now=NOON)
    replace(index, with_fields(RESULT, sources=IDS[:2], outputs=()), clock=lambda: NOON)
    assert live_blocks(index).blocks == ()
    check(index)


def test_the_culprit_is_set_aside_and_the_others_go_on(claimed: IndexDatabase) -> None:
    output = output_of(101, SOURCES[:2])
    result = with_fields(
        RESULT, sources=IDS[:2], outputs=(output,), skipped={IDS[2]: Fault("Corrupt", "page 7 of column value")}
    )
    assert not replace(claimed, result, clock=lambda: NOON + 1).repeated
    assert live_blocks(claimed).blocks == (SOURCES[2], a_block(4), output), "it is still read"
    assert [entry.id for entry in read_queue(claimed).entries] == [block_id(4), output.id]
    (culprit,) = quarantined(claimed)
    assert (culprit.block, culprit.fault.message, culprit.job, culprit.since) == (
        SOURCES[2], "page 7 of column value", "job", NOON + 1,
    )  # fmt: skip
    check(claimed)
    assert replace(claimed, result, clock=lambda: NOON + 2).repeated


def test_a_skipped_source_may_be_gone(claimed: IndexDatabase) -> None:
    quarantine(claimed, {IDS[2]: Fault("Corrupt", "bad")}, now=NOON)
    drop(claimed, IDS[2], clock=lambda: NOON)
    output = output_of(101, SOURCES[:2])
    result = with_fields(RESULT, sources=IDS[:2], outputs=(output,), skipped={IDS[2]: Fault("Missing", "404")})
    replace(claimed, result, clock=lambda: NOON)
    assert live_blocks(claimed).blocks == (a_block(4), output)
    assert quarantined(claimed) == ()
    check(claimed)


def test_an_output_that_is_being_collected(claimed: IndexDatabase) -> None:
    """The collector found the object of an attempt that died, and this attempt found it too: one of them must lose."""
    assert condemn(claimed, [OUTPUT.path], now=NOON) == (OUTPUT.path,)
    _refused(claimed, RESULT, IndexRefusal.OUTPUT_CONDEMNED)
    confirm_gone(claimed, [OUTPUT.path], now=NOON)
    _refused(claimed, RESULT, IndexRefusal.OUTPUT_CONDEMNED)
    claim(claimed, job="job", token=6, sources=IDS, now=NOON)
    replace(claimed, with_fields(RESULT, token=6), clock=lambda: NOON)
    assert condemn(claimed, [OUTPUT.path], now=NOON) == ()
    check(claimed)


def test_one_of_many_commits(index_url: str) -> None:
    """The same result from many hands is committed once; of different ones, one."""
    database = IndexDatabase.open(index_url)
    register(database, SOURCES, now=NOON)
    claim(database, job="job", token=5, sources=IDS, now=NOON)
    outputs = [output_of(100 + n // 2, SOURCES) for n in range(6)]
    start = threading.Barrier(len(outputs))
    ends: list[tuple[str, str]] = []

    def commit(output: Block) -> None:
        mine = IndexDatabase.open(index_url)
        start.wait()
        try:
            done = replace(mine, with_fields(RESULT, outputs=(output,)), clock=lambda: NOON)
            ends.append((output.id, "repeated" if done.repeated else "done"))
        except ReplaceRefusedError as refused:
            ends.append((output.id, refused.reason))
        mine.close()

    threads = [threading.Thread(target=commit, args=(output,)) for output in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [block for block, end in ends if end == "done"]
    assert sorted(end for _, end in ends) == ["JobCommitted"] * 4 + ["done", "repeated"]
    assert [block.id for block in live_blocks(database).blocks] == [winner]
    check(database)
    database.close()


def test_readers_see_all_sources_or_all_outputs(index_url: str) -> None:
    """Compaction after compaction under readers that never stop: at every instant the rows are all there, once."""
    database = IndexDatabase.open(index_url)
    register(database, blocks_of(*range(40)), now=NOON)
    whole = sum((block.fingerprint for block in live_blocks(database).blocks), RowFingerprint())
    ended = threading.Event()
    seen: list[int] = []

    def compact() -> None:
        mine = IndexDatabase.open(index_url)
        number = 1000
        while len(live := sorted(live_blocks(mine).blocks, key=lambda block: block.level)) > 1:
            level = next(b.level for b in live if sum(b.level == other.level for other in live) > 1)
            sources = [block for block in live if block.level == level][:3]
            number += 1
            ids = tuple(block.id for block in sources)
            claim(mine, job=f"job-{number}", token=1, sources=ids, now=NOON)
            output = output_of(number, sources)
            replace(mine, BlockReplacement(f"job-{number}", 1, ids, (output,), "{}"), clock=lambda: NOON)
            if len(live) - len(sources) + 1 > 1 and not any(
                sum(b.level == o.level for o in live_blocks(mine).blocks) > 1 for b in live_blocks(mine).blocks
            ):
                break
        mine.close()
        ended.set()

    worker = threading.Thread(target=compact)
    worker.start()
    while not ended.is_set():
        blocks = live_blocks(database).blocks
        assert sum((block.fingerprint for block in blocks), RowFingerprint()) == whole
        seen.append(len(blocks))
    worker.join()
    assert len(live_blocks(database).blocks) < 6
    assert len(set(seen)) > 3, "the reader saw nothing happen"
    check(database)
    database.close()
