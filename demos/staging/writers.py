"""Applications that write in the demo of staging areas, the records they write, and what each branch must show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.errors import CompactionError
from compaction.local.errors import DemoError
from compaction.staging.errors import NoChangesError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import CommitDraft, Committer
from compaction.staging.flows.writing import MOST_DELETED, WriteCondition, Writer
from compaction.staging.format.columns import BINARY, RecordColumns, data_of, offsets_of
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import CatalogEntry
from demos.cluster import policy_of
from demos.proving import repeat

# The subject of compaction in the demo of staging areas: four branches of one repository, and the policy.

POLICY: Final = "staging"
REPOSITORY: Final = "lake"
CREDENTIALS_SECRET: Final = "object-store"  # the name of a Secret
KV_SECRET: Final = "staging-kv"  # the name of a Secret
COMMITTER: Final = "demo"
PURGED: Final = 1_000_000
"""Keys below `logs/` that are deleted before the policy comes; more of them follow."""
WRITE_SECONDS: Final = 20.0
"""So long writers write at least, from the first job on; else until all that goes wrong has been overcome."""
GRACE: Final = "12s"
THRESHOLDS: Final = {"tombstones": 500, "sealedTokens": 4, "stagedWrites": 2000}
COOLDOWN: Final = "5s"


@dataclass(frozen=True, slots=True)
class DemoBranch:
    """A branch and how it is written: a change each `pause` seconds. `purges`: deletes below `logs/`, one after the
    other; `commit_every`: so many changes, 0 never; `deletes`: also deletes, and writes on conditions, for which a
    writer has to read.
    """

    name: str
    pause: float
    purges: bool = False
    commit_every: int = 0
    deletes: bool = True


COMMITTED: Final = DemoBranch("main", pause=0.2, commit_every=10)
CLEANUP: Final = DemoBranch("cleanup", pause=0.25, purges=True)
EXPERIMENT: Final = DemoBranch("experiment", pause=0.1)
DAMAGED: Final = DemoBranch("archive", pause=0.2, deletes=False)
"""The branch of whose ranges one loses bytes in the object store."""
BRANCHES: Final = (COMMITTED, CLEANUP, EXPERIMENT, DAMAGED)


def policy() -> dict[str, Any]:
    """The CompactionPolicy as a document, with small thresholds."""
    store = {
        "repository": REPOSITORY,
        "kv": {"secretName": KV_SECRET},
        "credentialsSecretName": CREDENTIALS_SECRET,
        "thresholds": THRESHOLDS,
    }
    return policy_of(
        POLICY,
        {"stagingArea": store},
        trigger={"interval": "3s", "cooldown": COOLDOWN},
        limits={"maxConcurrentJobs": 4, "maxAttempts": 2},
        cleanup={"delay": GRACE},
    )


def secrets(options: Mapping[str, str], kv_url: str) -> dict[str, Mapping[str, str]]:
    """The two Secrets by name."""
    return {CREDENTIALS_SECRET: options, KV_SECRET: {"url": kv_url}}


# The records of the demo: a record is its number and the version of what is there, as key and value.
#
# Numbers below `LOGS` are under the prefix `logs/`, the others under `tables/`; keys are in the order of their
# numbers. Values are entries as lakeFS has them, all of one length, so a million of them are made and read by whole
# columns.

Numbers = npt.NDArray[np.int64]
Versions = npt.NDArray[np.uint32]

LOGS: Final = 1_050_000
TABLES: Final = 120_000
TOTAL: Final = LOGS + TABLES
LOGS_PREFIX: Final = b"logs/"
TABLES_PREFIX: Final = b"tables/"
DIGITS: Final = 8
_TAG: Final = f"{0:0{DIGITS}d}.{0:0{DIGITS}d}"
"""Number and version of a record: its tag, which is identity, ETag and name of the object at once."""
_ENTRY: Final = CatalogEntry(address=f"data/{_TAG}", size=1024, e_tag=_TAG, address_type=1)
_TEMPLATE: Final = np.frombuffer(frame_value(_TAG.encode(), _ENTRY.encode()), np.uint8)
_POWERS: Final = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


def _tags() -> tuple[int, ...]:
    """Where the tag is in a value."""
    value, found, at = _TEMPLATE.tobytes(), list[int](), 0
    while (at := value.find(_TAG.encode(), at)) >= 0:
        found.append(at)
        at += 1
    return tuple(found)


_AT: Final = _tags()


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Records that were read: their numbers, in order, and versions."""

    numbers: Numbers
    versions: Versions

    def __len__(self) -> int:
        return len(self.numbers)


def encode_entries(numbers: Numbers, versions: Versions) -> RecordColumns:
    """The records of these numbers, which ascend."""
    return RecordColumns(keys_of(numbers), _values(numbers, versions))


