"""Installations over a transport that loses, repeats and reorders; with restarts, aborts, newer snapshots in between.

Whatever happens, a published snapshot has all its live entries, as the leader wrote them; and once messages arrive
again, the follower holds exactly what the leader does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compaction.segments.install.driver import SnapshotReceiver, SnapshotSender
from compaction.segments.install.sender import SendLimits
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.faults.power_loss import Recorder
from support.timing import examples

LIMITS = SystemLimits(
    wal=WalLimits(max_entries=11), segments=NewSegments(max_count=8), rolled_files=1, snapshot_grace=0.0
)
SMALL = SendLimits(batch=3, chunk_bytes=40, window=3, attempts=1000)


def entry(index: int, term: int) -> LogEntry:
    return LogEntry(index, term, b"%d@%d" % (index, term))


@dataclass
class Members:
    """A leader and a follower, what is on its way between them, and what the follower has applied."""

    root: Path
    random: Random
    leading: LogSystem = field(init=False)
    following: LogSystem = field(init=False)
    sender: SnapshotSender | None = None
    term: int = 1
    transfer: int = 0
    applied: int | None = None
    to_follower: list[bytes] = field(default_factory=list)
    to_leader: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leading = LogSystem(self.root / "leader", limits=LIMITS)
        self.following = LogSystem(self.root / "follower", limits=LIMITS)
        self.receiver = SnapshotReceiver(self.follower, term=0)
        self.lead(self.random.randint(1, 30))
        self.snapshot()
        for _ in range(self.random.randint(0, 2)):
            self.follow()

    @property
    def leader(self) -> Log:
        return self.leading.open_log("log")

    @property
    def follower(self) -> Log:
        return self.following.open_log("log")

    # --- what members do ------------------------------------------------------------------------------------------

    def lead(self, count: int) -> None:
        last = self.leader.last
        first = 1 if last is None else last.index + 1
        self.leader.append([entry(index, self.term) for index in range(first, first + count)]).result(PATIENCE_SECONDS)

    def snapshot(self) -> None:
        """Of the leader: at any index above the last one, with any of its entries alive."""
        self.lead(self.random.randint(1, 8))
        first = 1 if self.leader.row.snapshot_index is None else self.leader.row.snapshot_index + 1
        assert self.leader.last is not None
        index = self.random.randint(first, self.leader.last.index)
        held = [i for i in self.leader.indexes(0, index) if self.random.random() < 0.5]
        state = b"\x83m\x00\x00\x00\x50" + self.random.randbytes(80)
        self.leader.snapshot(index, self.term, state, LiveSet.from_indexes(held)).result(PATIENCE_SECONDS)

    def follow(self) -> None:
        """The follower gets what the leader still has, in order, and a tail that it never had from it."""
        if self.receiver.is_receiving:
            return
        self.catch_up(self.random.randint(0, 9))
        last = 0 if self.follower.last is None else self.follower.last.index
        tail = [LogEntry(index, 0, b"stale") for index in range(last + 1, last + self.random.randint(1, 12))]
        if tail and self.random.random() < 0.7:
            self.follower.append(tail)

    def catch_up(self, count: int) -> None:
        first = 1 if self.applied is None else self.applied + 1
        found = self.leader.read(range(first, first + count)) if count else []
        if [item.index for item in found] == list(range(first, first + len(found))) and found:
            self.follower.append(found).result(PATIENCE_SECONDS)
            self.applied = found[-1].index

    # --- what happens ---------------------------------------------------------------------------------------------

    def send(self) -> None:
        """A new attempt of the leader, in this term or a new one."""
        self.term += self.random.randint(0, 1)
        if self.sender is not None:
            self.transfer = max(self.transfer, self.sender.state.transfer)
            self.sender.close()
        self.transfer += self.random.choice([-1, 1])
        self.sender = SnapshotSender(self.leader, term=self.term, transfer=max(self.transfer, 0), limits=SMALL)
        self.to_follower += self.sender.start()

    def deliver(self) -> None:
        """To one of both, the first message or any; sometimes it stays on its way as well."""
        box = self.random.choice([self.to_follower, self.to_leader])
        if box:
            at = self.random.choice([0, 0, self.random.randrange(len(box))])
            message = box[at] if self.random.random() < 0.2 else box.pop(at)
            if box is self.to_follower:
                self.arrive(message)
            elif self.sender is not None:
                self.to_follower += self.sender.receive(message)

    def arrive(self, message: bytes) -> None:
        before = self.receiver.installed
        self.to_leader += self.receiver.receive(message, applied=self.applied)
        if self.receiver.installed is not before and self.receiver.installed is not None:
            self.applied = self.receiver.installed.index

    def lose(self) -> None:
        box = self.random.choice([self.to_follower, self.to_leader])
        if box:
            box.pop(self.random.randrange(len(box)))

    def resend(self) -> None:
        if self.sender is not None:
            self.to_follower += self.sender.resend()

    def abort(self) -> None:
        self.to_leader += self.receiver.abort()

    def restart_follower(self) -> None:
        self.following.close()
        self.following = LogSystem(self.root / "follower", limits=LIMITS)
        self.receiver = SnapshotReceiver(self.follower, term=self.random.randint(0, self.term))
        last = self.follower.last
        assert self.applied is None or (last is not None and last.index >= self.applied)

    def restart_leader(self) -> None:
        if self.sender is not None:
            self.sender.close()
            self.sender = None
        self.leading.close()
        self.leading = LogSystem(self.root / "leader", limits=LIMITS)

    def flush(self) -> None:
        system = self.random.choice([self.leading, self.following])
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)

    def act(self) -> None:
        often = [self.deliver] * 24 + [self.resend] * 4 + [self.lose, self.flush, self.flush, self.snapshot, self.send]
        self.random.choice([*often, self.follow, self.abort, self.restart_follower, self.restart_leader])()
        if self.sender is None or self.sender.state.is_over:
            self.send()

    # --- what must hold -------------------------------------------------------------------------------------------

    def check(self, written: dict[int, LogEntry]) -> None:
        """What is live at the follower's snapshot is there, as the leader wrote it."""
        live = list(self.follower.row.live or ())
        assert self.follower.read(live) == [written[index] for index in live]

    def settle(self) -> None:
        """Messages arrive again, each once and in order; then the follower gets the rest of the log."""
        self.lead(3)
        assert self.leader.last is not None
        live = LiveSet.from_indexes([i for i in self.leader.indexes() if i % 3])
        self.leader.snapshot(self.leader.last.index, self.term, b"\x83j", live).result(PATIENCE_SECONDS)
        self.lead(3)
        self.send()
        assert self.sender is not None
        while not self.sender.state.is_over:
            while self.to_follower or self.to_leader:
                for message in self.to_follower[:1]:
                    del self.to_follower[:1]
                    self.arrive(message)
                for message in self.to_leader[:1]:
                    del self.to_leader[:1]
                    self.to_follower += self.sender.receive(message)
            self.resend()
            if self.sender.state.stopped:
                self.send()
        self.abort()
        self.catch_up(1000)

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
        self.leading.close()
        self.following.close()


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**63))
@example(1035)
def test_any_schedule_ends_with_the_same_log(seed: int) -> None:
    with TemporaryDirectory(prefix="install-") as directory, Recorder():
        members = Members(Path(directory), Random(seed))
        written: dict[int, LogEntry] = {}
        for _ in range(members.random.randint(20, 150)):
            members.act()
            for item in members.leader.read(members.leader.indexes()):
                written[item.index] = item
            members.check(written)
        members.settle()
        for _ in range(2):
            expected = members.leader.read(members.leader.indexes())
            assert members.follower.row.snapshot_index is not None
            assert members.follower.read(members.follower.indexes()) == expected
            assert members.follower.last == members.leader.last
            assert members.follower.row.live == members.leader.row.live
            members.flush()
            members.restart_follower()
        members.close()
