"""Commits, tags and other references: history, the commit that two have in common, and what a reference means."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from compaction.staging.errors import (
    CorruptMessageError,
    PredicateFailedError,
    RefExistsError,
    StagingNameError,
    UnknownRefError,
)
from compaction.staging.format.identity import commit_id
from compaction.staging.format.messages import CommitData, ProtoTimestamp, TagData
from compaction.staging.kv.port import KeyValueStore, Presence
from compaction.staging.refs.branches import Branch, Branches, Repository
from compaction.staging.refs.names import COMMIT_ID, COMMIT_KEYS, TAG_KEYS, check_tag_name

# Commits and tags: rows that are written once; history, and the commit that two have in common.

VERSION: Final = 1
FIRST_MESSAGE: Final = "Repository created"


class Commits:
    """The commits and tags of one repository."""

    def __init__(self, kv: KeyValueStore, repository: Repository) -> None:
        self._kv = kv
        self._repository = repository

    def add(
        self,
        *,
        metarange_id: str,
        parents: tuple[CommitData, ...],
        committer: str,
        message: str,
        metadata: Mapping[str, str],
        now: float,
    ) -> CommitData:
        """Write a commit; one that is there already, with the same id, is the same. `now`: seconds since 1970."""
        bare = CommitData(
            committer=committer,
            message=message,
            creation_date=ProtoTimestamp(int(now), int(now % 1 * 1e9)),
            meta_range_id=metarange_id,
            metadata=dict(sorted(metadata.items())),
            parents=tuple(parent.id for parent in parents),
            version=VERSION,
            generation=1 + max((parent.generation for parent in parents), default=0),
        )
        commit = replace(bare, id=commit_id(bare))
        try:
            self._kv.set_if(self._repository.partition, _commit_key(commit.id), commit.encode(), Presence.ABSENT)
        except PredicateFailedError:
            return self.get(commit.id)
        return commit

    def get(self, identifier: str) -> CommitData:
        """Raises UnknownRefError, CorruptMessageError."""
        row = self._kv.get(self._repository.partition, _commit_key(identifier)) if identifier else None
        if row is None:
            raise UnknownRefError("commit", identifier)
        return CommitData.decode(row, name=f"commit {identifier} of repository {self._repository.name}")

    def starting_with(self, prefix: str) -> list[str]:
        """Ids of up to two commits that begin with `prefix`."""
        start = _commit_key(prefix)
        for page in self._kv.scan(self._repository.partition, start, start + b"g", page=2):
            return [key.decode().removeprefix(COMMIT_KEYS) for key, _ in page[:2]]
        return []

    def every(self, unreadable: Callable[[str, CorruptMessageError], None] | None = None) -> Iterator[CommitData]:
        """All commits of the repository, also those that no branch leads to, by id. `unreadable`: see
        `Branches.every`.
        """
        start, stop = COMMIT_KEYS.encode(), COMMIT_KEYS[:-1].encode() + b"0"
        for page in self._kv.scan(self._repository.partition, start, stop):
            for key, row in page:
                name = key.decode(errors="replace")
                try:
                    yield CommitData.decode(row, name=name)
                except CorruptMessageError as error:
                    if unreadable is None:
                        raise
                    unreadable(name, error)

    def log(self, identifier: str) -> Iterator[CommitData]:
        """A commit and all before it, children before parents."""
        start = self.get(identifier)
        waiting = [(-start.generation, start.id, start)]
        seen = {start.id}
        while waiting:
            commit = heapq.heappop(waiting)[2]
            yield commit
            for parent in commit.parents:
                if parent not in seen:
                    seen.add(parent)
                    found = self.get(parent)
                    heapq.heappush(waiting, (-found.generation, found.id, found))

    def merge_base(self, commit_id: str, other: str) -> CommitData:
        """The youngest commit that both come from. Raises UnknownRefError when they have none in common."""
        sides = {commit_id: 1} if commit_id != other else {commit_id: 3}
        sides.setdefault(other, 2)
        waiting = [(-found.generation, found.id, found) for found in map(self.get, sides)]
        heapq.heapify(waiting)
        while waiting:
            commit = heapq.heappop(waiting)[2]
            # A parent's generation is lower than its children's, so all that lead to a commit were here before it.
            side = sides[commit.id]
            if side == 3:
                return commit
            for parent in commit.parents:
                if parent not in sides:
                    found = self.get(parent)
                    heapq.heappush(waiting, (-found.generation, found.id, found))
                sides[parent] = sides.get(parent, 0) | side
        raise UnknownRefError("common ancestor", f"{commit_id[:16]}, {other[:16]}")

    def tag(self, name: str, identifier: str) -> None:
        """Raises StagingNameError, RefExistsError, UnknownRefError: there is no such commit."""
        data = TagData(id=check_tag_name(name), commit_id=self.get(identifier).id)
        try:
            self._kv.set_if(self._repository.partition, _tag_key(name), data.encode(), Presence.ABSENT)
        except PredicateFailedError:
            raise RefExistsError("tag", name) from None

    def find_tag(self, name: str) -> TagData | None:
        """The tag, None when there is none. Raises CorruptMessageError."""
        row = self._kv.get(self._repository.partition, _tag_key(name))
        return None if row is None else TagData.decode(row, name=f"tag {name} of repository {self._repository.name}")

    def tags(self) -> Iterator[TagData]:
        """All tags, by name."""
        start, stop = TAG_KEYS.encode(), TAG_KEYS[:-1].encode() + b"0"
        for page in self._kv.scan(self._repository.partition, start, stop):
            for key, row in page:
                yield TagData.decode(row, name=key.decode(errors="replace"))

    def remove_tag(self, name: str) -> None:
        """Raises UnknownRefError."""
        if self.find_tag(check_tag_name(name)) is None:
            raise UnknownRefError("tag", name)
        self._kv.delete(self._repository.partition, _tag_key(name))


def _commit_key(identifier: str) -> bytes:
    return (COMMIT_KEYS + identifier).encode()


def _tag_key(name: str) -> bytes:
    return (TAG_KEYS + name).encode()


# The meaning of a reference: a branch with or without its uncommitted changes, a tag, a commit, an ancestor.
#
# docs/design/staging-areas.md#references.

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
