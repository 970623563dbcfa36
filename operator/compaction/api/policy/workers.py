"""`spec.workers` of a policy: the Spark applications that run its jobs, and their pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, Rule, free_form, list_atomic, list_map
from compaction.api.enums import ImagePullPolicy, LauncherType, TolerationEffect, TolerationOperator
from compaction.api.names import WORKER_SERVICE_ACCOUNT
from compaction.api.policy.values import ABSOLUTE_PATH, NOT_THE_FILE_SYSTEM
from compaction.api.text.printing import PATH_LIMIT
from compaction.api.text.quantities import Cpu, Quantity

# Settings of a policy for the pods of its workers: resources, placement, secrets, and a template of one's own.
#
# Names and forms are Kubernetes' where it has one, so that what a user knows from a Deployment works here. Secrets
# are named, never contained.

_NAME_PATTERN: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

OBJECT_NAME: Final = Rule(
    cel=f"self.matches('{_NAME_PATTERN}')",
    message="must be the name of an object: lower case letters, digits, '-' and '.', a letter or digit at both ends",
    holds=lambda text: re.fullmatch(_NAME_PATTERN[1:-1], text) is not None,
)
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(OBJECT_NAME)]
LabelKey = Annotated[str, StringConstraints(max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]

AT_LEAST_MEMORY: Final = Rule(
    cel="!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('768Mi')) >= 0",
    message="must be at least 768Mi, such as 2Gi: Spark's JVM takes 512 MiB, Python needs the rest",
    holds=lambda quantity: quantity >= 768 << 20,
)
SOME_CPU: Final = Rule(
    cel="type(self) == int ? self > 0 : !self.matches('^[0.]+m?$')",
    message="must be more than 0, such as 500m",
    holds=lambda cpu: cpu > 0,
)


class SecretReference(ApiModel):
    """A Secret in the policy's namespace."""

    name: ObjectName
    """Name of the Secret."""


class SecretVolume(ApiModel):
    """A Secret that workers see as files."""

    secret_name: ObjectName
    """Name of the Secret in the policy's namespace."""
    mount_path: Annotated[
        str, StringConstraints(min_length=1, max_length=PATH_LIMIT), Checked(*ABSOLUTE_PATH, NOT_THE_FILE_SYSTEM)
    ]
    """Directory at which its keys appear as files, as an absolute path."""


class Toleration(ApiModel):
    """A taint that workers tolerate, as in a pod."""

    key: LabelKey = ""
    """Key of the taint. Empty, with operator Exists, for every taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """How value is compared: Equal, or Exists for any value."""
    value: LabelValue = ""
    """Value of the taint."""
    effect: TolerationEffect | None = None
    """Effect of the taint. Without it, every effect."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """Seconds for which a NoExecute taint is tolerated. Without it, for ever."""


class PodResources(ApiModel):
    """What a pod asks for."""

    cpu: Annotated[Cpu, Checked(SOME_CPU)] = Cpu("500m")
    """Processors that the pod requests, such as 2 or 500m."""
    cpu_limit: Annotated[Cpu, Checked(SOME_CPU)] | None = None
    """Processors that the pod may use at most. Without it, there is no limit."""
    memory: Annotated[Quantity, Checked(AT_LEAST_MEMORY)] = Quantity("2Gi")
    """Memory of the pod, requested and at most, as a quantity such as 2Gi. The JVM takes a part of it
    (spark.driver.memory, spark.executor.memory), Python the rest."""


class GrowingPod(PodResources):
    """What a pod asks for that gets more memory after it was killed for using more than it has."""

    max_memory: Quantity = Quantity("4Gi")
    """Memory up to which the pod's is doubled after one was killed for using more than it has. When it is not more
    than memory, it is never raised."""


class DriverSpec(GrowingPod):
    """The driver pod of a worker."""

    cores: Annotated[int, Field(ge=1, le=256)] = 2
    """Tasks that run at the same time in the driver when there are no executors."""


class ExecutorSpec(GrowingPod):
    """The executor pods of a worker."""

    instances: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of executor pods of one worker. With 0, the driver pod runs all tasks itself (see driver.cores), starts
    fastest, and needs no permission for pods."""
    cores: Annotated[int, Field(ge=1, le=256)] = 1
    """Tasks that run at the same time in one executor."""


class DynamicAllocation(ApiModel):
    """Executors that come and go with the work."""

    min_executors: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of executor pods that one worker keeps."""
    max_executors: Annotated[int, Field(ge=1, le=1000)]
    """Number of executor pods that one worker has at most."""
    idle_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds without a task after which an executor pod ends."""

    RULES = (
        Rule(
            cel="!has(self.minExecutors) || self.minExecutors <= self.maxExecutors",
            message="must not be smaller than minExecutors",
            holds=lambda allocation: allocation.min_executors <= allocation.max_executors,
            field=".maxExecutors",
        ),
    )


