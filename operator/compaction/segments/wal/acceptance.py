"""Whether the write-ahead log takes a write: pure decisions from the previous index that every write carries.

The rules are Ra's (docs/design/segment-wal.md#order-of-a-logs-writes), so that its files and ours mean the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Standing(StrEnum):
    """Whether all writes of a log have arrived so far; the values are those of the writers snapshot."""

    IN_SEQUENCE = "in_seq"
    OUT_OF_SEQUENCE = "out_of_seq"


class Verdict(StrEnum):
    """What becomes of a write."""

    WRITE = "Write"
    WRITE_TRUNCATING = "WriteTruncating"
    """With the truncate flag: whatever lies below this index is dead."""
    BELOW_LIVE = "BelowLive"
    """Not written, and yet done: the entry lies below the smallest live index, so nothing will read it."""
    REQUEST_RESEND = "RequestResend"
    """A gap: the log is asked, once, to send everything after its last index again."""
    REFUSE = "Refuse"
    """The gap is known, and this write does not fill it."""


class WriterState(NamedTuple):
    """The last index that a log wrote, and whether its writes are in sequence."""

    last: int
    standing: Standing = Standing.IN_SEQUENCE


def judge(
    writer: WriterState | None, *, index: int, previous: int | None, smallest_live: int
) -> tuple[Verdict, WriterState | None]:
    """What becomes of a write of `index`, and the writer's state after it.

    `previous`: the index before it in its log, contiguous or sparse; None when the log holds none.
    `writer` None: the log has not written anything yet that is known here, so every index may be its first.
    """
    if index < smallest_live:
        return Verdict.BELOW_LIVE, WriterState(smallest_live - 1)
    if writer is None:
        return Verdict.WRITE, WriterState(index)
    if index == smallest_live and index > writer.last:
        # Nothing between the last index and this one is alive any more.
        return Verdict.WRITE_TRUNCATING, WriterState(index)
    if previous is None or previous <= writer.last:
        return Verdict.WRITE, WriterState(index)
    if writer.standing is Standing.IN_SEQUENCE:
        return Verdict.REQUEST_RESEND, WriterState(writer.last, Standing.OUT_OF_SEQUENCE)
    return Verdict.REFUSE, writer
