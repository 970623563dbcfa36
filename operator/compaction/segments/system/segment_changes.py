"""The changes to a log's list of segments between two readings, by positive evidence: names and inodes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compaction.segments.system.segments import SegmentView


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """The changes to a log's segments; names ascend. A segment that only grew did not change.

    `new`: names that were not there; `rewritten`: another file has the name, with the live entries of a group;
    `linked`: names that are links to a rewritten one now; `obsolete`: files that are still there, that the log reads no
    longer, and that are deleted next; `gone`: names that are not there any more.
    """

    log: str
    new: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    obsolete: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.rewritten or self.linked or self.obsolete or self.gone)


OnChange = Callable[[SegmentChanges], None]
"""Called in whichever thread found the change, in the order of the changes of a log. It must return soon, and wait for
nothing that reads the log.
"""


def changes_between(before: SegmentView, after: SegmentView) -> SegmentChanges:
    """Return the changes to a log from one reading to the next."""
    then, now = before.segments, after.segments
    earlier = then.keys() | before.links.keys() | before.obsolete.keys()
    later = now.keys() | after.links.keys() | after.obsolete.keys()
    return SegmentChanges(
        log=before.directory.name,
        new=tuple(sorted(later - earlier)),
        rewritten=tuple(
            sorted(name for name in then.keys() & now.keys() if then[name].identity.inode != now[name].identity.inode)
        ),
        linked=tuple(sorted(after.links.keys() - before.links.keys())),
        obsolete=tuple(sorted(after.obsolete.keys() - before.obsolete.keys())),
        gone=tuple(sorted(earlier - later)),
    )
