"""The file of `compactor operator --config`: what an installation decides for all of its policies.

Its form is that of a Kubernetes object without metadata, as Kueue's `Configuration`: what is wrong in it is found
before the operator starts. It has no Secret in it: what is secret stands in files that the installation mounts, and the
configuration names those.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, Rule, exactly_one_of
from compaction.api.enums import LauncherType
from compaction.api.names import WORKER_SERVICE_ACCOUNT
from compaction.api.policy.policy_spec import POSITIVE, LimitsSpec, TimeZone, Windows
from compaction.api.policy.values import ABSOLUTE_PATH
from compaction.api.policy.workers import OF_PODS, ObjectName, WorkersSpec
from compaction.api.text.printing import PATH_LIMIT
from compaction.api.text.quantities import Duration, Quantity

CONFIGURATION_VERSION: Final = "config.compaction.dev/v1alpha1"
CONFIGURATION_KIND: Final = "OperatorConfiguration"
MOST_PUBLISHED: Final = 4096
"""Characters of values on the Lease, which is written every few seconds; of a longer configuration only its hash."""

# Defaults of policies: a field that the spec of a policy sets wins, then the field here, then the built-in default.
#
# The models are those of the spec. What counts is which of their fields the file sets.


class TriggerDefaults(ApiModel):
    """When jobs of policies may start that do not say so themselves."""

    time_zone: TimeZone = "Etc/UTC"
    """Time zone of schedules and windows, a name of the IANA database such as Europe/Berlin."""
    windows: Windows = ()
    """Times in which jobs may be started. A policy with windows of its own, or with an empty list, has only those."""


class PolicyDefaults(ApiModel):
    """Fields of the spec of policies that do not set them."""

    workers: WorkersSpec = Field(default_factory=WorkersSpec)
    """Workers: any field of spec.workers of a policy. Those about pods do not count for policies whose launcher is
    process."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """Limits of each policy by itself: any field of spec.limits."""
    trigger: TriggerDefaults = Field(default_factory=TriggerDefaults)
    """Windows, and the time zone of windows and schedules."""


class SharedLimitsSpec(ApiModel):
    """Limits over all policies together."""

    max_workers: Annotated[int, Field(ge=1)] | None = None
    """Number of workers of all policies at most. Without it, there is no limit."""
    max_bytes_per_second: (
        Annotated[
            Quantity, Checked(Rule("self > 0", "must be more than 0, such as 200M", lambda quantity: quantity > 0))
        ]
        | None
    ) = None
    """Bytes per second that all rewrites read and write at most, such as 200M. Without it, there is no limit."""


# The sink: where CloudEvents of policies and catalogs go.

FilePath = Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT), Checked(*ABSOLUTE_PATH)]
_URL: Final = r"https?://[^\s/?#@]+([/?][^\s#]*)?"
_OBJECTS: Final = r"(s3|gs|az|abfs|abfss|azure|https|file)://[^\s?#@]+"


class FolderSink(ApiModel):
    """Files of JSON lines in a folder, one for each event."""

    path: FilePath
    """The folder, as an absolute path: a volume that every replica mounts. It has to exist."""


class ObjectStoreSink(ApiModel):
    """Objects of JSON lines, one for each event."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=1024),
        Checked(
            Rule(
                f"self.matches('^{_OBJECTS}$')",
                "write the URL of a bucket and a prefix, such as s3://audit/compaction, without credentials",
                lambda text: re.fullmatch(_OBJECTS, text) is not None,
            )
        ),
    ]
    """Bucket and prefix, such as s3://audit/compaction."""
    credentials_directory: FilePath | None = None
    """Directory with one file for each option of the store, as a mounted Secret: the same options that the Secret of a
    block store has (docs/block-stores.md). Without it, the environment of the operator says who it is."""


class SinkFormat(StrEnum):
    """What the body of a request is."""

    CLOUD_EVENT = "CloudEvent"
    SLACK = "Slack"


