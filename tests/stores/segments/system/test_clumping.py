"""Sparse live entries of a log that its owner writes are appended once more at its head, and the old ones die."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.moves import Moves, read_moves
from compaction.segments.clump.running_owner import clump_own_log
from compaction.segments.commit import fence
from compaction.segments.directory.fs import regular_segments
from compaction.segments.errors import ClumpRefusedError, VerificationFailedError
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.model import segment_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments

WAIT = 120.0
OPTIONS = ClumpOptions(shorter_than=3, min_ranges=2)
LIMITS = SegmentLimits(max_entries=64)


class Machine:
    """Values by key; each is in the log, and `places` says where. `change` may spoil what is appended."""

    def __init__(self, system: LogSystem) -> None:
        self.system = system
        self.log = system.open_log("a")
        self.places: dict[str, int] = {}
        self.change = bytes

    def put(self, key: str, value: str) -> None:
        last = self.log.last
        index = 1 if last is None else last.index + 1
        self.log.append([LogEntry(index, 1, f"{key}={value}".encode())]).result(WAIT)
        self.places[key] = index

    def append(self, payloads: Sequence[bytes]) -> list[LogPosition]:
        # Something else comes between.
        self.put("between", "copies")
        last = self.log.last
        assert last is not None
        entries = [LogEntry(last.index + 1 + n, 1, self.change(payload)) for n, payload in enumerate(payloads)]
        self.log.append(entries).result(WAIT)
        return [LogPosition(entry.index, entry.term) for entry in entries]

    def adopt(self, moves: Moves) -> None:
        new = dict(zip(moves.old_set, moves.new_set, strict=True))
        self.places = {key: new.get(index, index) for key, index in self.places.items()}
        self.snapshot()

    def snapshot(self) -> None:
        last = self.log.last
        assert last is not None
        self.log.snapshot(last.index, 1, b"\x83j", LiveSet.from_indexes(self.places.values())).result(WAIT)

    def values(self) -> dict[str, str]:
        found = {entry.index: entry.payload.decode() for entry in self.log.read(self.places.values())}
        return {key: found[index].partition("=")[2] for key, index in self.places.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Every fifth of 60 entries is live, alone among dead ones."""
    with LogSystem(tmp_path / "system", limits=SystemLimits(segments=NewSegments(max_count=8))) as system:
        machine = Machine(system)
        for number in range(60):
            machine.put(f"key{number}" if number % 5 == 0 else "scratch", f"value {number}")
        system.roll().result(WAIT)
        assert system.drain(WAIT)
        machine.snapshot()
        yield machine


def test_live_entries_lie_together_at_the_head_and_their_old_segments_are_dead(machine: Machine) -> None:
    values = machine.values()
    result = clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=LIMITS)
    assert machine.values() == values | {"between": "copies"}
    (receipt,) = result.receipts
    assert (receipt.entries, len(read_moves(machine.log.directory))) == (12, 1)
    live = machine.log.state.row.live
    assert live is not None
    assert len(live.ranges) == 1
    # Phase 1 comes after the snapshot that adopts: what held the old entries is gone.
    machine.system._snapshots.submit(int).result(WAIT)
    assert segment_name(1) not in regular_segments(machine.log.directory)
    assert all(claim.retired for claim in fence.read(machine.log.directory).jobs.values())


def test_copies_that_differ_are_not_adopted(machine: Machine) -> None:
    values, places = machine.values(), dict(machine.places)
    machine.change = lambda payload: payload + b"!"  # type: ignore[assignment]
    with pytest.raises(VerificationFailedError):
        clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=LIMITS)
    machine.places.pop("between")
    assert (machine.values(), machine.places) == (values, places)


def test_a_machine_that_does_not_adopt_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "adopt", lambda moves: None)
    with pytest.raises(ClumpRefusedError, match="still has index 1 live"):
        clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=LIMITS)
    assert machine.values()["key0"] == "value 0"
