"""How a worker and its tasks reach a block store; what is secret stays in Secrets for as long as that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compaction.stores.blocks.objects import Objects, open_objects
from compaction.stores.blocks.store import BlockStoreConnection
from compaction.stores.secrets import DirectorySecrets, SecretReference, Secrets, options_of, value_of


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A block store as a job names it: `url` of the objects, and names of Secrets; "" as `credentials`: none."""

    url: str
    credentials: str
    index_secret: str
    index_key: str

    def connection(self, secrets: Secrets) -> BlockStoreConnection:
        """With the values of the Secrets. Raises SecretError."""
        index_url = value_of(secrets, self.index_secret, self.index_key)
        return BlockStoreConnection(self.url, index_url, options_of(secrets, self.credentials))

    def objects(self, secrets: Secrets) -> ObjectsPlace:
        """For tasks. Where Secrets are files, executors read them themselves; else their values travel. Raises
        SecretError.
        """
        if isinstance(secrets, DirectorySecrets):
            return ObjectsPlace(self.url, SecretReference(secrets, self.credentials))
        return ObjectsPlace(self.url, dict(options_of(secrets, self.credentials)))


@dataclass(frozen=True, slots=True)
class ObjectsPlace:
    """Where the objects are, as plain data that a task is given; `options` are credentials, which never show."""

    url: str
    options: Mapping[str, str] | SecretReference = field(default_factory=dict, repr=False)

    def open(self) -> Objects:
        """Raises SecretError, ObjectStoreUrlError."""
        options = self.options.options() if isinstance(self.options, SecretReference) else self.options
        return open_objects(self.url, options=options)
