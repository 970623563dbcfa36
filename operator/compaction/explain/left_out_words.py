"""The words for everything that a plan leaves out: whole logs or batches, segments and blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.explain.meaning import Meaning
from compaction.planning.candidates import LeftOutReason

_EDIT: Final = "kubectl edit cpol {policy} {n}"

LOG_WORDS: Final[Mapping[str, Meaning]] = {
    LeftOutReason.BELOW_THRESHOLD: Meaning(
        "Its debt is below a threshold of the trigger.",
        "It is due when its debt has reached debtBytes, and debtSegments (of blocks: debtBlocks).",
        f"To have it compacted earlier lower trigger.thresholds: {_EDIT}",
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
    LeftOutReason.READING_OUTDATED: Meaning(
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
    LeftOutReason.OWNER_RUNNING: Meaning(
        "The server that owns it runs, was killed, or nothing says that it is stopped.",
        "It is planned once the server has been stopped cleanly.",
        f"When the server is stopped and cannot be seen to be, set ownership: Stopped: {_EDIT}",
    ),
}

PART_WORDS: Final[Mapping[str, Meaning]] = {
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
"""Reasons of segment logs (stores/segments/plan.py), by their words: this room knows no store."""

BLOCK_WORDS: Final[Mapping[str, Meaning]] = {
    "WaitingForMore": Meaning(
        "The blocks wait for more of their tenant, shard and window of time.",
        "They are merged when so many have come as their level takes, or when the first of them is old enough.",
        f"To have them merged earlier lower maxBlocks or maxAge of spec.store.blockStore.levels: {_EDIT}",
    ),
    "NothingToMergeWith": Meaning(
        "The block is the only one of its tenant, shard and window of time, and of its schema, at every level.",
        "Nothing is wrong with it: it is merged when another one comes.",
    ),
    "LargeEnough": Meaning(
        "The block has the size from which on a merge gains nothing for readers.",
        "It stays as it is, until its retention is over.",
    ),
    "HighestLevel": Meaning(
        "The block has come through all levels.",
        "It stays as it is, until its retention is over.",
    ),
}
"""Reasons of block stores (planning/block_rules.py)."""

LEFT_OUT_WORDS: Final[Mapping[str, Meaning]] = {**LOG_WORDS, **PART_WORDS, **BLOCK_WORDS}
