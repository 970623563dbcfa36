"""Rules 7 and 8: the grace, undo, and what a crash at each statement leaves behind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from compaction.errors import CompactionError
from compaction.staging.errors import NoChangesError
from compaction.staging.lakefs.cleaning import (
    LATE,
    Dropped,
    check_undo,
    drop_deleted,
    drop_due,
    due_of_deleted,
    left_over,
    recover,
)
from compaction.staging.lakefs.control import (
    DROPS_PER_SECOND,
    GRACE,
    MergeLease,
    TokenMergeSettings,
    allow_merging,
    stop_merging,
)
from compaction.staging.lakefs.journal import MERGE_PARTITION, MergeState, entries
from compaction.staging.lakefs.merging import MergeEnd, merge_branch
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.refs.names import REPOSITORIES_PARTITION
from staging.lakefs.conftest import QuietClock, WatchedStore
from staging.lakefs.test_rules import LAYERS, journal, leftovers
from support.faults.store_faults import Death, Fault, Interrupted, When, interruptions
from support.staging.lakefs_server import LakeFsServer
from support.staging.staging_repos import framed
from support.timing import at_depth


def test_old_tokens_are_dropped_after_the_grace(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    old = server.put_sealed(*LAYERS)
    content = server.listed()
    outcome = merge_branch(live, "main")
    clock.now += GRACE - 1
    dropped = drop_due(live)
    assert replace(dropped, next_in=None) == Dropped(0, 0, (), None)
    assert dropped.next_in == pytest.approx(1, abs=0.01)
    assert list(server.rows_of(old).values()) == [3, 4, 6]
    clock.now += 2
    assert drop_due(live) == Dropped(3, 13, (), None)
    assert server.rows_of(old) == dict.fromkeys(old, 0)
    assert (server.listed(), journal(live)) == (content, [])
    assert server.rows_of([outcome.fresh]) == {outcome.fresh: 6}


def test_a_token_that_a_branch_names_is_never_dropped(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """A restored row, another tool: whatever put it back."""
    old = server.put_sealed(*LAYERS)
    row = server.row()
    assert row is not None
    merge_branch(live, "main")
    server.kv.set(server.partition, b"branches/main", row)
    clock.now += 10 * GRACE
    assert drop_due(live).in_use == old
    assert list(server.rows_of(old).values()) == [3, 4, 6]


def test_a_drop_that_finds_a_token_in_use_at_the_last_moment(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock
) -> None:
    old = server.put_sealed(*LAYERS)
    row = server.row()
    assert row is not None
    merge_branch(live, "main")
    clock.now += 10 * GRACE
    store.before["set_if"] = lambda: server.kv.set(server.partition, b"branches/main", row)
    assert drop_due(live).tokens == 0
    assert list(server.rows_of(old).values()) == [3, 4, 6]
    assert drop_due(live).in_use == old


def test_merges_of_merges(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    """The merged token of the first is an old one of the second, whose grace it has."""
    server.put_sealed(*LAYERS)
    first = merge_branch(live, "main")
    server.put_sealed({"a": "last"})
    clock.now += GRACE / 2
    second = merge_branch(live, "main")
    assert (second.end, second.tokens[1]) == (MergeEnd.MERGED, first.fresh)
    clock.now += GRACE / 2
    assert drop_due(live).tokens == 3
    assert server.rows_of([first.fresh]) == {first.fresh: 6}
    assert [item.possible for item in check_undo(live, "main")] == [True]
    clock.now += GRACE
    assert drop_due(live).tokens == 2
    assert (leftovers(live, server), journal(live)) == (set(), [])


def undo(server: LakeFsServer, live: LiveRepository) -> bool:
    """Old tokens of the newest merge that can be undone are put back, as docs/staging.md has it."""
    found = [item for item in check_undo(live, "main") if item.possible]
    if found:
        row = live.branch("main")
        at = row.sealed.index(found[-1].fresh)
        tokens = (*row.sealed[:at], *found[-1].tokens, *row.sealed[at + 1 :])
        server.kv.set(server.partition, b"branches/main", row.with_sealed(tokens))
    return bool(found)


def test_the_grace_of_a_second_merge_of_the_same_tokens_is_kept(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """Merged, undone, and merged again with a longer grace: the older grace ends first."""
    old = server.put_sealed(*LAYERS)
    assert merge_branch(live, "main", TokenMergeSettings(grace=60.0)).end is MergeEnd.MERGED
    assert undo(server, live)
    assert merge_branch(live, "main", TokenMergeSettings(grace=GRACE, yields=0.0)).end is MergeEnd.MERGED
    clock.now += 120.0
    drop_due(live)
    assert list(server.rows_of(old).values()) == [3, 4, 6]
    assert [item.possible for item in check_undo(live, "main")] == [True]
    clock.now += GRACE
    drop_due(live)
    assert (leftovers(live, server), journal(live)) == (set(), [])


def tokens_with_rows(live: LiveRepository) -> set[str]:
    """Those of merges that are not at their end, and those that branches name."""
    known = {token for row in entries(live) for token in (row.entry.fresh, *row.entry.old)}
    return {token for token in known | live.used_tokens() if live.tokens.has_rows(token)}


@pytest.mark.parametrize("seed", at_depth(short=(21, 24, 27), deep=range(40)))
def test_nothing_is_dropped_before_its_grace_in_any_order(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, seed: int
) -> None:
    """Writes, merges with long and short graces, undoing, commits and cleaning: what a merge has replaced has all its
    rows until the grace of every merge that replaced it is over, and what the branch shows never changes by ours.
    """
    chosen = random.Random(seed)
    until: dict[str, tuple[float, int]] = {}
    server.put_sealed(*LAYERS)
    for step in range(16):
        shown = server.listed()
        match chosen.choice(["write", "merge", "merge", "undo", "undo", "clean", "wait", "commit"]):
            case "write":
                keys = chosen.sample("abcdeno", 3)
                server.put_sealed({key: chosen.choice([None, f"{key} {step}"]) for key in keys}, {"z": f"z {step}"})
                shown = server.listed()
            case "merge":
                grace = chosen.choice([60.0, 3_600.0, GRACE])
                before = server.branch().sealed_tokens
                outcome = merge_branch(live, "main", TokenMergeSettings(grace=grace, yields=0.0))
                if outcome.end is MergeEnd.MERGED:
                    for token in before:
                        count = server.rows_of([token])[token]
                        until[token] = (max(until.get(token, (0.0, 0))[0], clock.now + grace), count)
            case "undo":
                undo(server, live)
            case "clean":
                announced = {token for item in left_over(live) for token in item.tokens}
                with_rows = tokens_with_rows(live)
                recover(live)
                drop_due(live)
                assert with_rows - tokens_with_rows(live) == announced
            case "commit" if chosen.random() < 0.2:
                for token in server.branch().sealed_tokens:
                    until.pop(token, None)  # what it commits, the server drops itself
                with contextlib.suppress(NoChangesError):
                    server.commit()
                shown = server.listed()
            case _:
                clock.now += chosen.choice([30.0, 90.0, 4_000.0])
        assert server.listed() == shown
        for token, (time, rows) in until.items():
            assert clock.now >= time or server.rows_of([token])[token] == rows, f"step {step}: {token}"
    clock.now += 2 * GRACE
    recover(live)
    drop_due(live)
    assert leftovers(live, server) == set()


ENDS: dict[str, Callable[[LakeFsServer], object]] = {
    "committed": lambda server: server.commit(),
    "reset": lambda server: server.reset(),
    "deleted": lambda server: server.delete_branch("main"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_merged_branch_that_ends_leaves_nothing(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, name: str
) -> None:
    server.put_sealed(*LAYERS)
    merge_branch(live, "main")
    ENDS[name](server)
    assert recover(live).discarded == 0
    clock.now += GRACE + 1
    drop_due(live)
    assert (leftovers(live, server), journal(live)) == (set(), [])


def test_a_deletion_that_had_read_the_branch_before_the_swap(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """It drops the tokens that it has read, so the merged one is ours to drop."""
    server.put_sealed(*LAYERS)

    def merge() -> None:
        merge_branch(live, "main")

    with server.point("delete: read", merge):
        server.delete_branch("main")
    clock.now += GRACE + 1
    drop_due(live)
    assert (leftovers(live, server), journal(live)) == (set(), [])


def test_a_discarded_merge_is_counted_once(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock
) -> None:
    """Its entry stays for an hour, because its merger may write still."""
    server.put_sealed(*LAYERS)
    store.after["set_many"] = _die
    with pytest.raises(Death):
        merge_branch(live, "main")
    clock.now += 1000
    assert [recover(live).discarded for _ in range(3)] == [1, 0, 0]


def test_leftovers_are_shown_with_why_they_stay_and_nothing_is_written(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock
) -> None:
    def shown() -> list[tuple[str, tuple[str, ...], str]]:
        store.calls.clear()
        found = [(MergeState(item.state).name, item.tokens, item.why_not) for item in left_over(live)]
        assert {name for name, _ in store.calls} <= {"scan"}
        return found

    assert shown() == []
    old, row = server.put_sealed(*LAYERS), server.row()
    assert row is not None
    store.after["set_many"] = _die
    with pytest.raises(Death):
        merge_branch(live, "main")
    assert shown() == [("WRITING", (), "its merger works on it")]
    clock.now += 1000  # the lease of the dead merger ends
    (dead,) = left_over(live)
    assert shown() == [("WRITING", (dead.fresh,), "")]
    assert dead.due is None
    recover(live)
    assert shown() == [("DISCARDED", (), "its result is discarded; late writes of its merger are waited for")]
    clock.now += LATE + 1
    assert shown() == [("DISCARDED", (), "")]
    drop_due(live)
    assert shown() == []
    fresh = merge_branch(live, "main").fresh
    (waiting,) = left_over(live)
    assert waiting.fresh == fresh
    assert waiting.due == pytest.approx(GRACE, abs=0.01)
    assert shown() == [("SWAPPED", (), "its grace is not over")]
    clock.now += GRACE + 1
    assert shown() == [("SWAPPED", old, "")]
    stop_merging(live.kv, "an upgrade")
    assert shown() == [("SWAPPED", (), "merging is stopped (an upgrade)")]
    allow_merging(live.kv)
    server.kv.set(server.partition, b"branches/main", row)
    assert shown() == [("SWAPPED", (), "branches name 3 of its tokens")]
    assert list(server.rows_of(old).values()) == [3, 4, 6]


def test_cleaning_leaves_the_table_to_the_servers(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    server.put_sealed(*LAYERS)
    merge_branch(live, "main")
    clock.now += GRACE + 1
    clock.pauses.clear()
    assert drop_due(live).rows == 13
    assert sum(clock.pauses) == pytest.approx(13 / DROPS_PER_SECOND)


def test_merges_of_a_deleted_repository_end_with_their_grace(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """No repository is left whose cleaning would do it. One that is only being deleted is not touched."""
    other = LakeFsServer(server.kv, server.ranges, name="other").create({"a": "1"})
    kept = other.put_sealed({"a": "2"}, {"b": "3"})
    old = server.put_sealed(*LAYERS)
    outcome = merge_branch(live, "main")

    def clean() -> tuple[int, int]:
        return drop_deleted(server.kv, clock=clock.time, sleep=clock.sleep)

    clock.now += GRACE + 1
    assert clean() == (0, 0)
    server.kv.delete(REPOSITORIES_PARTITION, f"repos/{server.name}".encode())
    assert clean() == (0, 0), "branches are left in its partition"
    server.kv.delete(server.partition, b"branches/main")
    clock.now -= GRACE
    assert clean() == (0, 0), "the grace goes on"
    assert due_of_deleted(server.kv, clock=clock.time) == []
    clock.now += GRACE
    assert due_of_deleted(server.kv, clock=clock.time) == [outcome.fresh, *old]
    stop_merging(server.kv, "an upgrade")
    assert due_of_deleted(server.kv, clock=clock.time) == []
    allow_merging(server.kv)
    assert clean() == (4, 19)
    assert due_of_deleted(server.kv, clock=clock.time) == []
    assert server.rows_of([*old, outcome.fresh]) == dict.fromkeys([*old, outcome.fresh], 0)
    assert list(server.kv.scan(MERGE_PARTITION)) == []
    assert list(other.rows_of(kept).values()) == [1, 1]


def test_rows_that_cannot_be_read_keep_nothing_of_other_repositories(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """A damaged entry of another repository, and a damaged record, which may be that of any."""
    old = server.put_sealed(*LAYERS)
    merge_branch(live, "main")
    server.kv.set(MERGE_PARTITION, b"journal/other-x/main/t", b"\xff")
    clock.now += GRACE + 1
    assert drop_deleted(server.kv, clock=clock.time, sleep=clock.sleep) == (0, 0)
    server.kv.delete(REPOSITORIES_PARTITION, f"repos/{server.name}".encode())
    server.kv.delete(server.partition, b"branches/main")
    server.kv.set(REPOSITORIES_PARTITION, b"repos/damaged", b"\xff")
    assert drop_deleted(server.kv, clock=clock.time, sleep=clock.sleep) == (0, 0)
    server.kv.delete(REPOSITORIES_PARTITION, b"repos/damaged")
    assert drop_deleted(server.kv, clock=clock.time, sleep=clock.sleep)[0] == len(old) + 1
    assert server.kv.get(MERGE_PARTITION, b"journal/other-x/main/t") == b"\xff"


# -- undo --------------------------------------------------------------------------------------------------------------


def test_undo_check(live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock) -> None:
    old = server.put_sealed(*LAYERS)
    assert check_undo(live, "main") == []
    outcome = merge_branch(live, "main")
    server.set("a", "staged")
    server.refused_commit()
    clock.now += 100
    store.calls.clear()
    (found,) = check_undo(live, "main")
    assert (found.possible, found.fresh, found.tokens, found.problems) == (True, outcome.fresh, old, ())
    assert found.due == pytest.approx(GRACE - 100, abs=0.01)
    assert {name for name, _ in store.calls} == {"scan"}


def _drop_one(server: LakeFsServer, old: tuple[str, ...], fresh: str) -> None:
    server.tokens.drop(old[2])


def _late_write(server: LakeFsServer, old: tuple[str, ...], fresh: str) -> None:
    server.tokens.set(old[0], b"late", framed("late"))


def _late_write_into_the_merged(server: LakeFsServer, old: tuple[str, ...], fresh: str) -> None:
    server.tokens.set_tombstone(fresh, b"e")


UNDONE: dict[str, Callable[[LakeFsServer, tuple[str, ...], str], object]] = {
    "rows of 1 old tokens changed": _drop_one,
    "old tokens changed since the merge": _late_write,
    "the merged one shows": _late_write_into_the_merged,
    "does not name the merged token": lambda server, old, fresh: server.commit(),
    "does not exist": lambda server, old, fresh: server.delete_branch("main"),
}


@pytest.mark.parametrize("words", UNDONE)
def test_why_a_merge_cannot_be_undone(live: LiveRepository, server: LakeFsServer, words: str) -> None:
    old = server.put_sealed(*LAYERS)
    outcome = merge_branch(live, "main")
    UNDONE[words](server, old, outcome.fresh)
    (found,) = check_undo(live, "main")
    assert not found.possible
    assert any(words in problem for problem in found.problems)


# -- crashes -----------------------------------------------------------------------------------------------------------


def _readable(server: LakeFsServer) -> tuple[object, ...]:
    keys = [*"abcdemnoxz"]
    return server.listed(), server.uncommitted(), [server.get(key) for key in keys]


def _check_after_a_crash(live: LiveRepository, server: LakeFsServer, clock: QuietClock, content: object) -> None:
    """What readers see, that nothing in use is lost, and in the end that nothing is left."""
    assert _readable(server) == content
    clock.now += 1000  # the lease of the dead merger ends
    recover(live)
    assert _readable(server) == content
    assert MergeState.WRITING not in journal(live)
    clock.now += LATE + GRACE + 1
    drop_due(live)
    assert _readable(server) == content
    assert (leftovers(live, server), journal(live)) == (set(), [])


def _calls(live: LiveRepository, server: LakeFsServer) -> list[str]:
    server.put_sealed(*LAYERS)
    server.set("z", "staged")
    with Interrupted(live.kv.database) as counted:
        merge_branch(live, "main", TokenMergeSettings(seals=True))
    return counted.calls


@pytest.mark.parametrize("fault", Fault)
def test_a_merge_that_dies_at_any_statement(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, fault: Fault
) -> None:
    """Killed before or after each statement and commit; or the answer of it is lost, and the merge goes on."""
    calls = _calls(live, server)
    points = interruptions(calls)
    if fault is Fault.LOST:
        points = [(number, When.AFTER, name) for number, _, name in points]
    for at, when, _ in points:
        server.reset()
        clock.now += 100_000
        drop_due(live)
        server.put_sealed(*LAYERS)
        server.set("z", "staged")
        content = _readable(server)
        with Interrupted(live.kv.database, at=at, when=when, fault=fault):
            try:
                assert merge_branch(live, "main", TokenMergeSettings(seals=True)).end is MergeEnd.MERGED
            except Death:
                assert fault is Fault.DEATH
        _check_after_a_crash(live, server, clock, content)


@pytest.mark.parametrize("name", ["recover", "drop"])
def test_cleaning_that_dies_at_any_statement(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, store: WatchedStore, name: str
) -> None:
    def prepare() -> object:
        server.reset()
        server.put_sealed(*LAYERS)
        content = _readable(server)
        if name == "recover":
            store.after["set_many"] = _die
            with pytest.raises(Death):
                merge_branch(live, "main", TokenMergeSettings(yields=0))
            clock.now += 1000
        else:
            assert merge_branch(live, "main", TokenMergeSettings(yields=0)).end is MergeEnd.MERGED
            clock.now += GRACE + 1
        return content

    def clean() -> None:
        recover(live) if name == "recover" else drop_due(live)

    prepare()
    with Interrupted(live.kv.database) as counted:
        clean()
    for at, when, _ in interruptions(counted.calls):
        clock.now += 100_000
        drop_due(live)
        content = prepare()
        with Interrupted(live.kv.database, at=at, when=when), pytest.raises(Death):
            clean()
        _check_after_a_crash(live, server, clock, content)


def _die() -> None:
    raise Death


@pytest.mark.parametrize("name", ["delete", "create again", "commit", "reset"])
def test_a_branch_that_ends_between_crash_and_recovery(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, store: WatchedStore, name: str
) -> None:
    """Only what the merge wrote is dropped."""
    server.put_sealed(*LAYERS)
    store.after["set_many"] = _die
    with pytest.raises(Death):
        merge_branch(live, "main")
    (entry,) = [row.entry for row in entries(live)]
    commit = server.branch().commit_id
    if name == "commit":
        server.commit()
    elif name == "reset":
        server.reset()
    else:
        server.delete_branch("main")
    if name == "create again":
        server.create_branch("main", commit)
        server.put_sealed(*LAYERS)
    # Rows that a slow writer left in an old token are not ours.
    server.tokens.set(entry.old[0], b"late", framed("late"))
    content = _readable(server) if server.row() is not None else ()
    clock.now += 1000
    assert recover(live).discarded == 1
    clock.now += LATE + GRACE + 1
    drop_due(live)
    assert leftovers(live, server) == {entry.old[0]}
    assert (_readable(server) if server.row() is not None else ()) == content


def test_a_merge_that_runs_is_not_recovered(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, store: WatchedStore
) -> None:
    server.put_sealed(*LAYERS)
    found = []
    store.after["set_many"] = lambda: found.append(recover(live))
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    assert [(item.running, item.discarded) for item in found] == [(1, 0)]


@pytest.mark.parametrize("step", ["set_many", "set_all_if"])
def test_a_merger_that_wakes_up_after_it_was_given_up(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, store: WatchedStore, step: str
) -> None:
    """Its result is deleted; then it goes on. Without a branch change in between only the journal keeps it from
    swapping in a token without rows.
    """
    old = server.put_sealed(*LAYERS)
    content = _readable(server)

    def given_up() -> None:
        clock.now += 1000
        assert recover(live).discarded == 1
        if step == "set_all_if":
            clock.now += LATE + 1
            drop_due(live)

    store.before[step] = given_up
    outcomes: list[MergeEnd | CompactionError] = []
    try:
        outcomes.append(merge_branch(live, "main").end)
    except CompactionError as error:
        outcomes.append(error)
    assert outcomes == [MergeEnd.DISCARDED]
    assert (server.branch().sealed_tokens, _readable(server)) == (old, content)
    clock.now += LATE + 1
    drop_due(live)
    assert (leftovers(live, server), journal(live)) == (set(), [])


def test_many_merges_leave_the_journal_small(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    for number in range(at_depth(short=4, deep=40)):
        server.put_sealed({"a": f"{number}"}, {"b": None})
        clock.now += GRACE
        assert merge_branch(live, "main").end is MergeEnd.MERGED
        drop_due(live)
        assert len(journal(live)) <= 2
    lease = MergeLease.acquire(live, "main", seconds=1)
    assert lease is not None
