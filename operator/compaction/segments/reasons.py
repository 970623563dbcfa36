"""The reasons that segment logs add to those of the core, and the words for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.policy.store import PolicyStanding
from compaction.core.kind import PolicyWord
from compaction.core.meaning import Fate, Meaning

# The reasons that segment logs add to those of the core, wherever they stand: of jobs, policies, waits and plans.


class SegmentReason(StrEnum):
    """Reasons in conditions, attempts, waits and plans."""

    NO_LOGS_FOUND = "NoLogsFound"  # valid and scanned; include and exclude select nothing that holds segment files
    ROOT_NOT_FOUND = "RootNotFound"  # spec.store.segmentLogs.root does not exist where the operator runs
    ROOT_NOT_A_DIRECTORY = "RootNotADirectory"
    OWNER_RUNNING = "OwnerRunning"  # the log's owner runs, or nothing says that it is stopped: stop it cleanly
    LIVE_SET_UNKNOWN = "LiveSetUnknown"  # the snapshot has no `indexes` file
    STORE_LOCKED = "StoreLocked"  # another process held the log's lock: the message names it
    LOCK_HELD = "LockHeld"  # another process holds the log's lock, so the job waits: the message names it
    LOG_NOT_APPENDABLE = "LogNotAppendable"  # clump: entries cannot be appended from outside; the message says why
    LIVE_ENTRIES_MISSING = "LiveEntriesMissing"  # live entries are in no segment: in a write-ahead log, or lost


FATES: Final[Mapping[str, Fate]] = MappingProxyType(
    {
        SegmentReason.LIVE_SET_UNKNOWN: Fate.PARK,
        SegmentReason.STORE_LOCKED: Fate.RETRY,
        SegmentReason.OWNER_RUNNING: Fate.RETRY,
    }
)


# The words for the reasons of segment logs.

_EDIT: Final = "kubectl edit cpol {policy} {n}"
_RETRY: Final = "kubectl compaction retry {n} {job}"
_AGAIN: Final = "The job is retried after a backoff, until its attempts are used up."
_PARKED: Final = "A retry would fail in the same way, so the job stays parked."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.LIVE_SET_UNKNOWN: Meaning(
        "The log's snapshot has no `indexes` file, so the live entries below it are unknown.",
        f"{_PARKED} Every scan checks the log again.",
        "Restore the file, or set whenIndexesMissing: TreatAsEmpty if the owner keeps no live indexes at all: "
        "kubectl edit cpol {policy} {n}",
    ),
    SegmentReason.STORE_LOCKED: Meaning(
        "Another process held the log's lock for too long.",
        f"{_AGAIN} The operator never breaks the lock.",
        f"If the process in the message is stuck, end it; once the job is parked: {_RETRY}",
    ),
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns the log runs, was killed, or is not known to be stopped; nothing was committed.",
        "The attempt does not count; the job waits until the server is stopped cleanly.",
        "Do as the message says. If the server was started while the job ran and a group had been committed, stop it "
        "at once, before its next snapshot: it does not know the new segments. Start it when the job has ended.",
    ),
    SegmentReason.LOG_NOT_APPENDABLE: Meaning(
        "Entries cannot be appended to the log from outside, so its live entries were not re-written at the head.",
        _AGAIN,
        f"Follow the message about the log's owner; once the job is parked: {_RETRY}",
    ),
}

POLICY_WORDS: Final[Mapping[str, PolicyWord]] = {
    SegmentReason.NO_LOGS_FOUND: PolicyWord(
        PolicyStanding.WORKING,
        Meaning(
            "Nothing below the root that include and exclude select holds segment files.",
            "The next scan finds logs that appear.",
            f"If logs are expected, correct root, include or exclude: {_EDIT}",
        ),
    ),
    SegmentReason.ROOT_NOT_FOUND: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The root does not exist where the operator runs.",
            "The scan is retried every interval; nothing is planned or deleted until it succeeds.",
            f"Create or mount the directory there, or correct root: {_EDIT}",
        ),
    ),
    SegmentReason.ROOT_NOT_A_DIRECTORY: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The root is not a directory.",
            "The scan is retried every interval; nothing is planned until it succeeds.",
            f"Set root to the directory that holds the logs: {_EDIT}",
        ),
    ),
    SegmentReason.OWNER_RUNNING: PolicyWord(
        PolicyStanding.STALLED,
        Meaning(
            "The server that owns the logs runs, was killed, or is not known to be stopped: its logs are not "
            "compacted.",
            "Every scan checks them again; they are planned once the server is stopped cleanly.",
            "Stop the server, or exclude its logs; if it is stopped and cannot be observed, set ownership:  "
            f"Stopped: {_EDIT}. Should a log have been compacted while its server ran: stop the server at once, before "
            "its next snapshot, run compactor segments sweep DIR --apply, then start it.",
        ),
    ),
}

WAIT_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.LOCK_HELD: Meaning(
        "Another process holds the lock of the log.",
        "The claim is retried until the lock is free.",
        "If that process is stuck, end it (the message names it); never delete the lock file.",
    ),
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns the log runs, was killed, or is not known to be stopped.",
        "The claim is retried with backoff until the server is stopped cleanly.",
        "Stop the server; or, if it is stopped and cannot be observed, set ownership: Stopped in the policy and  "
        "delete the job; its work is planned again: kubectl delete cjob {job} {n}",
    ),
}

LEFT_OUT_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns it runs, was killed, or is not known to be stopped.",
        "It is planned once the server is stopped cleanly.",
        f"If the server is stopped and cannot be observed, set ownership: Stopped: {_EDIT}",
    ),
}

LEFT_ALONE_WORDS: Final[Mapping[str, Meaning]] = {
    "NoSnapshot": Meaning(
        "The log has no snapshot, so every entry in it is live.",
        "It becomes a candidate when its owner takes a snapshot.",
    ),
    "NewestSegment": Meaning(
        "The newest segment of a log belongs to its owner, who still writes to it.",
        "It becomes a candidate when the owner starts the next one.",
    ),
    "NewestTorn": Meaning(
        "The power failed while the newest segment was written, so it may hide what older ones hold.",
        "It becomes a candidate when the owner has repaired the newest one, which it does when it starts.",
        "Start the log's owner.",
    ),
    "LiveEntriesMissing": Meaning(
        "Live entries of the log are in no segment and in no write-ahead log, so nothing of it is replaced or deleted.",
        "Every scan looks for them again.",
        "Restore the log from a copy or from another member: the message in status.targetErrors names the first one.",
    ),
    "Damaged": Meaning(
        "The records of the segment do not account for all of the file, so it may hold what nothing shows.",
        "It becomes a candidate when the file is replaced.",
        "Restore the segment from a copy or from another member: compactor segments inspect DIR names the damage.",
    ),
    "AboveSnapshot": Meaning(
        "The segment reaches above the snapshot, where everything is live.",
        "It becomes a candidate when a later snapshot covers it.",
    ),
    "DenseEnough": Meaning(
        "Most of the segment is live, so rewriting it would cost more than it reclaims.",
        "It becomes a candidate when more of it is dead.",
    ),
    "AloneTooLarge": Meaning(
        "What is live in the segment alone exceeds the limits of a segment.",
        "It becomes a candidate when more of it is dead.",
        f"To allow larger segments, raise maxEntriesPerSegment and maxBytesPerSegment: {_EDIT}",
    ),
    "Quarantined": Meaning(
        "The segment is damaged and quarantined.",
        "It is planned again when the file is replaced.",
        "List the damage: kubectl compaction quarantine {policy} {n}",
    ),
    "StrandedEntries": Meaning(
        "An index that must survive is found only in records that newer segments hide, so nothing is risked.",
        "It is checked again whenever the log changes.",
        "Inspect the log: compactor segments inspect DIR",
    ),
    "AwaitingDeletion": Meaning(
        "The segment was replaced; only its old name remains.",
        "It is deleted when the grace (spec.cleanup.delay) is over.",
    ),
}
"""Reasons of segments/planning, by their words: what the core knows of a kind imports none of its libraries."""
