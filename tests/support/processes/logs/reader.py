"""Reads the files of a system's logs again and again, with nothing but the directory, and compares with the journal.

Entries may wait in the write-ahead log, which it does not read. But what was in a segment once, live and as it was
written last, is there for as long as it is live.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from compaction.exceptions import LogChangedError, NotALogDirectoryError
from compaction.stores.segments.reading.reader import iter_entries
from compaction.stores.segments.reading.view import open_log
from support.stores.owned_logs import JournalReader, payload

SEEN = defaultdict[str, dict[int, int]]
"""Log -> index -> term of what was read."""


def read(directory: Path, journal: JournalReader, seen: SEEN) -> int:
    name = directory.name
    log = open_log(directory)
    found: dict[int, int] = {}
    for entry in iter_entries(log):
        assert entry.payload == payload(name, entry.index, entry.term), f"{name}: {entry}"
        found[entry.index] = entry.term
    if log.snapshot_index is None or log.live is None:
        return 0
    # Afterwards: whatever is at or below this snapshot was acknowledged before it was begun.
    journal.follow()
    model = journal.models[name]
    # What died while it was read may be gone: the line of its snapshot was written before that was begun.
    missing = {i: t for i, t in seen[name].items() if i in log.live and model.is_live(i) and found.get(i) != t}
    assert not missing, f"{name}: {missing} were read before, are live, and are not there: {log.refs}"
    true = {i: t for i in log.live if (t := found.get(i)) is not None and t == model.term_of(i)}
    seen[name] = true
    return len(true)


def main(directory: Path, journal: Path) -> None:
    followed = JournalReader(journal)
    seen: SEEN = defaultdict(dict)
    print("ready", flush=True)
    while True:
        for path in sorted(directory.glob("*/")):
            try:
                count = read(path, followed, seen)
            except (LogChangedError, NotALogDirectoryError):
                continue
            print(f"{path.name}: {count}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
