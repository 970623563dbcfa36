"""Whether somebody works on an open job: by its process where that can be seen, else by its silence."""

from __future__ import annotations

import threading

import pytest

from compaction.blocks.claiming import HolderHeartbeat
from compaction.blocks.index.claims import STRAY_CLAIM, HolderRecord, JobRecord, Sign, is_parked, sign_of
from compaction.blocks.index.tables import IndexJobState
from compaction.blocks.model import SECOND, BlockKey
from compaction.storage.errors import DatabaseUnavailableError
from compaction.storage.opened import Holder, ThisProcess

RUNNING = {12: "boot:100", 13: "boot:200"}
LEASE = 60 * SECOND


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
    assert enough.wait(60)
    heartbeat.stop()
    count = len(beats)
    assert not [thread for thread in threading.enumerate() if thread.name == "holder"]
    heartbeat.start()
    assert len(beats) == count, "it does not begin again"
