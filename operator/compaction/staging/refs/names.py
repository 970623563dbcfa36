"""Names of repositories, branches, tags and staging tokens, and partitions of the key-value store.

docs/design/staging.md#key-value-store.
"""

from __future__ import annotations

import base64
import os
import re
import time
from typing import Final

from compaction.staging.errors import StagingNameError

METADATA_PARTITION: Final = "kv-internal-metadata"
SCHEMA_KEY: Final = b"kv/schema/version"
SCHEMA_VERSION: Final = 4
REPOSITORIES_PARTITION: Final = "graveler"
REPOSITORY_KEYS: Final = "repos/"
BRANCH_KEYS: Final = "branches/"
COMMIT_KEYS: Final = "commits/"
TAG_KEYS: Final = "tags/"
JOURNAL_PARTITION: Final = "staging-journal"
"""Not lakeFS's queue `cleanup-tokens`: a server of lakeFS deletes what is in there at once, in use or not."""

_REPOSITORY: Final = re.compile(r"[a-z0-9][a-z0-9-]{2,62}", re.ASCII)
_REFERENCE: Final = re.compile(r"\w[-\w]{0,255}", re.ASCII)
COMMIT_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_repository_name(name: str) -> str:
    """Return the name of a repository. Raises StagingNameError."""
    if not _REPOSITORY.fullmatch(name):
        raise StagingNameError("repository", name, "use 3 to 63 lower-case letters, digits and hyphens")
    return name


def check_branch_name(name: str) -> str:
    """Return the name of a branch. Raises StagingNameError."""
    return _check_reference("branch", name)


def check_tag_name(name: str) -> str:
    """Return the name of a tag. Raises StagingNameError: also for one that looks like the id of a commit."""
    if COMMIT_ID.fullmatch(name):
        raise StagingNameError("tag", name, "it looks like the id of a commit")
    return _check_reference("tag", name)


def _check_reference(what: str, name: str) -> str:
    if not _REFERENCE.fullmatch(name):
        raise StagingNameError(what, name, "use up to 256 letters, digits, underscores and hyphens, no hyphen first")
    return name


def new_instance_uid() -> str:
    """Tells a repository from an earlier one of the same name: 20 characters, those of later ones sort behind."""
    unique = int(time.time()).to_bytes(4, "big") + os.urandom(8)
    return base64.b32hexencode(unique).decode().lower().rstrip("=")
