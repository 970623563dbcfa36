"""From what a policy or a job says of its staging area to the store: Secrets are read here and nowhere else."""

from __future__ import annotations

from compaction.api.policy.staging_area import MetarangeSources, StagingAreaReference
from compaction.staging.compaction import BranchWork
from compaction.staging.store import StagingConnection
from compaction.storage.secrets import Secrets, options_and_authorities, require, value_of


def connection_of(reference: StagingAreaReference, secrets: Secrets) -> StagingConnection:
    """Return the connection to the store. Raises SecretError, which names the Secret and the key, never a value."""
    require(secrets, reference.secret_names)
    credentials = reference.credentials_secret_name
    options, authorities = options_and_authorities(secrets, credentials, reference.ca_bundle)
    return StagingConnection(
        kv_url=value_of(secrets, reference.kv.secret_name, reference.kv.key),
        table=reference.table,
        options=options,
        authorities=authorities,
        kv_from=f"Secret {reference.kv.secret_name}",
        options_from=f"Secret {credentials}" if credentials else "",
    )


def work_of(sources: MetarangeSources) -> BranchWork:
    """A job's sources in the words of the library."""
    return BranchWork(sources.store.repository, sources.branch, sources.commit, sources.base, sources.tokens)
