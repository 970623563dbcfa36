"""Access to an endpoint: a bearer token that is a shared secret, or a service account's, and what each may do."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog
import yaml

from compaction.api.manifests import BoundedLoader
from compaction.api.text.printing import cut, printable
from compaction.serving.errors import IngestConfigError, NotAllowedError, NotAuthenticatedError

# Shared secrets in files: compared in constant time, read again when the file was replaced.
#
# A file holds one secret per line, so an old and a new one can be valid together while writers change over. A file
# that is gone, or holds something too short, authenticates no caller until it is back.

SHORTEST: Final = 16
"""Characters of a secret, at least."""
_LARGEST: Final = 1 << 16
_UNREADABLE: Final = ()
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62})")
log = structlog.get_logger(__name__)


class SharedSecret:
    """The secrets of one file; a caller with one of them is the principal `secret:NAME`."""

    def __init__(self, name: str, path: Path) -> None:
        """Raises IngestConfigError for a name or file that is no use from the beginning."""
        if not _NAME.fullmatch(name):
            raise IngestConfigError(f"{name[:80]!r}: a secret's name has letters, digits, dots, - and _")
        self.principal = f"secret:{name}"
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._digests: tuple[bytes, ...] = ()
        problem = self._refresh()
        if problem:
            raise IngestConfigError(f"{path}: {problem}")

    def matches(self, token: str) -> bool:
        """Return whether the token is one of the secrets."""
        with self._lock:
            if problem := self._refresh():
                log.error("a shared secret cannot be used", principal=self.principal, file=str(self._path), why=problem)
            digests = self._digests
        given = _digest(token)
        found = False
        for digest in digests:
            found |= hmac.compare_digest(given, digest)
        return found

    def _refresh(self) -> str:
        """Read the file again when it is another one; says what is new and wrong."""
        try:
            found = os.stat(self._path)
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if version == self._seen:
                return ""
            with self._path.open("rb") as file:
                text = file.read(_LARGEST).decode()
        except (OSError, UnicodeDecodeError) as error:
            # Not the text of a decoding error: it quotes the secret.
            known = self._seen == _UNREADABLE
            self._digests, self._seen = (), _UNREADABLE
            return "" if known else getattr(error, "strerror", None) or "is no text"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        problem = "" if lines else "holds no secret"
        if lines and min(map(len, lines)) < SHORTEST:
            problem = f"a secret has at least {SHORTEST} characters"
        self._digests, self._seen = () if problem else tuple(_digest(line) for line in lines), version
        return problem


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# Service accounts by their tokens: who it is says the API server (TokenReview), and that is remembered for a while.
#
# Remembered are digests, not tokens: an answer for `KNOWN_SECONDS`, at most until the token expires, so a withdrawn
# one lets in for that long; a refusal for `REFUSED_SECONDS`. Invalid tokens cost the API server little: what has not
# the form of a token is never asked about, and few questions are open at a time.

KNOWN_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 10_000
AT_ONCE: Final = 8
LONGEST_TOKEN: Final = 16 << 10
ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class TokenReview(Protocol):
    """Implemented by `kube.client.tokens`."""

    async def __call__(self, token: str) -> str | None:
        """The user whose token it is, for our audience; None for an invalid token. Raises
        TokenReviewUnavailableError.
        """
        ...


class AllowedAccounts:
    """Service accounts by `namespace/name`; `namespace/*` is all of a namespace."""

    def __init__(self, written: Collection[str]) -> None:
        """Raises IngestConfigError."""
        for item in written:
            namespace, slash, name = item.partition("/")
            if not slash or not _PART.fullmatch(namespace) or not (name == "*" or _PART.fullmatch(name)):
                raise IngestConfigError(f"{item[:200]!r}: a service account is NAMESPACE/NAME, or NAMESPACE/* for all")
        self._written = frozenset(written)

    def has(self, user: str) -> bool:
        """Return whether this user of Kubernetes is one of the accounts."""
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
    """Return the time at which a token that was found good expires, epoch seconds; now for one that does not say."""
    payload = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return now
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else now


# Admission of callers, and their rights: a bearer token that is a shared secret, or a service account's.
#
# Nothing of a token is logged, kept or put into a message; what is remembered of one is its digest.

EVERY: Final = "*"
_SCHEME: Final = "bearer"
_MAX_RULES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller that asks. `allowed`: the tenants it may use, or what else `noun` says; None is all of them."""

    name: str
    allowed: frozenset[str] | None = None
    noun: str = "tenant"

    def check(self, wanted: str) -> None:
        """Raises NotAllowedError."""
        if self.allowed is not None and wanted not in self.allowed:
            raise NotAllowedError(f"{self.name} may not use the {self.noun} {printable(cut(wanted, 100))!r}")


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The tenants of each principal, or what else `noun` says; a principal that is not named has none."""

    allowed: Mapping[str, frozenset[str]]
    noun: str = "tenant"
    nouns: str = "tenants"

    def of(self, name: str) -> Principal:
        """Raises NotAllowedError."""
        found = self.allowed.get(name)
        if found is None:
            raise NotAllowedError(f"{name} is in no rule: name it in the file of {self.nouns}")
        return Principal(name, None if EVERY in found else found, self.noun)

    @classmethod
    def read(cls, path: Path, *, noun: str = "tenant", nouns: str = "tenants") -> AccessRules:
        """From YAML, `principal: [tenant, ...]`, where "*" is every tenant. Raises IngestConfigError."""
        try:
            with path.open(encoding="utf-8") as file:
                document = yaml.load(file.read(_MAX_RULES), Loader=BoundedLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise IngestConfigError(
                f"{path}: cannot be read as YAML: {cut(' '.join(str(error).split()), 200)}"
            ) from None
        if not isinstance(document, dict) or not document:
            raise IngestConfigError(f"{path}: write one line `principal: [{noun}, ...]` for each principal")
        rules: dict[str, frozenset[str]] = {}
        for name, wanted in document.items():
            texts = isinstance(wanted, list) and all(isinstance(item, str) and item for item in wanted)
            if not isinstance(name, str) or not texts:
                raise IngestConfigError(f'{path}: {name}: its {nouns} are no list of texts, such as [acme] or ["*"]')
            rules[name] = frozenset(wanted)
        return cls(rules, noun, nouns)


class Gate:
    """Tells from a header who is asking. Safe for one event loop."""

    def __init__(
        self, secrets: Sequence[SharedSecret], reviews: CachedReviews | None, rules: AccessRules | None = None
    ) -> None:
        """Raises IngestConfigError when no caller could be authenticated."""
        if not secrets and reviews is None:
            raise IngestConfigError("no caller could come in: give a shared secret, or allow service accounts")
        self._secrets, self._reviews, self._rules = tuple(secrets), reviews, rules

    async def enter(self, header: str | None) -> Principal:
        """`header`: the value of Authorization.

        Raises NotAuthenticatedError, NotAllowedError, TokenReviewUnavailableError.
        """
        scheme, _, token = (header or "").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != _SCHEME or not token:
            raise NotAuthenticatedError("send a bearer token: Authorization: Bearer TOKEN")
        # All of them, so that the time says nothing about which one came near.
        matching = [secret.principal for secret in self._secrets if secret.matches(token)]
        name = matching[0] if matching else None
        if name is None:
            if self._reviews is None:
                raise NotAuthenticatedError("the token is not one that is known here")
            name = await self._reviews.account_of(token)
        return self._rules.of(name) if self._rules is not None else Principal(name)
