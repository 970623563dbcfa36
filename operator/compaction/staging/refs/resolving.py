"""What a reference means: a branch with or without its uncommitted changes, a tag, a commit, an ancestor.

docs/design/staging-areas.md#references.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from compaction.staging.errors import StagingNameError, UnknownRefError
from compaction.staging.format.messages import CommitData
from compaction.staging.refs.branches import Branch, Branches
from compaction.staging.refs.commits import Commits
from compaction.staging.refs.names import COMMIT_ID

_EXPRESSION: Final = re.compile(r"(\w[-\w]*)([@$]?)((?:[~^][0-9]*)*)", re.ASCII)
_STEP: Final = re.compile(r"([~^])([0-9]*)", re.ASCII)
_PREFIX: Final = re.compile(r"[0-9a-f]{6,63}", re.ASCII)
"""What names a commit, if no other id begins with it."""
_MOST_STEPS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Resolved:
    """A commit, or a branch as it was read. `commit` is the branch's own then."""

    commit: CommitData
    branch: Branch | None = None


class References:
    """Resolves references of one repository."""

    def __init__(self, branches: Branches, commits: Commits) -> None:
        self._branches = branches
        self._commits = commits

    def resolve(self, reference: str) -> Resolved:
        """`main` or `main$`: a branch with its uncommitted changes; `main@`: its commit. `v1`: a tag. The id of a
        commit, or at least six digits of it. Behind any of them `~2`: the grandparent along first parents, `^2`: the
        second parent.

        Raises StagingNameError, UnknownRefError, CorruptMessageError.
        """
        found = _EXPRESSION.fullmatch(reference)
        if found is None:
            raise StagingNameError("reference", reference, "use a branch, a tag or a commit, then ~N or ^N")
        name, modifier, steps = found.groups()
        start = self._start(name, modifier)
        if not steps and modifier != "@":
            return start
        commit = start.commit
        for sign, number in _STEP.findall(steps):
            commit = self._ancestor(commit, sign, int(number) if number else 1, reference)
        return Resolved(commit)

    def commit(self, reference: str) -> CommitData:
        """The commit of any reference: of a branch its last one."""
        return self.resolve(reference).commit

    def _start(self, name: str, modifier: str) -> Resolved:
        if COMMIT_ID.fullmatch(name) is None or modifier:
            branch = self._branches.find(name)
            if branch is not None:
                return Resolved(self._commits.get(branch.record.commit_id), branch)
            if modifier == "$":
                raise UnknownRefError("branch", name)
            tag = self._commits.find_tag(name)
            if tag is not None:
                return Resolved(self._commits.get(tag.commit_id))
        return Resolved(self._commits.get(self._whole(name)))

    def _whole(self, name: str) -> str:
        if COMMIT_ID.fullmatch(name):
            return name
        found = self._commits.starting_with(name) if _PREFIX.fullmatch(name) else []
        if len(found) != 1:
            raise UnknownRefError("reference", name)
        return found[0]

    def _ancestor(self, commit: CommitData, sign: str, number: int, reference: str) -> CommitData:
        if number > _MOST_STEPS:
            raise StagingNameError("reference", reference, f"it goes more than {_MOST_STEPS} commits back")
        if sign == "~":
            for _ in range(number):
                commit = self._parent(commit, 1, reference)
            return commit
        return commit if number == 0 else self._parent(commit, number, reference)

    def _parent(self, commit: CommitData, number: int, reference: str) -> CommitData:
        if number > len(commit.parents):
            raise UnknownRefError("reference", reference)
        return self._commits.get(commit.parents[number - 1])