class PodTemplateMetadata(ApiModel):
    """Labels and annotations of pods."""

    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    """Labels that are added to the pods. The operator's own labels win."""
    annotations: Annotated[dict[LabelKey, AnnotationValue], Field(max_length=64)] = Field(default_factory=dict)
    """Annotations that are added to the pods."""


class PodTemplate(ApiModel):
    """What driver and executor pods have besides what the operator makes."""

    metadata: PodTemplateMetadata = Field(default_factory=PodTemplateMetadata)
    """Labels and annotations of the pods."""
    spec: Annotated[dict[str, Any], Field(max_length=64), free_form()] = Field(default_factory=dict)
    """Pod specification that is merged with the operator's: lists by name (volumes, env, containers), maps by key; the
    operator's command, arguments and labels win, anything else of yours wins. Write the container that runs Spark as a
    container named worker."""


ImagePullSecrets = Annotated[tuple[SecretReference, ...], Field(max_length=16), list_map("name")]
SecretVolumes = Annotated[tuple[SecretVolume, ...], Field(max_length=32), list_map("mountPath")]
Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=32), list_atomic()]
EnvFromSecrets = Annotated[tuple[SecretReference, ...], Field(max_length=32), list_map("name")]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]


# `spec.workers` of a policy: the Spark applications that run its jobs, and how they are started.
#
# Fields about pods (images, resources, placement, secrets) are read only by the launchers that create pods.

MAX_SLOTS: Final = 256
"""Jobs that one worker runs at the same time at most."""

_OF_PODS: Final = "memory|memoryOverhead|memoryOverheadFactor|minMemoryOverhead|cores"
_SETTINGS: Final = (
    r"^spark[.]("
    rf"driver[.]({_OF_PODS}|maxResultSize)"
    rf"|executor[.]({_OF_PODS}|heartbeatInterval|maxNumFailures|failuresValidityInterval)"
    r"|(memory|network|rpc|locality|dynamicAllocation|excludeOnFailure|task|stage|cleaner|broadcast|rdd|decommission"
    r"|storage|scheduler|shuffle|io|eventLog|speculation|kubernetes[.]allocation|python[.]worker)[.][a-zA-Z.]+"
    r"|kubernetes[.](memoryOverheadFactor|(driver|executor)[.](request|limit)[.]cores|executor[.][a-zA-Z]+Delta"
    r"|executor[.]deleteOnTermination)"
    r"|default[.]parallelism|files[.]maxPartitionBytes|speculation|log[.]level|logConf"
    r"|ui[.](enabled|port|killEnabled|showConsoleProgress|timelineEnabled|threadDumpsEnabled|retained[a-zA-Z]+"
    r"|liveUpdate[.][a-zA-Z]+|prometheus[.]enabled))$"
)
"""What tunes Spark, and neither runs nor fetches anything, reads no file and names no Secret, image, account or pod
template. A list of what is harmful would end with Spark's next release.
"""
_WHAT_CONF_HOLDS: Final = (
    "only settings of memory, cores, scheduling, network, shuffle, storage, allocation, event log and web page can be "
    "given here (docs/resources.md#sparkconf)"
)


def _strange(conf: Mapping[str, str]) -> list[str]:
    """What the two rules before it say nothing about."""
    return [key for key in conf if key.startswith("spark.") and key != "spark.master" and not re.match(_SETTINGS, key)]


OF_PODS: Final = frozenset(
    {
        "image",
        "imagePullPolicy",
        "imagePullSecrets",
        "serviceAccountName",
        "executor",
        "dynamicAllocation",
        "nodeSelector",
        "tolerations",
        "priorityClassName",
        "queueName",
        "envFromSecrets",
        "secretVolumes",
    }
)
"""Fields that are refused where launcher is process."""


def _of_pods(member: str, left_out: str, given: Callable[[WorkersSpec], object]) -> Rule:
    """A field about pods says nothing to workers that are processes. `left_out`: CEL for its being at its default."""
    return Rule(
        cel=f"!has(self.launcher) || self.launcher != 'process' || !has(self.{member}) || {left_out}",
        message="is for workers in pods, and launcher is process: leave it out, or choose another launcher",
        holds=lambda workers: workers.launcher is not LauncherType.PROCESS or not given(workers),
        field=f".{member}",
    )


