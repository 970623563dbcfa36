"""How tasks reach the objects of a store; what is secret stays in Secrets for as long as that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.api.policy.values import CaBundle
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.secrets import DirectorySecrets, Secrets, TaskSecret, options_of


@dataclass(frozen=True, slots=True)
class ObjectsPlace:
    """Where the objects are, as plain data that a task is given; `options` are credentials, which never show."""

    url: str
    options: Mapping[str, str] | TaskSecret = field(default_factory=dict, repr=False)

    def open(self) -> ObjectStorage:
        """Raises SecretError, ObjectStoreUrlError."""
        options = self.options.options() if isinstance(self.options, TaskSecret) else self.options
        return open_objects(self.url, options=options)


def objects_place(
    url: str, secret_name: str | None, secrets: Secrets, ca_bundle: CaBundle | None = None
) -> ObjectsPlace:
    """Where Secrets are files, executors have them too and read them themselves; else their values travel. Raises
    SecretError.
    """
    if isinstance(secrets, DirectorySecrets):
        return ObjectsPlace(url, TaskSecret(secrets, secret_name or "", ca_bundle))
    return ObjectsPlace(url, dict(options_of(secrets, secret_name, ca_bundle)))
