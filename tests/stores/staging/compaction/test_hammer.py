"""Writers at full speed while a branch is compacted, committed, refused and swept: no set and no deletion is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from random import Random

from compaction.exceptions import (
    ConditionFailedError,
    HookRefusedError,
    NoChangesError,
    StaleTokenError,
    TooManyTriesError,
    WorkOutdatedError,
)
from compaction.stores.staging.compaction.claims import claim, swap_base
from compaction.stores.staging.compaction.rewriting import rewrite
from compaction.stores.staging.compaction.work import work_on
from compaction.stores.staging.flows.committing import Committer, Proposal
from compaction.stores.staging.flows.writing import Condition
from compaction.stores.staging.sweep.tokens import sweep_tokens
from support.depth import at_depth
from support.stores.staging_repos import DRAFT, StagingRepo, framed

WRITERS = 4
WRITES = at_depth(short=400, deep=1_000_000)
KEYS = 40
"""Of each writer; no two writers have one in common, so each knows what its own must show."""
GRACE = 2.0
"""Seconds: longer than a page of a scan takes here."""


class Hammer:
    """Threads on one branch. `ended` stops those that go on until the writers are done."""

    def __init__(self, repo: StagingRepo) -> None:
        self.repo = repo
        repo.use(replace(repo.area, clock=time.time, sleep=time.sleep))
        self.ended = threading.Event()
        self.compactions = self.commits = self.dropped = 0

    def write(self, number: int) -> dict[str, str]:
        """Sets, deletions and conditional writes of one writer, each read back; what its keys must show."""
        random = Random(number)
        mine: dict[str, str] = {}
        for turn in range(WRITES // WRITERS):
            key = f"{number}/{random.randrange(KEYS):02}"
            text = f"{number}.{turn}"
            before = dict(mine)
            try:
                match random.randrange(10):
                    case 0 | 1 | 2 | 3:
                        mine.pop(key, None)
                        self.repo.delete(key)
                    case 4:
                        self._set_if_absent(key, text, mine)
                    case _:
                        mine[key] = text
                        self.repo.set(key, text)
            except TooManyTriesError:
                # It may be there or not, so it is written again until it is known.
                mine = before
                self._certainly(lambda key=key, text=text: self.repo.set(key, text))  # type: ignore[misc]
                mine[key] = text
            if turn % 7 == 0:
                assert self.repo.get(key) == mine.get(key), f"{key} after {text}"
        return mine

    def _set_if_absent(self, key: str, text: str, mine: dict[str, str]) -> None:
        try:
            self.repo.writer.set_if("main", key.encode(), framed(text), Condition(None))
        except ConditionFailedError:
            assert key in mine, f"{key}: no other writer has it"
        else:
            assert key not in mine, f"{key}: the branch showed it as absent"
            mine[key] = text

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


def test_nothing_is_lost(repo: StagingRepo) -> None:
    hammer = Hammer(repo)
    with ThreadPoolExecutor(WRITERS + 3) as pool:
        others = [pool.submit(act) for act in (hammer.compact, hammer.commit, hammer.sweep)]
        try:
            writers = [pool.submit(hammer.write, number) for number in range(WRITERS)]
            expected: dict[str, str] = {}
            for writer in writers:
                expected |= writer.result()
        finally:
            hammer.ended.set()
        for other in others:
            other.result()
    assert repo.shown() == dict(sorted(expected.items()))
    assert hammer.compactions > 0
    assert hammer.commits > 0
