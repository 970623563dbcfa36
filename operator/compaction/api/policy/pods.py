"""What a policy says about the pods of its workers: resources, placement, secrets, and a template of one's own.

Names and forms are Kubernetes' where it has one, so that what a user knows from a Deployment works here. Secrets are
named, never contained.
"""

import re
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.crd.hints import free_form, list_atomic, list_map
from compaction.api.enums import TolerationEffect, TolerationOperator
from compaction.api.policy.paths import ABSOLUTE_PATH, NOT_THE_FILE_SYSTEM
from compaction.api.rules import Checked, Rule
from compaction.api.text.safe import PATH_LIMIT
from compaction.api.text.values import Cpu, Quantity

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
            cel="self.minExecutors <= self.maxExecutors",
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
