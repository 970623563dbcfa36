"""A staging area by the policy that describes it: `-f policy.yaml`, with its Secrets there or in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from compaction.cli.local.policy_file import PolicyFile
from compaction.stores.staging.connecting import connection_of
from compaction.stores.staging.store import StagingConnection


def connection_of_policy(source: TextIO, *, wanted: str | None, directory: Path | None) -> StagingConnection:
    """The way to the store of the policy in a file.

    Raises:
        click.UsageError: no file of policies, or none of a staging area.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    area = file.policy.spec.store.staging_area
    if area is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a staging area")
    return connection_of(area.reference, file)
