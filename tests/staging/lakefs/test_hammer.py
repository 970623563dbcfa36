"""Writers, commits that are refused, commits, and a merger at once: content as a model says; and a merge of 500."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from sqlalchemy import event

from compaction.staging.errors import NoChangesError, PredicateFailedError
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.lakefs.cleaning import drop_due
from compaction.staging.lakefs.control import TokenMergeSettings
from compaction.staging.lakefs.merging import MergeEnd, TokenMergeOutcome, merge_branch
from compaction.staging.lakefs.planning import plan_merge
from compaction.staging.lakefs.repository import LiveRepository, open_live_repository
from compaction.staging.tree.storage import RangeStorage
from support.clocks import PATIENCE_SECONDS
from support.staging.lakefs_server import LakeFsServer, TooManyTriesOfServerError
from support.timing import at_depth

SECONDS = at_depth(short=5.0, deep=90.0)
QUICK = TokenMergeSettings(quiet=0.1, yields=0, seals=True, seal_every=0.4, grace=2.0, lease=60)


@dataclass
class Hammer:
    """Threads that end together; what went wrong in one of them. `calm`: writers wait between their writes."""

    stop: threading.Event = field(default_factory=threading.Event)
    calm: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    writes: int = 0
    outcomes: list[TokenMergeOutcome] = field(default_factory=list)

    def run(self, *bodies: Callable[[], None], seconds: float, until: Callable[[], bool]) -> None:
        """All side by side for so long, then calmly until it is so: beside a load a merger may lose each swap."""
        threads = [threading.Thread(target=self._guarded, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.calm.set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not until() and time.monotonic() < deadline and not self.stop.wait(0.1):
            pass
        self.stop.set()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                body()
        except BaseException as error:  # noqa: BLE001
            self.errors.append(error)
            self.stop.set()


class Writer:
    """Keys of its own, and what they must show."""

    def __init__(self, server: LakeFsServer, hammer: Hammer, name: str) -> None:
        self.server, self.hammer, self.name = server, hammer, name
        self.model: dict[str, str] = {}
        self.random = random.Random(name)

    def __call__(self) -> None:
        if self.hammer.calm.is_set():
            self.hammer.stop.wait(0.5)
        key = f"{self.name}/{self.random.randrange(40):02d}"
        text = None if self.random.random() < 0.45 else f"{self.random.getrandbits(64):x}"
        while True:
            try:
                self.server.delete(key) if text is None else self.server.set(key, text)
                break
            except TooManyTriesOfServerError:
                continue
        self.model.pop(key, None)
        if text is not None:
            self.model[key] = text
        self.hammer.writes += 1
        # A server does not read the branch again after a read: under a commit, which drops tokens at once, it may miss.
        assert any(self.server.get(key) == text for _ in range(5)), f"{key} does not show {text!r}"


@pytest.fixture
def mergers(kv_url: str) -> Iterator[SqlKeyValueStore]:
    """The merger's own connections: neither the server's nor those of who looks."""
    with closing(open_key_value_store(kv_url)) as kv:
        yield kv


@pytest.mark.parametrize("commits", [False, True])
def test_writers_and_commits_beside_a_merger(
    server: LakeFsServer, live: LiveRepository, mergers: SqlKeyValueStore, ranges: RangeStorage, commits: bool
) -> None:
    server.fixed_deletes = True
    hammer = Hammer()
    writers = [Writer(server, hammer, name) for name in ("u", "v", "w")]
    real = open_live_repository(mergers, server.name, ranges=ranges)
    rng = random.Random(1)

    def commit() -> None:
        # Each one changes the branch, and a merge that takes longer than the time between them never wins.
        hammer.stop.wait(30 if hammer.calm.is_set() else rng.uniform(0.2, 0.6))
        if commits and rng.random() < 0.3:
            try:
                server.commit()
            except (NoChangesError, PredicateFailedError, TooManyTriesOfServerError):
                return
        else:
            server.refused_commit()

    def merge() -> None:
        hammer.outcomes.append(merge_branch(real, "main", QUICK))
        drop_due(real)

    def won() -> bool:
        return any(outcome.end is MergeEnd.MERGED for outcome in hammer.outcomes)

    hammer.run(*writers, commit, merge, seconds=SECONDS, until=lambda: won() and hammer.writes > 100)
    expected = {key: f"{key} committed" for key in "abcde"}
    for writer in writers:
        expected |= writer.model
    assert server.listed() == expected
    assert won(), "it has won no swap"
    assert hammer.writes > 100
    time.sleep(QUICK.grace)
    drop_due(real)
    assert server.listed() == expected
    known = live.used_tokens()
    with mergers.database.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT DISTINCT convert_from(partition_key, 'UTF8') FROM kv").scalars()
        rows = {item for item in found if ":" in item}
    # Late writes land in tokens that a commit has dropped already: a server's garbage, a row or two each.
    assert len(rows - known) <= (20 if commits else 0)


class Statements:
    """Counts the statements of a block."""

    def __init__(self, kv: SqlKeyValueStore) -> None:
        self.engine, self.count = kv.database.engine, 0

    def __enter__(self) -> Statements:
        event.listen(self.engine, "before_cursor_execute", self._one)
        return self

    def __exit__(self, *error: object) -> None:
        event.remove(self.engine, "before_cursor_execute", self._one)

    def _one(self, *args: object) -> None:
        self.count += 1


def test_five_hundred_tokens(server: LakeFsServer, live: LiveRepository, kv: SqlKeyValueStore) -> None:
    """The shape that was measured on a server: four rows each, a read asks 502 times before and 3 times after."""
    rng = random.Random(3)
    layers = [
        {f"k/{rng.randrange(1200):04d}": None if rng.random() < 0.2 else f"{number}" for _ in range(4)}
        for number in range(500)
    ]
    server.put_sealed(*layers)
    content, row = server.listed(), server.row() or b""
    plan = plan_merge(live, "main")
    with Statements(kv) as before:
        server.get("missing")
    outcome = merge_branch(live, "main")
    with Statements(kv) as after:
        server.get("missing")
    # The server of the tests reads the commit too, which real ones keep.
    assert (before.count - 1, after.count - 1) == (plan.statements_before, plan.statements_after) == (502, 3)
    assert server.listed() == content
    assert (len(row), len(server.row() or b"")) == (outcome.row_bytes_before, outcome.row_bytes_after)
    assert outcome.row_bytes_before > 24_000
    assert outcome.row_bytes_after < 200
    assert plan.rows_after == outcome.rows_after < 1200