def keys_of(numbers: Numbers) -> Any:
    """Keys as a large_binary array."""
    cut = int(np.searchsorted(numbers, LOGS))
    return pa.concat_arrays([_keys(LOGS_PREFIX, numbers[:cut]), _keys(TABLES_PREFIX, numbers[cut:])])


def key_of(number: int) -> bytes:
    """The key of one record."""
    return (LOGS_PREFIX if number < LOGS else TABLES_PREFIX) + b"%0*d" % (DIGITS, number)


def decode_entries(records: RecordColumns) -> EntryColumns:
    """What was read. DemoError: a record is none of the demo's: its key or value has another form."""
    offsets, data = offsets_of(records.keys), data_of(records.keys)
    numbers = _numbers(data, offsets[1:] - DIGITS)
    begins, content = offsets_of(records.values)[:-1], data_of(records.values)
    if len(records) and (np.diff(offsets_of(records.values)) != _TEMPLATE.size).any():
        raise DemoError("a value has another length than those that were written")
    versions = _numbers(content, begins + _AT[0] + DIGITS + 1).astype(np.uint32)
    # Every byte counts, not only the digits that were read.
    again = encode_entries(numbers, versions)
    if not (again.keys.equals(records.keys) and again.values.equals(records.values)):
        raise DemoError("a key or a value is none of those that were written")
    return EntryColumns(numbers, versions)


def _keys(prefix: bytes, numbers: Numbers) -> Any:
    rows = np.tile(np.frombuffer(prefix + b"0" * DIGITS, np.uint8), (len(numbers), 1))
    rows[:, len(prefix) :] = _digits(numbers)
    return _rows(rows)


def _values(numbers: Numbers, versions: Versions) -> Any:
    rows = np.tile(_TEMPLATE, (len(numbers), 1))
    first, second = _digits(numbers), _digits(versions.astype(np.int64))
    for at in _AT:
        rows[:, at : at + DIGITS] = first
        rows[:, at + DIGITS + 1 : at + 2 * DIGITS + 1] = second
    return _rows(rows)


