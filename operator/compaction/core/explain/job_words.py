"""The words for the reasons of jobs and their attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.enums import JobReason
from compaction.core.meaning import Meaning

_RETRY: Final = "kubectl compaction retry {n} {job}"
_AGAIN: Final = "The job is retried after a backoff, until its attempts are used up."
_UNCHARGED: Final = "The next worker gets the job with a larger token."
_PARKED: Final = "A retry would fail in the same way, so the job stays parked."
_REFUSED: Final = "The job never starts; raising limits.maxAttempts changes nothing."

JOB_WORDS: Final[Mapping[str, Meaning]] = {
    JobReason.ASSIGNED: Meaning(
        "A worker holds the job's lease and works on it.",
        "The worker reports the result; if it does not renew the lease in time, another worker takes over.",
    ),
    JobReason.RETRYING: Meaning(
        "The last attempt failed.",
        "The next attempt starts, with a larger token, when the backoff is over and a worker is free.",
    ),
    JobReason.SUCCEEDED: Meaning(
        "The job is done, and its receipt is the proof.",
        "The replaced data is deleted when the grace (spec.cleanup.delay) is over.",
    ),
    JobReason.COMPLETED: Meaning(
        "The worker committed everything that the job names.",
        "The replaced names stay readable until the grace is over.",
    ),
    JobReason.SOURCE_CORRUPT: Meaning(
        "A source is damaged and was not changed; groups of the job without it were committed.",
        f"{_PARKED} The source is quarantined, and the other sources are planned in new jobs.",
        "Restore the source from its owner or a replica; once the file is replaced, the source is planned again.",
    ),
    JobReason.SOURCES_CHANGED: Meaning(
        "The sources changed after they were planned.",
        "The job is kept as a record; its work is planned again from the current sources.",
    ),
    JobReason.STORE_UNREADABLE: Meaning(
        "The store could not be read or written.",
        _AGAIN,
        f"Fix the cause in the message (permission, space, a read-only file system); once the job is parked: {_RETRY}",
    ),
    JobReason.VERIFICATION_FAILED: Meaning(
        "The output did not read back equal to its sources and was discarded; the sources are unchanged.",
        f"{_AGAIN} A job of several groups is then split to find the failing one.",
        "If it happens again, check disk and memory of the node; the worker's log has both fingerprints.",
    ),
    JobReason.WORKER_STOPPED: Meaning(
        "The worker was asked to stop, and stopped before its next commit.",
        f"{_UNCHARGED} No action is needed.",
    ),
    JobReason.ENGINE_LOST: Meaning(
        "Spark stopped during the job.",
        f"{_UNCHARGED} Spark restarts with it.",
        "If its pod ran out of memory (OOMKilled), raise workers.driver.memory; if only the JVM's heap did, which the "
        "worker's log says, spark.driver.memory in workers.sparkConf.",
    ),
    JobReason.INVALID_JOB: Meaning(
        "The job's spec is invalid.",
        f"{_PARKED} A job's spec cannot be changed.",
        "Create a job with the field in the message corrected, and delete this one: kubectl delete cjob {job} {n}",
    ),
    JobReason.INTERNAL_ERROR: Meaning(
        "The worker failed with an unexpected error, which is a defect.",
        f"{_AGAIN} The attempt left no uncommitted output behind.",
        "Report the defect with the traceback in the worker's log.",
    ),
    JobReason.TOO_MANY_ATTEMPTS: Meaning(
        "The job has used up its attempts (limits.maxAttempts).",
        "The job stays parked; a job of several groups is planned again in halves, so that one bad group does not "
        "hold back the others.",
        f"Fix the cause in the attempts, then: {_RETRY}",
    ),
    JobReason.LEASE_EXPIRED: Meaning(
        "The worker did not renew its lease in time.",
        "The next worker gets the job with a larger token; the previous one can no longer commit.",
        "If it happens again, raise lease.durationSeconds or the workers' memory, or lower workers.slots.",
    ),
    JobReason.WORKER_LOST: Meaning(
        "The worker's process ended, or its Lease is gone.",
        f"{_UNCHARGED} The loss does not count as an attempt.",
    ),
    JobReason.WORKER_DISRUPTED: Meaning(
        "The worker's pod was evicted or preempted, or its node is gone.",
        f"{_UNCHARGED} A disruption does not count as an attempt.",
    ),
    JobReason.WORKER_OUT_OF_MEMORY: Meaning(
        "The worker's driver or executors were killed for using more memory than their pods have.",
        "The next pods get twice the memory, up to maxMemory of workers.driver and workers.executor.",
        "If that is not enough, raise maxMemory, or lower slots or executor.cores: kubectl edit cpol {policy} {n}",
    ),
    JobReason.STALE_TOKEN: Meaning(
        "The store has seen a larger token: another attempt took over, and this one committed nothing.",
        "The newest attempt decides about the job.",
    ),
    JobReason.REVOKED: Meaning(
        "The coordinator revoked the job.",
        f"{_UNCHARGED} It revokes a job whose Lease was changed or that has a newer attempt.",
    ),
    JobReason.OTHER_STORE: Meaning(
        "The job names another store, or another part of it, than its policy.",
        f"{_REFUSED} A policy's workers access no store but its own.",
        "Create the job for a policy of that store, and delete this one: kubectl delete cjob {job} {n}",
    ),
    JobReason.SOURCES_GONE: Meaning(
        "The store does not hold the sources that the job names.",
        _REFUSED,
        "Create a job with existing sources, and delete this one: kubectl delete cjob {job} {n}",
    ),
}
