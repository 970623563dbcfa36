"""What the controller of catalogs works with: participants over HTTP and a log in etcd, or both in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.catalogs.compaction.round import Answer, Unanswered
from compaction.catalogs.log.port import UpdateLog
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.kube.informer.cache import ObjectKey

Secret = Mapping[str, str]
"""Texts of a Secret by key."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the Secrets of a spec hold: of the log, empty without one; of the participants, "" without a token."""

    log: Secret = field(repr=False)
    token: str = field(repr=False)
    authority: str = field(default="", repr=False)
    """Certificates in PEM that participants are checked against; the system's when empty."""


class Places(Protocol):
    """Where the participants of a catalog are, and the Secrets that its spec names; read at each call."""

    async def participants(self, namespace: str, spec: CatalogCompactionSpec) -> tuple[ParticipantAddress, ...]:
        """Addresses of all participants that can run, by name. Raises ApiError."""
        ...

    async def credentials(self, key: ObjectKey, spec: CatalogCompactionSpec) -> Credentials:
        """What the Secrets hold that are for it. Raises SecretError naming the Secret and the key, ApiError."""
        ...


class Participants(Protocol):
    """Asks participants, all at once. Raises ParticipantConfigError for addresses that cannot be asked."""

    async def ask(
        self, spec: CatalogCompactionSpec, addresses: Sequence[ParticipantAddress], credentials: Credentials
    ) -> tuple[tuple[Answer, ...], tuple[Unanswered, ...]]:
        """Every participant is in one of the two."""
        ...

    async def send(
        self,
        spec: CatalogCompactionSpec,
        addresses: Sequence[ParticipantAddress],
        credentials: Credentials,
        minimum: int,
        token: int,
    ) -> tuple[tuple[str, str], ...]:
        """Names of the participants that did not take the minimum, each with the reason."""
        ...


class Logs(Protocol):
    """Opens logs; every call is made in a thread."""

    def open(self, spec: CatalogCompactionSpec, credentials: Credentials) -> UpdateLog:
        """The log of a catalog. Raises CatalogError."""
        ...
