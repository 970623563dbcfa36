"""What is reported before anything is merged, without a single write."""

from __future__ import annotations

import pytest

from compaction.staging.errors import CorruptMessageError, CorruptRangeError, MissingRangeError
from compaction.staging.format.messages import bytes_field
from compaction.staging.lakefs.control import TokenMergeSettings, stop_merging
from compaction.staging.lakefs.merging import merge_branch
from compaction.staging.lakefs.planning import TokenInspection, inspect_branches, plan_merge
from compaction.staging.lakefs.repository import LiveRepository
from stores.staging.lakefs.conftest import QuietClock, WatchedStore
from support.stores.lakefs_server import LakeFsServer, big_content
from support.stores.staging_repos import TestClock


def test_inspection(live: LiveRepository, server: LakeFsServer, clock: TestClock) -> None:
    server.create_branch("other", server.branch().commit_id)
    newer, older = server.put_sealed({"a": None, "b": "1", "c": None}, {"a": "1"})
    server.delete("e")
    main, other = inspect_branches(live)
    assert (main.branch, main.commit_id, main.hidden) == ("main", server.branch().commit_id, False)
    assert main.sealed == (TokenInspection(newer, 3, 2, more=False), TokenInspection(older, 1, 0, more=False))
    assert main.staging == TokenInspection(server.branch().staging_token, 1, 1, more=False)
    assert (main.statements_per_get, other.statements_per_get) == (4, 2)
    assert main.row_bytes == len(server.row() or b"")
    assert main.unchanged_seconds is None
    merge_branch(live, "main")
    clock.now += 100
    assert next(inspect_branches(live)).unchanged_seconds == 100
    server.seal()
    assert next(inspect_branches(live)).unchanged_seconds is None


@pytest.mark.parametrize(("limit", "rows", "more"), [(1999, 1999, True), (2000, 2000, False), (2001, 2000, False)])
def test_rows_are_counted_up_to_a_limit(
    live: LiveRepository, server: LakeFsServer, limit: int, rows: int, more: bool
) -> None:
    server.put_sealed(big_content("t", range(2000)))
    found = next(inspect_branches(live, limit=limit)).sealed[0]
    assert (found.rows, found.more) == (rows, more)


def test_a_plan_says_what_the_merge_does(live: LiveRepository, server: LakeFsServer, store: WatchedStore) -> None:
    server.put_sealed({"a": "2", "n": None}, {"a": "1", "b": None, "n": "n"}, {"o": None})
    rows = server.rows_of(server.branch().sealed_tokens)
    plan = plan_merge(live, "main")
    assert {name for name, _ in store.calls} == {"scan"}, "nothing is written"
    assert server.rows_of(server.branch().sealed_tokens) == rows
    outcome = merge_branch(live, "main")
    assert (plan.tokens, plan.reason) == (outcome.tokens, "")
    assert (plan.rows_before, plan.rows_after) == (outcome.rows_before, outcome.rows_after) == (6, 2)
    assert (plan.hidden_rows, plan.tombstones, plan.idle_tombstones) == (2, 1, 2)
    assert (plan.statements_before, plan.statements_after) == (5, 3)
    sizes = (outcome.row_bytes_before, outcome.row_bytes_after)
    assert (plan.row_bytes_before, plan.row_bytes_after) == sizes
    assert len(server.row() or b"") == outcome.row_bytes_after


def test_a_plan_says_why_nothing_would_be_merged(live: LiveRepository, server: LakeFsServer) -> None:
    plan = plan_merge(live, "main")
    assert (plan.reason, plan.rows_before, plan.statements_before, plan.statements_after) == (
        "it has 0 tokens to merge, 2 are the least",
        0,
        2,
        2,
    )
    server.put_sealed({"a": "1"}, {"a": "2"})
    stop_merging(server.kv, "")
    assert plan_merge(live, "main").reason == "merging is stopped (stopped)"


def test_a_plan_with_a_seal(live: LiveRepository, server: LakeFsServer) -> None:
    server.put_sealed({"a": "1"})
    server.set("a", "2")
    assert plan_merge(live, "main").reason == "it has 1 tokens to merge, 2 are the least"
    row = server.row()
    plan = plan_merge(live, "main", TokenMergeSettings(seals=True))
    assert (server.row(), plan.reason) == (row, "")
    assert plan.tokens == (server.branch().staging_token, *server.branch().sealed_tokens)
    outcome = merge_branch(live, "main", TokenMergeSettings(seals=True))
    assert (plan.tokens, plan.rows_after) == (outcome.tokens, outcome.rows_after) == (outcome.tokens, 1)
    server.refused_commit()
    assert plan_merge(live, "main").reason == "its sealed tokens grow (1 to 2 within 60 s)"


def test_what_cannot_be_read_is_named(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    """A damaged row of a token, then the commit's tree: nothing of the branch changes."""
    token = server.put_sealed({"a": None}, {"a": "2"})[1]
    server.kv.set(token, b"k", bytes_field(1, b"other"))
    for call in (plan_merge, merge_branch):
        with pytest.raises(CorruptMessageError, match=f"{token}: row 'k'"):
            call(live, "main")
    assert token in next(inspect_branches(live)).problem
    server.kv.delete(token, b"k")
    for info in live.ranges.ranges(server.tree_of(server.branch())):
        live.ranges.objects.put(live.ranges.path(info.id), b"damaged")
        live.ranges.forget(info.id)
    for call in (plan_merge, merge_branch):
        with pytest.raises((CorruptRangeError, MissingRangeError)):
            call(live, "main")
    assert len(server.branch().sealed_tokens) == 2
