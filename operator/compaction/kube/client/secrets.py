"""Secrets and ConfigMaps of one namespace, read from the API server by name: `get`, and nothing else.

The operator may read Secrets that a writer of policies may not, and hands them on to places that he names. So a Secret
says itself whom it is for (`compaction.dev/used-by`); a policy that names another gets nothing of it, not even which
keys it has (docs/design/threat-model.md#secrets). ConfigMaps are no secret.

Stores are opened and scanned in threads, so reading blocks its thread while the loop asks. What was read is kept for
a few seconds, a failure never: a Secret that was changed, created or allowed counts from the next scan on. Values are
kept in memory only and show nowhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from compaction.api.names import ANNOTATION_USED_BY
from compaction.errors import CONFIG_MAP, ApiError, ForbiddenError, NotFoundError
from compaction.kube.client.api import DEFAULT_DEADLINE, ApiClient
from compaction.kube.client.transport import CONFIG_MAPS, SECRETS, Obj, Resource
from compaction.storage.errors import SecretError
from compaction.storage.errors import SecretForbiddenError as Forbidden
from compaction.storage.errors import SecretsNotFoundError as NotFound
from compaction.storage.secrets import check_name, text_of

KEPT_SECONDS: Final = 10.0
"""Longer than a scan takes to open a store, shorter than a user waits for a changed password."""
_BEYOND_DEADLINE: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """The values that were read, and when (monotonic seconds)."""

    values: Mapping[str, str] = field(repr=False)
    at: float


class NamespaceSecrets:
    """Implements `storage.secrets.Secrets`. Made on the loop that the client belongs to, used in other threads."""

    def __init__(
        self, client: ApiClient, namespace: str, user: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`user`: for whom they are read, such as `CompactionPolicy/lake`."""
        self._client = client
        self._namespace = namespace
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic
        self._kept: dict[str, _Kept] = {}

    def read(self, name: str) -> Mapping[str, str]:
        """See `storage.secrets.Secrets`. Never on the loop itself, which would wait for itself."""
        kept = self._kept.get(check_name(name))
        if kept is not None and self._monotonic() - kept.at < KEPT_SECONDS:
            return kept.values
        self._kept.pop(name, None)
        asked = self._monotonic()
        values = secret_values(name, self._fetch(name), user=self._user)
        self._kept[name] = _Kept(values, asked)
        return values

    def _fetch(self, name: str) -> Obj:
        asking = self._client.get(resource_of(name), name.removeprefix(CONFIG_MAP), namespace=self._namespace)
        try:
            answer = asyncio.run_coroutine_threadsafe(asking, self._loop)
            return answer.result(timeout=DEFAULT_DEADLINE + _BEYOND_DEADLINE)
        except NotFoundError:
            raise NotFound((name,), f"namespace {self._namespace}", "Create") from None
        except ForbiddenError:
            raise Forbidden(name, "", may_not_read(name, self._namespace, "block-stores")) from None
        except ApiError as error:
            raise SecretError(name, "", f"the API server did not give it: {error}") from None
        except RuntimeError:
            asking.close()  # the term has ended under a look: loop or client are closed
            raise SecretError(name, "", "the API server is not asked any more: the operator ends") from None
        except NoAnswer:
            # The client gives up earlier than this, so the loop is stuck: the thread must not wait for it without an
            # end.
            answer.cancel()
            raise SecretError(name, "", "the API server did not give it: no answer in time") from None


def resource_of(name: str) -> Resource:
    """Return the resource that is read under a name: Secrets, and ConfigMaps behind `CONFIG_MAP`."""
    return CONFIG_MAPS if name.startswith(CONFIG_MAP) else SECRETS


def may_not_read(name: str, namespace: str, component: str) -> str:
    """Says which permission is missing, and how it is given: by a component of the manifests."""
    plural, own = resource_of(name).plural, name.removeprefix(CONFIG_MAP)
    return (
        f"the operator's account may not get {plural} in namespace {namespace}: apply manifests/components/{component} "
        f"there, or a Role with `get` on {plural} and {own} in resourceNames (docs/install.md)"
    )


def check_used_by(name: str, body: Obj, user: str) -> None:
    """Raises SecretForbiddenError for a Secret object that does not say that it is for this user, `KIND/NAME`."""
    metadata = body["metadata"]
    said = (metadata.get("annotations") or {}).get(ANNOTATION_USED_BY, "")
    known = [word.strip() for word in said.split(",") if word.strip()]
    if user in known or f"{user.partition('/')[0]}/*" in known:
        return
    wanted = ",".join([*known, user])
    raise Forbidden(
        name,
        "",
        f"it is not for {user}; a user who may write it can say that it is: kubectl annotate --overwrite secret {name} "
        f"-n {metadata['namespace']} {ANNOTATION_USED_BY}='{wanted}'",
    )


async def check_all_used_by(client: ApiClient, namespace: str, names: Iterable[str], user: str) -> None:
    """Raises SecretError for the first Secret that `user` may not have, or that cannot be read."""
    for name in sorted(set(names)):
        try:
            check_used_by(name, await client.get(SECRETS, name, namespace=namespace), user)
        except NotFoundError:
            raise NotFound((name,), f"namespace {namespace}", "Create") from None
        except ForbiddenError:
            raise Forbidden(name, "", may_not_read(name, namespace, "block-stores")) from None
        except ApiError as error:
            raise SecretError(name, "", f"the API server did not give it: {error}") from None


def secret_values(name: str, body: Obj, *, user: str) -> Mapping[str, str]:
    """The values of a Secret or ConfigMap as texts. Raises SecretForbiddenError as `check_used_by`; SecretError naming
    a key whose value is no text.
    """
    if name.startswith(CONFIG_MAP):
        return MappingProxyType({key: value.rstrip("\r\n") for key, value in (body.get("data") or {}).items()})
    check_used_by(name, body, user)
    found: dict[str, str] = {}
    for key, value in (body.get("data") or {}).items():
        try:
            found[key] = text_of(name, key, base64.b64decode(value, validate=True))
        except binascii.Error:
            raise SecretError(name, key, "its value is not base64") from None
    return MappingProxyType(found)
