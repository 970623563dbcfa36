"""Participants over HTTP (docs/design/catalog-compaction.md#protocol)."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.catalogs.compaction.round import Answer, Unanswered
from compaction.catalogs.operator.ports import Credentials
from compaction.catalogs.serving.client import AskLimits, ParticipantAddress, ParticipantClient
from compaction.catalogs.serving.round import ask_all, store_all
from compaction.storage.errors import SecretError


class HttpParticipants:
    """Implements `ports.Participants`. `clock`: hybrid timestamps of the coordinator."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    async def ask(
        self, spec: CatalogCompactionSpec, addresses: Sequence[ParticipantAddress], credentials: Credentials
    ) -> tuple[tuple[Answer, ...], tuple[Unanswered, ...]]:
        """See `ports.Participants`."""
        async with self._client(spec, credentials) as client:
            found = await ask_all(client, addresses)
        return found.answers, found.unanswered

    async def send(
        self,
        spec: CatalogCompactionSpec,
        addresses: Sequence[ParticipantAddress],
        credentials: Credentials,
        minimum: int,
        token: int,
    ) -> tuple[tuple[str, str], ...]:
        """See `ports.Participants`."""
        async with self._client(spec, credentials) as client:
            found = await store_all(client, addresses, minimum, token)
        return tuple((name, error.explanation) for name, error in sorted(found.failures.items()))

    def _client(self, spec: CatalogCompactionSpec, credentials: Credentials) -> ParticipantClient:
        return ParticipantClient(
            secret=lambda: credentials.token,
            tls=_trust(spec, credentials),
            # A Secret never travels readably, whoever writes the spec; a token of our own is good for one namespace.
            plain=spec.participants.plain_http and spec.participants.token is None,
            limits=AskLimits(seconds=float(spec.timeouts.answer)),
            clock=self._clock,
        )


def _trust(spec: CatalogCompactionSpec, credentials: Credentials) -> ssl.SSLContext | None:
    """Raises SecretError when what should be certificates is not."""
    if not credentials.authority:
        return None
    try:
        return ssl.create_default_context(cadata=credentials.authority)
    except ssl.SSLError:
        shown = spec.participants.token or spec.participants.service_account_token
        name = (shown.secret_name if shown is not None else None) or ""
        raise SecretError(name, "ca.crt", "its value is no certificate in PEM; write it again") from None
