"""Checks of segments, their names and links, and of what compactions leave beside them: pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compaction.segments.checking.facts import LogFacts
from compaction.segments.checking.rules import Problem, Rule, Window
from compaction.segments.errors import MissingSegmentHeaderError, SegmentNameError
from compaction.segments.format import names
from compaction.segments.model import SEGMENT_NAME, SegmentIndex, segment_name, segment_number, torn_from
from compaction.segments.system.cut import CUT_FILE


def names_and_headers(log: LogFacts) -> Iterator[Problem]:
    """Files that cannot be parsed."""
    for error in log.errors:
        path = str(getattr(error, "file", log.directory))
        if isinstance(error, SegmentNameError):
            yield Problem(Rule.SEGMENT_NAMES, path, "its name has no place in the log", _named(path))
        elif Path(path).name == log.cut_off and log.covered:
            remedy = "the owner creates it again at its next start: its entries are in the write-ahead log"
            yield Problem(Rule.SEGMENT_HEADERS, path, str(error), remedy, note=True)
        elif isinstance(error, MissingSegmentHeaderError):
            remedy = "restore it from a copy or from another member: newer segments exist, so its owner has passed it"
            yield Problem(Rule.SEGMENT_HEADERS, path, str(error), remedy)
        else:
            yield Problem(Rule.SEGMENT_HEADERS, path, str(error), "restore it from a copy or from another member")


def _named(path: str) -> str:
    stem = Path(path).stem
    if stem.isdecimal() and len(stem) == 8:
        return f"rename it to {segment_name(int(stem))} while its owner is stopped"
    return "write 16 digits and .segment, or move the file out of the log's directory"


def records(log: LogFacts) -> Iterator[Problem]:
    """Payloads without a gap, and nothing else in the file. The end of the newest segment may be torn while the
    write-ahead log has its entries.
    """
    for segment in log.state.segments:
        # What an interrupted flush leaves behind the end of the newest is no record yet, and waits in the log.
        grows = segment.name == log.state.newest and not segment.is_holed and torn_from(segment) is None
        if segment.damage and not (grows and log.covered):
            remedy = "restore the segment from a copy or from another member: entries of it may be lost"
            yield Problem(Rule.SEGMENT_RECORDS, str(segment.path), segment.damage, remedy, note=grows)
    if log.torn is not None:
        alone = _only_here(log, log.torn)
        remedy = "the owner clears it at its next start: its entries are in the write-ahead log"
        if alone:
            remedy = "restore the segment from a copy or from another member: entries of it may be lost"
        yield Problem(Rule.SEGMENT_RECORDS, str(log.torn.path), log.torn.damage, remedy, note=not alone)


def _only_here(log: LogFacts, segment: SegmentIndex) -> bool:
    """Whether a whole record behind a torn or empty slot is of an entry that the log needs, below those that wait."""
    torn = torn_from(segment)
    row = segment.count if torn is None else torn
    whole = segment.inside[row:] & (segment.length[row:] > 0)
    first = min(log.waiting or (), default=None)
    found = (*segment.idx[row:][whole].tolist(), *segment.behind_hole.tolist())
    behind = [index for index in found if log.counts(index) and log.row.needs(index)]
    return bool(behind) and (first is None or min(behind) < first)


def links(log: LogFacts) -> Iterator[Problem]:
    """Old names of compacted segments."""
    regular = {segment.name for segment in log.state.segments}
    for name, target in (log.links or {}).items():
        path = str(log.directory / name)
        if "/" in target:
            what = f"it is a link to {target}, outside of the log's directory"
            remedy = "delete the link: no reader follows it, and the log may have been moved since it was written"
            yield Problem(Rule.LINKS, path, what, remedy)
        elif not SEGMENT_NAME.fullmatch(target) or segment_number(target) >= segment_number(name):
            what = f"it is a link to {target}, which is no segment of a lower number"
            yield Problem(Rule.LINKS, path, what, "restore the segment from a copy, or delete the link")
        elif target not in regular and target not in (log.links or {}):
            what = f"it is a link to {target}, which is not there"
            remedy = "it does no harm: the owner or the next sweep deletes it"
            yield Problem(Rule.LINKS, path, what, remedy, note=True)


def half_done(log: LogFacts) -> Iterator[Problem]:
    """What a compaction that died has left: of the compactor here, or of Ra's own."""
    markers = [name for name in log.half_done if names.parse_ra_marker(name)]
    # The flag: a server that was killed does not look stopped, and without it the command refuses.
    recover = f"run `compactor segments recover {log.directory} --owner-stopped`"
    for marker in markers:
        path, leader = str(log.directory / marker), names.parse_ra_marker(marker)
        assert leader is not None
        copied = names.ra_compacting_name(leader) in log.names
        if len(markers) > 1:
            what, window = f"it is one of {len(markers)} markers of compactions: a Ra server does not start", Window.W4
        elif copied:
            what = "a compaction of Ra was interrupted while it copied: later ones of that server fail"
            window = Window.W3
        else:
            what = (
                "a marker without its copy: a Ra server takes the group for committed when it starts, and may lose it"
            )
            window = Window.W1
        remedy = f"stop the owner if it runs, do not start it, and {recover} first"
        yield Problem(Rule.HALF_DONE, path, what, remedy, window)
    for text in log.blocked:
        yield Problem(Rule.HALF_DONE, str(log.directory), text, "restore what is missing, or move the file away")
    known = {names.ra_compacting_name(leader) for marker in markers if (leader := names.parse_ra_marker(marker))}
    for name in log.half_done:
        if name not in markers and name not in known and not any(text.startswith(name) for text in log.blocked):
            what = "a compaction is under way, or died; every live entry is readable all the same"
            remedy = f"if it died: stop the owner if it runs, do not start it, and {recover} first"
            yield Problem(Rule.HALF_DONE, str(log.directory / name), what, remedy, note=True)


def cut(log: LogFacts) -> Iterator[Problem]:
    """What an installation left to say which entries count."""
    if log.cut_error is not None:
        remedy = "the system is not opened before that: restore the file from a copy, or the log from another member"
        yield Problem(Rule.LOG_CUT, log.cut_error.file, str(log.cut_error), remedy)


def compactor_files(log: LogFacts) -> Iterator[Problem]:
    """The fence and the maps of moved entries."""
    for error in log.compactor_errors:
        path = str(getattr(error, "file", log.directory))
        remedy = "move it away if no job of the log is running: claims and receipts go, log data does not"
        if names.parse_moves(Path(path).name) is not None:
            remedy = "restore it from a copy: the owner needs it until its next snapshot"
        yield Problem(Rule.COMPACTOR_FILES, path, str(error), remedy)


def for_ra(log: LogFacts) -> Iterator[Problem]:
    """Notes of what a Ra server that gets the directory would read otherwise than its owner."""
    first = min((*(ref.first for ref in log.state.refs), *(log.waiting or ())), default=None)
    if first == 1 and not log.snapshots:
        what = "the log begins at index 1 without a snapshot; that of a Ra server begins at index 0"
        remedy = "let its owner take a snapshot before a Ra server gets the directory"
        yield Problem(Rule.ENTRIES_ABOVE, str(log.directory), what, remedy, note=True)
    if log.cut is not None:
        what = f"entries from index {log.cut.first} on do not count, which a Ra server does not read in this file"
        remedy = "let its owner write on, until it removes the file, before a Ra server gets the directory"
        yield Problem(Rule.LOG_CUT, str(log.directory / CUT_FILE), what, remedy, note=True)
