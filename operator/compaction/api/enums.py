"""States, condition types and reasons: the words in the resources that every kind of store shares.

Reasons are CamelCase and stable: users match on them in alerts. A reason's comment says what is going on and, where
something is wrong, what to do; the message in the condition carries the particulars.
"""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is on its way. Terminal: Succeeded; Faulty until a user raises maxAttempts or retries the job."""

    UNASSIGNED = "Unassigned"
    IN_PROGRESS = "InProgress"
    ABANDONED = "Abandoned"
    FAULTY = "Faulty"
    SUCCEEDED = "Succeeded"


class AttemptOutcome(StrEnum):
    """How one assignment of a job to a worker ended."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"  # the worker said so
    EXPIRED = "Expired"  # the worker went silent for longer than the lease
    LOST = "Lost"  # the worker's process or Lease is gone
    REVOKED = "Revoked"  # the coordinator took the job back


class LauncherType(StrEnum):
    """How workers are started."""

    AUTO = "auto"  # what the cluster serves decides (kube/launchers/objects.py)
    PROCESS = "process"  # a supervised subprocess beside the operator
    KUBEFLOW = "kubeflow"  # a SparkApplication of sparkoperator.k8s.io/v1beta2
    APACHE = "apache"  # a SparkApplication of spark.apache.org/v1
    POD = "pod"  # a driver pod, made directly


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    PENDING = "Pending"  # created, and waits for something that its reason names
    STARTING = "Starting"  # it, or its Spark, is being started
    READY = "Ready"  # it has announced itself and takes jobs


class WorkerTrouble(StrEnum):
    """Why a launched worker has not started, as its launcher reports it."""

    UNSCHEDULABLE = "Unschedulable"  # no node has room for its pod, or none may take it
    QUEUED = "Queued"  # a queue (Kueue) has not admitted it yet, or has suspended it
    IMAGE_PULL = "ImagePull"  # its image cannot be pulled
    POD_CONFIG = "PodConfig"  # a volume, Secret or setting that its pod needs is missing or wrong
    OPERATOR_SILENT = "OperatorSilent"  # nobody has taken up its SparkApplication


class WorkerEnding(StrEnum):
    """How a worker ended, in the terms that matter to the jobs that it held."""

    COMPLETED = "Completed"
    FAILED = "Failed"
    OUT_OF_MEMORY = "OutOfMemory"  # killed for using more memory than its pod has
    EXECUTORS_OUT_OF_MEMORY = "ExecutorsOutOfMemory"  # it ended because its executors were killed for that
    DISRUPTED = "Disrupted"  # evicted or preempted, or its node is gone
    DELETED = "Deleted"  # somebody deleted it


class ImagePullPolicy(StrEnum):
    """When an image is pulled, as in a pod."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class TolerationOperator(StrEnum):
    """How a toleration compares its value."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TolerationEffect(StrEnum):
    """The effect of a taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Approval(StrEnum):
    """Who says that a plan is carried out."""

    AUTO = "Auto"
    MANUAL = "Manual"


class PlanApproval(StrEnum):
    """Whether a plan of a policy with approval: Manual may be carried out."""

    PENDING = "Pending"  # nobody has approved this very plan yet
    APPROVED = "Approved"  # its jobs were created


class PlanTriggerReason(StrEnum):
    """Why a plan was made."""

    SCAN = "Scan"  # a scan has found something due
    SCHEDULE = "Schedule"  # a time of trigger.schedule
    RUN_NOW = "RunNow"  # the annotation compaction.dev/run-now


class ConditionType(StrEnum):
    """Types of conditions. Ready is always present, the others only while they are True (kstatus)."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    COMPLETE = "Complete"  # jobs: finished with a receipt
    FAILED = "Failed"  # jobs: parked as Faulty
    WORKER_VERSION_SKEW = "WorkerVersionSkew"  # policies: workers of another version than the operator run


