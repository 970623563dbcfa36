"""One member's log: what it takes of a leader, what it never changes, what a restart finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compaction.segments.install.driver import SnapshotSender
from replicated_kv.errors import DivergedError, Reason, RefusedError, TermError
from replicated_kv.leader import Leader
from replicated_kv.machine import Command
from replicated_kv.members import local_members
from replicated_kv.messages import Append, Appended, Position
from replicated_kv.promise import Promise
from replicated_kv.replica import Limits, Replica
from support.clocks import PATIENCE_SECONDS, eventually

LIMITS = Limits(snapshot_every=10, wal_bytes=4096, segment_entries=8)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    with closing(Replica("b", tmp_path, LIMITS)) as opened:
        yield opened


def put(number: int, text: str = "") -> bytes:
    """The payload that puts entry `number`'s own key."""
    return Command.put(b"%03d" % number, f"{number}{text}".encode()).encode()


def send(
    replica: Replica, first: int, *payloads: bytes, term: int = 1, previous: int | None = None, commit: int = 0,
    leader: str = "a",
) -> Appended:  # fmt: skip
    """Entries of `term` from `first` on; `previous`: the term before them, if it is another one."""
    before = term if previous is None else previous
    message = Append(
        term=term,
        leader=leader,
        previous_index=first - 1,
        previous_term=before if first > 1 else 0,
        commit=commit,
        terms=[term] * len(payloads),
    )
    return replica.accept(message, payloads)


def payloads_of(replica: Replica) -> list[bytes]:
    return [entry.payload for entry in replica.log.read(range(1, replica.last[0] + 1))]


def test_entries_follow_the_one_that_the_leader_names(replica: Replica) -> None:
    assert send(replica, 3, put(3)) == Appended(accepted=False, index=0)
    assert send(replica, 1, put(1), put(2)) == Appended(accepted=True, index=2)
    assert send(replica, 3, put(3), previous=9) == Appended(accepted=False, index=0)
    assert send(replica, 3, put(3), commit=2) == Appended(accepted=True, index=3)
    assert (replica.commit, replica.applied, replica.durable) == (2, 2, 3)
    assert replica.get(b"003") is None
    found = replica.get(b"002")
    assert found is not None
    assert Command.decode(found.payload).value == b"2"
    # Nothing new, only what is committed by now; more than was sent is not.
    assert send(replica, 4, commit=9) == Appended(accepted=True, index=3)
    assert replica.applied == 3


def test_a_suffix_that_conflicts_goes_and_only_that(replica: Replica, tmp_path: Path) -> None:
    send(replica, 1, *map(put, range(1, 6)), commit=2)
    # A message that was late brings what is there: what came later stays.
    assert send(replica, 2, put(2), put(3)) == Appended(accepted=True, index=3)
    assert replica.last == (5, 1)
    # The next leader does not have 4 and 5, and has another 3.
    assert send(replica, 3, put(3, "new"), term=2, previous=1, leader="c") == Appended(accepted=True, index=3)
    assert payloads_of(replica) == [put(1), put(2), put(3, "new")]
    assert replica.last == (3, 2)
    with pytest.raises(TermError, match="follows c in term 2"):
        send(replica, 4, put(4))
    replica.close()
    with closing(Replica("b", tmp_path, LIMITS)) as again:
        assert payloads_of(again) == [put(1), put(2), put(3, "new")]
        assert (again.last, again.promise, again.applied) == ((3, 2), Promise(2, "c"), 0)
        send(again, 4, term=2, commit=3, leader="c")
        assert (again.applied, len(again.keys)) == (3, 3)


def test_what_is_committed_never_changes(replica: Replica) -> None:
    send(replica, 1, put(1), put(2), commit=2)
    with pytest.raises(DivergedError, match="another entry 2, which is committed"):
        send(replica, 2, put(2, "other"), term=2, previous=1)
    assert payloads_of(replica) == [put(1), put(2)]


def test_a_promise_is_kept_and_durable(replica: Replica, tmp_path: Path) -> None:
    replica.follow(3, "c")
    replica.follow(3, "c")
    for term, leader in ((2, "c"), (3, "a")):
        with pytest.raises(TermError, match="follows c in term 3"):
            replica.follow(term, leader)
    with pytest.raises(TermError, match="follows c in term 3"):
        replica.propose([Command.put(b"k", b"v")], 3)
    replica.close()
    with closing(Replica("b", tmp_path, LIMITS)) as again:
        assert again.promise == Promise(3, "c")
        again.follow(4, "b")
        assert again.propose([Command.put(b"k", b"v")], 4).result(PATIENCE_SECONDS) == (1, 4)


