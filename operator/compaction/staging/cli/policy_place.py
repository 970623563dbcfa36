"""A staging area by its policy: `-f policy.yaml`, with its Secrets in the same file or a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from compaction.cli.local.policy_file import PolicyFile
from compaction.staging.cli.options import StagingPlace
from compaction.staging.connecting import connection_of


def place_of_policy(source: TextIO, *, wanted: str | None, directory: Path | None) -> StagingPlace:
    """The repository of the policy in a file.

    Raises:
        click.UsageError: no file of policies, or none of a staging area.
        SecretError: a Secret that the policy names is in neither place, or lacks a key.
    """
    file = PolicyFile(source, wanted=wanted, secrets_dir=directory)
    spec = file.policy.spec.store.staging_area
    if spec is None:
        raise click.UsageError(f"{source.name}: policy {file.policy.metadata.name} is not one of a staging area")
    return StagingPlace(connection_of(spec.reference, file), spec.repository, spec=spec)
