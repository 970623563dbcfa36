"""The targets of a staging area, and the version of a branch that a plan is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from compaction.api.job.resource import JobReceipt
from compaction.api.text.formatting import plural


def target_name(repository: str, branch: str) -> str:
    """The name of a target: a branch of a repository. Neither name has a slash."""
    return f"{repository}/{branch}"


def branch_of_target(target: str) -> str:
    """The branch of a target; the whole text for a name in another form."""
    return target.rpartition("/")[2]


def base_version_of(repository: str, branch: str, commit: str, base: str, tokens: Sequence[str]) -> str:
    """What a plan is made from: the two trees, and a hash of the tokens above them. Another one means that the plan is
    outdated. `base`: the compacted base, "" when that is the tree of the commit. `tokens`: the newest first.
    """
    content = hashlib.sha256()
    for part in (repository, branch, *tokens):
        content.update(b"%d:" % len(part.encode()) + part.encode())
    return f"{commit}/{base}/{content.hexdigest()}"


def trees_of(base_version: str) -> tuple[str, str]:
    """Commit and compacted base of a base version; the base is "" where there is none."""
    commit, base, _ = base_version.split("/")
    return commit, base


def format_rewrite(receipt: JobReceipt) -> str:
    """What a job did with a branch: `3 tokens compacted, 2 ranges written, 40 left as they are`."""
    if receipt.metarange is None and receipt.outputs:
        return f"{plural(len(receipt.sources), 'token')} merged into one with {plural(receipt.records, 'row')}"
    done = [f"{plural(len(receipt.sources), 'token')} compacted"]
    if receipt.metarange is not None:
        done.append(f"{plural(receipt.metarange.ranges_written, 'range')} written")
        if receipt.metarange.ranges_reused:
            done.append(f"{receipt.metarange.ranges_reused} left as they are")
        if receipt.metarange.tombstones:
            done.append(f"{plural(receipt.metarange.tombstones, 'tombstone')} removed")
    return ", ".join(done)
