"""The index of a block store as plain dictionaries: what each call must do, without any database.

It knows no reasons and no messages, only whether a call is allowed and what it changes. Every call of the model returns
whether it was allowed; one that was not has changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from compaction.blocks.model import Block, RowFingerprint


@dataclass
class Known:
    """A block: its state, its place in the queue (None: in none), the job that claims it."""

    block: Block
    state: str = "live"
    place: int | None = None
    job: str | None = None
    quarantined: bool = False
    ended: int = 0
    """The step that buried it."""


@dataclass
class Job:
    state: str
    token: int
    sources: frozenset[str]
    tenant: str
    level: int
    step: int
    committed: tuple[object, ...] = ()


@dataclass
class Model:
    """`step` counts calls, `places` the places given in the queue, `lost` what expired or was dropped."""

    blocks: dict[str, Known] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    condemned: dict[str, int | None] = field(default_factory=dict)
    floor: int = 0
    step: int = 0
    places: int = 0
    entered: RowFingerprint = field(default_factory=RowFingerprint)
    lost: RowFingerprint = field(default_factory=RowFingerprint)

    def live(self) -> list[Block]:
        return sorted((k.block for k in self.blocks.values() if k.state == "live"), key=lambda block: block.id)

    def queue(self) -> list[tuple[str, str | None]]:
        waiting = [known for known in self.blocks.values() if known.place is not None]
        return [(known.block.id, known.job) for known in sorted(waiting, key=lambda known: known.place or 0)]

    def high_water(self, job: str) -> int:
        return max(self.floor, self.jobs[job].token if job in self.jobs else 0)

    def used_paths(self) -> set[str]:
        return {known.block.path for known in self.blocks.values() if known.state != "deleted"}

    def _enter(self, block: Block) -> None:
        self.places += 1
        self.blocks[block.id] = Known(block, place=self.places)

    def _bury(self, block_id: str, *, lost: bool) -> None:
        known = self.blocks[block_id]
        known.state, known.place, known.job, known.quarantined = "tombstoned", None, None, False
        known.ended = self.step
        if lost:
            self.lost += known.block.fingerprint

    def register(self, blocks: Sequence[Block]) -> bool:
        for block in blocks:
            known = self.blocks.get(block.id)
            if known is not None and known.block != block:
                return False
            if known is None and block.path in self.condemned:
                return False
        for block in blocks:
            if block.id not in self.blocks:
                self._enter(block)
                self.entered += block.fingerprint
        return True

    def claim(self, job: str, token: int, sources: Collection[str]) -> bool:
        before = self.jobs.get(job)
        if token <= self.high_water(job) or (before is not None and before.state == "committed"):
            return False
        blocks = [self.blocks.get(source) for source in sources]
        for known in blocks:
            if known is None or known.state != "live" or known.quarantined or known.job not in {None, job}:
                return False
        keys = {known.block.key for known in blocks if known is not None}
        if len(keys) != 1:
            return False
        self._release(job)
        (key,) = keys
        for source in sources:
            self.blocks[source].job = job
        self.jobs[job] = Job("claimed", token, frozenset(sources), key.tenant, key.level + 1, self.step)
        return True

    def _release(self, job: str) -> None:
        for known in self.blocks.values():
            if known.job == job:
                known.job = None

    def retire(self, job: str) -> None:
        if job in self.jobs and self.jobs[job].state == "claimed":
            self.jobs[job].state = "retired"
            self._release(job)

    def replace(
        self, name: str, token: int, sources: Sequence[str], skipped: Collection[str], outputs: Sequence[Block]
    ) -> bool:
        job = self.jobs.get(name)
        arguments = (token, frozenset(sources), frozenset(skipped), tuple(outputs))
        if job is not None and job.state == "committed" and job.committed == arguments:
            return True
        if job is None or job.state != "claimed" or job.token != token:
            return False
        if set(sources) | set(skipped) != job.sources or set(sources) & set(skipped):
            return False
        for source in sources:
            known = self.blocks.get(source)
            if known is None or known.state != "live" or known.job != name:
                return False
        for output in outputs:
            gone = self.condemned.get(output.path, -1)
            if output.id in self.blocks or output.key != (job.tenant, 0, job.level) or gone is None or gone > job.step:
                return False
        before = reduce(add, (self.blocks[source].block.fingerprint for source in sources), RowFingerprint())
        if before != reduce(add, (output.fingerprint for output in outputs), RowFingerprint()):
            return False
        for source in sources:
            self._bury(source, lost=False)
        for block_id in skipped:
            self.quarantine(block_id)
        self._release(name)
        for output in sorted(outputs, key=lambda block: block.id):
            self.condemned.pop(output.path, None)
            self._enter(output)
        job.state, job.committed = "committed", arguments
        return True

    def quarantine(self, block_id: str) -> bool:
        known = self.blocks.get(block_id)
        if known is None or known.state != "live":
            return False
        known.quarantined, known.place = True, None
        return True

    def release(self, block_id: str) -> bool:
        known = self.blocks.get(block_id)
        if known is None or known.state != "live":
            return False
        if known.quarantined:
            self.places += 1
            known.quarantined, known.place = False, self.places
        return True

    def drop(self, block_id: str) -> bool:
        known = self.blocks.get(block_id)
        if known is None or (known.state == "live" and not known.quarantined):
            return False
        if known.state == "live":
            self._bury(block_id, lost=True)
        return True

    def expire(self, tenant: str) -> set[str]:
        gone = {i for i, known in self.blocks.items() if known.state == "live" and known.block.tenant == tenant}
        for block_id in gone:
            self._bury(block_id, lost=True)
        return gone

    def tombstones(self) -> set[str]:
        return {i for i, known in self.blocks.items() if known.state == "tombstoned"}

    def deletable(self) -> set[str]:
        """Tombstones that no earlier one of a lower level, of the same tenant, stands before."""
        standing = [known for known in self.blocks.values() if known.state == "tombstoned"]
        return {
            item.block.id
            for item in standing
            if not any(
                other.block.tenant == item.block.tenant
                and other.block.level < item.block.level
                and other.ended < item.ended
                for other in standing
            )
        }

    def confirm(self, ids: Collection[str]) -> None:
        for block_id in self.tombstones() & set(ids):
            self.blocks[block_id].state = "deleted"

    def forget(self) -> None:
        self.blocks = {i: known for i, known in self.blocks.items() if known.state != "deleted"}
        closed = {name: job for name, job in self.jobs.items() if job.state != "claimed"}
        self.floor = max([self.floor, *(job.token for job in closed.values())])
        self.jobs = {name: job for name, job in self.jobs.items() if name not in closed}
        oldest = min((job.step for job in self.jobs.values()), default=self.step)
        self.condemned = {path: gone for path, gone in self.condemned.items() if gone is None or gone >= oldest}

    def condemn(self, paths: Collection[str]) -> set[str]:
        orphans = set(paths) - self.used_paths()
        self.condemned.update(dict.fromkeys(orphans))
        return orphans

    def confirm_gone(self, paths: Collection[str]) -> None:
        for path in paths:
            if path in self.condemned and self.condemned[path] is None:
                self.condemned[path] = self.step
