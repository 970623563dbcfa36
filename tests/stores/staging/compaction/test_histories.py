"""Random histories of a branch against a model: writers, commits, resets, compactions and sweeps in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.errors import StaleTokenError
from compaction.staging.compaction import BranchWork, Rewritten, claim, rewrite, swap_base, work_on
from compaction.staging.errors import NoChangesError, UncommittedChangesError, WorkOutdatedError
from compaction.staging.kv.sql import open_key_value_store
from compaction.staging.staged.rows import new_token
from compaction.staging.sweep import sweep_objects, sweep_tokens
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.depth import examples
from support.stores.staging_repos import DRAFT, SMALL_RANGES, StagingRepo, differences

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
