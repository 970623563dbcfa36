"""The reader that proves it: snapshot after snapshot, all rows, compared with all that was registered at that instant.

Counts and fingerprints are per tenant. A fingerprint is the sum of a hash of each row, so a row that is missing, there
twice, or changed makes it another one, in whatever order and blocks the rows lie.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compaction.blocks.errors import CorruptBlockError, SnapshotExpiredError
from compaction.blocks.fingerprint.rows import Fingerprinter
from compaction.blocks.model import Block, RowFingerprint
from compaction.blocks.reader import BlockReader, BlockSnapshot
from compaction.errors import CompactionError
from compaction.local.demo.blocks.ledger import NOTHING, Entries, Ledger

PAUSE_SECONDS: Final = 0.3
REMEMBERED: Final = 3


@dataclass(frozen=True, slots=True)
class ProvedContent:
    """All rows of one instant. `version`: the last change of the index that it includes; `opened`: blocks by tenant."""

    version: int
    content: Mapping[str, RowFingerprint]
    opened: Mapping[str, int]
    unreadable: frozenset[str]
    expected: Entries
    seconds: float

    @property
    def equal(self) -> bool:
        """Exactly what was registered at that instant, and nothing unreadable but what was lost on purpose."""
        there = {tenant: content for tenant, content in self.content.items() if content != NOTHING}
        return there == dict(self.expected.content) and self.unreadable == self.expected.lost

    @property
    def rows(self) -> int:
        return sum(content.rows for content in self.content.values())

    @property
    def blocks(self) -> int:
        return sum(self.opened.values())

    def difference(self) -> str:
        """What is not as it should be, for a person."""
        parts = [
            f"{tenant}: {self.content.get(tenant, NOTHING)}, registered {wanted}"
            for tenant, wanted in self.expected.content.items()
            if self.content.get(tenant, NOTHING) != wanted
        ]
        parts += [f"{tenant}: nothing was registered" for tenant in self.content.keys() - self.expected.content.keys()]
        parts += [f"block {block} cannot be read" for block in sorted(self.unreadable - self.expected.lost)]
        return f"at change {self.version}: " + "; ".join(parts)


@dataclass
class Prover:
    """Reads and compares until `stopped`. `versions`: the states of the index that were seen; `last`: the
    newest reading.
    """

    reader: BlockReader
    ledger: Ledger
    stopped: threading.Event = field(default_factory=threading.Event)
    proven: int = 0
    expired: int = 0
    rows: int = 0
    versions: set[int] = field(default_factory=set)
    different: list[str] = field(default_factory=list)
    last: ProvedContent | None = None
    error: CompactionError | None = None

    def run(self) -> None:
        """One instant after the other."""
        try:
            while not self.stopped.is_set():
                reading = self.prove()
                # A quarter of the time at most: it is the workers' machine too.
                self.stopped.wait(max(PAUSE_SECONDS, 3 * reading.seconds if reading is not None else 0.0))
        except CompactionError as error:
            self.error = error

    def prove(self) -> ProvedContent | None:
        """One instant; None when the snapshot was no longer readable at the end, which readers get as an error.

        Raises CompactionError: it could not be read at all.
        """
        snapshot, expected = self.ledger.instant(self.reader.snapshot)
        try:
            reading = read(snapshot, expected)
        except SnapshotExpiredError:
            self.expired += 1
            return None
        self.proven += reading.equal
        self.rows += reading.rows
        self.versions.add(reading.version)
        if not reading.equal and len(self.different) < REMEMBERED:
            self.different.append(reading.difference())
        self.last = reading
        return reading


def read(snapshot: BlockSnapshot, expected: Entries) -> ProvedContent:
    """Every row of every block of the snapshot. Raises SnapshotExpiredError, and errors of the store."""
    started = time.monotonic()
    content: dict[str, RowFingerprint] = {}
    opened: dict[str, int] = {}
    unreadable = set()
    for block in snapshot.blocks():
        opened[block.tenant] = opened.get(block.tenant, 0) + 1
        try:
            content[block.tenant] = content.get(block.tenant, NOTHING) + _content(snapshot, block)
        except CorruptBlockError:
            unreadable.add(block.id)
    return ProvedContent(snapshot.version, content, opened, frozenset(unreadable), expected, time.monotonic() - started)


def _content(snapshot: BlockSnapshot, block: Block) -> RowFingerprint:
    """Counted from the rows, whatever the index or the block say of them."""
    counted = Fingerprinter()
    for batch in snapshot.read(block):
        counted.update(batch)
    return counted.value
