"""Those who use the staging area: its repository and branches, a writer for each branch, and the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from compaction.local.demo.accident import damage
from compaction.local.demo.staging.entries import LOGS, TABLES, TOTAL, encode_entries, key_of
from compaction.local.demo.staging.model import BranchModel
from compaction.local.demo.staging.prover import StagingProver
from compaction.local.demo.staging.scenario import BRANCHES, COMMITTED, COMMITTER, DAMAGED, PURGED, REPOSITORY
from compaction.local.demo.staging.writers import BranchWriter
from compaction.local.errors import DemoError
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import Committer, Draft
from compaction.staging.format.columns import RecordColumns
from compaction.staging.store import StagingStore
from compaction.staging.tree.applying import apply

SEED = 15
FIRST_VERSION = 1
BATCH = 50_000


@dataclass
class StagingCast:
    """`damaged`: id of the range that loses bytes, `before`: its bytes as they were."""

    area: Area
    writers: Mapping[str, BranchWriter]
    prover: StagingProver
    damaged: str = ""
    before: bytes = field(default=b"", repr=False)

    @classmethod
    def create(cls, store: StagingStore, namespace: str) -> StagingCast:
        """The repository with its branches on a commit of all records. Raises CompactionError."""
        area = store.create(REPOSITORY, namespace, committer=COMMITTER, default_branch=COMMITTED.name)
        tree = apply(area.ranges, "", _base()).metarange_id
        Committer(area).commit(COMMITTED.name, Draft(COMMITTER, "the base"), tree=tree)
        writers = {}
        for number, branch in enumerate(BRANCHES):
            if branch is not COMMITTED:
                Brancher(area).create(branch.name, COMMITTED.name)
            model = BranchModel(branch.name, np.full(TOTAL, FIRST_VERSION, np.uint32))
            writers[branch.name] = BranchWriter(area, branch, model, seed=SEED + number)
        return cls(area, writers, StagingProver(area, {name: one.model for name, one in writers.items()}))

    def begin(self, *, purged: int = PURGED) -> None:
        """The backlog: deletions below `logs/` on the branch that purges, a few changes on the others, and a range of
        its own for the branch that will have a damaged one. Raises CompactionError.
        """
        for writer in self.writers.values():
            if writer.branch.purges:
                writer.purge(purged)
            else:
                writer.write_sets(5)
        Committer(self.area).commit(DAMAGED.name, Draft(COMMITTER, "ranges of its own"))
        self.damage()

    def damage(self) -> None:
        """Bytes of a range of one branch are inverted: of one that no other branch has, below `tables/`."""
        area = self.area
        head = area.references.commit(DAMAGED.name).meta_range_id
        base = area.references.commit(f"{DAMAGED.name}~1").meta_range_id
        shared = {one.id for one in area.ranges.ranges(base)}
        own = [one.id for one in area.ranges.ranges(head, key_of(LOGS)) if one.id not in shared]
        if not own:
            raise DemoError(f"branch {DAMAGED.name} has no range of its own")
        self.damaged = own[-1]
        self.prover.damaged = (DAMAGED.name, self.damaged)
        self.before = damage(area.ranges.objects, area.ranges.path(self.damaged))

    def restore(self) -> None:
        """The range is as it was."""
        self.area.ranges.objects.put(self.area.ranges.path(self.damaged), self.before)
        self.area.ranges.forget(self.damaged)
        self.prover.damaged = None

    def check(self) -> None:
        """Raises what ended one of them too early."""
        for error in (*(writer.error for writer in self.writers.values()), self.prover.error):
            if error is not None:
                raise error

    @property
    def moments(self) -> list[float]:
        """When changes were acknowledged, epoch seconds."""
        return sorted(moment for writer in self.writers.values() for moment in writer.moments)


def _base() -> Iterator[RecordColumns]:
    for first in range(0, LOGS + TABLES, BATCH):
        numbers = np.arange(first, min(first + BATCH, TOTAL))
        yield encode_entries(numbers, np.full(len(numbers), FIRST_VERSION, np.uint32))
