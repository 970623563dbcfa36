"""Rules 2 to 7, 9 and 10 of a merge, each by a server that does what the rule is there for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from compaction.staging.errors import (
    LiveStoreRefusedError,
    MissingRangeError,
    PredicateFailedError,
    TokenMergeProofError,
)
from compaction.staging.format.messages import BranchData, StagedEntryData, bytes_field
from compaction.staging.lakefs import merging
from compaction.staging.lakefs.cleaning import drop_due
from compaction.staging.lakefs.control import MergeLease, TokenMergeSettings, allow_merging, seal, stop_merging
from compaction.staging.lakefs.journal import MERGE_PARTITION, MergeState, entries
from compaction.staging.lakefs.merging import MergeEnd, merge_branch
from compaction.staging.lakefs.planning import KeptRows, kept_rows
from compaction.staging.lakefs.repository import LiveRepository
from staging.lakefs.conftest import QuietClock, WatchedStore
from support.staging.lakefs_server import LakeFsServer
from support.staging.staging_repos import Content, framed, rows_of

LAYERS: tuple[Content, ...] = (
    {"a": "a newest", "n": None, "x": "x newest"},
    {"a": "a older", "b": None, "m": "m", "x": None},
    {"b": "b oldest", "c": None, "d": "d committed#moved", "m": None, "n": "n", "o": None},
)
"""Over the commit `a` to `e`: `n` and `o` are tombstones that the commit lacks, `d` has the identity of the commit."""


def journal(live: LiveRepository) -> list[int]:
    return [row.entry.state for row in entries(live)]


def leftovers(live: LiveRepository, server: LakeFsServer) -> set[str]:
    """Tokens with rows that no branch names and no journal knows."""
    known = {token for row in entries(live) for token in (row.entry.fresh, *row.entry.old)}
    with server.kv.database.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT DISTINCT convert_from(partition_key, 'UTF8') FROM kv").scalars()
        tokens = {item for item in found if ":" in item}
    return tokens - live.used_tokens() - known


def test_a_merge(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    old = server.put_sealed(*LAYERS)
    server.set("z", "staged")
    before, content, changed = server.branch(), server.listed(), server.uncommitted()
    outcome = merge_branch(live, "main")
    assert (outcome.end, outcome.tokens, outcome.reason) == (MergeEnd.MERGED, old, "")
    assert (outcome.rows_before, outcome.rows_after, outcome.idle_tombstones) == (13, 6, 2)
    assert server.branch() == replace(before, sealed_tokens=(outcome.fresh,))
    assert (server.listed(), server.uncommitted()) == (content, changed)
    assert server.rows_of([outcome.fresh]) == {outcome.fresh: 6}
    assert clock.pauses == [30.0]
    # Rule 7: old tokens stay for readers that have read the branch before.
    assert server.listed(data=before) == content
    assert list(server.rows_of(old).values()) == [3, 4, 6]
    assert merge_branch(live, "main").reason == "it has 1 tokens to merge, 2 are the least"
    assert leftovers(live, server) == set()


def test_a_commit_of_a_merged_branch_is_that_of_an_unmerged_one(live: LiveRepository, server: LakeFsServer) -> None:
    server.create_branch("control", server.branch().commit_id)
    server.put_sealed(*LAYERS)
    server.put_sealed(*LAYERS, branch="control")
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    trees = []
    for name in ("main", "control"):
        server.commits = 1
        server.commit(name)
        trees.append((server.branch(name).commit_id, server.tree_of(server.branch(name))))
    assert trees[0] == trees[1]


# -- rule 2: only sealed tokens, seals are rare ------------------------------------------------------------------------


def test_the_staging_token_is_neither_read_nor_changed(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore
) -> None:
    server.put_sealed(*LAYERS)
    server.set("a", "staged")
    staging = server.branch().staging_token
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    assert staging not in {partition for _, partition in store.calls}
    assert (server.branch().staging_token, server.get("a")) == (staging, "staged")


def test_a_seal_is_that_of_a_commit_and_at_most_one_a_minute(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    settings = TokenMergeSettings(seals=True, yields=0)
    server.put_sealed(*LAYERS)
    tokens = []
    for number in range(8):
        server.set("k", f"value {number}")
        merge_branch(live, "main", settings)
        clock.now += 13
        assert server.get("k") == f"value {number}"
        tokens.append((clock.now, server.branch().staging_token))
    changes = [now for (now, token), (_, other) in zip(tokens, [(0.0, ""), *tokens], strict=False) if token != other]
    assert len(changes) >= 3
    assert all(later - earlier >= 60 for earlier, later in pairwise(changes))


def test_a_lost_seal_is_not_repeated(live: LiveRepository, server: LakeFsServer, store: WatchedStore) -> None:
    server.put_sealed(*LAYERS)
    server.set("k", "value")
    store.before["set_all_if"] = server.refused_commit
    outcome = merge_branch(live, "main", TokenMergeSettings(seals=True))
    assert (outcome.end, journal(live)) == (MergeEnd.SKIPPED, [])
    assert len(server.branch().sealed_tokens) == 4
    row = live.branch("main")
    assert seal(live, row, 60) is not None, "a seal that failed does not count"
    with pytest.raises(PredicateFailedError):
        seal(live, row, 0)


def test_an_empty_staging_token_is_not_sealed(live: LiveRepository, server: LakeFsServer) -> None:
    server.put_sealed({"a": "1"})
    assert merge_branch(live, "main", TokenMergeSettings(seals=True)).end is MergeEnd.SKIPPED
    assert len(server.branch().sealed_tokens) == 1


# -- rule 3: the quiet period, and the second scan ---------------------------------------------------------------------


@pytest.mark.parametrize("when", ["quiet period", "between the scans"])
def test_a_deletion_that_races_with_our_seal_is_not_lost(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, store: WatchedStore, when: str
) -> None:
    """It read the branch before the seal; its tombstone lands behind it, and its second try finds only that one and is
    acknowledged. In the quiet period the scan sees it, later the second scan does.
    """
    server.put_sealed({"q": "1"})
    server.set("k", "value")
    read = server.branch()

    def late() -> None:
        assert server.branch().staging_token != read.staging_token, "we have sealed"
        server._delete(read, b"k")
        server.delete("k")
        assert server.tokens.get(server.branch().staging_token, b"k") is None, "or it is no race"

    if when == "quiet period":
        clock.during.append(late)
    else:
        store.before["set_many"] = late
    outcome = merge_branch(live, "main", TokenMergeSettings(seals=True))
    assert outcome.end is (MergeEnd.MERGED if when == "quiet period" else MergeEnd.DISCARDED)
    assert (server.get("k"), server.get("q")) == (None, "1")


def test_a_late_write_in_the_quiet_period_is_merged(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock
) -> None:
    """Reset of a key does not read the branch again: its write into the sealed token counts."""
    server.put_sealed(*LAYERS)
    server.set("k", "value")
    token = server.branch().staging_token
    clock.during.append(lambda: server.tokens.set_tombstone(token, b"k"))
    assert merge_branch(live, "main", TokenMergeSettings(seals=True)).end is MergeEnd.MERGED
    assert token not in server.branch().sealed_tokens
    assert server.get("k") is None


@pytest.mark.parametrize("value", [b"", framed("late")])
def test_a_late_write_after_the_scan_ends_the_merge(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, value: bytes
) -> None:
    old = server.put_sealed(*LAYERS)
    store.before["set_many"] = lambda: server.tokens.set(old[1], b"m", value)
    outcome = merge_branch(live, "main")
    assert (outcome.end, outcome.reason) == (
        MergeEnd.DISCARDED,
        "a late write changed a sealed token during the merge",
    )
    assert (server.branch().sealed_tokens, journal(live), leftovers(live, server)) == (old, [], set())


@pytest.mark.parametrize("name", ["seal", "commit", "reset", "delete"])
def test_a_branch_that_changes_in_the_quiet_period_is_left_alone(
    live: LiveRepository, server: LakeFsServer, clock: QuietClock, name: str
) -> None:
    server.put_sealed(*LAYERS)
    clock.during.append(RACES[name](server))
    outcome = merge_branch(live, "main")
    assert (outcome.end, journal(live)) == (MergeEnd.SKIPPED, [])


# -- rule 4: what the result has ---------------------------------------------------------------------------------------


def test_rows_are_copied_byte_for_byte(live: LiveRepository, server: LakeFsServer) -> None:
    """Fields that are not known, data of tombstones, and values whose identity the commit has too."""
    old = server.put_sealed({"a": "1", "c": None}, {"d": "d committed#another time"})
    strange = {
        b"s": StagedEntryData(key=b"s", identity=b"i" * 32, data=b"d").encode() + bytes_field(9, b"new"),
        b"b": StagedEntryData(key=b"b", data=b"who deleted it").encode(),
    }
    for key, row in strange.items():
        server.kv.set(old[1], key, row)
    before = dict(rows_of(server.kv, old[0]) + rows_of(server.kv, old[1]))
    outcome = merge_branch(live, "main")
    assert dict(rows_of(server.kv, outcome.fresh)) == before
    assert server.get("d") == "d committed#another time"


def test_a_row_with_unknown_fields_is_refused(live: LiveRepository, server: LakeFsServer) -> None:
    """Something else than the commit may lie below the tokens then, as a compaction of the servers' own."""
    old = server.put_sealed(*LAYERS)
    row = server.row()
    assert row is not None
    raw = row + bytes_field(77, b"base")
    server.kv.set(server.partition, b"branches/main", raw)
    with pytest.raises(LiveStoreRefusedError, match="field 77, which a newer lakeFS wrote"):
        merge_branch(live, "main")
    assert (server.row(), journal(live), leftovers(live, server)) == (raw, [], set())
    assert list(server.rows_of(old).values()) == [3, 4, 6]
    server.kv.set(server.partition, b"branches/main", row)
    assert merge_branch(live, "main").end is MergeEnd.MERGED


