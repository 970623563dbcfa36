"""Cleanup: only what nothing uses, only after the grace, and never what a writer is about to use."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from compaction.staging import sweep
from compaction.staging.compaction import claim, retire, rewrite, swap_base, work_on
from compaction.staging.errors import MissingRangeError, RowMissingError, UncommittedChangesError
from compaction.staging.flows.area import mark, marked_objects, pin, pinned, unmark
from compaction.staging.flows.branching import DROPPING, journalled
from compaction.staging.flows.reading import effective, view_of
from compaction.staging.flows.writing import WriteCondition
from compaction.staging.format.columns import concatenated
from compaction.staging.format.identity import split_value
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import Branch, Branches
from compaction.staging.refs.commits import Commits
from compaction.staging.sweep import CLOCKS_DIFFER, SweptTokens, reachable, sweep_objects, sweep_tokens
from compaction.staging.tree.storage import RangeStorage
from support.faults.store_faults import Aging
from support.staging.staging_repos import DRAFT, StagingRepo, framed

GRACE = 100.0
ALL_OLD = -1e12
"""A grace for objects, whose age the machine's clock says: each of them is older."""
NONE_OLD = 1e12


def compact(repo: StagingRepo, job: str = "job") -> None:
    record = repo.area.branches.get("main").record
    work = work_on("example", record, staged=repo.area.tokens.has_rows(record.staging_token))
    claim(repo.area, work, job=job, token=1)
    swap_base(repo.area, work, rewrite(repo.area, work).tree, job=job, token=1)


def names_of(repo: StagingRepo, tree: str) -> list[str]:
    """All its objects."""
    return [tree, *(item.id for item in repo.area.ranges.ranges(tree))]


@pytest.mark.parametrize("lost", ["branch", "commit", "parent"])
def test_a_row_that_must_be_there_stops_the_sweep(repo: StagingRepo, lost: str) -> None:
    """A key-value store that lost rows, or an empty one, leads to nothing: that makes garbage of nothing."""
    for name in ("a", "b"):
        repo.set(name, "1")
        repo.committer.commit("main", DRAFT)
    head = repo.area.branches.get("main").record.commit_id
    parent = repo.area.commits.get(head).parents[0]
    key = {"branch": "branches/main", "commit": f"commits/{head}", "parent": f"commits/{parent}"}[lost]
    stored = {item.path for item in repo.area.ranges.stored()}
    repo.area.kv.delete(repo.area.repository.partition, key.encode())
    with pytest.raises(RowMissingError, match="is missing, so no object is known to be garbage"):
        sweep_objects(repo.area, grace=ALL_OLD)
    assert {item.path for item in repo.area.ranges.stored()} == stored


