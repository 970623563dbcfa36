"""Where the participants of a catalog are, and with what they and its log are opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compaction.api.catalog.spec import CatalogCompactionSpec, ParticipantSelector
from compaction.exceptions import ForbiddenError, NotFoundError, SecretForbiddenError, SecretMissingError
from compaction.ingest.participants.client import ParticipantAddress
from compaction.kube.catalogs.ports import Credentials, Secret
from compaction.kube.client.api import ApiClient
from compaction.kube.client.own_tokens import OwnTokens
from compaction.kube.client.resources import PODS, SECRETS, Obj
from compaction.kube.client.secrets import may_not_read, secret_values

_ENDED = frozenset({"Succeeded", "Failed"})
AUTHORITY = "ca.crt"
COMPONENT = "catalogs"
"""Of the manifests: what the operator may do for catalogs."""


def audience_in(namespace: str) -> str:
    """For which participants tokens of the operator are made: those of one namespace. A process that is shown one could
    show it on, and must not get further than its neighbours with it.
    """
    return f"compaction-participant/{namespace}"


async def participants_of(
    client: ApiClient, namespace: str, spec: CatalogCompactionSpec
) -> tuple[ParticipantAddress, ...]:
    """Addresses of all participants that can run, by name. Raises ApiError when pods cannot be listed."""
    found = [ParticipantAddress(one.name, one.url) for one in spec.participants.urls]
    selector = spec.participants.selector
    if selector is not None:
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.match_labels.items()))
        pods = await client.list(PODS, namespace=namespace, labels=labels)
        found += addresses_of(pods.items, selector, plain=spec.participants.plain_http)
    return tuple(sorted(found, key=lambda one: one.name))


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


async def credentials_of(
    client: ApiClient, tokens: OwnTokens, namespace: str, spec: CatalogCompactionSpec
) -> Credentials:
    """The Secrets of a spec, read now, and what is shown to participants. Raises SecretError naming the Secret and the
    key, OwnTokenError, ApiError.
    """
    secrets = {name: await _read(client, namespace, name) for name in spec.secret_names}
    log: Secret = secrets[spec.catalog.secret_name] if spec.catalog.secret_name is not None else {}
    token, own = spec.participants.token, spec.participants.service_account_token
    if own is not None:
        authority = secrets[own.secret_name].get(AUTHORITY, "") if own.secret_name is not None else ""
        if own.secret_name is not None and not authority:
            reason = "it is not there, or empty: write the certificates of the participants' authority"
            raise SecretMissingError(own.secret_name, AUTHORITY, reason)
        return Credentials(log, await tokens.token(audience_in(namespace)), authority)
    if token is None:
        return Credentials(log, "")
    values = secrets[token.secret_name]
    if not (text := values.get(token.key, "").strip()):
        raise SecretMissingError(token.secret_name, token.key, "it is not there, or empty: write the shared secret")
    return Credentials(log, text, values.get(AUTHORITY, ""))


async def _read(client: ApiClient, namespace: str, name: str) -> Mapping[str, str]:
    try:
        return secret_values(name, await client.get(SECRETS, name, namespace=namespace))
    except NotFoundError:
        raise SecretMissingError(name, "", f"not found in namespace {namespace}: create it") from None
    except ForbiddenError:
        raise SecretForbiddenError(name, "", may_not_read(name, namespace, COMPONENT)) from None
