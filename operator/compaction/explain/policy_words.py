"""The words for the conditions of a policy and for what jobs wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.enums import PolicyReason, WaitReason
from compaction.kinds.meaning import Meaning

_EDIT: Final = "kubectl edit cpol {policy} {n}"

POLICY_WORDS: Final[Mapping[str, Meaning]] = {
    PolicyReason.SCHEDULED: Meaning(
        "Everything that is due has been compacted.",
        "The store is looked at again after the interval; a target that has reached the thresholds gets its job then.",
    ),
    PolicyReason.COMPACTING: Meaning(
        "Jobs run or wait for a worker.",
        "Workers take the waiting jobs as slots become free, and every job commits by itself.",
    ),
    PolicyReason.SENSING: Meaning(
        "No look at the store has ended with the spec as it is.",
        "The coordinator looks at the store, and plans when the look has ended.",
        "If it lasts, see whether an operator runs at all: kubectl get lease -A | grep compaction-coordinator",
    ),
    PolicyReason.AWAITING_SCHEDULE: Meaning(
        "There is debt, and the next plan is made at the next time of trigger.schedule.",
        "At that time the coordinator scans the store and makes a plan from the scan.",
        f"For a plan after every scan remove trigger.schedule: {_EDIT}",
    ),
    PolicyReason.SUSPENDING: Meaning(
        "The policy is being suspended: jobs that were running when spec.suspend became true still run.",
        "The policy is Suspended when the last of them has ended; no other job starts.",
    ),
    PolicyReason.SUSPENDED: Meaning(
        "The policy rests, because spec.suspend is true.",
        "No job runs, the store is still looked at, and no new job is made or assigned.",
        'Let it go on: kubectl patch cpol {policy} {n} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    PolicyReason.APPROVAL_PENDING: Meaning(
        "A plan waits for somebody's approval, and nothing else is to be done.",
        "The plan is brought up to date at each look; its jobs are made when this very plan has been approved.",
        "Read it, then approve it: kubectl compaction plan {policy} {n}; kubectl compaction approve {policy} {n}",
    ),
    PolicyReason.OUTSIDE_WINDOW: Meaning(
        "Nothing runs, and jobs may be started only inside one of trigger.windows.",
        "Workers take the jobs when the next window opens; the store is looked at meanwhile.",
        f"To have them start earlier change trigger.windows: {_EDIT}",
    ),
    PolicyReason.INVALID_SPEC: Meaning(
        "The policy was stored under an older schema and is not valid any more.",
        "Nothing is planned for it until it is corrected.",
        f"Correct the field that the message names: {_EDIT}",
    ),
    PolicyReason.PERMISSION_DENIED: Meaning(
        "The operator may not read or write the store, or not read one of its Secrets.",
        "It is tried again after every interval; nothing is planned meanwhile.",
        "Give the account that the message names the permission: to read and write a directory to the operator and its "
        "workers; to read Secrets with manifests/components/block-stores; a bucket with the credentials in the Secret.",
    ),
    PolicyReason.SECRET_MISSING: Meaning(
        "A Secret that the store needs, or a key of it, is not there.",
        "It is looked for again after every interval; nothing is planned meanwhile.",
        "Make the Secret, or add the key (kubectl create secret generic NAME {n} --from-literal=KEY=VALUE), or correct "
        f"the name: {_EDIT}",
    ),
    PolicyReason.STORE_UNREACHABLE: Meaning(
        "The object store, or the database that knows what it holds, does not answer or refuses what it is asked.",
        "It is tried again after every interval; nothing is planned or deleted meanwhile, and running jobs go on.",
        f"Mend what the message names: the network, the url, or the credentials in the Secret: {_EDIT}",
    ),
    PolicyReason.STORE_OVERLAPS: Meaning(
        "An older policy compacts the same store, or a part of it.",
        "This policy scans, plans and starts nothing; it takes over by itself when the older one is gone.",
        f"Delete one of the two, or make their stores disjoint: {_EDIT}",
    ),
    PolicyReason.SENSE_FAILED: Meaning(
        "The store could not be looked at, for a reason of the system's own.",
        "The look is repeated after every interval; nothing is planned meanwhile.",
        "Mend what the message names; the operator's log has the details.",
    ),
    PolicyReason.SOURCES_UNREADABLE: Meaning(
        "Some targets could not be planned, or have lost records; the others are compacted.",
        "Each of them is tried again at every scan.",
        "Fix the targets that status.targetErrors names; of a segment log: compactor segments inspect DIR",
    ),
    PolicyReason.SOURCES_QUARANTINED: Meaning(
        "Damaged sources are in quarantine, and everything beside them is compacted.",
        "The quarantine of a file ends by itself when another one stands under the name.",
        "Restore the sources: kubectl compaction quarantine list {policy} {n}; "
        "to have one tried again as it is: kubectl compaction quarantine release {policy} {n} TARGET/SOURCE",
    ),
    PolicyReason.JOBS_FAULTY: Meaning(
        "Jobs have used up their attempts and are parked.",
        "They stay parked; everything else goes on.",
        "Mend the cause, then give them their attempts anew: kubectl compaction retry {n} JOB...; "
        "kubectl get cjob {n} --field-selector status.state=Faulty,spec.policyRef.name={policy} lists them",
    ),
    PolicyReason.LAUNCH_FAILED: Meaning(
        "No worker could be started, several times in a row, or one has waited in vain for more than a minute.",
        "Launches go on with growing pauses, up to five minutes; a correction of spec.workers is tried at once.",
        "Mend what the message names: what was refused, the image, a Secret, the Spark operator, or what the end of "
        "the worker's log says (Java, memory, sparkConf, sparkMaster).",
    ),
}

WAIT_WORDS: Final[Mapping[str, Meaning]] = {
    WaitReason.JUST_PLANNED: Meaning(
        "The jobs were planned a moment ago.",
        "They are given to workers, or say what they wait for, at the next look, within a second.",
    ),
    WaitReason.NO_FREE_SLOT: Meaning(
        "Every slot of every worker is taken.",
        "The next slot that becomes free takes the job that is first in line.",
        f"For more at a time raise workers.max or workers.slots: {_EDIT}",
    ),
    WaitReason.WORKER_STARTING: Meaning(
        "A worker was started and has not announced itself yet, which takes Spark some seconds.",
        "Jobs are assigned as soon as it has.",
    ),
    WaitReason.WORKER_PENDING: Meaning(
        "A worker was created and waits for something before it can begin.",
        "One that waits for room, or in a queue, waits until there is some; others are replaced after five minutes.",
        "The message says for what: room in the cluster, its queue, image, volume or Secret, or its Spark operator.",
    ),
    WaitReason.WORKERS_FAILING: Meaning(
        "Workers end before they announce themselves.",
        "The next one is started after a pause that grows up to five minutes.",
        "Read the end of the worker's log in the message, and mend the cause (Java, memory, sparkConf, sparkMaster).",
    ),
    WaitReason.CONCURRENCY_LIMIT: Meaning(
        "As many jobs run as limits.maxConcurrentJobs allows.",
        "The next job starts when one of them has ended.",
        f"For more at a time raise limits.maxConcurrentJobs: {_EDIT}",
    ),
    WaitReason.TARGET_BUSY: Meaning(
        "Another job of the same target, or of the same sources, is running, and they have one at a time.",
        "The job starts when the other one has ended.",
    ),
    WaitReason.STORE_ERROR: Meaning(
        "The store refused the claim of the job.",
        "The claim is tried again with growing pauses.",
        "Mend what the message names: permission, space, a read-only file system.",
    ),
    WaitReason.LEASE_NAME_TAKEN: Meaning(
        "A Lease with the job's name belongs to something else.",
        "The job is assigned as soon as that Lease is gone.",
        "Delete that Lease (kubectl delete lease {job} {n}), or make the job under another name.",
    ),
    WaitReason.BACKOFF: Meaning(
        "An attempt failed, and the next one waits a little.",
        "It is tried again after 1, 2, 4 and so on up to 60 seconds.",
    ),
    WaitReason.SUSPENDED: Meaning(
        "The policy rests, and its jobs with it.",
        "The job is assigned when spec.suspend is false again.",
        'Let it go on: kubectl patch cpol {policy} {n} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    WaitReason.APPROVAL_PENDING: Meaning(
        "spec.approval is Manual, and nobody has approved the plan as it is now.",
        "Its jobs are made once it is approved; a changed store makes another plan, which has to be approved anew.",
        "Read it, then approve it: kubectl compaction plan {policy} {n}; kubectl compaction approve {policy} {n}",
    ),
    WaitReason.AWAITING_SCHEDULE: Meaning(
        "There is debt, and plans are made only at the times of trigger.schedule.",
        "The next plan is made at the next of those times, from a look made then.",
        f"For a plan at every look remove trigger.schedule: {_EDIT}",
    ),
    WaitReason.OUTSIDE_WINDOW: Meaning(
        "None of trigger.windows is open, and jobs are started only inside one.",
        "Jobs start when the next window opens; those that run finish.",
        f"To have them start earlier change trigger.windows: {_EDIT}",
    ),
    WaitReason.STORE_OVERLAPS: Meaning(
        "An older policy compacts the store of this one, which therefore starts no job.",
        "The jobs are assigned when the older policy is gone, or their stores are disjoint.",
        f"Delete one of the two policies, or make their stores disjoint: {_EDIT}",
    ),
    WaitReason.RATE_LIMITED: Meaning(
        "The running jobs have all of limits.bytesPerSecond.",
        "The next job starts when one of them ends and its share is free.",
        f"For more at a time raise limits.bytesPerSecond: {_EDIT}",
    ),
    WaitReason.OPERATOR_WORKER_LIMIT: Meaning(
        "All policies of the operator share a number of workers, and others have those that are not this policy's.",
        "A policy with more than its share gives workers back as their jobs end; where there are more policies than "
        "workers, they take turns of a minute.",
        "For more at a time raise --max-workers of the operator (COMPACTION_MAX_WORKERS in its Deployment).",
    ),
    WaitReason.OPERATOR_RATE_LIMIT: Meaning(
        "All policies of the operator share a number of bytes per second, and running jobs have them.",
        "The next job starts when jobs have ended and so much is free as its share comes to.",
        "For more at a time raise --max-bytes-per-second of the operator (COMPACTION_MAX_BYTES_PER_SECOND in its "
        "Deployment).",
    ),
    WaitReason.POLICY_NOT_FOUND: Meaning(
        "spec.policyRef of the job names no policy in its namespace.",
        "The job is assigned when a policy of that name exists and a worker of it is free.",
        "Create the policy {policy}, or make the job anew with the right policyRef.",
    ),
}
