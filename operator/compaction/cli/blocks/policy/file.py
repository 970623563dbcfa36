"""A block store by the policy that describes it: `-f policy.yaml`, with its Secrets in the same file or a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

import click
import yaml

from compaction.api.manifests.yaml_loader import BoundedLoader
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.safe import cut, printable
from compaction.cli.local.policy_file import PolicyFile
from compaction.exceptions import StoreOptionsError
from compaction.stores.blocks import connecting
from compaction.stores.blocks.store import BlockStoreConnection
from compaction.stores.secrets import GivenSecrets


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
    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    store = file.policy.spec.store.block_store
    if store is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a block store")
    return file.policy, connecting.connection_of(store.reference, file)


MAX_TEXT: Final = 1 << 20
"""Bytes; a file of options has a few hundred."""


def options_of_file(path: Path) -> Mapping[str, str]:
    """The options, as text. Raises StoreOptionsError and OSError."""
    with path.open("rb") as file:
        data = file.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise StoreOptionsError(f"{path}: larger than {MAX_TEXT} bytes: this is not a file of options")
    try:
        document = yaml.load(data.decode(), Loader=BoundedLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        # Its own words quote the text.
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise StoreOptionsError(f"{path}: neither YAML nor JSON{line}: write one `option: value` per line") from None
    if not isinstance(document, dict):
        raise StoreOptionsError(f"{path}: holds no options: write one `option: value` per line")
    return {str(name): _text(path, str(name), value) for name, value in document.items()}


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise StoreOptionsError(f"{path}: option {printable(cut(name, 100))} has no plain value: put it into quotes")