def test_an_installation_that_a_leader_leaves_is_no_log(replica: Replica, tmp_path: Path) -> None:
    """Half of the live entries are there: the member must not say that its log ends with them."""
    send(replica, 1, put(1), put(2), commit=2)
    with closing(Replica("a", tmp_path / "a", LIMITS)) as other:
        other.follow(1, "a")
        other.propose([Command.decode(put(number)) for number in range(1, 61)], 1).result(PATIENCE_SECONDS)
        other.advance(60)
        eventually(lambda: other.snapshot_index, "the leader's snapshot", pause=0.01)
        with SnapshotSender(other.log, term=1, transfer=1) as sender:
            (offer,) = sender.start()
            (answer,) = replica.install(1, "a", offer)
            for message in sender.receive(answer)[:2]:
                replica.install(1, "a", message)
            assert replica.last == (34, 1)
            assert replica.follow(2, "c") == Position(index=2, term=1, commit=2)
            # This one is never committed: the third leader does not have it.
            taken = send(replica, 3, put(3, "lost"), term=2, previous=1, leader="c", commit=2)
            assert (taken, replica.last) == (Appended(accepted=True, index=3), (3, 2))
            other.follow(3, "a")
        with SnapshotSender(other.log, term=3, transfer=2) as sender:
            waiting = sender.start()
            while waiting:
                waiting += [reply for item in replica.install(3, "a", waiting.pop(0)) for reply in sender.receive(item)]
        assert (replica.last, replica.applied, replica.installed) == ((60, 1), 60, 1)
        assert replica.scan(b"", 100, limit_bytes=1 << 20)[1] == other.scan(b"", 100, limit_bytes=1 << 20)[1]
        assert len(replica.keys) == 60


def test_without_a_majority_nothing_is_written(replica: Replica) -> None:
    replica.follow(1, "b")
    leader = Leader(replica, local_members(["a", "b", "c"]))
    leader.start()
    try:
        with pytest.raises(RefusedError, match="no majority has answered yet") as found:
            leader.write([Command.put(b"k", b"v")], timeout=0)
        assert (found.value.reason, replica.last) == (Reason.NOT_READY, (0, 0))
        replica.follow(2, "a")
        with pytest.raises(RefusedError, match="b does not lead any more") as found:
            leader.write([Command.put(b"k", b"v")], timeout=60)
        assert (found.value.reason, found.value.leader, found.value.term) == (Reason.NOT_LEADER, "a", 2)
    finally:
        leader.stop()


def test_snapshots_keep_what_is_live_and_wait_for_those_that_follow(replica: Replica, tmp_path: Path) -> None:
    trail = 0
    replica.trail = lambda: trail
    same = [Command.put(b"same", b"%d" % number).encode() for number in range(1, 31)]
    send(replica, 1, put(1), *same[1:], commit=12)
    send(replica, 31, commit=30)
    assert replica.snapshot_index == 0
    trail = 30

    def written() -> bool:
        send(replica, 31, commit=30)
        return replica.snapshot_index == 30

    # The state at entry 12, which was due first, then that of 30.
    eventually(written, "the second snapshot", pause=0.01)
    assert replica.entries(31, 5) == []
    assert replica.entries(30, 5) is None
    assert replica.term_at(30) == 1
    assert replica.term_at(29) is None
    # Entries up to the snapshot are there, as every leader has them.
    assert send(replica, 20, put(20)) == Appended(accepted=True, index=20)
    assert send(replica, 29, put(29), put(30), put(31)) == Appended(accepted=True, index=31)
    replica.close()
    with closing(Replica("b", tmp_path, LIMITS)) as again:
        assert (again.applied, again.commit, again.last) == (30, 30, (31, 1))
        assert list(again.log.indexes()) == [1, 30, 31]
        assert again.scan(b"", 10, limit_bytes=1) == (30, [(b"001", b"1")])
        assert again.scan(b"001", 10, limit_bytes=1) == (30, [(b"same", b"30")])
        status = again.status()
        assert (status.keys, status.entries, status.snapshot, status.last) == (2, 3, 30, 31)
