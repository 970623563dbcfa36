"""Participants and logs of catalogs: where they are, and how they are opened with what Secrets hold."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compaction.api.catalog.catalog_spec import CatalogCompactionSpec, ParticipantSelector
from compaction.api.names import CATALOG_KIND
from compaction.catalogs.compaction.round import ParticipantAnswer, Unanswered
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Endpoint, EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.port import UpdateLog
from compaction.catalogs.operator.working import Credentials, Secret
from compaction.catalogs.serving.client import AskLimits, ParticipantAddress, ParticipantClient, ask_all, store_all
from compaction.errors import ForbiddenError, NotFoundError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.secrets import may_not_read, secret_values
from compaction.kube.client.tokens import OwnTokens
from compaction.kube.client.transport import PODS, SECRETS, Obj
from compaction.kube.informer.cache import CacheKey
from compaction.serving.service import is_loopback
from compaction.storage.errors import SecretError, SecretForbiddenError, SecretMissingError

# Logs in etcd, opened with what the Secret of a catalog holds (docs/design/catalogs.md#client-of-etcd).

_CALL: Final = 3
"""Requests that one call may take, of the time of one each: there are as many members, as a rule."""
AUTHORITY: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class EtcdLogs:
    """Implements `ports.Logs`."""

    def open(self, spec: CatalogCompactionSpec, credentials: Credentials) -> UpdateLog:
        """See `ports.Logs`. Raises SecretMissingError for half of a key pair, or of a user; SecretError for a password
        that would travel readably.
        """
        secret, name = credentials.log, spec.catalog.secret_name or ""
        for item, other in ((CERTIFICATE, KEY), (KEY, CERTIFICATE), ("username", "password"), ("password", "username")):
            if secret.get(item) and not secret.get(other):
                raise SecretMissingError(name, other, f"it is not there, and {item} is: write both or neither")
        endpoints = tuple(Endpoint.parse(url) for url in spec.catalog.endpoints)
        readable = next(
            (endpoint for endpoint in endpoints if not endpoint.secure and not is_loopback(endpoint.host)), None
        )
        if readable is not None and secret.get("password"):
            raise SecretError(name, "password", f"it would travel readably to {readable}: use https")
        with _files(secret) as tls:
            settings = EtcdSettings(
                endpoints,
                tls,
                user=secret.get("username", ""),
                password=secret.get("password", ""),
                attempt_seconds=float(spec.timeouts.log),
                call_seconds=_CALL * float(spec.timeouts.log),
            )
            # The client reads the certificates while it is made: the files are not needed any longer.
            client = GatewayClient(settings)
        return EtcdUpdateLog(client, spec.catalog.prefix)


@contextmanager
def _files(secret: Secret) -> Iterator[Tls]:
    """Certificates and key as files, which is what the standard library loads; only this process's user reads them."""
    with tempfile.TemporaryDirectory(prefix="catalog-") as directory:
        found: dict[str, Path] = {}
        for name in (AUTHORITY, CERTIFICATE, KEY):
            if text := secret.get(name):
                found[name] = Path(directory, name)
                with open(os.open(found[name], os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(text)
        yield Tls(found.get(AUTHORITY), found.get(CERTIFICATE), found.get(KEY))


# Participants over HTTP (docs/design/catalog-compaction.md#protocol).


class HttpParticipants:
    """Implements `ports.Participants`. `clock`: hybrid timestamps of the coordinator."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    async def ask(
        self, spec: CatalogCompactionSpec, addresses: Sequence[ParticipantAddress], credentials: Credentials
    ) -> tuple[tuple[ParticipantAnswer, ...], tuple[Unanswered, ...]]:
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


_ENDED = frozenset({"Succeeded", "Failed"})
COMPONENT = "catalogs"
"""Of the manifests: what the operator may do for catalogs."""


def audience_in(namespace: str) -> str:
    """For which participants tokens of the operator are made: those of one namespace. A process that is shown one could
    show it on, and must not get further than its neighbours with it.
    """
    return f"compaction-participant/{namespace}"


class ClusterPlaces:
    """Implements `ports.Places` with the API server. `tokens`: of the operator's own account."""

    def __init__(self, client: ApiClient, tokens: OwnTokens) -> None:
        self._client = client
        self._tokens = tokens

    async def participants(self, namespace: str, spec: CatalogCompactionSpec) -> tuple[ParticipantAddress, ...]:
        """See `ports.Places`. Raises ApiError when pods cannot be listed."""
        found = named_participants(spec)
        selector = spec.participants.selector
        if selector is not None:
            labels = ",".join(f"{key}={value}" for key, value in sorted(selector.match_labels.items()))
            pods = await self._client.list(PODS, namespace=namespace, labels=labels)
            found += addresses_of(pods.items, selector, plain=spec.participants.plain_http)
        return tuple(sorted(found, key=lambda item: item.name))

    async def credentials(self, key: CacheKey, spec: CatalogCompactionSpec) -> Credentials:
        """See `ports.Places`. Raises OwnTokenError too."""
        user = f"{CATALOG_KIND}/{key.name}"
        secrets = {name: await self._read(key.namespace, name, user) for name in spec.secret_names}
        own = spec.participants.service_account_token
        if own is None:
            return credentials_in(spec, secrets)
        authority = secrets[own.secret_name].get(AUTHORITY, "") if own.secret_name is not None else ""
        if own.secret_name is not None and not authority:
            reason = "it is not there, or empty: write the certificates of the participants' authority"
            raise SecretMissingError(own.secret_name, AUTHORITY, reason)
        token = await self._tokens.token(audience_in(key.namespace))
        return Credentials(log_secret(spec, secrets), token, authority)

    async def _read(self, namespace: str, name: str, user: str) -> Mapping[str, str]:
        try:
            return secret_values(name, await self._client.get(SECRETS, name, namespace=namespace), user=user)
        except NotFoundError:
            raise SecretMissingError(name, "", f"not found in namespace {namespace}: create it") from None
        except ForbiddenError:
            raise SecretForbiddenError(name, "", may_not_read(name, namespace, COMPONENT)) from None


def named_participants(spec: CatalogCompactionSpec) -> list[ParticipantAddress]:
    """Those that the spec names with their addresses."""
    return [ParticipantAddress(url.name, url.url) for url in spec.participants.urls]


def addresses_of(pods: Iterable[Obj], selector: ParticipantSelector, *, plain: bool) -> list[ParticipantAddress]:
    """Of the pods whose process may run. One that has no address yet has not started, and one that has ended never
    will: neither has transactions. One that is being deleted still has.
    """
    found = []
    for pod in pods:
        status = pod.get("status") or {}
        address = status.get("podIP")
        if address and status.get("phase") not in _ENDED:
            host = f"[{address}]" if ":" in address else address
            url = f"{'http' if plain else 'https'}://{host}:{selector.port}"
            found.append(ParticipantAddress(pod["metadata"]["name"], url))
    return found


def credentials_in(spec: CatalogCompactionSpec, secrets: Mapping[str, Secret]) -> Credentials:
    """Those that the Secrets of a spec hold, by their names. Raises SecretMissingError."""
    token = spec.participants.token
    if token is None:
        return Credentials(log_secret(spec, secrets), "")
    values = secrets[token.secret_name]
    if not (text := values.get(token.key, "").strip()):
        raise SecretMissingError(token.secret_name, token.key, "it is not there, or empty: write the shared secret")
    return Credentials(log_secret(spec, secrets), text, values.get(AUTHORITY, ""))


def log_secret(spec: CatalogCompactionSpec, secrets: Mapping[str, Secret]) -> Secret:
    """Return the Secret that etcd asks for; empty where the spec names no Secret for it."""
    return secrets[spec.catalog.secret_name] if spec.catalog.secret_name is not None else {}
