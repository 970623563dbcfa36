"""Random histories of a branch against a model: writers, commits, resets, compactions and sweeps in any order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.errors import StaleTokenError
from compaction.staging import compaction
from compaction.staging.compaction import BranchWork, Rewritten, claim, rewrite, swap_base, work_on
from compaction.staging.errors import (
    ConditionFailedError,
    HookRefusedError,
    NoChangesError,
    RewriteProofError,
    TooManyTriesError,
    UncommittedChangesError,
    WorkOutdatedError,
)
from compaction.staging.flows.committing import Committer, Proposal
from compaction.staging.flows.writing import WriteCondition
from compaction.staging.format.columns import RecordColumns
from compaction.staging.kv.sql import open_key_value_store
from compaction.staging.staged.rows import new_token
from compaction.staging.sweep import sweep_objects, sweep_tokens
from compaction.staging.tree.applying import apply
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.staging.staging_repos import DRAFT, SMALL_RANGES, StagingRepo, differences, framed
from support.timing import at_depth, examples

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "b/1", "c"])
TEXTS = st.sampled_from(["1", "2", "3", "1#copied"])
GRACE = 100.0


class History(RuleBasedStateMachine):
    """`shown` and `head`: what the branch and its commit must show."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        place = Path(self._folder.name)
        self.kv = open_key_value_store(f"sqlite:///{place}/kv.db")
        self.kv.migrate()
        self.repo = StagingRepo(self.kv, RangeStorage(open_objects(str(place / "objects")), rule=SMALL_RANGES))
        self.shown: dict[str, str | None] = {}
        self.head: dict[str, str | None] = {}
        self.jobs = 0
        self.open: tuple[BranchWork, str, Rewritten] | None = None

    def teardown(self) -> None:
        self.repo.close()
        self.kv.close()
        self._folder.cleanup()

    @rule(key=KEYS, text=TEXTS)
    def set(self, key: str, text: str) -> None:
        self.repo.set(key, text)
        self.shown[key] = text

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.repo.delete(key)
        self.shown.pop(key, None)

    @rule()
    def seal(self) -> None:
        branch = self.repo.area.branches.get("main")
        self.repo.area.branches.swap(branch, branch.record.sealed(new_token("example", "main")))

    @rule()
    def commit(self) -> None:
        try:
            self.repo.committer.commit("main", DRAFT)
        except NoChangesError:
            assert differences(self.head, self.shown) == {}
            return
        assert differences(self.head, self.shown) != {}
        self.head = self.repo.shown("main@")
        # A record that was staged as it is may stay as it was: its identity is the same.
        assert differences(self.head, self.shown) == {}
        self.shown = dict(self.head)

    @rule()
    def reset(self) -> None:
        self.repo.resetter.reset("main")
        self.shown = dict(self.head)

    @rule(key=KEYS)
    def reset_key(self, key: str) -> None:
        self.repo.resetter.reset_key("main", key.encode())
        self._restore(lambda item: item == key)

    @rule(prefix=st.sampled_from(["a", "a/", "b", "z"]))
    def reset_prefix(self, prefix: str) -> None:
        different = differences(self.head, self.shown)
        self.repo.resetter.reset_prefix("main", prefix.encode())
        # Records that differ in what their identity leaves out are no changes, and stay.
        self._restore(lambda item: item.startswith(prefix) and item in different)

    @rule()
    def hard_reset(self) -> None:
        try:
            self.repo.merger.hard_reset("main", "main@")
        except UncommittedChangesError:
            assert differences(self.head, self.shown) != {}
            return
        # What was staged after the last seal stays above the commit, with the same identities.
        self.shown = self.repo.shown()
        assert differences(self.head, self.shown) == {}

    @precondition(lambda self: self.open is None)
    @rule()
    def start_compaction(self) -> None:
        area = self.repo.area
        record = area.branches.get("main").record
        work = work_on("example", record, staged=area.tokens.has_rows(record.staging_token))
        if work.tokens:
            self.jobs += 1
            claim(area, work, job=f"job-{self.jobs}", token=1)
            self.open = work, f"job-{self.jobs}", rewrite(area, work)

    @precondition(lambda self: self.open is not None)
    @rule(zombie=st.booleans())
    def end_compaction(self, zombie: bool) -> None:
        assert self.open is not None
        (work, job, done), self.open = self.open, None
        try:
            swap_base(self.repo.area, work, done.tree, job=job, token=2 if zombie else 1)
        except StaleTokenError:
            assert zombie
        except WorkOutdatedError:
            assert not work.is_sealed_in(self.repo.area.branches.get("main").record)

    @rule(seconds=st.sampled_from([1.0, GRACE + 1]))
    def sweep(self, seconds: float) -> None:
        self.repo.clock.now += seconds
        sweep_tokens(self.repo.area, grace=GRACE)
        if self.open is None:
            # Objects carry the time of the machine, so every one is older than this: what nothing reaches goes.
            sweep_objects(self.repo.area, grace=-1e12)

    @invariant()
    def the_branch_shows_the_model(self) -> None:
        assert self.repo.shown() == dict(sorted(self.shown.items()))
        assert self.repo.uncommitted() == differences(self.head, self.shown)
        assert self.repo.shown("main@") == self.head
        for key in ("a", "a/1", "c"):
            assert self.repo.get(key) == self.shown.get(key)

    def _restore(self, chosen: Callable[[str], bool]) -> None:
        for key in {*self.shown, *self.head}:
            if chosen(key):
                self.shown.pop(key, None)
                if key in self.head:
                    self.shown[key] = self.head[key]


