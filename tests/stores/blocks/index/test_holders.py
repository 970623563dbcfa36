"""Claims of local processes: who made them, their signs of life, and that nobody closes another one's claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import (
    IndexRefusal,
    claim,
    forget_jobs,
    job_record,
    open_jobs,
    renew,
    retire,
    sign_out,
)
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import HOLDERS, IndexDatabase, IndexJobState
from compaction.errors import StaleTokenError
from compaction.storage.opened import Holder
from support.stores.block_index import NOON, SECOND, block_id, blocks_of, check

ONE = Holder("one", "host-a", "boot pid:[1]", 12, "boot:100", 60 * SECOND)
OTHER = replace(ONE, id="other", pid=13)


def take(index: IndexDatabase, job: str, token: int, number: int, holder: Holder | None) -> None:
    claim(index, job=job, token=token, sources=[block_id(number)], now=NOON, holder=holder)


def be_silent(index: IndexDatabase, holder: Holder, seconds: int) -> None:
    """As if the last sign of life was so long ago."""
    past = update(HOLDERS).where(HOLDERS.c.holder == holder.id)
    index.write(lambda connection: connection.execute(past.values(renewed_at=HOLDERS.c.renewed_at - seconds * SECOND)))


def holders(index: IndexDatabase) -> list[str]:
    return index.read(lambda connection: sorted(connection.execute(select(HOLDERS.c.holder)).scalars()))


def test_a_claim_says_which_process_made_it(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    take(index, "local", 1, 1, ONE)
    take(index, "cluster", 1, 2, None)
    cluster, local = open_jobs(index)
    assert cluster.holder is None
    assert local.holder is not None
    assert local.holder.holder == ONE
    assert 0 <= local.holder.silent < 50 * SECOND
    check(index)


def test_silence_ends_with_a_sign_of_life(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    renew(index, ONE.id)
    assert holders(index) == [], "one that has claimed nothing is not known"
    take(index, "job", 1, 1, ONE)
    be_silent(index, ONE, 100)
    (job,) = open_jobs(index)
    assert job.holder is not None
    assert job.holder.is_silent
    assert 100 * SECOND <= job.holder.silent < 150 * SECOND
    renew(index, ONE.id)
    (job,) = open_jobs(index)
    assert job.holder is not None
    assert not job.holder.is_silent
    be_silent(index, ONE, 100)
    take(index, "job", 2, 1, ONE)
    (job,) = open_jobs(index)
    assert job.holder is not None
    assert not job.holder.is_silent, "a claim is a sign of life too"


def test_signs_of_life_are_no_changes(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    take(index, "job", 1, 1, ONE)
    with index.snapshot() as connection:
        before = connection.exec_driver_sql("SELECT version FROM block_index").scalar_one()
    renew(index, ONE.id)
    with index.snapshot() as connection:
        assert connection.exec_driver_sql("SELECT version FROM block_index").scalar_one() == before


def test_what_a_process_has_another_claims_only_after_it_was_taken_over(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    take(index, "job", 1, 1, ONE)
    with pytest.raises(BlockClaimError) as refused:
        take(index, "job", 2, 1, OTHER)
    assert refused.value.reason == IndexRefusal.JOB_HELD
    assert retire(index, "job", now=NOON, token=1)
    take(index, "job", 2, 1, OTHER)
    with pytest.raises(StaleTokenError):
        take(index, "job", 2, 1, ONE)
    check(index)


def test_who_was_taken_over_does_not_close_the_claim_of_its_successor(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    take(index, "job", 1, 1, ONE)
    assert retire(index, "job", now=NOON, token=1)
    take(index, "job", 2, 1, OTHER)
    assert not retire(index, "job", now=NOON, holder=ONE.id), "it wakes up and gives up what it had"
    assert not retire(index, "job", now=NOON, token=1), "another one has seen the same dead process"
    assert [job.token for job in open_jobs(index)] == [2]
    assert retire(index, "job", now=NOON, holder=OTHER.id)
    record = job_record(index, "job")
    assert record is not None
    assert record.state is IndexJobState.RETIRED
    check(index)


def test_a_process_that_ends_is_forgotten_unless_it_has_claims(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    take(index, "job", 1, 1, ONE)
    sign_out(index, ONE.id)
    assert holders(index) == [ONE.id]
    be_silent(index, ONE, 10_000)
    forget_jobs(index, before=2 * NOON)
    assert holders(index) == [ONE.id], "nor does housekeeping forget it"
    retire(index, "job", now=NOON)
    sign_out(index, ONE.id)
    assert holders(index) == []


def test_housekeeping_forgets_what_a_death_left(index: IndexDatabase) -> None:
    register(index, blocks_of(1), now=NOON)
    take(index, "job", 1, 1, ONE)
    retire(index, "job", now=NOON)
    forget_jobs(index, before=NOON)
    assert holders(index) == [ONE.id]
    forget_jobs(index, before=2 * NOON)
    assert holders(index) == []
