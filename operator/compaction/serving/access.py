"""Who may come in, and for what: a bearer token that is a shared secret, or a service account's.

Nothing of a token is logged, kept or put into a message; what is remembered of one is its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from compaction.api.manifests.yaml_loader import BoundedLoader
from compaction.api.text.safe import cut, printable
from compaction.serving.errors import IngestConfigError, NotAllowedError, NotAuthenticatedError
from compaction.serving.reviews import CachedReviews
from compaction.serving.shared_secrets import SharedSecret

EVERY: Final = "*"
_SCHEME: Final = "bearer"
_MAX_RULES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `allowed`: the tenants it may use, or what else `noun` says; None is all of them."""

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
            texts = isinstance(wanted, list) and all(isinstance(one, str) and one for one in wanted)
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
        name = self._secret_of(token)
        if name is None:
            if self._reviews is None:
                raise NotAuthenticatedError("the token is not one that is known here")
            name = await self._reviews.account_of(token)
        return self._rules.of(name) if self._rules is not None else Principal(name)

    def _secret_of(self, token: str) -> str | None:
        # All of them, so that the time says nothing about which one came near.
        matching = [secret.principal for secret in self._secrets if secret.matches(token)]
        return matching[0] if matching else None
