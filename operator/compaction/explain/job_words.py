"""The words for the reasons of jobs and their attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.enums import JobReason
from compaction.kinds.meaning import Meaning

_RETRY: Final = "kubectl compaction retry {n} {job}"
_AGAIN: Final = "The job is tried again after a pause, until its attempts are used up."
_UNCHARGED: Final = "The next worker gets the job with a larger token."
_PARKED: Final = "Another attempt would end the same, so the job stays parked."
_REFUSED: Final = "It is never tried, and raising limits.maxAttempts changes nothing."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    JobReason.ASSIGNED: Meaning(
        "A worker holds the job's lease and works on it.",
        "When it is done it reports; if it falls silent for longer than the lease, another worker takes over.",
    ),
    JobReason.RETRYING: Meaning(
        "The last attempt ended without success.",
        "The next one begins, with a larger token, when its pause is over and a worker is free.",
    ),
    JobReason.SUCCEEDED: Meaning(
        "The job is done, and its receipt is the proof.",
        "What it replaced is deleted when the grace (spec.cleanup.delay) is over.",
    ),
    JobReason.COMPLETED: Meaning(
        "The worker committed everything that the job names.",
        "The replaced names stay readable until the grace is over.",
    ),
    JobReason.SOURCE_CORRUPT: Meaning(
        "A source is damaged; nothing of it was changed, and the job's other groups were committed.",
        f"{_PARKED} The damaged source is in quarantine, and its siblings are planned in jobs of their own.",
        "Restore the source from its owner or a replica; it is planned again by itself when another one stands there.",
    ),
    JobReason.SOURCES_CHANGED: Meaning(
        "The sources are no longer what the plan saw.",
        "The job stays for the record only; its work was planned anew from what there is.",
    ),
    JobReason.STORE_UNREADABLE: Meaning(
        "The store could not be read or written.",
        _AGAIN,
        f"Mend what the message names (permission, space, a read-only file system); once it is parked: {_RETRY}",
    ),
    JobReason.VERIFICATION_FAILED: Meaning(
        "The result did not read back equal to its sources and was thrown away; the sources are untouched.",
        f"{_AGAIN} A job of several groups is then split, to find the one that fails.",
        "Suspect the disk or its memory when it happens again; the worker's log has both fingerprints.",
    ),
    JobReason.WORKER_STOPPED: Meaning(
        "The worker was asked to stop, and stopped before its next commit.",
        f"{_UNCHARGED} Nothing has to be done about it.",
    ),
    JobReason.ENGINE_LOST: Meaning(
        "Spark went away under the job.",
        f"{_UNCHARGED} Spark is started anew with it.",
        "If it happens again, look for memory in the worker's log: raise spark.driver.memory in workers.sparkConf.",
    ),
    JobReason.INVALID_JOB: Meaning(
        "The job does not describe something that can be done.",
        f"{_PARKED} A job's spec cannot be changed.",
        "Correct what the message names in a new job, and delete this one: kubectl delete cjob {job} {n}",
    ),
    JobReason.INTERNAL_ERROR: Meaning(
        "The worker met an error that nobody foresaw: a defect.",
        f"{_AGAIN} Whatever was not committed left nothing behind.",
        "Report it with the traceback in the worker's log.",
    ),
    JobReason.TOO_MANY_ATTEMPTS: Meaning(
        "Its attempts are used up: limits.maxAttempts of them were charged.",
        "The job stays parked; a job of several groups is planned again in halves, so that one bad group does not "
        "hold back the others.",
        f"Mend the cause that the attempts name, then: {_RETRY}",
    ),
    JobReason.LEASE_EXPIRED: Meaning(
        "The worker was silent for longer than the lease.",
        "The next worker gets the job with a larger token; the silent one can commit nothing any more.",
        "If it happens again, give workers more room: a longer lease.durationSeconds, fewer slots, more memory.",
    ),
    JobReason.WORKER_LOST: Meaning(
        "The worker's process ended, or its Lease is gone.",
        f"{_UNCHARGED} The loss is not charged to the job.",
    ),
    JobReason.WORKER_DISRUPTED: Meaning(
        "The worker's pod was evicted or preempted, or its node is gone.",
        f"{_UNCHARGED} A disruption is not charged to the job.",
    ),
    JobReason.WORKER_OUT_OF_MEMORY: Meaning(
        "The worker's driver or executors were killed for using more memory than their pods have.",
        "The next ones get twice as much, up to maxMemory of workers.driver and workers.executor.",
        "If that is not enough, raise maxMemory, or lower slots or executor.cores: kubectl edit cpol {policy} {n}",
    ),
    JobReason.STALE_TOKEN: Meaning(
        "The store has seen a larger token: another attempt took over, and this one committed nothing.",
        "The newest attempt decides about the job.",
    ),
    JobReason.REVOKED: Meaning(
        "The coordinator took the job back.",
        f"{_UNCHARGED} That happens when its Lease was changed or a newer attempt was found.",
    ),
    JobReason.OTHER_STORE: Meaning(
        "The job is for another store, or another part of it, than its policy's.",
        f"{_REFUSED} A policy's workers touch no store but its own.",
        "Make the job with a policy of that store, and delete this one: kubectl delete cjob {job} {n}",
    ),
    JobReason.SOURCES_GONE: Meaning(
        "The store does not have the sources that the job names, or not any more.",
        _REFUSED,
        "Correct the sources in a new job, and delete this one: kubectl delete cjob {job} {n}",
    ),
}
