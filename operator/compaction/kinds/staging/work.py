"""The targets of a staging area, and the version of a branch that a plan is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from compaction.api.text.formatting import plural


def target_name(repository: str, branch: str) -> str:
    """The name of a target: a branch of a repository. Neither name has a slash."""
    return f"{repository}/{branch}"


def branch_of_target(target: str) -> str:
    """The branch of a target; the whole text for a name in another form."""
    return target.rpartition("/")[2]


def base_version_of(repository: str, branch: str, commit: str, base: str, tokens: Sequence[str]) -> str:
    """A hash of what a plan is made from: another one means that the plan is outdated. `base`: the compacted base, ""
    when that is the tree of the commit. `tokens`: the newest first.
    """
    content = hashlib.sha256()
    for part in (repository, branch, commit, base, *tokens):
        content.update(b"%d:" % len(part.encode()) + part.encode())
    return content.hexdigest()


def identity_of(commit: str, base: str) -> str:
    """The identity of the tokens of a branch: the trees that they are above."""
    return f"{commit}/{base}"


def trees_of(identity: str) -> tuple[str, str]:
    """Commit and compacted base of an identity; the base is "" where there is none."""
    commit, _, base = identity.partition("/")
    return commit, base


def format_rewrite(tokens: int, ranges: int) -> str:
    """What a job did with a branch: `3 tokens compacted, 2 ranges written`."""
    return f"{plural(tokens, 'token')} compacted, {plural(ranges, 'range')} written"
