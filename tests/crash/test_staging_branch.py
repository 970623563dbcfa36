"""Flows and compactions of a branch that end at any call of a store: the branch shows what it did, or what it should;
whoever comes next finishes; and nothing stays behind for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compaction.staging.compaction import claim, rewrite, swap_base, work_on
from compaction.staging.errors import NoChangesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import journalled
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.sweep import reachable, sweep_objects, sweep_tokens
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import ObjectStorage, open_objects
from support.faults.store_faults import KV_CALLS, OBJECT_CALLS, Fate, Killed, Moment
from support.staging.staging_repos import DRAFT, SMALL_RANGES, Content, StagingRepo
from support.timing import one_of_each

GRACE = 100.0
HEAD: Content = {"a/1": "1", "a/2": "2", "a/3": "3", "b": "4", "c": "5"}
SEALED: list[Content] = [{"a/1": None, "b": "9"}, {"a/2": "8", "d": "7"}]
STAGED: Content = {"c": None, "e": "6"}
SHOWN: Content = {"a/2": "8", "a/3": "3", "b": "9", "d": "7", "e": "6"}


@dataclass(frozen=True)
class Flow:
    """What is done, and what the branch shows afterwards; it can be done twice."""

    name: str
    act: Callable[[StagingRepo], object]
    after: Content


def compacted(repo: StagingRepo) -> None:
    """An attempt with the next token, as the coordinator gives it."""
    area = repo.area
    record = area.branches.get("main").record
    work = work_on("example", record, staged=area.tokens.has_rows(record.staging_token))
    if record.compacted_job == "job" or not work.tokens:
        return
    if record.claim_job == "job":
        work = work_on("example", record, staged=False)
    token = record.claim_token + 1
    claim(area, work, job="job", token=token)
    swap_base(area, work, rewrite(area, work).tree, job="job", token=token, receipt="{}")


def committed(repo: StagingRepo) -> None:
    try:
        repo.committer.commit("main", DRAFT)
    except NoChangesError:
        return


FLOWS = [
    Flow("compaction", compacted, SHOWN),
    Flow("commit", committed, SHOWN),
    Flow("reset", lambda repo: repo.resetter.reset("main"), HEAD),
    Flow(
        "reset of a prefix",
        lambda repo: repo.resetter.reset_prefix("main", b"a/"),
        {"a/1": "1", "a/2": "2", "a/3": "3", "b": "9", "d": "7", "e": "6"},
    ),
    Flow("set", lambda repo: repo.set("z", "1"), {**SHOWN, "z": "1"}),
    Flow("delete", lambda repo: repo.delete("a/3"), {key: text for key, text in SHOWN.items() if key != "a/3"}),
]


class Place:
    """The stores of one repository, opened again after each crash."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/kv.db"
        self.objects = open_objects(str(folder / "objects"))
        self.kv = open_key_value_store(self.url)
        self.kv.migrate()
        self.repo = StagingRepo(self.kv, RangeStorage(self.objects, rule=SMALL_RANGES))
        self.repo.put(HEAD, sealed=SEALED, staging=STAGED)

    def through(self, fate: Fate) -> None:
        """All stores behind a fate."""
        area = self.repo.area
        kv: Any = fate.guard(self.kv, KV_CALLS)
        objects: ObjectStorage = fate.guard(self.objects, OBJECT_CALLS)
        self.repo.use(
            Area.of(
                area.repository,
                kv,
                RangeStorage(objects, rule=SMALL_RANGES),
                TokenCounters(self.kv),
                clock=self.repo.clock.time,
                sleep=self.repo.clock.sleep,
            )
        )

    def close(self) -> None:
        self.repo.close()
        self.kv.close()

    def swept(self) -> None:
        """Everything that is due, twice the grace later; objects carry the machine's time, so any of them is old."""
        for _ in range(2):
            sweep_tokens(self.repo.area, grace=GRACE)
            self.repo.clock.now += GRACE + 1
        sweep_tokens(self.repo.area, grace=GRACE)
        sweep_objects(self.repo.area, grace=-1e12)

    def check_nothing_is_left(self) -> None:
        """Rows of tokens are of tokens in use, objects of trees in use, and no journal row is of another token."""
        area = self.repo.area
        used = {token for branch in area.branches.every() for token in branch.record.tokens}
        assert token_partitions(self.kv) <= used
        assert {item.token for item in journalled(self.kv)} <= used
        assert {item.path for item in area.ranges.stored()} == set(reachable(area))
        receipts = [key for page in self.kv.scan(area.repository.receipts) for key, _ in page]
        assert receipts in ([], [b"main\0job.%d" % area.branches.get("main").record.compacted_token])


def token_partitions(kv: SqlKeyValueStore) -> set[str]:
    with kv.database.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT DISTINCT partition_key FROM kv").fetchall()
    names = {bytes(row[0]).decode() for row in rows}
    return {name for name in names if name.startswith("example-main:")}


def points_of(flow: Flow, folder: Path) -> list[int]:
    """The calls that a flow makes when nothing fails; in a short run one of each name."""
    folder.mkdir()
    fate = Fate()
    with closing(Place(folder)) as place:
        place.through(fate)
        flow.act(place.repo)
    return one_of_each(range(len(fate.names)), lambda at: fate.names[at])


@pytest.mark.parametrize("flow", FLOWS, ids=[flow.name for flow in FLOWS])
@pytest.mark.parametrize("when", Moment, ids=[when.name.lower() for when in Moment])
def test_a_flow_that_ends_at_any_call(flow: Flow, when: Moment, tmp_path: Path) -> None:
    points = points_of(flow, tmp_path / "count")
    assert len(points) >= 2
    for at in points:
        folder = tmp_path / str(at)
        folder.mkdir()
        place = Place(folder)
        place.through(Fate(at, when))
        with pytest.raises(Killed):
            flow.act(place.repo)
        place.through(Fate())
        assert place.repo.shown() in (SHOWN, flow.after), f"after call {at}"
        flow.act(place.repo)
        assert place.repo.shown() == flow.after, f"after call {at} and another try"
        place.swept()
        assert place.repo.shown() == flow.after, f"after call {at}, another try and the sweep"
        place.check_nothing_is_left()
        place.close()


@pytest.mark.parametrize("when", Moment, ids=[when.name.lower() for when in Moment])
def test_a_sweep_that_ends_at_any_call(when: Moment, tmp_path: Path) -> None:
    def prepared(name: str) -> Place:
        folder = tmp_path / name
        folder.mkdir()
        place = Place(folder)
        compacted(place.repo)
        place.repo.tree({"an": "orphan"})
        place.repo.committer.commit("main", DRAFT)
        place.repo.resetter.reset_prefix("main", b"a/")
        place.repo.set("y", "1")
        sweep_tokens(place.repo.area, grace=GRACE)
        place.repo.clock.now += GRACE + 1
        return place

    counted = prepared("count")
    fate = Fate()
    counted.through(fate)
    counted.swept()
    counted.close()
    points = one_of_each(range(len(fate.names)), lambda at: fate.names[at])
    assert len(points) > 3
    for at in points:
        place = prepared(str(at))
        shown = place.repo.shown()
        place.through(Fate(at, when))
        with pytest.raises(Killed):
            place.swept()
        place.through(Fate())
        assert place.repo.shown() == shown, f"after call {at}"
        place.swept()
        assert place.repo.shown() == shown, f"after call {at} and another sweep"
        place.check_nothing_is_left()
        place.close()
