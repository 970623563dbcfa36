"""From what a policy or a job says of its store to the store: Secrets are read here and nowhere else."""

from __future__ import annotations

from compaction.api.policy.block_store import BlockStoreReference
from compaction.blocks.store import BlockStoreConnection
from compaction.storage.secrets import Secrets, options_and_authorities, require, value_of


def connection_of(reference: BlockStoreReference, secrets: Secrets) -> BlockStoreConnection:
    """Return the connection to the store. Raises SecretError, which names the Secret and the key, never a value."""
    require(secrets, reference.secret_names)
    credentials = reference.credentials_secret_name
    options, authorities = options_and_authorities(secrets, credentials, reference.ca_bundle)
    return BlockStoreConnection(
        url=reference.url,
        index_url=value_of(secrets, reference.index.secret_name, reference.index.key),
        options=options,
        authorities=authorities,
        options_from=f"Secret {credentials}" if credentials else "",
        index_from=f"Secret {reference.index.secret_name}",
    )
