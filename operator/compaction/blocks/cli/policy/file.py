"""A block store by the policy that describes it: `-f policy.yaml`, with its Secrets in the same file or a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from compaction.api.policy.block_store import BlockStoreReference
from compaction.api.policy.resource import CompactionPolicy
from compaction.blocks import connecting
from compaction.blocks.store import BlockStoreConnection
from compaction.cli.local.policy_file import PolicyFile
from compaction.storage.secrets import GivenSecrets


def secrets_of_connection(connection: BlockStoreConnection, store: BlockStoreReference) -> GivenSecrets:
    """What a connection was made of, as the Secrets that the store names."""
    values: dict[str, dict[str, str]] = {store.index.secret_name: {store.index.key: connection.index_url}}
    if (options := store.credentials_secret_name) is not None:
        values[options] = values.get(options, {}) | dict(connection.options)
    if (bundle := store.ca_bundle) is not None:
        values[bundle.source] = values.get(bundle.source, {}) | {bundle.key: connection.authorities}
    return GivenSecrets(values, "the command's options")


def connection_of(
    source: TextIO, *, wanted: str | None, directory: Path | None
) -> tuple[CompactionPolicy, BlockStoreConnection]:
    """The policy in a file and the way to its store.

    Raises:
        click.UsageError: no file of policies, or none of a block store.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    store = file.policy.spec.store.block_store
    if store is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a block store")
    return file.policy, connecting.connection_of(store.reference, file)
