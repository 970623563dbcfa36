"""A log's owner in this process: a key-value machine whose values stay in the log, as Ra's own example does.

Its state is key -> index of the entry that holds the value. It does what docs/segment-logs.md asks of an owner: reads
the maps when it opens the log, does not apply copies as commands, and marks the copies that it appends itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compaction.errors import StaleTokenError
from compaction.segments.clump.moves import Moves, read_moves, resolve
from compaction.segments.clump.running_owner import Appended, EntryCopy
from compaction.segments.format import etf
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import is_log_directory, open_log
from compaction.segments.snapshot.directories import DATA_FILE, find_snapshots, parse_snapshot_name, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

PUT, DELETE, COPIES = b"P", b"D", b"C"


class KeyValueOwner:
    """Implements `clump_owner.LogOwner`. `crowd`: what else the owner does while it appends copies."""

    def __init__(self, directory: Path, *, max_count: int = 8, crowd: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._writer = LogWriter(directory, max_count=max_count, sync=False)
        self.crowd = crowd
        self.term = 1
        self.last = 0
        self.state: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        if is_log_directory(directory):
            self._recover()

    @property
    def directory(self) -> Path:
        return self._directory

    def _recover(self) -> None:
        """The snapshot's state, under the maps; then what lies above it, without copies."""
        log, maps = open_log(self._directory), read_moves(self._directory)
        if log.snapshot is not None and log.snapshot_index is not None:
            stored = _state_of(log.snapshot.path / DATA_FILE)
            self.state = {key: resolve(maps, index) for key, index in stored.items()}
            self.term, self.last = log.snapshot.term, log.snapshot_index
        copies = {index for moves in maps for index in moves.new_set}
        marked = 0
        for entry in iter_entries(log):
            if log.snapshot_index is not None and entry.index <= log.snapshot_index:
                continue
            assert entry.index == self.last + 1, "a hole in the log above its snapshot"
            assert entry.term >= self.term, "a term that decreases"
            self.last, self.term = entry.index, entry.term
            if entry.index in copies:
                continue
            if marked:
                marked -= 1
            elif entry.payload[:1] == COPIES:
                marked = int(json.loads(entry.payload[1:]))
            else:
                self._apply(entry.index, entry.payload)

    def _apply(self, index: int, payload: bytes) -> None:
        key = payload[1:].partition(b"=")[0].decode()
        if payload[:1] == PUT:
            self.state[key] = index
        else:
            self.state.pop(key, None)

    def _write(self, payload: bytes) -> int:
        self.last += 1
        self._writer.append(self.last, self.term, payload)
        self._writer.flush()
        return self.last

    def put(self, key: str, value: str) -> None:
        payload = PUT + f"{key}={value}".encode()
        self._apply(self._write(payload), payload)

    def delete(self, key: str) -> None:
        payload = DELETE + key.encode()
        self._apply(self._write(payload), payload)

    def values(self) -> dict[str, str]:
        """Every key's value, read from the log."""
        entries = {entry.index: entry.payload for entry in iter_entries(open_log(self._directory))}
        return {key: entries[index][1:].partition(b"=")[2].decode() for key, index in self.state.items()}

    def snapshot(self) -> None:
        """Of all that was applied; older snapshots go, as in Ra."""
        stored: list[etf.Term] = [(key.encode(), index) for key, index in sorted(self.state.items())]
        kept = write_snapshot(
            self._directory,
            index=self.last,
            term=self.term,
            live=LiveSet.from_indexes(self.state.values()),
            state=etf.encode(stored),
            sync=False,
        )
        for path in kept.path.parent.iterdir():
            if path != kept.path and parse_snapshot_name(path.name):
                shutil.rmtree(path)

    def stop(self) -> None:
        self._writer.close()

    def append(self, copies: Sequence[EntryCopy], *, job: str, token: int) -> Sequence[Appended]:
        """See `LogOwner`. What `crowd` does comes between batches, never between a mark and its copies."""
        self._refuse_stale(job, token)
        self.crowd()
        self._write(COPIES + json.dumps(len(copies)).encode())
        return [Appended(self._write(copy.payload), self.term) for copy in copies]

    def adopt(self, moves: Moves, *, job: str, token: int) -> None:
        """See `LogOwner`."""
        self._refuse_stale(job, token)
        self.state = {key: resolve([moves], index) for key, index in self.state.items()}
        self.snapshot()

    def _refuse_stale(self, job: str, token: int) -> None:
        if token < self.tokens.get(job, 0):
            raise StaleTokenError(str(self._directory), job, token, self.tokens[job])
        self.tokens[job] = token


def _state_of(path: Path) -> dict[str, int]:
    """What `KeyValueOwner.snapshot` wrote."""
    data = path.read_bytes()[9:]
    meta = int.from_bytes(data[:4], "big")
    stored = etf.decode(data[4 + meta :])
    assert isinstance(stored, list)
    state: dict[str, int] = {}
    for item in stored:
        assert isinstance(item, tuple)
        key, index = item
        assert isinstance(key, bytes)
        assert isinstance(index, int)
        state[key.decode()] = index
    return state


def live_payloads(directory: Path) -> dict[int, bytes]:
    """Everything that must survive: what is live at or below the snapshot, and all above it."""
    log = open_log(directory)
    return {entry.index: entry.payload for entry in iter_entries(log, live_only=log.snapshot_index is not None)}


def under_the_maps(directory: Path, before: dict[int, bytes]) -> dict[int, bytes]:
    """`before` as it can be read now: each index, or the one that the maps in force name for it."""
    maps, now = read_moves(directory), live_payloads(directory)
    return {index: now[resolve(maps, index)] for index in before}


def snapshot_index(directory: Path) -> int | None:
    found = find_snapshots(directory).newest
    return found.index if found else None


# `compactor segments debug exec` as a process: an owner of a system of logs that a test feeds, and kills.


@dataclass
class OwnerProcess:
    """One history that runs."""

    process: subprocess.Popen[str]

    def send(self, op: str, **fields: Any) -> None:
        """Write an operation; its result is not waited for."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any] | None:
        """The next result; None when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Write an operation and wait for its result, which must be a success."""
        self.send(op, **fields)
        found = self.result()
        assert found is not None
        assert found["ok"], found
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def owner_process(directory: Path, *options: str) -> Iterator[OwnerProcess]:
    """An owner of `directory`, killed at the end at the latest."""
    command = [sys.executable, "-m", "compaction.cli.main", "segments", "debug", "exec", str(directory), "-", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        yield OwnerProcess(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # What a killed process did not read.
                with suppress(BrokenPipeError):
                    stream.close()