class WebhookSink(ApiModel):
    """POST requests, one for each event, in the structured mode of CloudEvents over HTTP."""

    url: (
        Annotated[
            str,
            StringConstraints(min_length=1, max_length=2048),
            Checked(
                Rule(
                    f"self.matches('^{_URL}$')",
                    "write an http:// or https:// URL without user and password",
                    lambda text: re.fullmatch(_URL, text) is not None,
                )
            ),
        ]
        | None
    ) = None
    """URL of the receiver. One that is a secret itself belongs into a file: urlFile."""
    url_file: FilePath | None = None
    """File with the URL, of a mounted Secret."""
    token_file: FilePath | None = None
    """File with a token that is sent as Authorization: Bearer, of a mounted Secret."""
    format: SinkFormat = SinkFormat.CLOUD_EVENT
    """Body of the requests: CloudEvent, or Slack for an incoming webhook of Slack, which takes a text of its own
    form."""
    timeout: Annotated[Duration, Checked(POSITIVE)] = Duration("10s")
    """Time in which the receiver must have answered, such as 10s."""

    RULES = (
        exactly_one_of(("url", "urlFile"), ("url", "url_file"), what="of the two"),
        Rule(
            "!has(self.tokenFile) || !has(self.url) || self.url.startsWith('https:')",
            "a token would travel in clear text: use an https:// URL, or leave tokenFile out",
            lambda sink: sink.token_file is None or sink.url is None or sink.url.startswith("https:"),
            field=".tokenFile",
        ),
    )


class SinkSpec(ApiModel):
    """Where events go: exactly one member is set."""

    folder: FolderSink | None = None
    """A folder."""
    object_store: ObjectStoreSink | None = None
    """An object store."""
    webhook: WebhookSink | None = None
    """A receiver of CloudEvents."""
    patience: Duration = Duration("1h")
    """Time for which a finished job stays beyond the history limits of its policy while its event cannot be delivered.
    After that the job is deleted, and the event is counted as lost."""

    RULES = (
        exactly_one_of(
            ("folder", "objectStore", "webhook"), ("folder", "object_store", "webhook"), what="destination of events"
        ),
    )


class OperatorConfiguration(ApiModel):
    """What an installation decides for all of its policies. The operator reads it when it starts; a flag of the same
    meaning wins over it."""

    api_version: Literal["config.compaction.dev/v1alpha1"] = CONFIGURATION_VERSION
    kind: Literal["OperatorConfiguration"] = CONFIGURATION_KIND
    defaults: PolicyDefaults = Field(default_factory=PolicyDefaults)
    """Fields of the spec of policies that do not set them."""
    limits: SharedLimitsSpec = Field(default_factory=SharedLimitsSpec)
    """Limits over all policies together."""
    worker_accounts: Annotated[tuple[ObjectName, ...], Field(min_length=1, max_length=64)] = (WORKER_SERVICE_ACCOUNT,)
    """Service accounts that drivers of policies may run as, in the policy's namespace."""
    privileged_workers: bool = False
    """Whether pod templates of policies may go beyond the Baseline of the Pod Security Standards."""
    sink: SinkSpec | None = None
    """Where CloudEvents of policies and catalogs go. Without it, there are none."""

    RULES = (
        Rule(
            "self.defaults.workers.serviceAccountName in self.workerAccounts",
            "is not among workerAccounts, so no driver could run as it: add it there",
            lambda configuration: (
                configuration.defaults.workers.service_account_name in configuration.worker_accounts
                or "service_account_name" not in configuration.defaults.workers.model_fields_set
            ),
            field="defaults.workers.serviceAccountName",
        ),
    )

    def published(self) -> str:
        """The words of the leader on its Lease: `{"hash": ..., "values": {...}}` in JSON. The hash is that of all that
        is set; URLs stand without path and query, which may be secrets, and of a pod template only that there is one.
        """
        values = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        told = {"hash": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]}
        for member in ("apiVersion", "kind"):
            values.pop(member, None)
        if "podTemplate" in (workers := values.get("defaults", {}).get("workers", {})):
            workers["podTemplate"] = "(set)"
        for destination in (values.get("sink") or {}).values():
            if isinstance(destination, dict) and destination.get("url"):
                destination["url"] = without_secrets(destination["url"])
        text = json.dumps(told | {"values": values}, separators=(",", ":"))
        return text if len(text) <= MOST_PUBLISHED else json.dumps(told)


