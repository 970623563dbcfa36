"""Owners of logs that write while they are compacted: the members of `examples/replicated-kv`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from compaction.local.cluster.control_plane import LocalState, write_state
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn, wait_gone
from compaction.segments.generate import CorruptedAt, Pattern, corrupt_entry, generate_log
from compaction.segments.reading.view import open_log
from demos.cluster import policy_of
from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.members import Members, local_members, member_command
from replicated_kv.messages import Status
from replicated_kv.replica import log_id
from replicated_kv.workload import Workload

# The subject of compaction in the demo: the logs that the members of a key-value store are writing, a log of 128 MiB
# that was written before and is damaged, and the policy for all of them.

POLICY: Final = "logs"
DAMAGED: Final = "archive"
"""The log in which one byte of one live entry is inverted."""
SEGMENTS: Final = 16
ENTRIES_PER_SEGMENT: Final = 4096
PAYLOAD_BYTES: Final = 2048
LIVE_FRACTION: Final = 0.25
DAMAGED_SEGMENT: Final = 6
"""A segment in the middle, so that siblings on both sides have to be compacted without it."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The log that was written before, and where its damage is."""

    path: Path
    damage: CorruptedAt


def create_archive(root: Path) -> Archive:
    """Write the log below `root`, then damage one live entry of it."""
    path = root / DAMAGED
    generate_log(
        path,
        pattern=Pattern.RANDOM,
        segments=SEGMENTS,
        entries_per_segment=ENTRIES_PER_SEGMENT,
        payload_bytes=PAYLOAD_BYTES,
        live_fraction=LIVE_FRACTION,
        # Nothing here has to survive a power cut, and syncing 128 MiB is most of the time.
        sync=False,
    )
    return Archive(path, _damage(path))


def _damage(directory: Path) -> CorruptedAt:
    """Damage the first live entry of the chosen segment: a dead one would not be copied, so its damage could stay
    unnoticed.
    """
    log = open_log(directory)
    segment = log.segments[DAMAGED_SEGMENT]
    record = int(np.flatnonzero(log.live_mask(segment.idx))[0])
    return corrupt_entry(directory, segment=segment.name, record=record)


def policy(root: Path) -> dict[str, Any]:
    """The CompactionPolicy as a document. Several jobs per log, so that there is something to see."""
    return policy_of(
        POLICY,
        {"segmentLogs": {"root": str(root)}},
        limits={"maxConcurrentJobs": 4, "maxBytesPerJob": "18Mi"},
        cleanup={"delay": "5s"},
    )


# Owners of logs that write while they are compacted: the members of `examples/replicated-kv`, each a process with a
# data directory of its own, and a steady load of overwrites and deletions.
#
# In the stage's `servers/`: `state.json` what was started, and a log file for each member.

NAMES: Final = ("a", "b", "c")
LEADER: Final = "a"
FOLLOWER: Final = "c"
"""The one that is down for a while."""
OPTIONS: Final = ("--snapshot-every", "2048", "--wal-bytes", "2097152", "--segment-entries", "512")
"""Small files, so that within a minute there is something to compact, several times."""
KEYS: Final = 3000
VALUE_BYTES: Final = 1024
PAUSE_SECONDS: Final = 0.05
GONE_SECONDS: Final = 30.0
JOIN_SECONDS: Final = 180.0
_LINES: Final = 15


@dataclass
class Owners:
    """The members' processes. `directory` holds what is recorded of them, `data` a directory for each."""

    directory: Path
    data: Path
    detached: bool = False
    members: Members = field(default_factory=lambda: local_members(NAMES))
    running: dict[str, ProcessId] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """In this thread: the kernel ends guarded children with the thread that started them. DemoError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(parents=True, exist_ok=True)
        for name in names:
            child = spawn(self.command(name), cwd=self.directory, log=self._output(name), detached=self.detached)
            process = ProcessId.of(name, child.pid)
            if process is None:
                raise DemoError(f"member {name} of the key-value store ended at once: {self._end(name)}")
            self.running[name] = process
            write_state(self.directory, LocalState(url="", kubeconfig=Path(), processes=tuple(self.running.values())))

    def command(self, name: str) -> list[str]:
        """The command line of a member."""
        return member_command(name, self.members, self.data / name, term=1, leader=LEADER, options=OPTIONS)

    def kill(self, name: str) -> None:
        """As a machine that loses its power: nothing is closed."""
        process = self.running.pop(name)
        process.send(signal.SIGKILL)
        wait_gone(process, timeout=GONE_SECONDS)

    def check(self) -> None:
        """DemoError: a member has ended that was not killed."""
        for name, process in self.running.items():
            if not process.alive():
                raise DemoError(f"member {name} of the key-value store has ended: {self._end(name)}")

    def log_of(self, name: str) -> Path:
        """The directory of a member's log."""
        return self.data / name / log_id(name)

    @property
    def logs(self) -> tuple[Path, ...]:
        return tuple(self.log_of(name) for name in NAMES)

    def statuses(self, client: Client) -> Mapping[str, Status]:
        """Of the members that answer now."""
        found = {}
        for name in self.running:
            try:
                found[name] = client.status(name)
            except (OSError, KeyValueError):
                continue
        return found

    def _output(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _end(self, name: str) -> str:
        return "\n".join(self._output(name).read_text(errors="replace").splitlines()[-_LINES:])


def load_of(owners: Owners) -> Workload:
    """What is written, at most 640 changes in a second."""
    return Workload(owners.members, keys=KEYS, value_bytes=VALUE_BYTES, pause=PAUSE_SECONDS, timeout=JOIN_SECONDS)


@contextmanager
def loading(workload: Workload) -> Iterator[None]:
    """The load is written until the block is left, and all of it is acknowledged then. DemoError: it failed."""
    thread = threading.Thread(target=workload.run, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        workload.stopped.set()
        thread.join(JOIN_SECONDS)
    if workload.error is not None or thread.is_alive():
        raise DemoError(f"the key-value store does not acknowledge the load: {workload.error}")
