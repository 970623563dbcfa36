"""The area of one repository, bundled for every flow, and the marks of objects that a sweep deletes next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import Branches, Repository
from compaction.staging.refs.commits import Commits, References
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.staged.rows import StagedTokens
from compaction.staging.tree.storage import RangeStorage


@dataclass(frozen=True, slots=True)
class Area:
    """One repository. `clock`: seconds since 1970; `sleep`: pauses between tries."""

    repository: Repository
    kv: KeyValueStore
    ranges: RangeStorage
    tokens: StagedTokens
    counters: TokenCounters
    branches: Branches
    commits: Commits
    references: References
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    @classmethod
    def of(
        cls,
        repository: Repository,
        kv: KeyValueStore,
        ranges: RangeStorage,
        counters: TokenCounters,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Area:
        """Of a repository, its key-value store and the storage of its ranges."""
        branches, commits = Branches(kv, repository), Commits(kv, repository)
        references = References(branches, commits)
        return cls(repository, kv, ranges, StagedTokens(kv), counters, branches, commits, references, clock, sleep)


# Marks of objects that the sweep is about to delete (docs/design/staging-areas.md#sweep).
#
# An object's id is its content, so a writer may write the very object that a sweep deletes. The sweep marks it, then
# reads its age, then deletes it; a writer writes, then reads the marks, then swaps: one of both sees the other. Who
# takes over a tree that is there already pins it first, and the sweep looks for pins after it has marked.

LONGEST_PIN: Final = 86_400.0
"""Seconds."""


def marks_partition(partition: str) -> str:
    """The partition of the marks of a repository."""
    return f"{partition}:marks"


def marked_objects(kv: KeyValueStore, partition: str) -> frozenset[str]:
    """The ids of all marked objects of a repository."""
    return frozenset(key.decode() for page in kv.scan(marks_partition(partition)) for key, _ in page)


def mark(kv: KeyValueStore, partition: str, identifiers: list[str]) -> None:
    """Mark objects."""
    kv.set_many(marks_partition(partition), [(identifier.encode(), b"1") for identifier in identifiers])


def unmark(kv: KeyValueStore, partition: str, identifiers: list[str]) -> None:
    """Take marks away: what was marked is deleted, or stays."""
    kv.delete_many(marks_partition(partition), [identifier.encode() for identifier in identifiers])


@contextmanager
def pin(area: Area, tree: str) -> Iterator[None]:
    """Keep a tree that nothing leads to from the sweep for as long as the block runs, at most a day."""
    partition = _pins(area.repository.partition)
    area.kv.set(partition, tree.encode(), b"%d" % int(area.clock()))
    try:
        yield
    finally:
        area.kv.delete(partition, tree.encode())


def pinned(area: Area) -> frozenset[str]:
    """The pinned trees of a repository, but for those that a crash left behind more than a day ago."""
    partition = _pins(area.repository.partition)
    rows = [row for page in area.kv.scan(partition) for row in page]
    old = [key for key, since in rows if area.clock() - int(since) > LONGEST_PIN]
    area.kv.delete_many(partition, old)
    return frozenset(key.decode() for key, _ in rows if key not in old)


def _pins(partition: str) -> str:
    return f"{partition}:pins"


def names_any(ranges: RangeStorage, tree: str, identifiers: frozenset[str]) -> bool:
    """Return whether a tree is one of the objects, or has one of them."""
    return tree in identifiers or any(item.id in identifiers for item in ranges.ranges(tree))