def _digits(numbers: Numbers) -> npt.NDArray[np.uint8]:
    digits: npt.NDArray[np.uint8] = (numbers[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)
    return digits


def _numbers(data: npt.NDArray[np.uint8], begins: Numbers) -> Numbers:
    digits = data[begins[:, None] + np.arange(DIGITS)].astype(np.int64) - ord("0")
    found: Numbers = digits @ _POWERS
    return found


def _rows(rows: npt.NDArray[np.uint8]) -> Any:
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(BINARY, len(rows), buffers)


# The contents of a branch, by its one writer: the version of each record after each change that was acknowledged.
#
# A scan of a branch is no snapshot of one moment: changes of that time may be seen or not. So a reading is compared
# with the state before it and with the changes that began before it ended: a record that none of these touches must
# be exactly as it was acknowledged, any other one as it was or as one of them makes it.


@dataclass(frozen=True, slots=True)
class BranchChange:
    """Records that get a version; 0: they are deleted."""

    numbers: Numbers
    version: int


@dataclass(frozen=True, slots=True)
class WriteMoment:
    """The acknowledged state of the records from number `first` on. `acknowledged`: how many changes that is."""

    first: int
    versions: Versions
    acknowledged: int

    def differences(self, found: EntryColumns, since: list[BranchChange]) -> Numbers:
        """Numbers whose record is neither as it was nor as a change since then makes it."""
        shown = np.zeros_like(self.versions)
        shown[found.numbers - self.first] = found.versions
        wrong = np.flatnonzero(shown != self.versions)
        for change in since:
            explained = np.isin(wrong + self.first, change.numbers) & (shown[wrong] == change.version)
            wrong = wrong[~explained]
        return wrong + self.first


@dataclass
class BranchModel:
    """Of one branch with one writer; others may read it meanwhile."""

    name: str
    versions: Versions = field(default_factory=lambda: np.zeros(TOTAL, dtype=np.uint32))
    acknowledged: int = 0
    writes: int = 0
    _begun: list[BranchChange] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def next_version(self) -> int:
        """Of the next change: greater than all before it."""
        return len(self._begun) + 2

    @property
    def records(self) -> int:
        """How many the branch shows."""
        return int(np.count_nonzero(self.versions))

    def change(self, change: BranchChange, write: Callable[[], None]) -> None:
        """Carry a change out. It may be visible from now on, and is from when `write` returns; when that raises, it may
        be visible or not for ever.
        """
        with self._lock:
            self._begun.append(change)
        write()
        with self._lock:
            self.versions[change.numbers] = change.version
            self.acknowledged += 1
            self.writes += len(change.numbers)

    def moment(self, first: int = 0, last: int = TOTAL) -> WriteMoment:
        """The state of the records `first` to `last` (not included)."""
        with self._lock:
            return WriteMoment(first, self.versions[first:last].copy(), self.acknowledged)

    def since(self, moment: WriteMoment) -> list[BranchChange]:
        """The changes that had begun by now and were not acknowledged at that moment."""
        with self._lock:
            return self._begun[moment.acknowledged :]


# Applications that write: one for each branch, change after change, each of them acknowledged before the next.

SET: Final = 40
DELETED: Final = 20
PURGED_AT_ONCE: Final = 50
CALLS: Final = 20
"""So often a write is repeated that the branch did not acknowledge, because its token was sealed again and again."""


@dataclass
class BranchWriter:
    """The writer of one branch. `moments`: when its changes were acknowledged, epoch seconds; `committed`: what its
    last commit holds; `error`: why it ended too early.
    """

    area: Area
    branch: DemoBranch
    model: BranchModel
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)
    moments: list[float] = field(default_factory=list)
    commits: int = 0
    committed: WriteMoment | None = None
    error: CompactionError | None = None
    _purged: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._writer, self._committer = Writer(self.area), Committer(self.area)

    def run(self) -> None:
        """Changes at the branch's pace until `stopped`."""
        try:
            repeat(self.write, self.branch.pause, self.stopped)
        except CompactionError as error:
            self.error = error

    def write(self) -> None:
        """One change; a commit too when it is time for one. Raises CompactionError."""
        turn = len(self.moments) % 5
        if turn == 0 and self.branch.purges and self._purged < LOGS:
            self.purge(PURGED_AT_ONCE)
        elif turn == 0 and self.branch.deletes:
            self._delete(self._some(DELETED))
        elif turn == 1 and self.branch.deletes:
            self._set_if(int(self._some(1)[0]))
        else:
            self._set(self._some(SET))
        if self.branch.commit_every and len(self.moments) % self.branch.commit_every == 0:
            self.commit()

    def purge(self, count: int) -> None:
        """Delete the next records below `logs/`. Raises CompactionError."""
        last = min(self._purged + count, LOGS)
        while self._purged < last:
            end = min(self._purged + MOST_DELETED, last)
            self._delete(np.arange(self._purged, end))
            self._purged = end

    def write_sets(self, count: int) -> None:
        """So many changes that only set records. Raises CompactionError."""
        for _ in range(count):
            self._set(self._some(SET))

    def _some(self, count: int) -> Numbers:
        return LOGS + np.sort(self._random.choice(TABLES, count, replace=False))

    def _set(self, numbers: Numbers) -> None:
        version = self.model.next_version
        records = encode_entries(numbers, np.full(len(numbers), version, np.uint32)).pairs()
        self._change(BranchChange(numbers, version), lambda: self._writer.set_many(self.branch.name, records))

    def _delete(self, numbers: Numbers) -> None:
        keys = [key_of(number) for number in numbers.tolist()]
        self._change(BranchChange(numbers, 0), lambda: self._writer.delete_many(self.branch.name, keys))

    def _set_if(self, number: int) -> None:
        """On the condition that the branch shows what this writer knows."""
        version, known = self.model.next_version, int(self.model.versions[number])
        numbers = np.array([number])
        ((key, value),) = encode_entries(numbers, np.array([version], np.uint32)).pairs()
        shown = b"%0*d.%0*d" % (DIGITS, number, DIGITS, known) if known else None

        def write() -> None:
            try:
                self._writer.set_if(self.branch.name, key, value, WriteCondition(shown))
            except TooManyTriesError:
                # One of the tries may have been written: the condition would find that now.
                self._writer.set(self.branch.name, key, value)

        self._change(BranchChange(numbers, version), write)

    def _change(self, change: BranchChange, write: Callable[[], None]) -> None:
        self.model.change(change, lambda: _until_acknowledged(write))
        self.moments.append(time.time())

    def commit(self) -> None:
        """Commit what is staged; without changes the last commit has all of it. Raises CompactionError."""
        draft = CommitDraft(COMMITTER, f"after {len(self.moments)} changes")
        try:
            _until_acknowledged(lambda: self._committer.commit(self.branch.name, draft))
            self.commits += 1
        except NoChangesError:
            pass
        self.committed = self.model.moment()


def _until_acknowledged(write: Callable[[], object]) -> None:
    """A writer repeats a change that was not acknowledged: it may or may not be there."""
    for left in reversed(range(CALLS)):
        try:
            write()
        except TooManyTriesError:
            if not left:
                raise
        else:
            return
