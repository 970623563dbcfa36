"""Names the operator uses on the API server: group, kinds, labels and annotations.

Every label, annotation and well-known object name is spelled here and nowhere else. They are part of what users and
other processes (workers, dashboards, `kubectl -l`) rely on: changing one is a breaking change.
"""

from typing import Final

GROUP: Final = "compaction.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "compaction.dev/v1alpha1"
CATEGORY: Final = "compaction"

POLICY_KIND: Final = "CompactionPolicy"
POLICY_PLURAL: Final = "compactionpolicies"
JOB_KIND: Final = "CompactionJob"
JOB_PLURAL: Final = "compactionjobs"
CATALOG_KIND: Final = "CatalogCompaction"
CATALOG_PLURAL: Final = "catalogcompactions"

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "compaction-operator"
LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_PART_OF: Final = "app.kubernetes.io/part-of"
WORKER_APP: Final = "compaction-worker"
LABEL_POLICY: Final = f"{GROUP}/policy"
LABEL_COMPONENT: Final = f"{GROUP}/component"
LABEL_WORKER: Final = f"{GROUP}/worker"
COMPONENT_JOB: Final = "job"
COMPONENT_WORKER: Final = "worker"
COMPONENT_EXECUTOR: Final = "executor"
COMPONENT_COORDINATOR: Final = "coordinator"
COMPONENT_DRILL: Final = "drill"

ANNOTATION_USED_BY: Final = f"{GROUP}/used-by"
"""On a Secret, by its owner: who may have it, as KIND/NAME or KIND/*, one after another with commas."""
ANNOTATION_SLOTS: Final = f"{GROUP}/slots"
ANNOTATION_PID: Final = f"{GROUP}/pid"
ANNOTATION_HOST: Final = f"{GROUP}/host"
ANNOTATION_VERSION: Final = f"{GROUP}/version"
ANNOTATION_STOP: Final = f"{GROUP}/stop"
ANNOTATION_PROGRESS: Final = f"{GROUP}/progress"
ANNOTATION_REPORT: Final = f"{GROUP}/report"
ANNOTATION_BYTES_PER_SECOND: Final = f"{GROUP}/bytes-per-second"

ANNOTATION_EXECUTOR_TEMPLATE: Final = f"{GROUP}/executor-template"
"""On a driver pod: the template of its executor pods, which the driver reads as a file."""
ANNOTATION_DRIVER_MEMORY: Final = f"{GROUP}/driver-memory"
"""On a worker's pod or application: the bytes of memory that its driver was given."""
ANNOTATION_EXECUTOR_MEMORY: Final = f"{GROUP}/executor-memory"
"""On a worker's pod or application: the bytes of memory that each of its executors was given."""
WORKER_SERVICE_ACCOUNT: Final = "compaction-worker"
EXECUTOR_SERVICE_ACCOUNT: Final = "compaction-executor"
"""Service account of executor pods: it may do nothing, and its token is not mounted."""

ANNOTATION_APPROVE: Final = f"{GROUP}/approve"
"""On a policy: the hash of the plan that may be carried out (approval: Manual)."""
ANNOTATION_APPROVED_BY: Final = f"{GROUP}/approved-by"
"""On a policy: `<plan hash>/<user>`, written by `kubectl compaction approve`. A claim; the audit log has the proof."""
ANNOTATION_RELEASE: Final = f"{GROUP}/release"
"""On a policy: quarantined segments to be tried again, `<log>/<segment>,...` or `all`; each new value counts once."""
ANNOTATION_RUN_NOW: Final = f"{GROUP}/run-now"
"""On a policy or a catalog: any new value makes a plan, or begins a round, now; each value counts once."""
ANNOTATION_OUTSIDE_WINDOW: Final = f"{GROUP}/outside-window"
"""On a policy, with the value of `run-now`: what that request starts does not wait for a window."""
ANNOTATION_SCAN: Final = f"{GROUP}/scan"
"""On a policy or a catalog: any new value has the store scanned, or the participants asked, now; each counts once."""
ANNOTATION_PREVIEW: Final = f"{GROUP}/preview"
"""On a policy or a catalog: another spec in JSON, of which the status says what it would do now; each counts once."""
ANNOTATION_RETRY: Final = f"{GROUP}/retry"
"""On a Faulty job: any new value resets its attempts and retries it, once."""
LABEL_PLAN: Final = f"{GROUP}/plan"
"""On a job: the hash of the plan that it was made for."""

COORDINATOR_LEASE: Final = "compaction-coordinator"
ANNOTATION_CONFIGURATION: Final = f"{GROUP}/configuration"
"""On the coordinator's Lease: hash and values of the configuration that its leader runs with, as JSON."""

HOLD_LEASE: Final = "compaction-hold"
"""Lease in the operator's namespace that exists while the operator is on hold; its holder is who asked for that."""
ANNOTATION_HOLD_REASON: Final = f"{GROUP}/hold-reason"
"""On the Lease of the hold: why, in words that stand in the status of every policy and catalog."""
ANNOTATION_HOLD_DRAIN: Final = f"{GROUP}/hold-drain"
"""On the Lease of the hold, `true`: jobs that run are stopped, and retried when the hold is released."""

MAX_POLICY_NAME: Final = 63
"""Characters in a policy's name: it becomes a label value on the policy's jobs and leases."""

MAX_JOB_NAME: Final = 63
"""Characters in a job's name; those that the planner makes are shorter."""

NAME_STEM: Final = 40
"""Characters of a policy's name that the names of its jobs and workers begin with."""

WORKER_STEM: Final = 30
"""Characters of a policy's name that the names of its workers begin with: names of Services are made from them."""


def name_stem(policy_name: str) -> str:
    """The part of a policy's name that its children's names begin with: at most 40 characters, ending in a letter or
    digit.

    A cut that ends in `-` or `.` would make an invalid or ugly child name, so those are trimmed.
    """
    return policy_name[:NAME_STEM].rstrip("-.")


def worker_stem(policy_name: str) -> str:
    """The part of a policy's name that the names of its workers begin with: at most 30 characters, as a DNS label.

    A Spark operator makes Services from a worker's name, and their names take no dots and no digit in front.
    """
    stem = policy_name.replace(".", "-")
    stem = stem if stem[:1].isalpha() else f"c{stem}"
    return stem[:WORKER_STEM].rstrip("-")


def pod_labels(*, policy: str, worker: str, component: str, role: str) -> dict[str, str]:
    """Labels of a worker's pods (component: worker, executor; role: driver, executor) and of its SparkApplication."""
    return {
        LABEL_APP: WORKER_APP,
        LABEL_APP_INSTANCE: policy,
        LABEL_APP_COMPONENT: role,
        LABEL_APP_PART_OF: "compaction",
        **child_labels(policy=policy, component=component),
        LABEL_WORKER: worker,
    }


def child_labels(*, policy: str, component: str) -> dict[str, str]:
    """Labels of an object the operator creates for a policy (component: job, worker)."""
    return {LABEL_MANAGED_BY: MANAGED_BY, LABEL_POLICY: policy, LABEL_COMPONENT: component}
