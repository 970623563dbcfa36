"""Who may come in, and for which tenants: a bearer token that is a shared secret, or a service account's.

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
from compaction.exceptions import IngestConfigError, NotAllowedError, NotAuthenticatedError
from compaction.ingest.reviews import CachedReviews
from compaction.ingest.shared_secrets import SharedSecret

EVERY_TENANT: Final = "*"
_SCHEME: Final = "bearer"
_MAX_RULES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking. `tenants`: whose blocks it may register and list; None is everybody's."""

    name: str
    tenants: frozenset[str] | None = None

    def check(self, tenant: str) -> None:
        """Raises NotAllowedError."""
        if self.tenants is not None and tenant not in self.tenants:
            raise NotAllowedError(f"{self.name} may not use the tenant {printable(cut(tenant, 100))!r}")


@dataclass(frozen=True, slots=True)
class TenantRules:
    """The tenants of each principal; a principal that is not named has none."""

    tenants: Mapping[str, frozenset[str]]

    def of(self, name: str) -> Principal:
        """Raises NotAllowedError."""
        found = self.tenants.get(name)
        if found is None:
            raise NotAllowedError(f"{name} is in no rule: name it in the file of tenants")
        return Principal(name, None if EVERY_TENANT in found else found)

    @classmethod
    def read(cls, path: Path) -> TenantRules:
        """From YAML, `principal: [tenant, ...]`, where "*" is every tenant. Raises IngestConfigError."""
        try:
            with path.open(encoding="utf-8") as file:
                document = yaml.load(file.read(_MAX_RULES), Loader=BoundedLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise IngestConfigError(
                f"{path}: cannot be read as YAML: {cut(' '.join(str(error).split()), 200)}"
            ) from None
        if not isinstance(document, dict) or not document:
            raise IngestConfigError(f"{path}: write one line `principal: [tenant, ...]` for each principal")
        rules: dict[str, frozenset[str]] = {}
        for name, tenants in document.items():
            texts = isinstance(tenants, list) and all(isinstance(one, str) and one for one in tenants)
            if not isinstance(name, str) or not texts:
                raise IngestConfigError(f'{path}: {name}: its tenants are no list of texts, such as [acme] or ["*"]')
            rules[name] = frozenset(tenants)
        return cls(rules)


class Gate:
    """Tells from a header who is asking. Safe for one event loop."""

    def __init__(
        self, secrets: Sequence[SharedSecret], reviews: CachedReviews | None, rules: TenantRules | None = None
    ) -> None:
        """Raises IngestConfigError when no caller could be authenticated."""
        if not secrets and reviews is None:
            raise IngestConfigError("no caller could register blocks: give a shared secret, or allow service accounts")
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
