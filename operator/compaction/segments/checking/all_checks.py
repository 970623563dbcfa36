"""All checks of one reading, and of several some time apart, and a verdict on each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from compaction.segments.checking import checks
from compaction.segments.checking.facts import (
    CHECKLIST,
    CheckProblem,
    LogFacts,
    OwnerRule,
    ReadWindow,
    SeenFacts,
    SystemFacts,
)
from compaction.segments.commit.fence import FENCE_FILE
from compaction.segments.directory.fs import fault_of
from compaction.segments.directory.owner import Marker
from compaction.segments.errors import CorruptEntryError, LogChangedError, NotALogDirectoryError
from compaction.segments.model import FileIdentity, SegmentIndex, torn_from
from compaction.segments.reading.reader import SegmentFile
from compaction.segments.reading.view import read_segments

# Every payload of a log read and compared with its checksum, while compactions replace files under the reader.

OnBytes = Callable[[int], None]
_ROUNDS = 20


def damaged(log: LogFacts, on_bytes: OnBytes) -> Iterator[CheckProblem]:
    """All records of all segments, dead ones too. `on_bytes`: gets how many bytes of payload were read, each time.

    LogChangedError when files are replaced at each of many rounds. OSError passes through.
    """
    pending, done = list(log.state.segments), set[tuple[str, FileIdentity]]()
    for _ in range(_ROUNDS):
        replaced = False
        for segment in pending:
            done.add((segment.name, segment.identity))
            try:
                yield from _damaged(log, segment, on_bytes)
            except LogChangedError:
                # A compaction replaced the file: its output is read in the next round.
                replaced = True
        if not replaced:
            return
        # What is still there under its name, and was not read yet: outputs of compactions.
        try:
            found = read_segments(log.directory).segments
        except NotALogDirectoryError:
            # The log was deleted meanwhile, so nothing is left to check.
            return
        pending = [segment for segment in found if (segment.name, segment.identity) not in done]
    raise LogChangedError(str(log.directory))


def _damaged(log: LogFacts, segment: SegmentIndex, on_bytes: OnBytes) -> Iterator[CheckProblem]:
    errors: list[CorruptEntryError] = []
    torn = torn_from(segment)
    rows = np.flatnonzero(segment.inside[: segment.count if torn is None else torn])
    with closing(SegmentFile(segment)) as file:
        for batch in file.batches(rows, on_corrupt=errors.append):
            on_bytes(len(batch.data))
            for error in errors:
                yield _problem(log, segment, error)
            errors.clear()
    for error in errors:
        yield _problem(log, segment, error)


def _problem(log: LogFacts, segment: SegmentIndex, error: CorruptEntryError) -> CheckProblem:
    remedy = "restore the segment from a copy or from another member"
    if not log.row.needs(error.index):
        remedy = "the entry is dead, so no reader needs it; check the disk"
    # Ours never copies what does not match; Ra's copies do.
    linked = any(target.endswith(segment.name) for target in (log.links or {}).values())
    window = ReadWindow.W6 if linked and FENCE_FILE not in log.names else None
    return CheckProblem(OwnerRule.PAYLOAD_CHECKSUMS, error.file, str(error), remedy, window)


# All checks of one reading, and of several some time apart: problems one by one, and a verdict on each rule.

_LOG_CHECKS = (
    checks.names_and_headers,
    checks.segment_records,
    checks.links,
    checks.half_done,
    checks.compactor_files,
    checks.cut,
    checks.snapshot_files,
    checks.live_indexes,
    checks.only_shrinks,
    checks.live_entries,
    checks.entries_above,
    checks.hidden,
    checks.same_entry,
)
_SYSTEM_CHECKS = (checks.wal_files, checks.wal_records, checks.writers, checks.marker)


class RuleOutcome(StrEnum):
    """Of one rule in a directory."""

    PASS = "pass"
    FAIL = "fail"
    KNOWN = "known"
    """It is not kept, in a way in which Ra 3.1.10 does not keep it."""
    NOT_SEEN = "not seen"
    """Nothing in the directory is what the rule is about, or it takes more than one scan, or a test of the owner."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problems`: violations, and notes of what does no harm."""

    rule: OwnerRule
    outcome: RuleOutcome
    problems: tuple[CheckProblem, ...] = ()


