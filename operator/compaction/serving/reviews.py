"""Service accounts by their tokens: who it is says the API server (TokenReview), and that is remembered for a while.

Remembered are digests, not tokens: an answer for `KNOWN_SECONDS`, at most until the token expires, so a withdrawn one
lets in for that long; a refusal for `REFUSED_SECONDS`. Invalid tokens cost the API server little: what has not
the form of a token is never asked about, and few questions are open at a time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, Protocol

from compaction.serving.errors import IngestConfigError, NotAllowedError, NotAuthenticatedError

KNOWN_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 10_000
AT_ONCE: Final = 8
LONGEST_TOKEN: Final = 16 << 10
ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class TokenReview(Protocol):
    """Implemented by `kube.client.token_review`."""

    async def __call__(self, token: str) -> str | None:
        """The user whose token it is, for our audience; None for an invalid token. Raises
        TokenReviewUnavailableError.
        """
        ...


class AllowedAccounts:
    """Service accounts by `namespace/name`; `namespace/*` is all of a namespace."""

    def __init__(self, written: Collection[str]) -> None:
        """Raises IngestConfigError."""
        for one in written:
            namespace, slash, name = one.partition("/")
            if not slash or not _PART.fullmatch(namespace) or not (name == "*" or _PART.fullmatch(name)):
                raise IngestConfigError(f"{one[:200]!r}: a service account is NAMESPACE/NAME, or NAMESPACE/* for all")
        self._written = frozenset(written)

    def has(self, user: str) -> bool:
        """Whether this user of Kubernetes is one of them."""
        namespace, colon, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
        known = f"{namespace}/{name}" in self._written or f"{namespace}/*" in self._written
        return user.startswith(ACCOUNT_PREFIX) and bool(colon) and known


class CachedReviews:
    """Asks, and remembers. For one event loop."""

    def __init__(
        self, review: TokenReview, allowed: AllowedAccounts, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._review, self._allowed, self._clock = review, allowed, clock
        self._known: OrderedDict[bytes, tuple[float, str | None]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[str | None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def account_of(self, token: str) -> str:
        """The user whose token it is.

        Raises NotAuthenticatedError, NotAllowedError, TokenReviewUnavailableError.
        """
        if len(token) > LONGEST_TOKEN or not _TOKEN.fullmatch(token):
            raise NotAuthenticatedError("the token is not one that is known here")
        user = await self._user_of(token)
        if user is None:
            raise NotAuthenticatedError("the API server does not know the token, or not for this audience")
        if not self._allowed.has(user):
            raise NotAllowedError(f"{user} is not one of the service accounts that are allowed here")
        return user

    async def _user_of(self, token: str) -> str | None:
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, token))
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._answered(key, done))
        # Others wait for the same answer: one of them that goes away must not take it from the rest.
        return await asyncio.shield(asking)

    def _answered(self, key: bytes, done: asyncio.Task[str | None]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone, and an error that nobody has seen would be reported

    async def _ask(self, key: bytes, token: str) -> str | None:
        async with self._limit:
            user = await self._review(token)
        now = self._clock()
        until = now + REFUSED_SECONDS if user is None else min(now + KNOWN_SECONDS, _expiry(token, now))
        self._known[key] = (until, user)
        self._known.move_to_end(key)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return user


def _expiry(token: str, now: float) -> float:
    """When a token that was found good expires, epoch seconds; now for one that does not say."""
    payload = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return now
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else now