def with_flags(
    configuration: OperatorConfiguration,
    *,
    max_workers: int | None,
    max_bytes_per_second: int | None,
    worker_accounts: tuple[str, ...] | None,
    privileged_workers: bool | None,
) -> OperatorConfiguration:
    """The configuration in force: a flag that is given wins over the file. Raises pydantic.ValidationError."""
    values = configuration.model_dump(mode="json", by_alias=True, exclude_unset=True)
    limits = {"maxWorkers": max_workers, "maxBytesPerSecond": max_bytes_per_second}
    given = {name: value for name, value in limits.items() if value is not None}
    if given:
        values["limits"] = values.get("limits", {}) | given
    flags = {"workerAccounts": worker_accounts, "privilegedWorkers": privileged_workers}
    values |= {name: value for name, value in flags.items() if value is not None}
    return OperatorConfiguration.model_validate(values)


def without_secrets(url: str) -> str:
    """Scheme and host of a URL."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}"


def flattened(values: Any, path: str = "") -> list[str]:
    """Published values as `path=value`, for people."""
    if isinstance(values, dict) and values:
        return [line for name, value in values.items() for line in flattened(value, f"{path}.{name}" if path else name)]
    text = values if isinstance(values, str) else json.dumps(values, separators=(",", ":"))
    return [f"{path}={text}"] if path else []


# Defaults in the spec of a policy (docs/adr/0351-defaults-of-an-installation-are-not-in-the-schema.md).
#
# The spec on the API server stays what its owner wrote; the fields that the installation fills in stand in the status.

OF_TRUST: Final = frozenset({"serviceAccountName", "envFromSecrets", "secretVolumes", "podTemplate"})
"""Fields of workers that count only where the image and the containers are the installation's own."""
NO_DEFAULTS: Final = PolicyDefaults()


def taken(spec: Mapping[str, Any], defaults: PolicyDefaults) -> dict[str, Any]:
    """The fields that a spec (as the API server has it) does not set and the defaults do, in the form of a spec.

    An object is filled in field by field; a list, and a map such as a node selector, is one value.
    """
    found = _missing(spec, defaults)
    workers, own = found.get("workers", {}), spec.get("workers") or {}
    if own.get("image") or (own.get("podTemplate") or {}).get("spec"):
        # The code is the tenant's: it gets no account, no Secret and no pod that he did not ask for himself, and that
        # the API server would then have judged by what he may do.
        workers = found["workers"] = {name: value for name, value in workers.items() if name not in OF_TRUST}
    launcher = own.get("launcher") or workers.get("launcher")
    if launcher == LauncherType.PROCESS:
        # They say nothing to a process, and a policy that sets them beside it is refused.
        found["workers"] = {name: value for name, value in workers.items() if name not in OF_PODS}
    return {name: value for name, value in found.items() if value}


def _missing(given: Mapping[str, Any], defaults: ApiModel) -> dict[str, Any]:
    values = defaults.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    found = {}
    for attribute, field in type(defaults).model_fields.items():
        name = field.alias or attribute
        if name not in values:  # the file does not set it
            continue
        inner, own = getattr(defaults, attribute), given.get(name)
        # The API server drops nulls, and they mean the same in a file.
        if own is None:
            found[name] = values[name]
        elif isinstance(inner, ApiModel) and isinstance(own, Mapping) and (below := _missing(own, inner)):
            found[name] = below
    return found


def completed(body: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any]:
    """A policy (as the API server has it) with what was taken: its effective spec."""
    return {**body, "spec": _merged(body.get("spec") or {}, found)} if found else body


def _merged(given: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Both have a field only where it is an object that each sets a part of."""
    return {**given, **{name: _merged(given[name], v) if given.get(name) else v for name, v in found.items()}}
