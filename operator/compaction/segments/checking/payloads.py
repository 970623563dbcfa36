"""Every payload of a log read and compared with its checksum, while compactions replace files under the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from compaction.segments.checking.facts import LogFacts
from compaction.segments.checking.rules import Problem, Rule, Window
from compaction.segments.commit.fence import FENCE_FILE
from compaction.segments.errors import CorruptEntryError, LogChangedError, NotALogDirectoryError
from compaction.segments.model import FileIdentity, SegmentIndex, torn_from
from compaction.segments.reading.files import read_segments
from compaction.segments.reading.reader import SegmentFile

OnBytes = Callable[[int], None]
_ROUNDS = 20


def damaged(log: LogFacts, on_bytes: OnBytes) -> Iterator[Problem]:
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
                replaced = True
        if not replaced:
            return
        # What is still there under its name, and was not read yet: outputs of compactions.
        try:
            found = read_segments(log.directory).segments
        except NotALogDirectoryError:
            return
        pending = [segment for segment in found if (segment.name, segment.identity) not in done]
    raise LogChangedError(str(log.directory))


def _damaged(log: LogFacts, segment: SegmentIndex, on_bytes: OnBytes) -> Iterator[Problem]:
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


def _problem(log: LogFacts, segment: SegmentIndex, error: CorruptEntryError) -> Problem:
    remedy = "restore the segment from a copy or from another member"
    if not log.row.needs(error.index):
        remedy = "the entry is dead, so no reader needs it; check the disk"
    # Ours never copies what does not match; Ra's copies do.
    linked = any(target.endswith(segment.name) for target in (log.links or {}).values())
    window = Window.W6 if linked and FENCE_FILE not in log.names else None
    return Problem(Rule.PAYLOAD_CHECKSUMS, error.file, str(error), remedy, window)
