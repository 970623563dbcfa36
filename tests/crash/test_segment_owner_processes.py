"""An owner that writes at full speed, a compactor beside it, and a reader: three processes on one system of logs. Owner
and compactor are killed at random and started again; nothing acknowledged is lost, nothing dead comes back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.system.system import LogSystem
from compaction.segments.wal.files import wal_files
from support.clocks import PATIENCE_SECONDS
from support.processes import log_follower
from support.processes.log_follower import FOLLOWER
from support.processes.log_owner import LOGS
from support.segments.owned_logs import JournalReader, payload
from support.segments.segment_logs import leftovers
from support.timing import at_depth

TESTS = Path(__file__).parents[1]
KILLS = 4
DEEP_SECONDS = 600.0


class Process:
    """One of the three, started again under the same arguments. What it says goes to a file."""

    def __init__(self, name: str, *arguments: object, output: Path) -> None:
        self.name = name
        self.output = output
        self._arguments = [str(argument) for argument in arguments]
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        paths = os.pathsep.join(path for path in (str(TESTS), os.environ.get("PYTHONPATH", "")) if path)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"support.processes.log_{self.name}", *self._arguments, str(self._starts)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": paths},
            )

    @property
    def lines(self) -> int:
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def check(self) -> None:
        """AssertionError, with the last of what it said, if it has ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            said = self.output.read_text(errors="replace")[-4000:]
            pytest.fail(f"the {self.name} ended by itself with {self._process.returncode}:\n{said}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def finish(self) -> None:
        """End its input, and wait for its end."""
        assert self._process is not None
        self._process.communicate(timeout=PATIENCE_SECONDS)
        said = self.output.read_text(errors="replace")[-4000:]
        assert self._process.returncode == 0, said

    def end(self) -> None:
        """Whatever it has come to."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


class Trio:
    """The three, and what they have done so far."""

    def __init__(self, root: Path) -> None:
        self.system = root / "system"
        self.system.mkdir()
        journal = root / "journal"
        self.journal = JournalReader(journal)
        self.owner = Process("owner", self.system, journal, output=root / "owner")
        self.compactor = Process("compactor", self.system, output=root / "compactor")
        self.reader = Process("reader", self.system, journal, output=root / "reader")

    @property
    def all(self) -> tuple[Process, ...]:
        return self.owner, self.compactor, self.reader

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds, while all of them live."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for process in self.all:
                process.check()
            assert time.monotonic() < until, [process.output.read_text()[-500:] for process in self.all]
            time.sleep(0.02)

    def progress(self, operations: int) -> None:
        """Each has done something more: the owner so many lines of its journal, the others a round."""
        self.journal.follow()
        lines, said = self.journal.lines, [process.lines for process in (self.compactor, self.reader)]

        def advanced() -> bool:
            self.journal.follow()
            others = zip((self.compactor, self.reader), said, strict=True)
            rounds = all(process.lines > before + 1 for process, before in others)
            return rounds and self.journal.lines > lines + operations

        self.wait(advanced)


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path)
    with ExitStack() as started:
        for process in trio.all:
            process.start()
            started.callback(process.end)
        yield trio


def test_owner_and_compactor_share_a_log_and_die_at_random(trio: Trio) -> None:
    random = Random(7)
    until, kills = time.monotonic() + DEEP_SECONDS, 0
    while at_depth(short=kills < KILLS, deep=time.monotonic() < until):
        trio.progress(random.choice((50, 200, at_depth(short=200, deep=3000))))
        time.sleep(random.uniform(0, 0.2))
        for victim in random.choice(((trio.owner,), (trio.compactor,), (trio.owner, trio.compactor))):
            victim.kill()
            victim.start()
        kills += 1
    trio.progress(200)
    trio.owner.finish()
    assert kills >= KILLS
    for process in (trio.compactor, trio.reader):
        process.check()
        process.kill()
    check_all(trio)


def check_all(trio: Trio) -> None:
    """Everything is in segments, and they hold what the owner was promised, for any reader and for the next owner."""
    trio.journal.follow()
    committed = 0
    for name in LOGS:
        model, directory = trio.journal.models[name], trio.system / name
        assert (model.writes, model.snapshots) == (type(model.writes)(), type(model.snapshots)())
        recovery.recover(directory).require_settled(directory)
        sweep.sweep(directory, grace_seconds=0, active=frozenset())
        assert leftovers(directory) == []
        committed += len(fence.read(directory).receipts)
        log = open_log(directory)
        assert log.snapshot_index == model.snapshot.index
        assert log.live == model.snapshot.live
        assert not log.missing
        found = {e.index: e for e in iter_entries(log, live_only=True)}
        assert {index: e.term for index, e in found.items()} == model.needed()
        assert [e for e in found.values() if e.payload != payload(name, e.index, e.term)] == []
    assert committed > 0, "nothing was compacted, so nothing was tried"
    with LogSystem(trio.system) as system:
        assert system.drain(PATIENCE_SECONDS)
        for name in LOGS:
            entries = system.open_log(name).read(system.open_log(name).indexes())
            assert {entry.index: entry.term for entry in entries} == trio.journal.models[name].needed()
        installed = trio.journal.models[FOLLOWER].installed
        assert installed > 0, "nothing was installed, so nothing was tried"
        log_follower.check(system.open_log(FOLLOWER), at_least=installed)
    assert len(wal_files(trio.system)) == 1
