"""Whether the groups of a plan may be rewritten, and committed, on a log as it is now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compaction.segments.errors import CorruptSegmentError, SourcesChangedError
from compaction.segments.model import FileIdentity, SegmentIndex
from compaction.segments.planning.unreferenced import DeadSegment, compactable_refs, find_dead, find_stranded
from compaction.segments.reading.view import LogState
from compaction.segments.snapshot.seq import LiveSet

IndexRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupRanges:
    """What one reading of a log says about a group, and of which files it says it: plain data, to be checked against.

    `spans`: for each source the range that is read from it, None for one that no reader needs; `identities`: the
    sources' files at that reading; `carried`: the segments between them, all dead at that reading.
    """

    spans: tuple[IndexRange | None, ...]
    identities: tuple[FileIdentity, ...]
    carried: tuple[DeadSegment, ...] = ()


class GroupCheck:
    """Whether groups may (still) be rewritten on this log; computed once for any number of groups."""

    def __init__(self, log: LogState, live: LiveSet) -> None:
        self._log = log
        self._refs = {ref.name: ref for ref in compactable_refs(log)}
        self._stranded = find_stranded(log, live)
        self._dead = find_dead(log, live, stranded=self._stranded)
        self._present = [segment.name for segment in log.segments]

    @property
    def segments(self) -> Mapping[str, SegmentIndex]:
        """The indexes that were read, by name."""
        return {segment.name: segment for segment in self._log.segments}

    def ranges(self, sources: Iterable[str]) -> GroupRanges:
        """What is read from the sources of a group, and what is dead between them.

        SourcesChangedError names the segment that is in the way; CorruptSegmentError a damaged source.
        LiveEntriesMissingError: entries of the log are lost, so none of its files may be replaced.
        """
        if self._log.missing:
            raise self._log.entries_missing()
        names = tuple(sources)
        for name in names:
            if name in self._present and (damage := self._log.segment(name).damage):
                raise CorruptSegmentError(str(self._log.directory / name), damage)
            if name in self._stranded or (name not in self._refs and name not in self._dead):
                gone = name not in self._present
                reason = "not a segment of its own any more" if gone else "must not be compacted now"
                raise SourcesChangedError(f"{self._log.directory / name}: {reason}")
        inside = self._present[bisect_right(self._present, names[0]) : bisect_left(self._present, names[-1])]
        between = [name for name in inside if name not in names]
        for name in between:
            if name not in self._dead:
                raise SourcesChangedError(f"{self._log.directory / name}: lies between the sources of the group")
        return GroupRanges(
            spans=tuple((self._refs[n].first, self._refs[n].last) if n in self._refs else None for n in names),
            identities=tuple(self._log.segment(n).identity for n in names),
            carried=tuple(self._dead[n] for n in between),
        )


def group_ranges(log: LogState, sources: Iterable[str], live: LiveSet) -> GroupRanges:
    """The ranges of one group; for several, `GroupCheck` looks for dead segments only once."""
    return GroupCheck(log, live).ranges(sources)
