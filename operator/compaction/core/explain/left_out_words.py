"""The words for the targets that a plan leaves out; for their parts, and for its own reasons, a kind has words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.core.meaning import Meaning
from compaction.core.planning.candidates import LeftOutReason

_EDIT: Final = "kubectl edit cpol {policy} {n}"

TARGET_WORDS: Final[Mapping[str, Meaning]] = {
    LeftOutReason.BELOW_THRESHOLD: Meaning(
        "Its debt is below a threshold of the policy.",
        "It is due when its debt has reached the thresholds of spec.store.",
        f"To compact it earlier, lower the thresholds: {_EDIT}",
    ),
    LeftOutReason.COOLDOWN: Meaning(
        "The cooldown after its last job is not over.",
        "It is due again when trigger.cooldown has passed since then.",
        f"To compact it earlier, shorten trigger.cooldown: {_EDIT}",
    ),
    LeftOutReason.SUSPENDED: Meaning(
        "The policy is suspended, so no job is created for it.",
        "It is planned from the first scan after spec.suspend is false.",
        'Resume the policy: kubectl patch cpol {policy} {n} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    LeftOutReason.JOB_UNFINISHED: Meaning(
        "It has an unfinished job; targets have one job at a time.",
        "It is planned again when that job has ended.",
    ),
    LeftOutReason.FAULTY_JOB: Meaning(
        "A job for the same work is parked (Faulty).",
        "It is planned again when its sources change.",
        "Fix the cause, then reset the attempts and retry: kubectl compaction why {n} JOB;  "
        "kubectl compaction retry {n} JOB",
    ),
    LeftOutReason.JOB_FINISHED: Meaning(
        "A job of the same name, for the same sources, exists and has finished.",
        "The next scan finds what it left, and a plan follows.",
    ),
    LeftOutReason.SCAN_OUTDATED: Meaning(
        "A job of it ended after the scan that this plan was created from.",
        "It is planned from the next scan, which follows soon.",
    ),
    LeftOutReason.RECENTLY_EVICTED: Meaning(
        "Its job was evicted from a full queue recently.",
        "It is planned again ten minutes after the eviction; other targets go first.",
        f"If the queue is full often, raise limits.maxJobsQueued: {_EDIT}",
    ),
    LeftOutReason.QUEUE_FULL: Meaning(
        "As many jobs exist as limits.maxJobsQueued allows.",
        "It is planned as soon as jobs have ended.",
        f"For a longer queue raise limits.maxJobsQueued: {_EDIT}",
    ),
    LeftOutReason.NOTHING_TO_GAIN: Meaning(
        "Compaction would reclaim nothing.",
        "The next scan checks it again.",
    ),
}