TestHistories = History.TestCase
TestHistories.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)


# The rewrite of a branch in one process proves what it has written before anybody can name it.

HEAD = {f"k/{number}": "1" for number in range(9)}


def test_the_tree_shows_what_the_tokens_show_over_the_base(repo: StagingRepo) -> None:
    record = repo.put(HEAD, base={"a": "1", "b": "1"}, sealed=[{"a": None}, {"a": "2", "c": "1"}], staging={"b": "1#x"})
    done = rewrite(repo.area, work_on("example", record, staged=True))
    found = [pair for batch in repo.area.ranges.records(done.tree) for pair in batch.pairs()]
    assert found == [(b"b", framed("1#x")), (b"c", framed("1"))]
    assert done.fingerprint_before == done.fingerprint_after
    assert done.fingerprint_before.startswith("2:")


def test_a_tree_that_shows_something_else_is_no_result(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a writer of trees that loses changes: the proof does not go by its code."""
    record = repo.put(HEAD, staging={"k/1": "2", "k/2": None})

    def losing(ranges: RangeStorage, base: str, changes: Any, **options: Any) -> Any:
        kept = RecordColumns.of([pair for batch in changes for pair in batch.pairs()][:-1])
        return apply(ranges, base, [kept], **options)

    monkeypatch.setattr(compaction, "apply", losing)
    with pytest.raises(RewriteProofError, match=r"read back as 9:.*, the branch shows 8:"):
        rewrite(repo.area, work_on("example", record, staged=True))
    assert repo.area.branches.get("main").record == record


def test_a_metarange_with_another_id_is_no_result(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    record = repo.put(HEAD, staging={"k/1": "2"})
    monkeypatch.setattr(RangeStorage, "content_id", lambda *_: "0" * 64)
    with pytest.raises(RewriteProofError, match="0" * 64):
        rewrite(repo.area, work_on("example", record, staged=True))


# Writers at full speed while a branch is compacted, committed, refused and swept: no set and no deletion is lost.

WRITERS = 4
WRITES = at_depth(short=1600, deep=1_000_000)
"""Sets and deletions that are acknowledged, each key of a batch by itself."""
HAMMERED = 40
"""Of each writer; no two writers have one in common, so each knows what its own must show."""
BATCH = at_depth(short=10, deep=40)
"""Keys of the largest batch."""
SHORT_GRACE = 2.0
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
            keys = [f"{number}/{at:03}" for at in random.sample(range(HAMMERED), amount)]
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
            self.dropped += sweep_tokens(self.repo.area, grace=SHORT_GRACE).tokens


@pytest.mark.timeout(at_depth(short=1800, deep=7200))
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