class WorkersSpec(ApiModel):
    """The Spark applications that run the jobs."""

    max: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of workers that run at the same time at most. They are started when jobs wait and end when idle."""
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 2
    """Number of jobs that one worker runs at the same time."""
    idle_seconds: Annotated[int, Field(ge=1, le=86_400)] = 30
    """Seconds without a job after which a worker ends."""
    launcher: LauncherType = LauncherType.AUTO
    """How workers are started: process (a subprocess beside the operator), kubeflow or apache (a SparkApplication of
    that Spark operator), pod (a driver pod, made directly), or auto: kubeflow where the cluster serves it, else apache,
    else pod when the operator runs in a pod itself, else process."""
    image: Annotated[str, StringConstraints(max_length=512)] = ""
    """Image of driver and executor pods. Without it, the one of the operator's configuration."""
    image_pull_policy: ImagePullPolicy | None = None
    """When the image is pulled. Without it, always for the tag latest, else when the node does not have it."""
    image_pull_secrets: ImagePullSecrets = ()
    """Secrets in the policy's namespace with which the image is pulled."""
    service_account_name: ObjectName = WORKER_SERVICE_ACCOUNT
    """Service account of driver pods, in the policy's namespace."""
    driver: DriverSpec = Field(default_factory=DriverSpec)
    """Resources of the driver pod."""
    executor: ExecutorSpec = Field(default_factory=ExecutorSpec)
    """Number and resources of the executor pods."""
    dynamic_allocation: DynamicAllocation | None = None
    """Executor pods that come and go with the work; executor.instances is then what a worker begins with."""
    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes on which the pods may run."""
    tolerations: Tolerations = ()
    """Taints that the pods tolerate."""
    priority_class_name: Annotated[str, StringConstraints(max_length=253)] = ""
    """Priority class of the pods."""
    queue_name: LabelValue = ""
    """Kueue LocalQueue in the policy's namespace that admits the workers."""
    env_from_secrets: EnvFromSecrets = ()
    """Secrets in the policy's namespace whose keys become environment variables of driver and executors."""
    secret_volumes: SecretVolumes = ()
    """Secrets in the policy's namespace that driver and executors see as files."""
    pod_template: PodTemplate = Field(default_factory=PodTemplate)
    """What driver and executor pods have besides what the operator makes. It is merged, not a replacement."""
    event_log_dir: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Directory (a path or URI that driver pods can write to) for Spark's event logs. Without it, none are written."""
    spark_master: Annotated[str, StringConstraints(min_length=1, max_length=512)] = "local[*]"
    """Spark master URL of workers that are processes. local[*] runs Spark inside the worker on all cores of the
    machine; any other master must see the store under the same path. Workers in pods have their own (driver.cores,
    executor.instances)."""
    spark_conf: Annotated[
        dict[Annotated[str, StringConstraints(max_length=256)], Annotated[str, StringConstraints(max_length=4096)]],
        Field(max_length=64),
        Checked(
            Rule(
                cel="self.all(key, key.startsWith('spark.'))",
                message="every key must begin with 'spark.', such as spark.driver.memory",
                holds=lambda conf: all(key.startswith("spark.") for key in conf),
            ),
            Rule(
                cel="!('spark.master' in self)",
                message="must not hold spark.master: set workers.sparkMaster instead",
                holds=lambda conf: "spark.master" not in conf,
            ),
            Rule(
                cel=f"self.all(key, !key.startsWith('spark.') || key == 'spark.master' || key.matches('{_SETTINGS}'))",
                message=f"{_WHAT_CONF_HOLDS}: remove the others",
                holds=lambda conf: not _strange(conf),
                explain=lambda conf: f"{', '.join(_strange(conf))}: {_WHAT_CONF_HOLDS}",
            ),
        ),
    ] = Field(default_factory=dict)
    """Spark configuration of the workers, such as spark.driver.memory: 2g: settings of memory, cores, scheduling,
    network, shuffle, storage, allocation of executors, event log and web page."""

    RULES = (
        _of_pods("image", "self.image == ''", lambda workers: workers.image),
        _of_pods("imagePullPolicy", "false", lambda workers: workers.image_pull_policy),
        _of_pods("imagePullSecrets", "size(self.imagePullSecrets) == 0", lambda workers: workers.image_pull_secrets),
        _of_pods(
            "serviceAccountName",
            f"self.serviceAccountName == '{WORKER_SERVICE_ACCOUNT}'",
            lambda workers: workers.service_account_name != WORKER_SERVICE_ACCOUNT,
        ),
        _of_pods(
            "executor",
            "!has(self.executor.instances) || self.executor.instances == 0",
            lambda workers: workers.executor.instances,
        ),
        _of_pods("dynamicAllocation", "false", lambda workers: workers.dynamic_allocation),
        _of_pods("nodeSelector", "size(self.nodeSelector) == 0", lambda workers: workers.node_selector),
        _of_pods("tolerations", "size(self.tolerations) == 0", lambda workers: workers.tolerations),
        _of_pods("priorityClassName", "self.priorityClassName == ''", lambda workers: workers.priority_class_name),
        _of_pods("queueName", "self.queueName == ''", lambda workers: workers.queue_name),
        _of_pods("envFromSecrets", "size(self.envFromSecrets) == 0", lambda workers: workers.env_from_secrets),
        _of_pods("secretVolumes", "size(self.secretVolumes) == 0", lambda workers: workers.secret_volumes),
    )