def test_a_commit_that_a_listing_has_passed_by_is_there(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commits are made while commits are listed by id: the parent's place was passed, the child's not yet."""
    for name in ("a", "b", "c"):
        repo.set(name, "1")
        repo.committer.commit("main", DRAFT)
    head = repo.area.commits.get(repo.area.branches.get("main").record.commit_id)
    passed = {head.parents[0], repo.area.commits.get(head.parents[0]).parents[0]}
    every = list(repo.area.commits.every())
    monkeypatch.setattr(Commits, "every", lambda _: (item for item in every if item.id not in passed))
    assert {item.meta_range_id for item in every} - {""} <= reachable(repo.area)
    sweep_objects(repo.area, grace=ALL_OLD)
    assert {item.meta_range_id for item in every} - {""} <= {Path(item.path).name for item in repo.area.ranges.stored()}


class TestTokens:
    def test_dropped_after_the_grace(self, repo: StagingRepo) -> None:
        repo.set("a", "1")
        token = repo.area.branches.get("main").record.staging_token
        repo.committer.commit("main", DRAFT)
        assert sweep_tokens(repo.area, grace=GRACE) == SweptTokens(0, 0, GRACE)
        repo.clock.now += GRACE / 2
        assert sweep_tokens(repo.area, grace=GRACE) == SweptTokens(0, 0, GRACE / 2)
        assert repo.area.tokens.has_rows(token)
        repo.clock.now += GRACE / 2
        assert sweep_tokens(repo.area, grace=GRACE) == SweptTokens(1, 1, None)
        assert not repo.area.tokens.has_rows(token)
        assert list(journalled(repo.area.kv)) == []

    def test_one_in_use_stays_in_the_journal(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        """A swap was lost after its tokens were journalled."""
        repo.put({}, sealed=[{"a": "1"}])
        monkeypatch.setattr(type(repo.area.branches), "swap", _killed)
        with pytest.raises(KeyboardInterrupt):
            repo.committer.commit("main", DRAFT)
        monkeypatch.undo()
        for _ in range(3):
            repo.clock.now += 2 * GRACE
            assert sweep_tokens(repo.area, grace=GRACE) == SweptTokens(0, 0, None)
        assert (repo.shown(), len(list(journalled(repo.area.kv)))) == ({"a": "1"}, 1)

    def test_a_reset_that_takes_longer_than_the_grace(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sweep drops the token that takes changes back before the branch has it: the reset is repeated."""
        repo.put({"a": "1", "b": "1"}, staging={"a": "2", "b": "2"})
        swap = type(repo.area.branches).swap
        done: list[bool] = []

        def sweep_first(self: Any, branch: Any, record: Any) -> Any:
            if not done:
                done.append(True)
                sweep_tokens(repo.area, grace=GRACE)
                repo.clock.now += GRACE + 1
                # Killed before the row of the journal goes: the mark is there, the rows are not.
                with monkeypatch.context() as patched:
                    patched.setattr(repo.area.kv, "delete", _killed)
                    with pytest.raises(KeyboardInterrupt):
                        sweep_tokens(repo.area, grace=GRACE)
            return swap(self, branch, record)

        monkeypatch.setattr(type(repo.area.branches), "swap", sweep_first)
        repo.resetter.reset_prefix("main", b"a")
        assert repo.shown() == {"a": "1", "b": "2"}

    def test_a_token_that_a_branch_gets_at_the_last_moment(
        self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reset swaps its token in after the sweep has read the branches, and looks for the mark before it is there:
        the sweep reads the branches once more.
        """
        repo.put({"a": "1"}, staging={"a": "2"})
        swap, note = type(repo.area.branches).swap, sweep._note
        done: list[object] = []

        def sweep_first(self: Any, branch: Any, record: Any) -> Any:
            if done:
                return swap(self, branch, record)
            done.append(True)
            sweep_tokens(repo.area, grace=GRACE)
            repo.clock.now += GRACE + 1

            def swapped_before_the_mark(area: Any, row: Any, since: int) -> bool:
                if since == DROPPING:
                    done.append(swap(self, branch, record))
                return note(area, row, since)

            with monkeypatch.context() as patched:
                patched.setattr(sweep, "_note", swapped_before_the_mark)
                assert sweep_tokens(repo.area, grace=GRACE).rows == 0
            return done[1]

        monkeypatch.setattr(type(repo.area.branches), "swap", sweep_first)
        repo.resetter.reset_prefix("main", b"a")
        assert len(done) == 2
        assert repo.shown() == {"a": "1"}

    def test_the_grace_runs_from_when_a_sweep_saw_it(self, repo: StagingRepo) -> None:
        """A reader may have begun just before: that the journal has had the token for long says nothing."""
        repo.set("a", "1")
        repo.committer.commit("main", DRAFT)
        repo.clock.now += 10 * GRACE
        assert sweep_tokens(repo.area, grace=GRACE) == SweptTokens(0, 0, GRACE)

    def test_of_other_repositories_nothing_is_touched(self, repo: StagingRepo) -> None:
        with closing(StagingRepo(repo.area.kv, repo.area.ranges, name="another")) as other:
            other.set("a", "1")
            other.committer.commit("main", DRAFT)
        repo.clock.now += 10 * GRACE
        assert sweep_tokens(repo.area, grace=0) == SweptTokens(0, 0, None)
        assert len(list(journalled(repo.area.kv))) == 1


@pytest.mark.parametrize("call", ["delete_many", "delete"])
def test_a_deletion_that_ends_half_way_goes_on(repo: StagingRepo, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The journal has the token until nothing of it is left."""
    repo.set("a", "1")
    token = repo.area.branches.get("main").record.staging_token
    repo.area.counters.flush()
    repo.committer.commit("main", DRAFT)
    sweep_tokens(repo.area, grace=GRACE)
    repo.clock.now += GRACE + 1
    with monkeypatch.context() as patched:
        patched.setattr(repo.area.kv, call, _killed)
        with pytest.raises(KeyboardInterrupt):
            sweep_tokens(repo.area, grace=GRACE)
    assert [item.token for item in journalled(repo.area.kv)] == [token]
    assert sweep_tokens(repo.area, grace=GRACE).tokens == 1
    assert not repo.area.tokens.has_rows(token)
    assert (list(journalled(repo.area.kv)), repo.area.counters.read([token])) == ([], {})


class TestObjects:
    def test_only_what_no_tree_has(self, repo: StagingRepo) -> None:
        repo.put({f"k{n}": "1" for n in range(9)}, staging={"k1": "2"})
        compact(repo)
        orphan = repo.tree({"x": "1", "y": "2"})
        before = {item.path for item in repo.area.ranges.stored()}
        gone = set(names_of(repo, orphan))
        swept = sweep_objects(repo.area, grace=ALL_OLD)
        assert swept.objects == len(gone)
        assert {item.path for item in repo.area.ranges.stored()} == before - gone
        assert repo.shown() == {f"k{n}": "2" if n == 1 else "1" for n in range(9)}
        assert sweep_objects(repo.area, grace=ALL_OLD).objects == 0

    def test_not_before_the_grace(self, repo: StagingRepo) -> None:
        repo.clock.now = time.time() + 50
        repo.tree({"x": "1"})
        swept = sweep_objects(repo.area, grace=GRACE)
        assert (swept.objects, swept.unreached) == (0, 2)
        repo.clock.now += GRACE
        assert sweep_objects(repo.area, grace=GRACE).objects == 2

    @pytest.mark.parametrize("ends", ["retired", "committed", "reset"])
    def test_what_a_standing_claim_has_written(self, repo: StagingRepo, age: Aging, ends: str) -> None:
        """However long the job takes; afterwards it is garbage like any other."""
        repo.clock.now = time.time()  # objects carry the time of the machine
        older = repo.tree({"x": "1"})
        age(repo.area.ranges.objects, repo.area.ranges.path(older), 2 * CLOCKS_DIFFER)
        repo.put({"a": "1"}, sealed=[{"b": "2"}])
        record = repo.area.branches.get("main").record
        work = work_on("example", record, staged=False)
        claim(repo.area, work, job="job", token=1)
        done = rewrite(repo.area, work).tree
        repo.clock.now += 100 * GRACE
        sweep_objects(repo.area, grace=GRACE)
        assert (repo.area.ranges.exists(done), repo.area.ranges.exists(older)) == (True, False)
        if ends == "retired":
            retire(repo.area, "main", "job")
        elif ends == "committed":
            repo.committer.commit("main", DRAFT)
            repo.set("c", "3")
            repo.committer.commit("main", DRAFT)
        else:
            repo.resetter.reset("main")
        shown = repo.shown()
        sweep_objects(repo.area, grace=GRACE)
        assert (repo.area.ranges.exists(done), repo.shown()) == (ends == "committed", shown)

    def test_older_commits_keep_theirs(self, repo: StagingRepo) -> None:
        for text in ("1", "2", "3"):
            repo.set("a", text)
            repo.committer.commit("main", DRAFT)
        repo.brancher.create("gone", "main")
        repo.set("b", "1", "gone")
        lost = repo.committer.commit("gone", DRAFT)
        repo.brancher.delete("gone")
        sweep_objects(repo.area, grace=ALL_OLD)
        assert [repo.get("a", f"main~{n}") for n in range(3)] == ["3", "2", "1"]
        assert repo.get("b", lost.id) == "1"

    def test_a_tree_that_cannot_be_read_stops_it(self, repo: StagingRepo) -> None:
        repo.put({"a": "1"})
        orphan = repo.tree({"x": "1"})
        head = repo.area.references.commit("main").meta_range_id
        repo.area.ranges.delete([head])
        with pytest.raises(MissingRangeError):
            sweep_objects(repo.area, grace=ALL_OLD)
        assert repo.area.ranges.exists(orphan)

    def test_a_writer_that_writes_what_is_being_deleted(
        self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sweep has marked an orphan; a commit makes the same tree: it waits, and writes it again."""
        orphan = repo.tree({"x": "1"})
        names = names_of(repo, orphan)
        mark(repo.area.kv, repo.area.repository.partition, names)
        repo.set("x", "1")
        pauses = []

        def sweep_goes_on(seconds: float) -> None:
            pauses.append(seconds)
            repo.area.ranges.delete(names)
            unmark(repo.area.kv, repo.area.repository.partition, names)

        object.__setattr__(repo.area, "sleep", sweep_goes_on)
        repo.committer.commit("main", DRAFT)
        assert len(pauses) == 1
        assert RangeStorage(repo.area.ranges.objects).get(orphan, b"x") is not None
        assert repo.get("x", "main@") == "1"

    def test_a_sweep_that_meets_a_writer(self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch) -> None:
        """It was written again between the listing and the mark: it is young."""
        orphan = repo.tree({"x": "1"})
        monkeypatch.setattr(type(repo.area.ranges), "modified", lambda self, name: None)
        assert sweep_objects(repo.area, grace=ALL_OLD).objects == 0
        assert repo.area.ranges.exists(orphan)
        assert marked_objects(repo.area.kv, repo.area.repository.partition) == frozenset()

    def test_a_pinned_tree(self, repo: StagingRepo) -> None:
        orphan = repo.tree({"x": "1"})
        with pin(repo.area, orphan):
            assert sweep_objects(repo.area, grace=ALL_OLD).objects == 0
            repo.clock.now += 86_401
            assert pinned(repo.area) == frozenset()
        assert sweep_objects(repo.area, grace=ALL_OLD).objects == 2

    def test_a_tree_that_is_pinned_while_the_sweep_runs(
        self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A flow that pins before the marks are there sees none: the sweep looks for pins after it has marked."""
        orphan = repo.tree({"x": "1"})
        with ExitStack() as flow:

            def pinned_first(kv: KeyValueStore, partition: str, identifiers: list[str]) -> None:
                flow.enter_context(pin(repo.area, orphan))
                mark(kv, partition, identifiers)

            monkeypatch.setattr(sweep, "mark", pinned_first)
            assert sweep_objects(repo.area, grace=ALL_OLD).objects == 0
            repo.area.ranges.check(orphan)

    def test_objects_are_marked_for_as_long_as_they_are_being_deleted(
        self, repo: StagingRepo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orphan = repo.tree({"x": "1"})
        names = set(names_of(repo, orphan))
        delete, seen = RangeStorage.delete, []

        def deleted(self: RangeStorage, paths: Any) -> Any:
            seen.append(marked_objects(repo.area.kv, repo.area.repository.partition))
            return delete(self, paths)

        monkeypatch.setattr(RangeStorage, "delete", deleted)
        assert sweep_objects(repo.area, grace=ALL_OLD).objects == 2
        assert seen == [names]
        assert marked_objects(repo.area.kv, repo.area.repository.partition) == frozenset()


def _killed(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


# Who has read a branch, and takes longer than the grace: a compaction swaps its base meanwhile, and the sweep deletes
# the one before. Nothing is lost, so nobody is told to restore anything.


def refused_reset(repo: StagingRepo) -> None:
    with pytest.raises(UncommittedChangesError):
        repo.merger.hard_reset("main", "main")


SHOWN = {"a": "2", "b": "1", "c": "1", "d": "1", "e": "1"}
ACTS: dict[str, tuple[Callable[[StagingRepo], object], dict[str, str]]] = {
    "get": (lambda repo: repo.get("a"), SHOWN),
    "list": (lambda repo: repo.shown(), SHOWN),
    "differences": (lambda repo: repo.uncommitted(), SHOWN),
    "delete": (lambda repo: repo.delete("b"), {key: text for key, text in SHOWN.items() if key != "b"}),
    "write on a condition": (
        lambda repo: repo.writer.set_if("main", b"b", framed("9"), WriteCondition(split_value(framed("1"))[0])),
        SHOWN | {"b": "9"},
    ),
    "reset of a key": (lambda repo: repo.resetter.reset_key("main", b"a"), SHOWN | {"a": "1"}),
    "reset of a prefix": (lambda repo: repo.resetter.reset_prefix("main", b"a"), SHOWN | {"a": "1"}),
    "refusal of a hard reset": (refused_reset, SHOWN),
    "commit": (lambda repo: repo.committer.commit("main", DRAFT), SHOWN),
}


def in_use(repo: StagingRepo) -> str:
    """A branch with changes in its base and in its tokens; returns the base."""
    head = {"a": "1", "b": "1", "c": "1"}
    return repo.put(head, base=head | {"a": "2"}, sealed=[{"d": "1"}], staging={"e": "1"}).compacted_base


def sweep_after_the_grace(repo: StagingRepo, base: str) -> None:
    """Of a base that a branch has lost: its tokens go first."""
    names = names_of(repo, base)
    sweep_tokens(repo.area, grace=GRACE)
    repo.clock.now += GRACE
    sweep_tokens(repo.area, grace=GRACE)
    sweep_objects(repo.area, grace=ALL_OLD)
    for gone in names:
        repo.area.ranges.forget(gone)
    assert not repo.area.ranges.exists(base)


def lose(repo: StagingRepo, base: str) -> None:
    for name in names_of(repo, base):
        repo.area.ranges.delete([name])
        repo.area.ranges.forget(name)


def outrun(repo: StagingRepo, do: Callable[[StagingRepo], object], turn: int) -> bool:
    """Do it, while the branch gets another base behind this look at it; whether there was such a look."""
    base, looks, look = in_use(repo), count(), Branches.get
    with pytest.MonkeyPatch.context() as patched:

        def get(self: Branches, name: str) -> Branch:
            found = look(self, name)
            if next(looks) == turn:
                patched.undo()
                compact(repo, f"job-{turn}")
                sweep_after_the_grace(repo, base)
            return found

        patched.setattr(Branches, "get", get)
        do(repo)
    return next(looks) > turn


@pytest.mark.parametrize("act", ACTS)
def test_what_takes_longer_than_the_grace_begins_again(repo: StagingRepo, act: str) -> None:
    """Whichever of its looks at the branch is the one that is too old."""
    do, expected = ACTS[act]
    for turn in count():
        was_outrun = outrun(repo, do, turn)
        assert repo.shown() == expected
        if not was_outrun:
            assert turn > 0, "it never looked at the branch"
            return


@pytest.mark.parametrize(
    "ends",
    [compact, lambda repo: repo.resetter.reset("main"), lambda repo: repo.committer.commit("main", DRAFT)],
    ids=["compacted", "reset", "committed"],
)
def test_a_base_that_a_branch_has_lost_stays_for_the_grace(
    repo: StagingRepo, ends: Callable[[StagingRepo], object]
) -> None:
    """However old its objects are: who has just read the branch reads on."""
    base = in_use(repo)
    view = view_of(repo.area, repo.area.branches.get("main"))
    ends(repo)
    assert sweep_tokens(repo.area, grace=GRACE).next_in == GRACE
    repo.clock.now += GRACE - 1
    sweep_tokens(repo.area, grace=GRACE)
    sweep_objects(repo.area, grace=ALL_OLD)
    for name in names_of(repo, base):
        repo.area.ranges.forget(name)
    shown = concatenated(list(effective(repo.area, view)))
    assert [key.decode() for key, _ in shown.pairs()] == sorted(SHOWN)
    sweep_after_the_grace(repo, base)


def test_a_damaged_base_that_a_branch_has_lost_stops_no_sweep(repo: StagingRepo) -> None:
    base, orphan = in_use(repo), repo.tree({"x": "1", "y": "2"})
    repo.area.ranges.delete([base])
    repo.area.ranges.forget(base)
    repo.resetter.reset("main")
    sweep_objects(repo.area, grace=ALL_OLD)
    assert not repo.area.ranges.exists(orphan)


@pytest.mark.parametrize("act", ACTS)
def test_what_a_branch_needs_and_has_lost_is_named(repo: StagingRepo, act: str) -> None:
    do, _ = ACTS[act]
    lose(repo, in_use(repo))
    with pytest.raises(MissingRangeError, match="does not exist; restore it"):
        do(repo)
