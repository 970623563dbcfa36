"""Where the participants of a catalog are, and with what they and its log are opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compaction.api.catalog.spec import CatalogCompactionSpec, ParticipantSelector
from compaction.api.names import CATALOG_KIND
from compaction.catalogs.operator.ports import Credentials, Secret
from compaction.catalogs.serving.client import ParticipantAddress
from compaction.errors import ForbiddenError, NotFoundError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.own_tokens import OwnTokens
from compaction.kube.client.resources import PODS, SECRETS, Obj
from compaction.kube.client.secrets import may_not_read, secret_values
from compaction.kube.informer.cache import ObjectKey
from compaction.storage.errors import SecretForbiddenError, SecretMissingError

_ENDED = frozenset({"Succeeded", "Failed"})
AUTHORITY = "ca.crt"
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
        return tuple(sorted(found, key=lambda one: one.name))

    async def credentials(self, key: ObjectKey, spec: CatalogCompactionSpec) -> Credentials:
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
    return [ParticipantAddress(one.name, one.url) for one in spec.participants.urls]


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
    """What etcd asks for; empty where the spec names no Secret for it."""
    return secrets[spec.catalog.secret_name] if spec.catalog.secret_name is not None else {}
