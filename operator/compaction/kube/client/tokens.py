"""Service account tokens: the operator's own for an audience, and whose another one is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from compaction.errors import ApiError, ForbiddenError, NotFoundError
from compaction.kube.client.api import ApiClient, Obj
from compaction.serving.errors import OwnTokenError, TokenReviewUnavailableError

# Tokens of the operator's own service account, each for one audience (TokenRequest, authentication.k8s.io/v1).
#
# A process that is shown a token could show it to others: those outside of the audience, and the API server, refuse
# it.

LIFETIME_SECONDS: Final = 3600
KEPT_SECONDS: Final = 600.0
"""A token is asked for again long before it ends; participants may then remember it for a minute."""


@dataclass(frozen=True, slots=True)
class AccountName:
    """A service account."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, written: str) -> AccountName:
        """From NAMESPACE/NAME. ValueError for anything else."""
        namespace, _, name = written.partition("/")
        if not namespace or not name or "/" in name:
            raise ValueError(f"{written[:200]!r}: write NAMESPACE/NAME")
        return cls(namespace, name)

    @property
    def path(self) -> str:
        """The path at which the account's tokens are requested."""
        return f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}/token"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A token, and when it was asked for (monotonic seconds)."""

    token: str = field(repr=False)
    at: float


class OwnTokens:
    """For one event loop. `account` None: the operator does not know its own."""

    def __init__(
        self, client: ApiClient, account: AccountName | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._account, self._monotonic = client, account, monotonic
        self._kept: dict[str, _Kept] = {}

    async def token(self, audience: str) -> str:
        """A token that is good for minutes. Raises OwnTokenError, ApiError."""
        account, now = self._account, self._monotonic()
        if account is None:
            raise OwnTokenError(
                "serviceAccountToken: the operator does not know its own service account: start it with "
                "--service-account NAMESPACE/NAME"
            )
        self._kept = {key: item for key, item in self._kept.items() if now - item.at < KEPT_SECONDS}
        if (kept := self._kept.get(audience)) is not None:
            return kept.token
        token = await self._request(account, audience)
        self._kept[audience] = _Kept(token, now)
        return token

    async def _request(self, account: AccountName, audience: str) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": LIFETIME_SECONDS},
        }
        try:
            answer = await self._client.request("POST", account.path, body=body)
        except ForbiddenError:
            raise OwnTokenError(
                f"the operator's account may not create tokens of service account {account.namespace}/{account.name}: "
                "apply manifests/components/catalogs beside the operator (docs/catalog-participants.md)"
            ) from None
        except NotFoundError:
            raise OwnTokenError(
                f"there is no service account {account.namespace}/{account.name}: correct --service-account"
            ) from None
        return str(answer["status"]["token"])


# The owner of a token, by the API server itself (TokenReview, authentication.k8s.io/v1).
#
# The token is in the body of the request only: no error that leaves this module quotes what was sent or answered.

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
DEADLINE: Final = 5.0
TRIES: Final = 2
log = structlog.get_logger(__name__)


class TokenReviewer:
    """Implements `serving.access.TokenReview`. `audiences`: the token must be made for one of them."""

    def __init__(self, client: ApiClient, audiences: Sequence[str]) -> None:
        self._client, self._audiences = client, tuple(audiences)

    async def __call__(self, token: str) -> str | None:
        """See `TokenReview`. A review changes nothing, so it is repeated once when no answer came."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": list(self._audiences)},
        }
        answer = await self._ask(body)
        status = answer.get("status") or {}
        # A server that does not know of audiences answers without any: such a token may be made for anybody.
        if not status.get("authenticated") or not set(self._audiences) & set(status.get("audiences") or ()):
            return None
        return str((status.get("user") or {}).get("username") or "") or None

    async def _ask(self, body: Obj) -> Obj:
        for attempt in range(1, TRIES + 1):
            try:
                return await self._client.request("POST", PATH, body=body, deadline=DEADLINE)
            except ApiError as error:
                log.warning("a token could not be reviewed", status=error.status, reason=error.reason, attempt=attempt)
                # A refusal of our own credentials would be repeated at the next try; other errors may pass.
                if error.status in {401, 403}:
                    break
        raise TokenReviewUnavailableError("the API server cannot be asked whose token it is; the log says why")
