"""Puts the receipts of a job's groups together: one receipt per job, over all its attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from compaction.api.job.resource import JobReceipt
from compaction.api.text.times import timestamp_from_epoch
from compaction.segments.commit.records import GroupReceipt, SegmentTombstone
from compaction.segments.format.names import group_key


def combine(
    *,
    groups: Sequence[tuple[str, ...]],
    committed: Mapping[str, GroupReceipt],
    obsolete: Sequence[SegmentTombstone],
) -> JobReceipt | None:
    """One receipt for all that was committed (by whichever attempt); None when nothing was.

    `committed` by group key. A function of what the log's fence has recorded and of nothing else, so each attempt that
    finds the job done reads the same receipt. It names the attempt that committed last. Bytes of obsolete segments
    count as reclaimed: they are deleted after the grace.
    """
    parts = [committed[key] for key in map(group_key, groups) if key in committed]
    if not parts and not obsolete:
        return None
    before = sum(part.bytes_before for part in parts) + sum(tombstone.bytes for tombstone in obsolete)
    after = sum(part.bytes_after for part in parts)
    marks: list[GroupReceipt | SegmentTombstone] = [*parts, *obsolete]
    newest, worker = max((mark.token, mark.holder) for mark in marks)
    times = [*(part.committed_at for part in parts), *(tombstone.since for tombstone in obsolete)]
    return JobReceipt(
        token=newest,
        worker=worker,
        groups=len(groups),
        groups_committed=len(parts),
        sources=tuple(name for part in parts for name in part.sources),
        outputs=tuple(part.output for part in parts),
        obsolete=tuple(tombstone.name for tombstone in obsolete),
        records=sum(part.entries for part in parts),
        bytes_before=before,
        bytes_after=after,
        bytes_reclaimed=max(0, before - after),
        fingerprint_before=fold(part.fingerprint_before for part in parts),
        fingerprint_after=fold(part.fingerprint_after for part in parts),
        seconds=round(sum(part.seconds for part in parts), 3),
        committed_at=timestamp_from_epoch(max(times)),
    )


def fold(fingerprints: Iterable[str]) -> str:
    """One fingerprint for several groups: sha256 over their hex forms, one a line. Of a single one, itself."""
    lines = list(fingerprints)
    if len(lines) == 1:
        return lines[0]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
