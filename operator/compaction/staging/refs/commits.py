"""Commits and tags: rows that are written once; history, and the commit that two have in common."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from compaction.staging.errors import CorruptMessageError, PredicateFailedError, RefExistsError, UnknownRefError
from compaction.staging.format.identity import commit_id
from compaction.staging.format.messages import CommitData, ProtoTimestamp, TagData
from compaction.staging.kv.port import KeyValueStore, Presence
from compaction.staging.refs.names import COMMIT_KEYS, TAG_KEYS, check_tag_name
from compaction.staging.refs.repositories import Repository

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
            parents=tuple(one.id for one in parents),
            version=VERSION,
            generation=1 + max((one.generation for one in parents), default=0),
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

    def merge_base(self, one: str, other: str) -> CommitData:
        """The youngest commit that both come from. Raises UnknownRefError when they have none in common."""
        sides = {one: 1} if one != other else {one: 3}
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
        raise UnknownRefError("common ancestor", f"{one[:16]}, {other[:16]}")

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
