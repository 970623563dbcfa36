"""The words of the core for all reasons: of jobs, of targets left out, of conditions and waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.enums import JobReason, PolicyReason, WaitReason, WorkerTrouble
from compaction.core.meaning import Meaning
from compaction.core.planning.candidates import LeftOutReason
from compaction.registry import all_kinds

# The words for the reasons of jobs and their attempts.

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


# The words for the targets that a plan leaves out; for their parts, and for its own reasons, a kind has words.

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
        "To compact it now: kubectl compaction run-now {policy} {n}",
    ),
    LeftOutReason.SUSPENDED: Meaning(
        "The policy is suspended, so no job is created for it.",
        "It is planned from the first scan after spec.suspend is false.",
        "Resume the policy: kubectl compaction resume {policy} {n}",
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


# The words for the conditions of a policy and for what jobs wait for.

POLICY_WORDS: Final[Mapping[str, Meaning]] = {
    PolicyReason.SCHEDULED: Meaning(
        "No target is due.",
        "The store is scanned every trigger.interval; a target that reaches the thresholds gets a job.",
    ),
    PolicyReason.COMPACTING: Meaning(
        "Jobs run or wait for a worker.",
        "Workers take the waiting jobs as slots become free, and each job commits on its own.",
    ),
    PolicyReason.SENSING: Meaning(
        "No scan of the store has completed with the current spec.",
        "The coordinator scans the store and plans from the result.",
        "If this persists, check that an operator runs: kubectl get lease -A | grep compaction-coordinator",
    ),
    PolicyReason.AWAITING_SCHEDULE: Meaning(
        "There is debt, and the next plan is created at the next time of trigger.schedule.",
        "At that time the coordinator scans the store and creates a plan from it.",
        "To plan now: kubectl compaction run-now {policy} {n}; after every scan: remove trigger.schedule",
    ),
    PolicyReason.SUSPENDING: Meaning(
        "The policy is being suspended: jobs that were running when spec.suspend became true still run.",
        "The policy is Suspended when the last of them has ended; no other job starts.",
    ),
    PolicyReason.SUSPENDED: Meaning(
        "The policy is suspended (spec.suspend is true).",
        "The store is still scanned; no job is created or assigned.",
        "Resume it: kubectl compaction resume {policy} {n}",
    ),
    PolicyReason.HELD: Meaning(
        "The operator is on hold: it plans, starts and deletes nothing, for no policy and no catalog.",
        "Stores are still scanned; everything goes on when the hold is released.",
        "Release it, when what it was for is over: kubectl compaction release",
    ),
    PolicyReason.APPROVAL_PENDING: Meaning(
        "A plan waits for approval, and no other work is due.",
        "Each scan updates the plan; its jobs are created once this plan is approved.",
        "Review and approve it: kubectl compaction plan {policy} {n}; kubectl compaction approve {policy} {n}",
    ),
    PolicyReason.OUTSIDE_WINDOW: Meaning(
        "No job runs, and jobs start only inside one of trigger.windows.",
        "Jobs are assigned when the next window opens; scans continue.",
        "To start them now: kubectl compaction run-now {policy} {n} --outside-window",
    ),
    PolicyReason.INVALID_SPEC: Meaning(
        "The policy was stored under an older schema and is no longer valid.",
        "Nothing is planned for it until it is corrected.",
        f"Correct the field that the message names: {_EDIT}",
    ),
    PolicyReason.PERMISSION_DENIED: Meaning(
        "The operator lacks permission to read or write the store, or to read one of its Secrets.",
        "The scan is retried every interval; nothing is planned until it succeeds.",
        "Grant the account in the message the permission: to read and write a directory, to the operator and its "
        "workers; to read Secrets with manifests/components/block-stores; a bucket with the credentials in the Secret.",
    ),
    PolicyReason.SECRET_MISSING: Meaning(
        "A Secret that the store needs, or one of its keys, does not exist.",
        "The scan is retried every interval; nothing is planned until it succeeds.",
        "Create the Secret, add the key (kubectl create secret generic NAME {n} --from-literal=KEY=VALUE), or correct "
        f"the name: {_EDIT}",
    ),
    PolicyReason.STORE_UNREACHABLE: Meaning(
        "The object store or the index database does not answer, or refuses the request.",
        "The scan is retried every interval; nothing is planned or deleted until it succeeds, running jobs continue.",
        f"Fix the cause in the message: the network, the url, or the credentials in the Secret: {_EDIT}",
    ),
    PolicyReason.STORE_OVERLAPS: Meaning(
        "An older policy compacts the same store, or a part of it.",
        "This policy scans, plans and starts nothing; it takes over when the older one is deleted.",
        f"Delete one of the two, or make their stores disjoint: {_EDIT}",
    ),
    PolicyReason.SENSE_FAILED: Meaning(
        "The scan of the store failed with an unexpected error.",
        "The scan is retried every interval; nothing is planned until it succeeds.",
        "Fix the cause in the message; the operator's log has the details.",
    ),
    PolicyReason.SOURCES_UNREADABLE: Meaning(
        "Some targets cannot be planned, or have lost records; all others are compacted.",
        "Every scan tries them again.",
        "Fix the targets that status.targetErrors names; of a segment log: compactor segments inspect DIR",
    ),
    PolicyReason.SOURCES_QUARANTINED: Meaning(
        "Damaged sources are quarantined; all others are compacted.",
        "A file leaves quarantine when it is replaced.",
        "List them: kubectl compaction quarantine {policy} {n}. Restore each from a replica; quarantine then "
        "ends by itself. To retry one unchanged: kubectl compaction quarantine {policy} {n} TARGET/SOURCE --release",
    ),
    PolicyReason.JOBS_FAULTY: Meaning(
        "Jobs have used up their attempts and are parked (Faulty).",
        "They stay parked; all other work continues.",
        "Fix the cause, then reset their attempts and retry them: kubectl compaction retry {n} JOB...; "
        "kubectl get cjob {n} --field-selector status.state=Faulty,spec.policyRef.name={policy} lists them",
    ),
    PolicyReason.LAUNCH_FAILED: Meaning(
        "Several workers in a row failed to start, or one has waited for more than a minute for something that is "
        "missing.",
        "Launches are retried with a backoff of up to five minutes; a change of spec.workers is tried at once.",
        "Fix the cause in the message: a refused request, what a worker's pod lacks, or the error that ended a worker "
        "(Java, memory, sparkConf, sparkMaster).",
    ),
}

TROUBLE_ACTIONS: Final[Mapping[str, str]] = {
    WorkerTrouble.IMAGE_PULL: "Push the image, or correct workers.image, workers.imagePullPolicy or "
    f"workers.imagePullSecrets: {_EDIT}",
    WorkerTrouble.POD_CONFIG: "Create the volume or the Secret that the worker's pod lacks, or correct workers: "
    f"{_EDIT}",
    WorkerTrouble.OPERATOR_SILENT: "Start the Spark operator so that it watches the namespace, or choose another "
    f"workers.launcher: {_EDIT}",
}
"""What a user can do about a worker that cannot start, by the reason in `status.workerStatuses`. It has no log yet."""

WAIT_WORDS: Final[Mapping[str, Meaning]] = {
    WaitReason.JUST_PLANNED: Meaning(
        "The jobs were planned a moment ago.",
        "Within a second they are assigned to workers, or report what they wait for.",
    ),
    WaitReason.NO_FREE_SLOT: Meaning(
        "Every slot of every worker is taken.",
        "The next free slot takes the first job of the queue.",
        f"To run more at a time, raise workers.max or workers.slots: {_EDIT}",
    ),
    WaitReason.WORKER_STARTING: Meaning(
        "A worker is starting and has not registered yet, which takes Spark some seconds.",
        "Jobs are assigned as soon as it has registered.",
    ),
    WaitReason.WORKER_PENDING: Meaning(
        "A worker was created and cannot start yet.",
        "A worker that waits for capacity or in a queue keeps waiting; any other is replaced after five minutes.",
        "See the message: capacity of the cluster, its queue, image, volume or Secret, or its Spark operator.",
    ),
    WaitReason.WORKERS_FAILING: Meaning(
        "Workers are refused, or end before they register.",
        "The next one starts after a backoff of up to five minutes.",
        "Fix the cause in the message: a refused request, what a worker's pod lacks, or the error that ended a worker "
        "(Java, memory, sparkConf, sparkMaster).",
    ),
    WaitReason.CONCURRENCY_LIMIT: Meaning(
        "The number of running jobs has reached limits.maxConcurrentJobs.",
        "The next job starts when one of them ends.",
        f"To run more at a time, raise limits.maxConcurrentJobs: {_EDIT}",
    ),
    WaitReason.TARGET_BUSY: Meaning(
        "Another job of the same target or sources runs; only one runs at a time.",
        "The job starts when the other one ends.",
    ),
    WaitReason.STORE_ERROR: Meaning(
        "The store refused the claim of the job.",
        "The claim is retried with backoff.",
        "Fix the cause in the message: permission, space, a read-only file system.",
    ),
    WaitReason.LEASE_NAME_TAKEN: Meaning(
        "A Lease with the job's name belongs to another object.",
        "The job is assigned as soon as that Lease is gone.",
        "Delete that Lease (kubectl delete lease {job} {n}), or create the job under another name.",
    ),
    WaitReason.BACKOFF: Meaning(
        "An attempt failed, and the backoff before the next one is not over.",
        "The job is retried after 1, 2, 4 and so on up to 60 seconds.",
    ),
    WaitReason.SUSPENDED: Meaning(
        "The policy is suspended, so its jobs wait.",
        "The job is assigned when spec.suspend is false again.",
        "Resume it: kubectl compaction resume {policy} {n}",
    ),
    WaitReason.HELD: Meaning(
        "The operator is on hold, so no job starts.",
        "The job is assigned when the hold is released.",
        "Release it, when what it was for is over: kubectl compaction release",
    ),
    WaitReason.APPROVAL_PENDING: Meaning(
        "spec.approval is Manual, and the current plan is not approved.",
        "Its jobs are created once it is approved; if the store changes, the new plan needs its own approval.",
        "Review and approve it: kubectl compaction plan {policy} {n}; kubectl compaction approve {policy} {n}",
    ),
    WaitReason.AWAITING_SCHEDULE: Meaning(
        "There is debt, and plans are created only at the times of trigger.schedule.",
        "The next plan is created at the next of those times, from a scan at that time.",
        "To plan now: kubectl compaction run-now {policy} {n}; after every scan: remove trigger.schedule",
    ),
    WaitReason.OUTSIDE_WINDOW: Meaning(
        "None of trigger.windows is open, and jobs start only inside one.",
        "Jobs start when the next window opens; running jobs finish.",
        f"To start jobs earlier, change trigger.windows: {_EDIT}",
    ),
    WaitReason.STORE_OVERLAPS: Meaning(
        "An older policy compacts the store of this one, which therefore starts no job.",
        "The jobs are assigned when the older policy is gone, or their stores are disjoint.",
        f"Delete one of the two policies, or make their stores disjoint: {_EDIT}",
    ),
    WaitReason.RATE_LIMITED: Meaning(
        "The running jobs use all of limits.bytesPerSecond.",
        "The next job starts when one of them ends and its share is free.",
        f"To run more at a time, raise limits.bytesPerSecond: {_EDIT}",
    ),
    WaitReason.OPERATOR_WORKER_LIMIT: Meaning(
        "All policies of the operator share a number of workers, and other policies use the rest.",
        "A policy above its share releases workers as their jobs end; with more policies than "
        "workers, they take turns of a minute.",
        "To run more at a time, raise --max-workers of the operator (limits.maxWorkers in its configuration).",
    ),
    WaitReason.OPERATOR_RATE_LIMIT: Meaning(
        "All policies of the operator share a number of bytes per second, and running jobs use all of them.",
        "The next job starts when jobs end and its share is free.",
        "To run more at a time, raise --max-bytes-per-second of the operator (limits.maxBytesPerSecond in its "
        "configuration).",
    ),
    WaitReason.POLICY_NOT_FOUND: Meaning(
        "spec.policyRef of the job names no policy in its namespace.",
        "The job is assigned when a policy of that name exists and a worker of it is free.",
        "Create the policy {policy}, or create the job again with the correct policyRef.",
    ),
}


# All words by reason: those of the core, and those that the kinds of stores add.


def job_words() -> Mapping[str, Meaning]:
    """Reasons of jobs and their attempts."""
    return {**JOB_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.jobs.items()}}


def policy_words() -> Mapping[str, Meaning]:
    """Reasons of the condition Ready of policies."""
    added = {reason: word.meaning for kind in all_kinds() for reason, word in kind.words.policies.items()}
    return {**POLICY_WORDS, **added}


def wait_words() -> Mapping[str, Meaning]:
    """Return the words for each reason that jobs and plans wait for."""
    return {**WAIT_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.waits.items()}}


def target_words() -> Mapping[str, Meaning]:
    """Return the words for each reason for which a plan leaves out whole targets."""
    return {**TARGET_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.left_out.items()}}


def left_out_words() -> Mapping[str, Meaning]:
    """Return the words for each reason for which a plan leaves out targets, or parts of them."""
    parts = {reason: word for kind in all_kinds() for reason, word in kind.words.left_alone.items()}
    return {**parts, **target_words()}
