"""What every flow of one repository uses, bundled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import Branches
from compaction.staging.refs.commits import Commits
from compaction.staging.refs.repositories import Repository
from compaction.staging.refs.resolving import References
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.staged.tokens import StagedTokens
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
