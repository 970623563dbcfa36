"""`spec` of a CatalogCompaction: the catalog's log, the participants, and what must hold before history is cut.

Credentials are never here: the names of Secrets are.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, Name, Rule, list_atomic, list_map, list_set
from compaction.api.policy.values import LASTING, SECRET_KEY, SecretName
from compaction.api.text.quantities import Duration

MAX_ENDPOINTS: Final = 16
MAX_URLS: Final = 256
MAX_ASSIGNMENTS: Final = 256
MAX_ASSIGNED: Final = 64
MAX_EXPECTED: Final = 1024
MAX_PARTITION: Final = 64_999
"""The last of the 65,000 partitions that a zone has at most."""

_URL: Final = "^https?://[^@?# /]+(/[^@?# ]*)?$"
URL: Final = Rule(
    cel=f"self.matches('{_URL}')",
    message="must be http://host:port or https://host:port, with a path where one is needed; credentials belong in "
    "a Secret",
    holds=lambda url: re.fullmatch(_URL, url) is not None,
)
_PREFIX: Final = "^/[-_.a-zA-Z0-9/]*$"
PREFIX: Final = Rule(
    cel=f"self.matches('{_PREFIX}')",
    message="must begin with / and consist of letters, digits, '-', '_', '.' and '/', such as /catalogs/orders/",
    holds=lambda prefix: re.fullmatch(_PREFIX, prefix) is not None,
)

SOME_LABELS: Final = Rule(
    cel="self.size() > 0",
    message="name at least one label: without any, every pod of the namespace would be a participant",
    holds=bool,
)

Url = Annotated[str, StringConstraints(min_length=1, max_length=1024), Checked(URL)]
ParticipantName = Annotated[str, StringConstraints(min_length=1, max_length=253)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]


class CatalogReference(ApiModel):
    """The update log of the catalog, in etcd."""

    endpoints: Annotated[tuple[Url, ...], Field(min_length=1, max_length=MAX_ENDPOINTS), list_set()]
    """Addresses of the members of etcd, such as https://etcd-0.etcd:2379. Any of them that answers is used."""
    prefix: Annotated[str, StringConstraints(min_length=1, max_length=512), Checked(PREFIX)] = "/catalog/"
    """Prefix of the log's keys. Two catalogs in one etcd have different prefixes."""
    secret_name: SecretName | None = None
    """Name of a Secret in the namespace of this object with ca.crt, tls.crt and tls.key for TLS, username and password
    for authentication, whichever etcd asks for. Without it, etcd is used without either."""


class ParticipantSelector(ApiModel):
    """Pods that are participants: each answers at its own address, and is called what its pod is called."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16), Checked(SOME_LABELS)]
    """Labels that the pods have, all of them."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port at which the pods answer."""


class ParticipantUrl(ApiModel):
    """A participant that answers at a fixed address."""

    name: ParticipantName
    """Name that the participant reports."""
    url: Url
    """Address at which it answers, such as http://node-1.example:7800."""


class TokenReference(ApiModel):
    """Where the secret that coordinator and participants share is kept."""

    secret_name: SecretName
    """Name of a Secret in the namespace of this object. Its key ca.crt, where it has one, is what certificates of
    participants are checked against."""
    key: Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(SECRET_KEY)] = "token"
    """Key of the Secret whose value is the shared secret."""


class ServiceAccountToken(ApiModel):
    """A token of the operator's own service account, which participants have the API server review. Its audience is
    compaction-participant/NAMESPACE, with the namespace of this object: a participant of another namespace takes none
    of this one."""

    secret_name: SecretName | None = None
    """Name of a Secret in the namespace of this object whose key ca.crt is what certificates of participants are
    checked against. Without it, the system's authorities are used."""


class ParticipantsSpec(ApiModel):
    """The processes that use the catalog."""

    selector: ParticipantSelector | None = None
    """Pods in the namespace of this object that are participants."""
    urls: Annotated[tuple[ParticipantUrl, ...], Field(max_length=MAX_URLS), list_map("name")] = ()
    """Participants at fixed addresses."""
    token: TokenReference | None = None
    """The secret that the coordinator shows. Participants refuse one that shows neither a secret nor a token."""
    service_account_token: ServiceAccountToken | None = None
    """Instead of a shared secret, a token of the operator's service account is shown: nothing has to be written or
    rotated."""
    plain_http: bool = Field(default=False, alias="plainHTTP")
    """Whether pods answer by HTTP, where something else encrypts, such as a service mesh. Tokens of the operator's
    account may travel so to other machines; a shared secret never does. Without it, pods are asked by HTTPS, and
    addresses with http:// must be on this machine."""

    RULES = (
        Rule(
            cel="!(has(self.selector) || has(self.urls) && self.urls.size() > 0) || has(self.token) || "
            "has(self.serviceAccountToken)",
            message="name the Secret with the token that participants ask for, or set serviceAccountToken",
            holds=lambda item: (
                not (item.selector is not None or item.urls)
                or item.token is not None
                or item.service_account_token is not None
            ),
            field=".token",
        ),
        Rule(
            cel="!(has(self.token) && has(self.serviceAccountToken))",
            message="set either token or serviceAccountToken: the coordinator shows one of them",
            holds=lambda item: item.token is None or item.service_account_token is None,
            field=".serviceAccountToken",
        ),
    )


