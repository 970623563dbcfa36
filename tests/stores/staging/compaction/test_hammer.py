"""Writers at full speed while a branch is compacted, committed, refused and swept: no set and no deletion is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest

from compaction.errors import StaleTokenError
from compaction.staging.compaction import claim, rewrite, swap_base, work_on
from compaction.staging.errors import (
    ConditionFailedError,
    HookRefusedError,
    NoChangesError,
    TooManyTriesError,
    WorkOutdatedError,
)
from compaction.staging.flows.committing import Committer, Proposal
from compaction.staging.flows.writing import WriteCondition
from compaction.staging.sweep import sweep_tokens
from support.depth import at_depth
from support.stores.staging_repos import DRAFT, StagingRepo, framed

WRITERS = 4
WRITES = at_depth(short=1600, deep=1_000_000)
"""Sets and deletions that are acknowledged, each key of a batch by itself."""
KEYS = 40
"""Of each writer; no two writers have one in common, so each knows what its own must show."""
BATCH = at_depth(short=10, deep=40)
"""Keys of the largest batch."""
GRACE = 2.0
"""Seconds: longer than a page of a scan takes here."""


@dataclass
class Acknowledged:
    """What one writer was told is written: how much of each, and what its keys must show."""

    sets: int = 0
    deletions: int = 0
    shown: dict[str, str] = field(default_factory=dict)

    def set(self, keys: Iterable[str], text: str) -> None:
        """These keys show the text."""
        for key in keys:
            self.shown[key] = text
            self.sets += 1

    def delete(self, keys: Iterable[str]) -> None:
        """These keys show nothing."""
        for key in keys:
            self.shown.pop(key, None)
            self.deletions += 1

    @property
    def writes(self) -> int:
        return self.sets + self.deletions


class Hammer:
    """Threads on one branch. `ended` stops those that go on until the writers are done."""

    def __init__(self, repo: StagingRepo) -> None:
        self.repo = repo
        repo.use(replace(repo.area, clock=time.time, sleep=time.sleep))
        self.ended = threading.Event()
        self.compactions = self.commits = self.dropped = 0

    def write(self, number: int) -> Acknowledged:
        """Sets, deletions and conditional writes of one writer, single ones and batches, each read back at times."""
        random = Random(number)
        mine = Acknowledged()
        for turn in count():
            if mine.writes >= WRITES // WRITERS or self.ended.is_set():
                return mine
            amount = random.choice((1, random.randint(1, BATCH)))
            keys = [f"{number}/{at:03}" for at in random.sample(range(KEYS), amount)]
            text = f"{number}.{turn}"
            try:
                match random.randrange(10):
                    case 0 | 1 | 2 | 3:
                        self.repo.writer.delete_many("main", [key.encode() for key in keys])
                        mine.delete(keys)
                    case 4:
                        self._set_if_absent(keys[0], text, mine)
                    case _:
                        self._set(keys, text)
                        mine.set(keys, text)
            except TooManyTriesError:
                # It may be there or not, so it is written again until it is known.
                self._certainly(lambda keys=keys, text=text: self._set(keys, text))  # type: ignore[misc]
                mine.set(keys, text)
            if turn % 7 == 0:
                assert self.repo.get(keys[0]) == mine.shown.get(keys[0]), f"{keys[0]} after {text}"
        raise AssertionError("unreachable")

    def _set(self, keys: list[str], text: str) -> None:
        self.repo.writer.set_many("main", [(key.encode(), framed(text)) for key in keys])

    def _set_if_absent(self, key: str, text: str, mine: Acknowledged) -> None:
        try:
            self.repo.writer.set_if("main", key.encode(), framed(text), WriteCondition(None))
        except ConditionFailedError:
            assert key in mine.shown, f"{key}: no other writer has it"
        else:
            assert key not in mine.shown, f"{key}: the branch showed it as absent"
            mine.set([key], text)

    def _certainly(self, act: Callable[[], object]) -> None:
        while True:
            try:
                act()
            except TooManyTriesError:
                continue
            return

    def compact(self) -> None:
        area = self.repo.area
        for number in count():
            if self.ended.wait(0.05):
                return
            record = area.branches.get("main").record
            work = work_on("example", record, staged=area.tokens.has_rows(record.staging_token))
            if not work.tokens:
                continue
            try:
                claim(area, work, job=f"job-{number}", token=1)
                swap_base(area, work, rewrite(area, work).tree, job=f"job-{number}", token=1)
                self.compactions += 1
            except (WorkOutdatedError, StaleTokenError, TooManyTriesError):
                continue

    def commit(self) -> None:
        def refuse(proposal: Proposal) -> None:
            raise HookRefusedError(proposal.branch, "every other one")

        refusing = Committer(self.repo.area, hooks=(refuse,))
        for number in count():
            if self.ended.wait(0.2):
                return
            try:
                (refusing if number % 2 else self.repo.committer).commit("main", DRAFT)
                self.commits += 1
            except (NoChangesError, HookRefusedError, TooManyTriesError):
                continue

    def sweep(self) -> None:
        while not self.ended.wait(0.5):
            self.dropped += sweep_tokens(self.repo.area, grace=GRACE).tokens


@pytest.mark.timeout(at_depth(short=300, deep=7200))
def test_nothing_is_lost(repo: StagingRepo) -> None:
    hammer = Hammer(repo)
    with ThreadPoolExecutor(WRITERS + 3) as pool:
        others = [pool.submit(act) for act in (hammer.compact, hammer.commit, hammer.sweep)]
        try:
            writers = [pool.submit(hammer.write, number) for number in range(WRITERS)]
            told = [writer.result() for writer in as_completed(writers)]
        finally:
            hammer.ended.set()
        for other in others:
            other.result()
    expected: dict[str, str | None] = {}
    for item in told:
        expected |= item.shown
    assert repo.shown() == dict(sorted(expected.items()))
    assert hammer.compactions > 0
    assert hammer.commits > 0
    assert sum(item.writes for item in told) >= WRITES
    print(
        f"{sum(item.sets for item in told):,} sets, {sum(item.deletions for item in told):,} deletions acknowledged, "
        f"{hammer.compactions} compactions, {hammer.commits} commits, {hammer.dropped} tokens swept"
    )
