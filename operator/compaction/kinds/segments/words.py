"""The words for the reasons of segment logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.policy.standing import Standing
from compaction.kinds.kind import PolicyWord
from compaction.kinds.meaning import Meaning
from compaction.kinds.segments.reasons import SegmentReason

_EDIT: Final = "kubectl edit cpol {policy} {n}"
_RETRY: Final = "kubectl compaction retry {n} {job}"
_AGAIN: Final = "The job is tried again after a pause, until its attempts are used up."
_PARKED: Final = "Another attempt would end the same, so the job stays parked."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.LIVE_SET_UNKNOWN: Meaning(
        "The log's snapshot has no `indexes` file, so nobody knows what is live below it.",
        f"{_PARKED} The log is looked at again after every interval.",
        "Restore the file, or set whenIndexesMissing: TreatAsEmpty if the owner keeps no live indexes at all: "
        "kubectl edit cpol {policy} {n}",
    ),
    SegmentReason.STORE_LOCKED: Meaning(
        "Another process held the log's lock for too long.",
        f"{_AGAIN} The lock is left alone.",
        f"End the process that the message names if it is stuck; once the job is parked: {_RETRY}",
    ),
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns the log runs, was killed, or nothing says that it is stopped; nothing is committed.",
        "The attempt is not charged; the job waits until the server has been stopped cleanly.",
        "If it was started while the job ran and a group had been committed, restart it at once, before its next "
        "snapshot: it does not know the new segments. Then stop it for the rest of the job.",
    ),
    SegmentReason.LOG_NOT_APPENDABLE: Meaning(
        "Entries cannot be appended to the log from outside, so its live entries were not re-written at the head.",
        _AGAIN,
        f"Do what the message says about the log's owner; once the job is parked: {_RETRY}",
    ),
}

POLICY_WORDS: Final[Mapping[str, PolicyWord]] = {
    SegmentReason.NO_LOGS_FOUND: PolicyWord(
        Standing.WORKING,
        Meaning(
            "Nothing below the root that include and exclude select holds segment files.",
            "Logs that appear are found at the next look.",
            f"If there should be logs, correct root, include or exclude: {_EDIT}",
        ),
    ),
    SegmentReason.ROOT_NOT_FOUND: PolicyWord(
        Standing.STALLED,
        Meaning(
            "The root does not exist where the operator runs.",
            "It is looked for again after every interval; nothing is planned or deleted meanwhile.",
            f"Create or mount the directory there, or correct root: {_EDIT}",
        ),
    ),
    SegmentReason.ROOT_NOT_A_DIRECTORY: PolicyWord(
        Standing.STALLED,
        Meaning(
            "The root is something else than a directory.",
            "It is looked at again after every interval; nothing is planned meanwhile.",
            f"Set root to the directory that holds the logs: {_EDIT}",
        ),
    ),
    SegmentReason.OWNER_RUNNING: PolicyWord(
        Standing.STALLED,
        Meaning(
            "The server that owns the logs runs, was killed, or nothing says that it is stopped: its logs are left "
            "alone.",
            "They are looked at again after every interval, and planned once the server has been stopped cleanly.",
            "Stop the server, or exclude its logs; when it is stopped and cannot be seen to be, say ownership: "
            f"Stopped: {_EDIT}. Should a log have been compacted while its server ran: restart the server at once, "
            "before its next snapshot.",
        ),
    ),
}

WAIT_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.LOCK_HELD: Meaning(
        "Another process holds the lock of the log.",
        "The claim is tried again until the lock is free.",
        "If that process is stuck, end it (the message names it); never delete the lock file.",
    ),
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns the log runs, was killed, or nothing says that it is stopped.",
        "The claim is tried again with growing pauses, until the server has been stopped cleanly.",
        "Stop the server; or, when it is stopped and cannot be seen to be, set ownership: Stopped in the policy and "
        "delete the job, and it is planned again: kubectl delete cjob {job} {n}",
    ),
}

LEFT_OUT_WORDS: Final[Mapping[str, Meaning]] = {
    SegmentReason.OWNER_RUNNING: Meaning(
        "The server that owns it runs, was killed, or nothing says that it is stopped.",
        "It is planned once the server has been stopped cleanly.",
        f"When the server is stopped and cannot be seen to be, set ownership: Stopped: {_EDIT}",
    ),
}

LEFT_ALONE_WORDS: Final[Mapping[str, Meaning]] = {
    "NoSnapshot": Meaning(
        "The log has no snapshot, so every entry in it is live.",
        "It becomes a candidate when its owner has taken a snapshot.",
    ),
    "NewestSegment": Meaning(
        "The newest segment of a log belongs to its owner, who still writes to it.",
        "It becomes a candidate when the owner has begun the next one.",
    ),
    "AboveSnapshot": Meaning(
        "The segment reaches above the snapshot, where everything is live.",
        "It becomes a candidate when a later snapshot covers it.",
    ),
    "DenseEnough": Meaning(
        "Most of the segment is live, so rewriting it would cost more than it gives back.",
        "It becomes a candidate when more of it has died.",
    ),
    "AloneTooLarge": Meaning(
        "What is live in the segment alone exceeds the limits of a segment.",
        "It becomes a candidate when more of it has died.",
        f"Larger segments are allowed by maxEntriesPerSegment and maxBytesPerSegment: {_EDIT}",
    ),
    "Quarantined": Meaning(
        "The segment is damaged and set aside.",
        "It is planned again when another file stands under the name.",
        "See what is damaged: kubectl compaction quarantine list {policy} {n}",
    ),
    "StrandedEntries": Meaning(
        "An index that must survive is found only in records that newer segments hide, so nothing is risked.",
        "It is looked at again whenever the log changes.",
        "Look into the log: compactor segments inspect DIR",
    ),
    "AwaitingDeletion": Meaning(
        "The segment was replaced already, and only its old name is still there.",
        "It is deleted when the grace (spec.cleanup.delay) is over.",
    ),
}
"""Reasons of stores/segments/plan.py, by their words: this room knows no store."""
