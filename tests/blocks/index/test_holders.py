"""Claims of local processes: who made them, their signs of life, and that nobody closes another one's claim."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from compaction.blocks.claiming import HolderHeartbeat
from compaction.blocks.errors import BlockClaimError
from compaction.blocks.index.claims import (
    STRAY_CLAIM,
    HolderRecord,
    IndexRefusal,
    JobRecord,
    Sign,
    claim,
    forget_jobs,
    is_parked,
    job_record,
    open_jobs,
    renew,
    retire,
    sign_of,
    sign_out,
)
from compaction.blocks.index.registering import register
from compaction.blocks.index.tables import HOLDERS, IndexDatabase, IndexJobState
from compaction.blocks.model import SECOND as HOLDERS_SECOND
from compaction.blocks.model import BlockKey
from compaction.errors import StaleTokenError
from compaction.storage.errors import DatabaseUnavailableError
from compaction.storage.opened import Holder, ThisProcess
from support.blocks.block_stores import NOON, SECOND, block_id, blocks_of, check
from support.clocks import PATIENCE_SECONDS

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


# Whether somebody works on an open job: by its process where that can be seen, else by its silence.

RUNNING = {12: "boot:100", 13: "boot:200"}
LEASE = 60 * HOLDERS_SECOND


def holder(**fields: object) -> Holder:
    values = {"id": "one", "host": "a", "place": "boot-a", "pid": 12, "started": "boot:100", "lease": LEASE}
    return Holder(**(values | fields))  # type: ignore[arg-type]


HERE = ThisProcess(holder(id="me", pid=13, started="boot:200"), lambda pid, started: RUNNING.get(pid) != started)


@pytest.mark.parametrize(
    ("fields", "silent", "sign"),
    [
        ({}, 0, Sign.ALIVE),
        ({}, LEASE, Sign.ALIVE),
        ({}, LEASE + 1, Sign.SILENT),  # it runs, and does nothing: stopped, or without its database
        ({"pid": 99}, 0, Sign.DEAD),
        ({"pid": 13}, 0, Sign.DEAD),  # the pid is used again
        ({"started": "boot:99"}, 0, Sign.DEAD),
        ({"place": "boot-b", "pid": 99}, 0, Sign.ALIVE),  # of another machine, or of a container: only silence tells
        ({"place": "boot-b", "pid": 99}, LEASE + 1, Sign.SILENT),
        ({"place": "", "pid": 99}, 0, Sign.ALIVE),
        ({"id": "me", "pid": 99}, 10 * LEASE, Sign.ALIVE),  # ourselves, however long no sign could be given
    ],
)
def test_signs(fields: dict[str, object], silent: int, sign: Sign) -> None:
    assert sign_of(HolderRecord(holder(**fields), silent), HERE) is sign


def test_where_no_process_can_be_seen_silence_tells() -> None:
    dead = holder(pid=99)
    assert sign_of(HolderRecord(dead, 0), None) is Sign.ALIVE
    assert sign_of(HolderRecord(dead, LEASE + 1), None) is Sign.SILENT
    assert sign_of(None, HERE) is Sign.UNKNOWN


@pytest.mark.parametrize(
    ("sign", "age", "parked"),
    [
        (Sign.DEAD, 0, True),
        (Sign.SILENT, 0, True),
        (Sign.ALIVE, 10 * STRAY_CLAIM, False),
        (Sign.UNKNOWN, STRAY_CLAIM, False),
        (Sign.UNKNOWN, STRAY_CLAIM + 1, True),
    ],
)
def test_blocks_are_parked_with_a_job_that_nobody_works_on(sign: Sign, age: int, parked: bool) -> None:
    job = JobRecord("job", IndexJobState.CLAIMED, 1, BlockKey("t", 0, 0), 1, ("a",), 5, None)
    assert is_parked(job, sign, now=5 + age) is parked


def test_a_heartbeat_goes_on_over_failures_and_ends() -> None:
    beats: list[int] = []
    enough = threading.Event()

    def renew() -> None:
        beats.append(len(beats))
        if len(beats) == 4:
            enough.set()
        if len(beats) == 2:
            raise DatabaseUnavailableError("index", "away")

    heartbeat = HolderHeartbeat(renew, every=0.001)
    heartbeat.start()
    heartbeat.start()
    assert enough.wait(PATIENCE_SECONDS)
    heartbeat.stop()
    count = len(beats)
    assert not [thread for thread in threading.enumerate() if thread.name == "holder"]
    heartbeat.start()
    assert len(beats) == count, "it does not begin again"