class PartitionAssignment(ApiModel):
    """Where partitions of a zone must be."""

    zone: Name
    """Name of the zone."""
    first_partition: Annotated[int, Field(ge=0, le=MAX_PARTITION)] = 0
    """First of the partitions."""
    last_partition: Annotated[int, Field(ge=0, le=MAX_PARTITION)] = MAX_PARTITION
    """Last of the partitions; those that the zone does not have are ignored."""
    participants: Annotated[tuple[ParticipantName, ...], Field(min_length=1, max_length=MAX_ASSIGNED), list_set()]
    """Names of the participants that each hold all of them."""

    RULES = (
        Rule(
            cel="self.firstPartition <= self.lastPartition",
            message="lastPartition must not be below firstPartition",
            holds=lambda item: item.first_partition <= item.last_partition,
            field=".lastPartition",
        ),
    )


class TopologySpec(ApiModel):
    """What must be there before history is cut."""

    participants: Annotated[tuple[ParticipantName, ...], Field(max_length=MAX_EXPECTED), list_set()] = ()
    """Names of participants that must be found. One that is missing stops the cut."""
    min_participants: Annotated[int, Field(ge=0, le=100_000)] = 1
    """Number of participants that must be found. 0 is for a catalog without any, which names no participants; history
    is then cut by the low watermark alone."""
    assignments: Annotated[tuple[PartitionAssignment, ...], Field(max_length=MAX_ASSIGNMENTS), list_atomic()] = ()
    """Where partitions must be. Partitions of a zone that is not named here must be on as many participants as the
    zone has replicas."""


class LowWatermarkSpec(ApiModel):
    """How long versions stay readable, whatever participants need."""

    update_interval: Annotated[Duration, Checked(LASTING)] = Duration("5m")
    """Time between two moves of the low watermark, such as 5m."""
    data_availability: Duration = Duration("10m")
    """Time that versions stay readable after they were replaced, such as 10m. Use what the participants use."""


class TimeoutsSpec(ApiModel):
    """How long an answer may take."""

    answer: Annotated[Duration, Checked(LASTING)] = Duration("10s")
    """Time in which a participant must have answered, such as 10s."""
    log: Annotated[Duration, Checked(LASTING)] = Duration("10s")
    """Time in which etcd must have answered one request, such as 10s."""


class CatalogCompactionSpec(ApiModel):
    """Which catalog to compact, and what must hold before its history is cut."""

    suspend: bool = False
    """Suspend the compaction: while true, no round begins. One that runs finishes."""
    dry_run: bool = False
    """Decide everything, and cut and propagate nothing. The status says what would be cut."""
    trim: bool = False
    """Drop the column sets of tables that no retained version uses, when history is cut. A participant that may read
    rows written with an older column set needs that set: nothing is dropped unless every participant declares in its
    report that it reads none (readsOldRows: false)."""
    catalog: CatalogReference
    """The catalog to compact."""
    participants: ParticipantsSpec = Field(default_factory=ParticipantsSpec)
    """The processes that use the catalog."""
    topology: TopologySpec = Field(default_factory=TopologySpec)
    """What must be there before history is cut."""
    low_watermark: LowWatermarkSpec = Field(default_factory=LowWatermarkSpec)
    """How long versions stay readable, whatever participants need."""
    interval: Annotated[Duration, Checked(LASTING)] = Duration("1m")
    """Time between the end of a round and the next one, when neither the low watermark nor a new coordinator begins
    one."""
    timeouts: TimeoutsSpec = Field(default_factory=TimeoutsSpec)
    """How long an answer may take."""
    max_clock_skew: Duration = Duration("500ms")
    """Time by which clocks of participants may differ, such as 500ms. A participant whose clock is further off stops
    the cut."""

    RULES = (
        Rule(
            cel="has(self.participants) && (has(self.participants.selector) || has(self.participants.urls) && "
            "self.participants.urls.size() > 0) || self.topology.minParticipants == 0",
            message="name the participants by selector or urls, or set topology.minParticipants to 0 for a catalog "
            "without any",
            holds=lambda spec: (
                spec.participants.selector is not None
                or bool(spec.participants.urls)
                or spec.topology.min_participants == 0
            ),
            field=".participants",
        ),
        # Participants that are merely not found would otherwise be taken for a catalog that has none.
        Rule(
            cel="self.topology.minParticipants > 0 || !(has(self.participants) && (has(self.participants.selector) || "
            "has(self.participants.urls) && self.participants.urls.size() > 0)) && "
            "(!has(self.topology.participants) || self.topology.participants.size() == 0) && "
            "(!has(self.topology.assignments) || self.topology.assignments.size() == 0)",
            message="minParticipants 0 is for a catalog without participants: set 1 or more, or name no participants "
            "and no assignments",
            holds=lambda spec: (
                spec.topology.min_participants > 0
                or not (
                    spec.participants.selector
                    or spec.participants.urls
                    or spec.topology.participants
                    or spec.topology.assignments
                )
            ),
            field=".topology.minParticipants",
        ),
    )

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of the Secrets that a round needs, each once."""
        shown = self.participants.token or self.participants.service_account_token
        named = (self.catalog.secret_name, shown and shown.secret_name)
        return tuple(dict.fromkeys(name for name in named if name))