def test_a_tombstone_of_a_committed_key_is_never_dropped(
    live: LiveRepository, server: LakeFsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge with that defect does not pass its own proof."""
    old = server.put_sealed(*LAYERS)

    def defect(*args: object) -> object:
        for batch in kept_rows(*args):  # type: ignore[arg-type]
            pairs = [(key, row) for key, row in batch.rows.pairs() if key != b"c"]
            yield KeptRows(type(batch.rows).of(pairs), batch.tombstones, batch.dropped)

    monkeypatch.setattr(merging, "kept_rows", defect)
    with pytest.raises(TokenMergeProofError):
        merge_branch(live, "main")
    assert (server.branch().sealed_tokens, journal(live), leftovers(live, server)) == (old, [], set())


def test_a_result_that_was_damaged_is_not_swapped_in(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore
) -> None:
    """Rule 10: the view before is the view after, read back from the database."""
    old = server.put_sealed(*LAYERS)

    def damage() -> None:
        fresh = next(entries(live)).entry.fresh
        server.tokens.set(fresh, b"a", framed("another value"))

    store.after["set_many"] = damage
    with pytest.raises(TokenMergeProofError):
        merge_branch(live, "main")
    assert (server.branch().sealed_tokens, journal(live)) == (old, [])


def test_a_commit_whose_objects_are_gone(live: LiveRepository, server: LakeFsServer) -> None:
    old = server.put_sealed(*LAYERS)
    live.ranges.delete([server.tree_of(server.branch())])
    with pytest.raises(MissingRangeError):
        merge_branch(live, "main")
    assert (server.branch().sealed_tokens, journal(live), leftovers(live, server)) == (old, [], set())


def test_an_empty_commit_and_tokens_without_rows(live: LiveRepository, server: LakeFsServer) -> None:
    server.create_branch("empty", server._add_commit("", ()))
    server.put_sealed({"k": None}, {}, {"k": "1"}, {}, branch="empty")
    outcome = merge_branch(live, "empty")
    assert (outcome.rows_after, server.listed("empty")) == (0, {})
    assert server.branch("empty").sealed_tokens == (outcome.fresh,)


# -- rule 5: the swap --------------------------------------------------------------------------------------------------


def _recreated(server: LakeFsServer) -> None:
    commit = server.branch().commit_id
    server.delete_branch("main")
    server.create_branch("main", commit)


RACES: dict[str, Callable[[LakeFsServer], Callable[[], object]]] = {
    "seal": lambda server: server.refused_commit,
    "commit": lambda server: server.commit,
    "reset": lambda server: server.reset,
    "delete": lambda server: lambda: server.delete_branch("main"),
    "create again": lambda server: lambda: _recreated(server),
    "hide": lambda server: lambda: server.update("main", lambda item: replace(item, hidden=True)),
}


@pytest.mark.parametrize("step", ["set_many", "set_all_if"])
@pytest.mark.parametrize("name", RACES)
def test_a_race_that_is_lost(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, name: str, step: str
) -> None:
    """Before a page is written, and right before the swap: the server's row stays, and nothing of ours is left."""
    server.put_sealed(*LAYERS)
    found: list[tuple[bytes | None, dict[str, str | None] | None]] = []

    def race() -> None:
        RACES[name](server)()
        found.append((server.row(), server.listed() if server.row() is not None else None))

    store.before[step] = race
    outcome = merge_branch(live, "main")
    assert outcome.end is MergeEnd.DISCARDED
    assert [(server.row(), server.listed() if server.row() is not None else None)] == found
    assert (journal(live), leftovers(live, server)) == ([], set())
    assert [name for name, _ in store.calls].count("set_all_if") == (step == "set_all_if"), "never retried"


def test_writes_to_the_staging_token_do_not_end_a_merge(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore
) -> None:
    server.put_sealed(*LAYERS)
    store.before["set_many"] = lambda: server.set("a", "meanwhile")
    store.before["set_all_if"] = lambda: server.delete("e")
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    assert (server.get("a"), server.get("e")) == ("meanwhile", None)


# -- rule 6: yield -----------------------------------------------------------------------------------------------------


def test_a_commit_that_builds_longer_than_the_quiet_period(live: LiveRepository, server: LakeFsServer) -> None:
    """It loses its swap to ours, builds again from the merged token, and commits the same."""
    server.put_sealed(*LAYERS)
    content = server.listed()
    outcomes = []
    with server.point("commit: built", lambda: outcomes.append(merge_branch(live, "main"))):
        server.commit()
    assert outcomes[0].end is MergeEnd.MERGED
    assert server.branch().sealed_tokens == ()
    assert server.listed() == server.content_of_tree(server.tree_of(server.branch()))
    # A commit keeps the record it has where the identity is the same.
    assert server.listed() == content | {"d": "d committed"}


def test_branches_in_use_are_skipped(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    server.put_sealed(*LAYERS)
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    server.put_sealed({"b": "2"}, {"b": "1"})
    clock.now += 10
    assert merge_branch(live, "main").reason == "its sealed tokens grow (1 to 3 within 60 s)"
    server.update("main", lambda item: replace(item, sealed_tokens=item.sealed_tokens[1:]))
    clock.now += 10
    assert merge_branch(live, "main").reason == "it changed within the last 60 s"
    assert merge_branch(live, "main").end is MergeEnd.MERGED, "it has not changed since"


# -- rule 9: one merger, and correct with two --------------------------------------------------------------------------


def test_one_merger_per_branch(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    server.put_sealed(*LAYERS)
    lease = MergeLease.acquire(live, "main", seconds=100)
    assert lease is not None
    assert MergeLease.acquire(live, "main", seconds=100) is None
    held = merge_branch(live, "main").reason
    assert held.startswith(f"{socket.gethostname()}:{os.getpid()} holds the lease of the branch for another 100 s")
    assert held.endswith("a merger that was killed holds it until then")
    clock.now += 101
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    lease.release()
    assert MergeLease.acquire(live, "main", seconds=100) is not None, "it was released at the end of the merge"


@pytest.mark.parametrize("step", ["set_many", "set_all_if"])
def test_two_mergers_at_once_merge_once(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock, step: str
) -> None:
    """The first is taken for dead, the second merges; the first goes on."""
    server.put_sealed(*LAYERS)
    content = server.listed()
    outcomes = []

    def second() -> None:
        clock.now += 1000
        outcomes.append(merge_branch(live, "main"))

    store.before[step] = second
    assert merge_branch(live, "main").end is MergeEnd.DISCARDED
    assert [outcome.end for outcome in outcomes] == [MergeEnd.MERGED]
    assert server.listed() == content
    assert server.branch().sealed_tokens == (outcomes[0].fresh,)
    assert (journal(live), leftovers(live, server)) == ([MergeState.SWAPPED], set())


# -- rule 10: off by default, kill switch ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["", "sleep", "set_many", "set_all_if"])
def test_the_kill_switch(
    live: LiveRepository, server: LakeFsServer, store: WatchedStore, clock: QuietClock, step: str
) -> None:
    """At the start, in the quiet period, before a page, and after the last check, when it is too late."""
    old = server.put_sealed(*LAYERS)

    def stop() -> None:
        stop_merging(server.kv, "upgrade of lakeFS")

    if step == "sleep":
        clock.during.append(stop)
    elif step:
        store.after["set_many" if step == "set_many" else "set_if"] = stop
    else:
        stop()
    outcome = merge_branch(live, "main")
    assert outcome.end is not MergeEnd.MERGED
    assert outcome.reason == "merging is stopped (upgrade of lakeFS)"
    assert (server.branch().sealed_tokens, journal(live), leftovers(live, server)) == (old, [], set())
    allow_merging(server.kv)
    assert merge_branch(live, "main").end is MergeEnd.MERGED
    stop()
    clock.now += 7 * 3600
    assert drop_due(live).tokens == 0, "nothing is dropped either"
    allow_merging(server.kv)
    assert drop_due(live).tokens == 3


def test_a_process_that_ends_stops_its_merge(live: LiveRepository, server: LakeFsServer) -> None:
    old = server.put_sealed(*LAYERS)
    outcome = merge_branch(live, "main", TokenMergeSettings(stop=lambda: True))
    assert (outcome.reason, server.branch().sealed_tokens) == ("merging is stopped (the process ends)", old)


@pytest.mark.parametrize("change", [{"quiet": -1}, {"least_tokens": 0}, {"lease": 60.0}])
def test_settings_that_make_no_sense(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"merge|longer"):
        TokenMergeSettings(**change)  # type: ignore[arg-type]


def test_rows_of_ours_are_in_a_partition_of_their_own(live: LiveRepository, server: LakeFsServer) -> None:
    server.put_sealed(*LAYERS)
    merge_branch(live, "main")
    assert {key.split(b"/")[0] for key, _ in rows_of(server.kv, MERGE_PARTITION)} == {b"journal", b"lease", b"notes"}
    assert isinstance(server.branch(), BranchData)
