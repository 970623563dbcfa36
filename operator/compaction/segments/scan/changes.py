"""When what was read of a directory may be used again without reading it: the rule, and what it depends on.

A name that appears in a directory, goes, or is renamed changes the directory's ctime (and mtime), by any process and
however. So one `stat` tells whether a listing is still true, but for two traps:

* **Ticks.** A file system stamps with a clock that moves in ticks (4 ms on ext4, 2 s on FAT). A change in the same
  tick as an earlier one leaves the stamp as it was. So a listing is trusted only when it was made at least
  `SETTLE_SECONDS` after the very same stamp was first seen: a change after *that* listing falls into a later tick.
  (Git's rule for "racy" files compares the stamp with the time of the reading; a file server's clock and ours may
  differ, so only our own monotonic clock is asked here.)
* **Writing in place** changes a file, not its directory. What is written in place in a log is the newest segment, which
  no plan touches. Whole segments and complete snapshots are never written again by their owner
  (docs/design/segment-commit.md#a-running-owner); should a user do it (a file restored with `cp`), every log is
  read file by file again once in `VERIFY_LOOKS` scans, a few logs at each.

The stamp is ctime beside mtime: no program can set it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

SETTLE_SECONDS: Final = 2.0
"""The coarsest tick of a file system in use."""
VERIFY_LOOKS: Final = 64

State = tuple[int, int, int, int, int]
"""Device, inode, mode (permissions included), mtime and ctime in nanoseconds."""


def state_of(path: str, *, follow: bool = False) -> State | None:
    """The state of a name itself, or of what it links to; None when there is none. Other OSErrors pass through."""
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_mtime_ns, found.st_ctime_ns


@dataclass(slots=True)
class Trust:
    """Whether what was read under some states may be used while they stay. `since`: when they were first seen."""

    states: tuple[State | None, ...] = ()
    since: float = 0.0
    settled: bool = False

    def holds(self, states: tuple[State | None, ...]) -> bool:
        """True when nothing can have changed since the last reading."""
        return self.settled and states == self.states

    def was_read(self, states: tuple[State | None, ...], *, asked: float, now: float) -> None:
        """Everything was read just now. `states` were taken before that, and after `asked`; both monotonic."""
        if states != self.states:
            self.states, self.since, self.settled = states, now, False
        elif asked - self.since >= SETTLE_SECONDS:
            self.settled = True
