"""A block store by the policy that describes it: `-f policy.yaml`, with its Secrets in the same file or a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from compaction.api.manifest import load_policies
from compaction.api.policy import CompactionPolicy
from compaction.api.secret_documents import load_secrets
from compaction.exceptions import InvalidManifestError
from compaction.local.policy_secrets import FileSecrets
from compaction.stores.blocks.store import BlockStoreConnection
from compaction.stores.secrets import DirectorySecrets, GivenSecrets, options_of, value_of


def secrets_of(text: str, *, name: str, directory: Path | None) -> FileSecrets:
    """The Secrets in the text, and those of the directory. Raises InvalidManifestError."""
    given = GivenSecrets(load_secrets(text, source=name), name)
    return FileSecrets(given, DirectorySecrets(str(directory)) if directory is not None else None)


def chosen(policies: list[CompactionPolicy], wanted: str | None, *, name: str) -> CompactionPolicy:
    """The policy of that name, or the only one. Raises InvalidManifestError."""
    names = ", ".join(policy.metadata.name for policy in policies)
    found = [policy for policy in policies if wanted in (None, policy.metadata.name)]
    if not found:
        raise InvalidManifestError(f"{name}: no policy {wanted}; there are {names}")
    if len(found) > 1:
        raise InvalidManifestError(f"{name} holds several policies, choose one with --policy: {names}")
    return found[0]


def secrets_of_connection(connection: BlockStoreConnection, index: str, key: str, options: str) -> GivenSecrets:
    """What a connection was made of, as Secrets of these names; "" as `options`: the store has none."""
    values: dict[str, dict[str, str]] = {index: {key: connection.index_url}}
    if options:
        values[options] = values.get(options, {}) | dict(connection.options)
    return GivenSecrets(values, "the command's options")


def connection_of(
    source: TextIO, *, wanted: str | None, directory: Path | None
) -> tuple[CompactionPolicy, BlockStoreConnection]:
    """The policy in a file and the way to its store.

    Raises:
        click.UsageError: no file of policies, or none of a block store.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    try:
        text = source.read()
        policy = chosen(load_policies(text, source=source.name), wanted, name=source.name)
        secrets = secrets_of(text, name=source.name, directory=directory)
    except (InvalidManifestError, UnicodeDecodeError) as error:
        raise click.UsageError(str(error)) from error
    store = policy.spec.store.block_store
    if store is None:
        raise click.UsageError(f"{source.name}: policy {policy.metadata.name} is not one of a block store")
    index_url = value_of(secrets, store.index.secret_name, store.index.key)
    return policy, BlockStoreConnection(store.url, index_url, options_of(secrets, store.credentials_secret_name))