class ConditionStatus(StrEnum):
    """A condition's status, as in metav1.Condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class PolicyReason(StrEnum):
    """Reasons in the conditions of a CompactionPolicy that every kind of store has; a kind adds its own."""

    SCHEDULED = "Scheduled"  # valid and sensed; nothing is due
    AWAITING_SCHEDULE = "AwaitingSchedule"  # there is debt; plans are made at the times of trigger.schedule only
    COMPACTING = "Compacting"  # jobs are queued or running, or their store is scanned again after the last one
    SENSING = "Sensing"  # no scan of the store with this spec has ended yet
    SUSPENDING = "Suspending"  # spec.suspend is true, and jobs that were running then still run
    SUSPENDED = "Suspended"  # spec.suspend is true: no job runs, and none starts
    HELD = "Held"  # the operator is on hold: nothing starts until it is released; the message says why
    APPROVAL_PENDING = "ApprovalPending"  # a plan waits until the annotation compaction.dev/approve names its hash
    OUTSIDE_WINDOW = "OutsideWindow"  # jobs wait for the next of trigger.windows
    INVALID_SPEC = "InvalidSpec"  # stored under an older schema; the message names the field
    PERMISSION_DENIED = "PermissionDenied"  # the operator may not read or write the store, or read a Secret of it
    SECRET_MISSING = "SecretMissing"  # a Secret of the store, or a key of it, is not there: the message names it
    STORE_UNREACHABLE = "StoreUnreachable"  # the object store or the index does not answer, or refuses the credentials
    STORE_OVERLAPS = "StoreOverlaps"  # an older policy compacts the same store, or a part of it: the message names it
    SENSE_FAILED = "SenseFailed"  # another error while looking at the store
    SOURCES_UNREADABLE = "SourcesUnreadable"  # some targets could not be planned: status.targetErrors names them
    SOURCES_QUARANTINED = "SourcesQuarantined"  # damaged sources are in quarantine: status.quarantined names them
    JOBS_FAULTY = "JobsFaulty"  # some jobs used up their attempts: kubectl get cjob shows them
    LAUNCH_FAILED = "LaunchFailed"  # no worker could be started


class JobReason(StrEnum):
    """Reasons in the conditions and attempts of a CompactionJob that every kind of store has; a kind adds its own."""

    ASSIGNED = "Assigned"  # a worker holds the lease
    RETRYING = "Retrying"  # an attempt failed; the next one waits for a worker
    SUCCEEDED = "Succeeded"  # committed: status.receipt is the proof
    # What a worker reports about an attempt (rewrite/receipts.py).
    COMPLETED = "Completed"
    SOURCE_CORRUPT = "SourceCorrupt"  # a source is damaged: the message says where
    SOURCES_CHANGED = "SourcesChanged"  # the sources are no longer what the plan saw; they are planned again
    STORE_UNREADABLE = "StoreUnreadable"  # the store could not be read or written (permission, no space)
    VERIFICATION_FAILED = "VerificationFailed"  # the result did not read back equal; it was thrown away
    WORKER_STOPPED = "WorkerStopped"  # the worker was asked to stop
    ENGINE_LOST = "EngineLost"  # Spark went away under the job
    INVALID_JOB = "InvalidJob"  # the spec cannot be carried out; the message says what is wrong with it
    INTERNAL_ERROR = "InternalError"  # an unexpected failure in the worker; its log has the details
    # What the coordinator finds.
    TOO_MANY_ATTEMPTS = "TooManyAttempts"  # spec.limits.maxAttempts of the policy is used up
    LEASE_EXPIRED = "LeaseExpired"  # the worker went silent for longer than the lease
    WORKER_LOST = "WorkerLost"  # the worker's process ended or its Lease is gone
    WORKER_DISRUPTED = "WorkerDisrupted"  # the worker was evicted or preempted, or its node is gone
    WORKER_OUT_OF_MEMORY = "WorkerOutOfMemory"  # the worker was killed for using more memory than its pod has
    STALE_TOKEN = "StaleToken"  # the store has seen a larger fencing token
    REVOKED = "Revoked"  # the coordinator took the job back
    OTHER_STORE = "OtherStore"  # the job is for another store, or kind of store, than its policy's
    SOURCES_GONE = "SourcesGone"  # the store does not have the job's sources (any more)


class WaitReason(StrEnum):
    """Why something that could happen has not happened yet (status.waiting of policies and jobs); a kind of store adds
    its own.
    """

    JUST_PLANNED = "JustPlanned"  # the jobs of a new plan: they are looked at next
    NO_FREE_SLOT = "NoFreeSlot"  # all slots of all workers are taken
    WORKER_STARTING = "WorkerStarting"  # a worker was launched and has not announced itself
    WORKER_PENDING = "WorkerPending"  # a worker was created and waits: for room, in a queue, for its image; see message
    WORKERS_FAILING = "WorkersFailing"  # workers are refused, or end before they announce themselves; see message
    CONCURRENCY_LIMIT = "ConcurrencyLimit"  # limits.maxConcurrentJobs are running
    TARGET_BUSY = "TargetBusy"  # another job of the same target is running
    STORE_ERROR = "StoreError"  # the store refused the claim (permission, I/O); the message is the system's
    LEASE_NAME_TAKEN = "LeaseNameTaken"  # a Lease of the job's name belongs to something else: delete or rename one
    BACKOFF = "Backoff"  # a failed job waits a little before its next attempt
    SUSPENDED = "Suspended"
    HELD = "Held"  # the operator is on hold; the message says since when and why
    APPROVAL_PENDING = "ApprovalPending"  # approval: Manual, and nobody has approved the plan as it is now
    AWAITING_SCHEDULE = "AwaitingSchedule"  # there is debt; plans are made at the times of trigger.schedule only
    OUTSIDE_WINDOW = "OutsideWindow"  # none of trigger.windows is open; the message says when the next one opens
    STORE_OVERLAPS = "StoreOverlaps"  # an older policy compacts the same store: nothing of this one starts
    RATE_LIMITED = "RateLimited"  # the running jobs have all of limits.bytesPerSecond
    OPERATOR_WORKER_LIMIT = "OperatorWorkerLimit"  # --max-workers of the operator: other policies have the workers
    OPERATOR_RATE_LIMIT = "OperatorRateLimit"  # --max-bytes-per-second of the operator: other policies have the bytes
    POLICY_NOT_FOUND = "PolicyNotFound"
