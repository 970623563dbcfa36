"""Claims and swaps: one job at a time changes a base, with the token it was given last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from compaction.errors import StaleTokenError
from compaction.staging.compaction import (
    BranchWork,
    ClaimedBranch,
    claim,
    high_water_of,
    retire,
    rewrite,
    swap_base,
    work_on,
)
from compaction.staging.errors import OutputSweptError, UnknownRefError, WorkOutdatedError
from compaction.staging.flows.branching import keep_receipt, receipt_of, sweep_receipts
from compaction.staging.refs.branches import ENDED_CLAIMS, BranchRecord
from support.staging.staging_repos import DRAFT, StagingRepo


@pytest.fixture
def work(repo: StagingRepo) -> BranchWork:
    record = repo.put({"a": "1", "b": "1"}, sealed=[{"b": None}], staging={"c": "3"})
    return work_on("example", record, staged=True)


def test_the_first_claim_seals_and_writes_down_when(repo: StagingRepo, work: BranchWork) -> None:
    before = repo.area.branches.get("main").record
    assert claim(repo.area, work, job="j1", token=1) is ClaimedBranch.CLAIMED
    record = repo.area.branches.get("main").record
    assert record.sealed_tokens == work.tokens == before.tokens
    assert (record.claim_job, record.claim_token) == ("j1", 1)
    assert record.compaction_started > repo.clock.now * 1000 - 60_000
    assert repo.shown() == {"a": "1", "c": "3"}


def test_a_later_attempt_leaves_writers_alone(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    before = repo.area.branches.get("main").record
    repo.clock.now += 60
    claim(repo.area, work, job="j1", token=2)
    assert repo.area.branches.get("main").record == replace(before, claim_token=2)


@pytest.mark.parametrize("token", [1, 2])
def test_a_token_that_was_accepted_already(repo: StagingRepo, work: BranchWork, token: int) -> None:
    claim(repo.area, work, job="j1", token=2)
    with pytest.raises(StaleTokenError, match="token 2 is claimed"):
        claim(repo.area, work, job="j1", token=token)


def test_nothing_is_sealed_where_nothing_is_staged(repo: StagingRepo) -> None:
    record = repo.put({"a": "1"}, sealed=[{"b": "2"}])
    work = work_on("example", record, staged=False)
    claim(repo.area, work, job="j1", token=1)
    assert repo.area.branches.get("main").record.staging_token == record.staging_token


def test_swapped_once(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    repo.set("d", "4")
    tree = rewrite(repo.area, work).tree
    shown = repo.shown()
    branch = swap_base(repo.area, work, tree, job="j1", token=1)
    assert (branch.record.compacted_base, branch.record.sealed_tokens) == (tree, ())
    assert (repo.shown(), repo.uncommitted()) == (shown, {"b": "removed", "c": "added", "d": "added"})
    assert swap_base(repo.area, work, tree, job="j1", token=1).record == branch.record
    assert claim(repo.area, work, job="j1", token=2) is ClaimedBranch.COMMITTED
    assert high_water_of(branch.record, "j1") == 1


def test_a_zombie_commits_nothing(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    tree = rewrite(repo.area, work).tree
    claim(repo.area, work, job="j1", token=2)
    with pytest.raises(StaleTokenError):
        swap_base(repo.area, work, tree, job="j1", token=1)
    swap_base(repo.area, work, tree, job="j1", token=2)
    with pytest.raises(StaleTokenError):
        swap_base(repo.area, work, tree, job="j1", token=1)


def test_a_retired_job_commits_nothing(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    tree = rewrite(repo.area, work).tree
    retire(repo.area, "main", "j1")
    retire(repo.area, "main", "another")
    with pytest.raises(StaleTokenError, match="no claim stands"):
        swap_base(repo.area, work, tree, job="j1", token=1)


def test_a_retired_job_takes_larger_tokens_only(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=5)
    tree = rewrite(repo.area, work).tree
    retire(repo.area, "main", "j1")
    assert high_water_of(repo.area.branches.get("main").record, "j1") == 5
    for token in (1, 5):
        with pytest.raises(StaleTokenError, match="token 5 is claimed"):
            claim(repo.area, work, job="j1", token=token)
        with pytest.raises(StaleTokenError):
            swap_base(repo.area, work, tree, job="j1", token=token)
    claim(repo.area, work, job="j1", token=6)
    swap_base(repo.area, work, tree, job="j1", token=6)


def test_a_job_whose_claim_was_taken_over_takes_larger_tokens_only(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=5)
    tree = rewrite(repo.area, work).tree
    claim(repo.area, work, job="j2", token=1)
    for token in (1, 5):
        with pytest.raises(StaleTokenError):
            claim(repo.area, work, job="j1", token=token)
        with pytest.raises(StaleTokenError):
            swap_base(repo.area, work, tree, job="j1", token=token)
    claim(repo.area, work, job="j1", token=6)


def test_the_same_tokens_on_another_commit_are_other_work(repo: StagingRepo) -> None:
    """Nothing is staged, so a merge leaves the staging token: what is written to it later lies on the new commit."""
    repo.put({"a": "1"})
    repo.brancher.create("other", "main")
    repo.set("b", "1", "other")
    repo.committer.commit("other", DRAFT)
    record = repo.area.branches.get("main").record
    work = BranchWork("example", "main", record.commit_id, record.compacted_base, record.tokens)
    repo.merger.merge("other", "main", DRAFT)
    assert repo.area.branches.get("main").record.tokens == work.tokens
    with pytest.raises(WorkOutdatedError):
        claim(repo.area, work, job="j1", token=1)


def test_many_retired_jobs(repo: StagingRepo, work: BranchWork) -> None:
    """Those that came last are known by name, the others by the largest token of all of them: the row stays small."""
    for number in range(30):
        token = high_water_of(repo.area.branches.get("main").record, f"j{number}") + 1
        claim(repo.area, work, job=f"j{number}", token=token)
        if number % 2:
            retire(repo.area, "main", f"j{number}")  # otherwise the next job takes the claim over
    record = repo.area.branches.get("main").record
    assert BranchRecord.decode(record.encode()) == record
    assert len(record.ended_claims) == ENDED_CLAIMS
    assert len(record.encode()) < 1000
    for number in range(30):
        with pytest.raises(StaleTokenError):
            claim(repo.area, work, job=f"j{number}", token=1)
    claim(repo.area, work, job="j0", token=high_water_of(record, "j0") + 1)


def test_the_receipt_of_the_last_swap(repo: StagingRepo, work: BranchWork) -> None:
    area = repo.area
    assert receipt_of(area, area.branches.get("main").record, "") is None
    for number, job in enumerate(["j0", "j1", "j2"], start=1):
        claim(area, work, job=job, token=number)
        swap_base(area, work, rewrite(area, work).tree, job=job, token=number, receipt=f'{{"of": "{job}"}}')
        assert receipt_of(area, area.branches.get("main").record, job) == f'{{"of": "{job}"}}'
        repo.set("more", job)
        work = work_on("example", area.branches.get("main").record, staged=True)
    assert len(receipts(repo)) == 2, "the one before goes with the next swap, or a sweep"
    assert sweep_receipts(area) == 1
    repo.committer.commit("main", DRAFT)
    assert receipt_of(area, area.branches.get("main").record, "j2") == '{"of": "j2"}'
    assert receipt_of(area, area.branches.get("main").record, "j1") is None


def test_receipts_of_attempts_that_committed_nothing(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    claim(repo.area, work, job="j1", token=2)
    with pytest.raises(StaleTokenError):
        swap_base(repo.area, work, "", job="j1", token=1, receipt="a zombie's")
    keep_receipt(repo.area, "main", job="j1", token=2, receipt="of the standing claim")
    keep_receipt(repo.area, "gone", job="j1", token=2, receipt="of a branch that is gone")
    assert sweep_receipts(repo.area) == 2
    assert receipts(repo) == ["of the standing claim"]


def test_an_output_that_a_sweep_has_deleted(repo: StagingRepo, work: BranchWork) -> None:
    """It had begun before the claim, and the attempt wrote an object that lay there as an orphan."""
    claim(repo.area, work, job="j1", token=1)
    done = rewrite(repo.area, work)
    written = [done.tree, *(item.id for item in done.applied.written)]
    before = repo.area.branches.get("main").record
    repo.area.ranges.delete(written[-1:])
    with pytest.raises(OutputSweptError, match=written[-1]):
        swap_base(repo.area, work, done.tree, job="j1", token=1, written=written)
    assert repo.area.branches.get("main").record == before


def receipts(repo: StagingRepo) -> list[str]:
    return [row.decode() for page in repo.area.kv.scan(repo.area.repository.receipts) for _, row in page]


def test_newer_tokens_stay_above_the_new_base(repo: StagingRepo, work: BranchWork) -> None:
    claim(repo.area, work, job="j1", token=1)
    tree = rewrite(repo.area, work).tree
    repo.set("e", "5")
    branch = repo.area.branches.get("main")
    repo.area.branches.swap(branch, branch.record.sealed("newer"))
    swap_base(repo.area, work, tree, job="j1", token=1)
    assert len(repo.area.branches.get("main").record.sealed_tokens) == 1
    assert repo.shown() == {"a": "1", "c": "3", "e": "5"}


RACING: list[tuple[str, Callable[[StagingRepo], object]]] = [
    ("commit", lambda repo: repo.committer.commit("main", DRAFT)),
    ("reset", lambda repo: repo.resetter.reset("main")),
]


@pytest.mark.parametrize(("name", "act"), RACING, ids=[item[0] for item in RACING])
@pytest.mark.parametrize("claimed", [False, True])
def test_who_comes_first_wins(
    repo: StagingRepo, work: BranchWork, name: str, act: Callable[[StagingRepo], object], claimed: bool
) -> None:
    """A commit or a reset came first: the work is outdated, and what they made stays."""
    tree = rewrite(repo.area, work).tree
    if claimed:
        claim(repo.area, work, job="j1", token=1)
    act(repo)
    shown = repo.shown()
    ends = partial(swap_base, repo.area, work, tree) if claimed else partial(claim, repo.area, work)
    with pytest.raises(WorkOutdatedError, match="plan again"):
        ends(job="j1", token=1)
    assert repo.shown() == shown


@pytest.mark.parametrize("again", [False, True])
def test_a_branch_that_is_deleted_or_created_again(repo: StagingRepo, again: bool) -> None:
    repo.brancher.create("other", "main")
    repo.set("a", "1", "other")
    work = work_on("example", repo.area.branches.get("other").record, staged=True)
    claim(repo.area, work, job="j1", token=1)
    tree = rewrite(repo.area, work).tree
    repo.brancher.delete("other")
    if again:
        repo.brancher.create("other", "main")
    with pytest.raises(StaleTokenError if again else UnknownRefError):
        swap_base(repo.area, work, tree, job="j1", token=1)
    assert not again or repo.shown("other") == {}


def test_everything_is_deleted(repo: StagingRepo) -> None:
    record = repo.put({"a": "1", "b": "2"}, staging={"a": None, "b": None})
    work = work_on("example", record, staged=True)
    claim(repo.area, work, job="j1", token=1)
    swap_base(repo.area, work, rewrite(repo.area, work).tree, job="j1", token=1)
    assert (repo.shown(), repo.uncommitted()) == ({}, {"a": "removed", "b": "removed"})
    repo.committer.commit("main", DRAFT)
    assert repo.shown("main@") == {}


def test_a_base_that_is_the_commits_tree_is_none(repo: StagingRepo) -> None:
    """Nothing is left of changes that took each other back."""
    record = repo.put({"a": "1"}, sealed=[{"b": None}, {"b": "2"}])
    work = work_on("example", record, staged=False)
    claim(repo.area, work, job="j1", token=1)
    swap_base(repo.area, work, rewrite(repo.area, work).tree, job="j1", token=1)
    record = repo.area.branches.get("main").record
    assert (record.compacted_base, record.tokens) == ("", (record.staging_token,))


def test_the_base_version_is_that_of_the_plan(work: BranchWork) -> None:
    others = [
        replace(work, branch="other"),
        replace(work, commit_id="0" * 64),
        replace(work, base="1" * 64),
        replace(work, tokens=work.tokens[::-1]),
        replace(work, tokens=work.tokens[:1]),
    ]
    assert len({work.base_version, *(other.base_version for other in others)}) == 6
