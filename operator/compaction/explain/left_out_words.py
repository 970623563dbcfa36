"""The words for the targets that a plan leaves out; for their parts, and for its own reasons, a kind has words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.kinds.meaning import Meaning
from compaction.planning.candidates import LeftOutReason

_EDIT: Final = "kubectl edit cpol {policy} {n}"

TARGET_WORDS: Final[Mapping[str, Meaning]] = {
    LeftOutReason.BELOW_THRESHOLD: Meaning(
        "Its debt is below a threshold of the policy.",
        "It is due when its debt has reached the thresholds of spec.store.",
        f"To have it compacted earlier lower the thresholds: {_EDIT}",
    ),
    LeftOutReason.COOLDOWN: Meaning(
        "It rests after its last job.",
        "It is due again when trigger.cooldown has passed since then.",
        f"To have it compacted earlier shorten trigger.cooldown: {_EDIT}",
    ),
    LeftOutReason.SUSPENDED: Meaning(
        "The policy is suspended, so no job is made for it.",
        "It is planned at the first look after spec.suspend is false.",
        'Let the policy go on: kubectl patch cpol {policy} {n} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    LeftOutReason.JOB_UNFINISHED: Meaning(
        "It has a job already, and gets no second one beside it.",
        "It is planned again when that job has ended.",
    ),
    LeftOutReason.FAULTY_JOB: Meaning(
        "A job for just this work is parked as Faulty.",
        "It is planned again when its sources change.",
        "See why, then give the job its attempts anew: kubectl compaction why {n} JOB; "
        "kubectl compaction retry {n} JOB",
    ),
    LeftOutReason.JOB_FINISHED: Meaning(
        "A job of the same name, for the same sources, exists and has finished.",
        "The next look sees what it left, and plans that.",
    ),
    LeftOutReason.SCAN_OUTDATED: Meaning(
        "A job of it ended after the look that this plan was made from.",
        "It is planned from the next look, which follows soon.",
    ),
    LeftOutReason.RECENTLY_EVICTED: Meaning(
        "Its job was evicted from a full queue a short while ago.",
        "It is planned again ten minutes after that, others go first.",
        f"If the queue is full often, raise limits.maxJobsQueued: {_EDIT}",
    ),
    LeftOutReason.QUEUE_FULL: Meaning(
        "As many jobs exist as limits.maxJobsQueued allows.",
        "It is planned as soon as jobs have ended.",
        f"For a longer queue raise limits.maxJobsQueued: {_EDIT}",
    ),
    LeftOutReason.NOTHING_TO_GAIN: Meaning(
        "Compaction would give nothing back.",
        "It is looked at again after the interval.",
    ),
}
