"""Reads the files of a system's logs again and again, with nothing but the directory, and compares with the journal.

Entries may wait in the write-ahead log, which it does not read. But what was in a segment once, live and as it was
written last, is there for as long as it is live. There is one exception (docs/design/segment-wal.md#flush): an owner
that was killed in a flush begins it anew, and until it has come as far again, the entries are hidden by its first ones.
So what is missing has to come back.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.segments.errors import LogChangedError, NotALogDirectoryError
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from support.processes.log_follower import FOLLOWER, SOURCE
from support.segments.owned_logs import JournalReader, payload

HIDDEN_SECONDS: Final = 90.0
"""For a flush of some hundred entries, by an owner that may be killed and started again meanwhile."""


@dataclass
class Reader:
    """One log. `seen`: index -> term of what was read and has not died; `hidden_since`: since when some of it is not
    found (monotonic).
    """

    directory: Path
    journal: JournalReader
    seen: dict[int, int] = field(default_factory=dict)
    hidden_since: float | None = None

    def read(self) -> str:
        """What was found, in words."""
        name, log = self.directory.name, open_log(self.directory)
        writer = SOURCE if name == FOLLOWER else name
        found: dict[int, int] = {}
        for entry in iter_entries(log):
            assert entry.payload == payload(writer, entry.index, entry.term), f"{name}: {entry}"
            found[entry.index] = entry.term
        if log.snapshot_index is None or log.live is None:
            return "no snapshot"
        # Afterwards: whatever is at or below this snapshot was acknowledged before it was begun. What died while it was
        # read may be gone: the line of its snapshot was written before that was begun.
        self.journal.follow()
        model = self.journal.models[name]
        live = {index for index in log.live if model.is_live(index)}
        missing = {i: t for i, t in self.seen.items() if i in live and found.get(i) != t}
        self._check(missing, str(log.refs))
        self.seen = missing | {i: t for i in live if (t := found.get(i)) is not None and t == model.term_of(i)}
        return f"{len(self.seen) - len(missing)} live, {len(missing)} hidden"

    def _check(self, missing: dict[int, int], refs: str) -> None:
        now = time.monotonic()
        self.hidden_since = None if not missing else self.hidden_since or now
        lost = self.hidden_since is not None and now - self.hidden_since > HIDDEN_SECONDS
        assert not lost, f"{self.directory.name}: {missing} were read before, are live, and do not come back: {refs}"


def main(directory: Path, journal: Path) -> None:
    followed = JournalReader(journal)
    readers: dict[Path, Reader] = {}
    print("ready", flush=True)
    while True:
        for path in sorted(directory.glob("*/")):
            try:
                said = readers.setdefault(path, Reader(path, followed)).read()
            except (LogChangedError, NotALogDirectoryError):
                continue
            print(f"{path.name}: {said}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
