"""Whose token it is, by the API server itself (TokenReview, authentication.k8s.io/v1).

The token is in the body of the request only: no error that leaves this module quotes what was sent or answered.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from compaction.errors import ApiError
from compaction.kube.client.api import ApiClient, Obj
from compaction.serving.errors import TokenReviewUnavailableError

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
DEADLINE: Final = 5.0
TRIES: Final = 2
log = structlog.get_logger(__name__)


class TokenReviewer:
    """Implements `serving.reviews.TokenReview`. `audiences`: the token must be made for one of them."""

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
                if error.status in {401, 403}:
                    break
        raise TokenReviewUnavailableError("the API server cannot be asked whose token it is; the log says why")
