"""The file of a policy given to `-f`, with its Secrets, read again while it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import click
from pydantic import ValidationError

from compaction.api.base import first_problem
from compaction.api.manifests import kinds_in, load_secrets, objects_of
from compaction.api.names import ANNOTATION_APPROVE, API_VERSION, POLICY_KIND
from compaction.api.policy.configuration import NO_DEFAULTS, PolicyDefaults, completed, taken
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.lazy import report
from compaction.errors import CompactionError, InvalidManifestError
from compaction.registry import kind_of
from compaction.storage.secrets import DirectorySecrets, GivenSecrets

# Policies from YAML (see `objects`).


def load_policies(text: str, *, source: str) -> list[CompactionPolicy]:
    """Every CompactionPolicy in a text, in order; other kinds are passed over. `source` names the file.

    Raises:
        InvalidManifestError: not YAML, no policy in it, or a policy the API server would refuse; the message has one
            line per problem, each with the field and what to write instead.
    """
    policies = objects_of(text, CompactionPolicy, POLICY_KIND, source=source)
    if not policies:
        raise InvalidManifestError(
            f"{source}: no {POLICY_KIND} in it ({kinds_in(text, source)}): it needs apiVersion: {API_VERSION} and "
            f"kind: {POLICY_KIND}"
        )
    return policies


# The file of a policy, as people give it to `-f`: one policy of it, its Secrets, and what changes while it is used.


class PolicyFile:
    """The one policy of a file; `reread` returns it again when the file has changed. Implements
    `storage.secrets.Secrets` for the policy's store: those that stand beside the policy now, then those of
    `secrets_dir`.

    What is wrong with the file at the beginning is wrong usage (exit code 2); later it is reported, and the previous
    policy stays.
    """

    def __init__(
        self,
        source: TextIO,
        *,
        text: str | None = None,
        wanted: str | None = None,
        approved: str | None = None,
        secrets_dir: Path | None = None,
        defaults: PolicyDefaults = NO_DEFAULTS,
    ) -> None:
        """`text`: what was read of the source already, None when it was not. `defaults`: those of an installation."""
        self._defaults = defaults
        self._wanted = wanted
        self._approved = approved
        self._mounted = DirectorySecrets(str(secrets_dir)) if secrets_dir is not None else None
        self._given = GivenSecrets({}, source.name)
        self.path = path_of(source)
        self._seen = version_of(self.path)
        try:
            self.policy = self._read(source.read() if text is None else text, source.name)
        except (InvalidManifestError, UnicodeDecodeError) as error:
            raise click.UsageError(str(error)) from error

    def read(self, name: str) -> Mapping[str, str]:
        """See `Secrets`: the documents of the file go first."""
        if self._mounted is None or name in self._given.values:
            return self._given.read(name)
        return self._mounted.read(name)

    def reread(self) -> CompactionPolicy | None:
        """The policy, when the file has changed since; None when it has not, or cannot be read."""
        version = version_of(self.path)
        if self.path is None or version in (None, self._seen):
            return None
        self._seen = version
        try:
            changed = self._read(self.path.read_text(encoding="utf-8"), str(self.path))
        except (InvalidManifestError, UnicodeDecodeError, OSError) as error:
            report(CompactionError(f"{error}; the policy stays as it was"))
            return None
        if changed == self.policy:
            return None
        self.policy = changed
        return changed

    def _read(self, text: str, name: str) -> CompactionPolicy:
        policy = chosen(load_policies(text, source=name), self._wanted, name=name)
        body = policy.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if added := taken(body["spec"], self._defaults):
            policy = _with_defaults(completed(body, added), name)
        if kind_of(policy.spec.store).secrets(policy.spec.store).driver:
            self._given = GivenSecrets(load_secrets(text, source=name), name)
        if self._approved is None or ANNOTATION_APPROVE in policy.metadata.annotations:
            return policy
        annotations = {**policy.metadata.annotations, ANNOTATION_APPROVE: self._approved}
        return policy.model_copy(update={"metadata": policy.metadata.model_copy(update={"annotations": annotations})})


def _with_defaults(body: Mapping[str, Any], name: str) -> CompactionPolicy:
    """The policy with the spec in force. Raises InvalidManifestError when the two do not fit together."""
    try:
        return CompactionPolicy.from_object(body)
    except ValidationError as error:
        raise InvalidManifestError(f"{name}, with the defaults of --config: {first_problem(error)}") from error


def path_of(source: TextIO) -> Path | None:
    """The file behind `-f`; None for standard input, which is never read again."""
    return Path(source.name) if source.name != "<stdin>" else None


def version_of(path: Path | None) -> tuple[int, int, int] | None:
    """Return what tells one version of the file from another; None when it is gone (an editor may be replacing it)."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def chosen(policies: list[CompactionPolicy], wanted: str | None, *, name: str) -> CompactionPolicy:
    """The policy of that name, or the only one. Raises InvalidManifestError."""
    names = ", ".join(policy.metadata.name for policy in policies)
    found = [policy for policy in policies if wanted in (None, policy.metadata.name)]
    if not found:
        raise InvalidManifestError(f"{name}: no policy {wanted}; there are {names}")
    if len(found) > 1:
        raise InvalidManifestError(f"{name} holds several policies, choose one with --policy: {names}")
    return found[0]