def system_problems(system: SystemFacts) -> Iterator[CheckProblem]:
    """Of the write-ahead log."""
    for check in _SYSTEM_CHECKS:
        yield from check(system)


def log_problems(log: LogFacts, on_bytes: OnBytes = lambda _size: None) -> Iterator[CheckProblem]:
    """Of one log; reads every payload. What a check raises is a problem of the log, and the others go on."""
    for check in (*_LOG_CHECKS, lambda log: damaged(log, on_bytes)):
        try:
            yield from check(log)
        except Exception as error:  # noqa: BLE001 - at one log, whatever it is: see `fault_of`
            fault = fault_of(error, log.directory)
            yield CheckProblem(
                OwnerRule.SEGMENT_RECORDS, str(log.directory), str(fault), "what it checks is unknown: run again"
            )


def problems_of(system: SystemFacts, on_bytes: OnBytes = lambda _size: None) -> Iterator[CheckProblem]:
    """Of everything that one reading shows."""
    yield from system_problems(system)
    for log in system.logs:
        yield from log_problems(log, on_bytes)
        yield from checks.for_ra(log)


def payload_bytes(log: LogFacts) -> int:
    """Return the number of payload bytes that `log_problems` reads."""
    return sum(segment.data_bytes for segment in log.state.segments)


def verdicts(readings: Sequence[SystemFacts], problems: Iterable[CheckProblem]) -> Iterator[Verdict]:
    """One for each rule, in order. `problems`: of all readings, each alone and each two in a row."""
    found: dict[OwnerRule, dict[CheckProblem, None]] = {rule: {} for rule in CHECKLIST}
    for problem in problems:
        found[problem.rule][problem] = None
    for rule, text in CHECKLIST.items():
        own = tuple(found[rule])
        hard = [problem for problem in own if not problem.note]
        if hard:
            outcome = RuleOutcome.KNOWN if all(problem.window for problem in hard) else RuleOutcome.FAIL
        elif own:
            outcome = RuleOutcome.PASS
        elif text.seen is SeenFacts.TEST or (text.seen is SeenFacts.WHILE and len(readings) < 2):
            outcome = RuleOutcome.NOT_SEEN
        else:
            outcome = RuleOutcome.PASS if any(_shows(rule, reading) for reading in readings) else RuleOutcome.NOT_SEEN
        yield Verdict(rule, outcome, own)


def _shows(rule: OwnerRule, system: SystemFacts) -> bool:
    """Return whether a reading has anything that the rule is about."""
    match rule:
        case OwnerRule.WAL_FILES | OwnerRule.WAL_GROWS:
            return bool(system.wal)
        case OwnerRule.WAL_RECORDS | OwnerRule.WAL_WRITERS:
            return any(wal.records for wal in system.wal)
        case OwnerRule.SNAPSHOT_FILES | OwnerRule.LIVE_INDEXES | OwnerRule.SNAPSHOTS_ADVANCE:
            return any(log.snapshots or log.rejected for log in system.logs)
        case OwnerRule.LIVE_ONLY_SHRINKS:
            return any(len(log.snapshots) > 1 for log in system.logs)
        case OwnerRule.LIVE_ENTRIES:
            return any(log.demanded for log in system.logs)
        case OwnerRule.LINKS:
            return any(log.links for log in system.logs)
        case OwnerRule.SAME_ENTRY:
            return any(log.waiting for log in system.logs)
        case OwnerRule.COMPACTOR_FILES:
            return any(name.startswith("compaction.") for log in system.logs for name in log.names)
        case OwnerRule.LOG_CUT:
            return any(log.cut for log in system.logs)
        case OwnerRule.OWNER_MARKER:
            return system.marker is Marker.FOLLOWS
        case OwnerRule.HALF_DONE | OwnerRule.ENTRIES_ABOVE | OwnerRule.NOTHING_VANISHES:
            return bool(system.logs)
        case _:
            # All other rules are about segments.
            return any(log.state.segments for log in system.logs)
