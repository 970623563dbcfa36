"""File names inside a log directory, and how to take them apart again.

`<16 digits>.segment` is Ra's; everything else here is ours and ignored by Ra (docs/design/segment-files.md#names):

* `<a>-<b>-<c>.<job>.<token>.partial`: output of one attempt at one group, before its commit. Two attempts never share a
  name, so a zombie cannot touch the file of the attempt that replaced it.
* `<a>-<b>-<c>.compacting`: exists only while the fence's lock is held, or after a crash in that window. Of a group of
  one it is `<a>-<a>.compacting`: `<a>.compacting` is what Ra's own compaction writes to.
* `<a>.link`: the next content of the name `<a>.segment`, replaced by rename.
* `<n>.clump`: live entries re-written at the head, the future `<n>.segment`; exists as long as a `.compacting` does.
* `<index>.moves` (20 digits): which old indexes the entries from `index` on are copies of; the log's owner reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from compaction.segments.errors import InvalidGroupError
from compaction.segments.model import SEGMENT_NAME, SEGMENT_SUFFIX

COMPACTING_SUFFIX: Final = ".compacting"
LINK_SUFFIX: Final = ".link"
PARTIAL_SUFFIX: Final = ".partial"
CLUMP_SUFFIX: Final = ".clump"
MOVES_SUFFIX: Final = ".moves"
RA_MARKER_SUFFIX: Final = ".compaction_group"
MAX_SOURCES: Final = 8
"""Longest group: its name lists every source, and a file name holds 255 bytes."""

_JOB_BYTES: Final = 60
_STEMS: Final = r"[0-9]{16}(?:-[0-9]{16})*"
_COMPACTING: Final = re.compile(rf"({_STEMS})\.compacting", re.ASCII)
_LINK: Final = re.compile(r"([0-9]{16})\.link", re.ASCII)
_RA_MARKER: Final = re.compile(r"([0-9]{16})\.compaction_group", re.ASCII)
_CLUMP: Final = re.compile(r"([0-9]{16})\.clump", re.ASCII)
_MOVES: Final = re.compile(r"([0-9]{20})\.moves", re.ASCII)
_PARTIAL: Final = re.compile(rf"({_STEMS})\.(.+)\.([0-9]+)\.partial", re.ASCII)
_JOB_KEY: Final = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartialName:
    """The parts of a partial file's name: the group, the job's key (see `job_key`) and the attempt's token."""

    group: str
    job: str
    token: int


def stem(segment: str) -> str:
    """`0000000000000001` of `0000000000000001.segment`; InvalidGroupError for any other name."""
    if not SEGMENT_NAME.fullmatch(segment):
        raise InvalidGroupError(f"{segment!r} is not a segment name (16 decimal digits and .segment)")
    return segment.removesuffix(SEGMENT_SUFFIX)


def group_key(sources: Sequence[str]) -> str:
    """`a-b-c` of a group's segment names, lowest first. InvalidGroupError unless they are 1 to 8, ascending,
    distinct.
    """
    stems = [stem(source) for source in sources]
    if not 1 <= len(stems) <= MAX_SOURCES:
        raise InvalidGroupError(f"a group has 1 to {MAX_SOURCES} source segments, not {len(stems)}")
    if any(low >= high for low, high in pairwise(stems)):
        raise InvalidGroupError(f"the sources of a group are ascending and distinct: {', '.join(sources)}")
    return "-".join(stems)


def group_sources(key: str) -> tuple[str, ...]:
    """The segment names of a group key, lowest first."""
    return tuple(part + SEGMENT_SUFFIX for part in key.split("-"))


def job_key(job: str) -> str:
    """A job's name as it appears in a file name: itself when short and plain, else a cut with a digest behind it."""
    if not job:
        raise InvalidGroupError("a job's name must not be empty")
    if len(job) <= _JOB_BYTES and _JOB_KEY.fullmatch(job):
        return job
    try:
        digest = hashlib.sha256(job.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InvalidGroupError(f"a job's name is text, which {job[:_JOB_BYTES]!a} is not") from error
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", job)[: _JOB_BYTES - 17]
    return f"{plain}-{digest[:16]}"


def partial_name(group: str, *, job: str, token: int) -> str:
    return f"{group}.{job_key(job)}.{token}{PARTIAL_SUFFIX}"


def compacting_name(group: str) -> str:
    """Return the name under which a commit of the compactor puts a group's output.

    It is never Ra's own name, see the top of this module.
    """
    return (group if "-" in group else f"{group}-{group}") + COMPACTING_SUFFIX


def ra_compacting_name(leader: str) -> str:
    """Return the name under which Ra's own compaction writes the output for a leading segment.

    The design note's compaction of a group of one uses it too.
    """
    return stem(leader) + COMPACTING_SUFFIX


def link_name(segment: str) -> str:
    """The temporary name beside a segment that its next content is renamed from."""
    return stem(segment) + LINK_SUFFIX


def parse_partial(name: str) -> PartialName | None:
    match = _PARTIAL.fullmatch(name)
    return PartialName(group=match[1], job=match[2], token=int(match[3])) if match else None


def parse_compacting(name: str) -> str | None:
    """The group key of a `.compacting` name, ours or Ra's (a single stem); None for any other name."""
    match = _COMPACTING.fullmatch(name)
    if match is None:
        return None
    stems = match[1].split("-")
    if len(stems) == 2 and stems[0] == stems[1]:
        return stems[0]
    return match[1] if all(low < high for low, high in pairwise(stems)) else None


def parse_link(name: str) -> str | None:
    """The segment that a `.link` name is meant for; None for any other name."""
    match = _LINK.fullmatch(name)
    return match[1] + SEGMENT_SUFFIX if match else None


def parse_ra_marker(name: str) -> str | None:
    """The leading segment of a group that Ra's own compaction was working on; None for any other name."""
    match = _RA_MARKER.fullmatch(name)
    return match[1] + SEGMENT_SUFFIX if match else None


def clump_name(segment: str) -> str:
    """Return the name of re-written entries before they have the name of the segment."""
    return stem(segment) + CLUMP_SUFFIX


def parse_clump(name: str) -> str | None:
    """The segment that a `.clump` name is to become; None for any other name."""
    match = _CLUMP.fullmatch(name)
    return match[1] + SEGMENT_SUFFIX if match else None


def moves_name(first: int) -> str:
    """The map of the entries that were re-written from index `first` on."""
    return f"{first:020d}{MOVES_SUFFIX}"


def parse_moves(name: str) -> int | None:
    """The first new index that a map of moved entries is about; None for any other name."""
    match = _MOVES.fullmatch(name)
    return int(match[1]) if match else None


def unfinished(names: Sequence[str]) -> str:
    """The first sign in a directory listing of a compaction that goes on or died, ours or Ra's own, its marker before
    all else; empty without any.
    """
    signs = [n for n in names if needs_recovery([n]) or parse_partial(n)]
    return min(signs, key=lambda name: (parse_ra_marker(name) is None, name), default="")


def needs_recovery(names: Sequence[str]) -> bool:
    """Return whether a directory listing shows a compaction, ours or Ra's own, that did not finish."""
    return any(parse_compacting(n) or parse_link(n) or parse_ra_marker(n) or parse_clump(n) for n in names)
