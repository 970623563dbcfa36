"""Parts of the demo of staging areas: entries by the column, models of branches, writers and reader on a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from compaction.api.policy.policy import CompactionPolicy
from compaction.local.errors import DemoError
from compaction.staging.compaction import claim, rewrite, swap_base, work_on
from compaction.staging.format.columns import TOMBSTONE, RecordColumns
from compaction.staging.store import StagingConnection, StagingStore
from demos.cluster import secrets_yaml
from demos.proving import beside
from demos.staging import writers
from demos.staging.proof import due, left_over, list_logs, look
from demos.staging.run import StagingCast
from demos.staging.writers import (
    BRANCHES,
    CLEANUP,
    COMMITTED,
    DAMAGED,
    EXPERIMENT,
    LOGS,
    REPOSITORY,
    TOTAL,
    BranchChange,
    BranchModel,
    EntryColumns,
    decode_entries,
    encode_entries,
    key_of,
)
from support.clocks import eventually

SMALL_LOGS, SMALL_TABLES = 3000, 2000


@pytest.fixture
def cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StagingCast]:
    """The demo's repository with a few thousand records, on SQLite and a folder."""
    total = SMALL_LOGS + SMALL_TABLES
    for module in ("run", "proof", "writers"):
        place = f"demos.staging.{module}"
        for name, value in (("LOGS", SMALL_LOGS), ("TABLES", SMALL_TABLES), ("TOTAL", total)):
            monkeypatch.setattr(f"{place}.{name}", value, raising=False)
    store = StagingStore.open(StagingConnection(f"sqlite:///{tmp_path / 'kv.db'}"))
    yield StagingCast.create(store, str(tmp_path / "objects"))
    store.close()


def compact(cast: StagingCast, branch: str, job: str) -> None:
    work = work_on(REPOSITORY, cast.area.branches.get(branch).record, staged=True)
    claim(cast.area, work, job=job, token=1)
    swap_base(cast.area, work, rewrite(cast.area, work).tree, job=job, token=1)


def compact_changed(cast: StagingCast, branch: str, job: str) -> None:
    """As soon as it has one more change."""
    model = cast.writers[branch].model
    known = model.acknowledged
    eventually(lambda: model.acknowledged > known, "a change")
    compact(cast, branch, job)


def test_records_are_read_as_they_were_written() -> None:
    numbers = np.array([0, 7, LOGS - 1, LOGS, TOTAL - 1])
    versions = np.array([1, 2, 3, 4, 99_999_999], np.uint32)
    records = encode_entries(numbers, versions)
    keys = records.keys.to_pylist()
    assert keys == sorted(keys) == [key_of(number) for number in numbers.tolist()]
    found = decode_entries(records)
    assert found.numbers.tolist() == numbers.tolist()
    assert found.versions.tolist() == versions.tolist()
    assert len(decode_entries(records.slice(0, 0))) == 0


def test_a_record_of_another_form_is_no_record_of_the_demo() -> None:
    ((key, value),) = encode_entries(np.array([1]), np.array([2], np.uint32)).pairs()
    for pair in ((b"other/00000001", value), (key, value + b"x"), (key, value[:-1] + b"x"), (key, TOMBSTONE)):
        with pytest.raises(DemoError):
            decode_entries(RecordColumns.of([pair]))


def test_a_moment_accepts_what_changes_since_then_explain() -> None:
    model = BranchModel("b", np.ones(10, np.uint32))
    model.change(BranchChange(np.array([1, 2]), 0), lambda: None)
    moment = model.moment()
    assert moment.acknowledged == 1
    shown = EntryColumns(np.array([0, 3, 4, 5, 6, 7, 8, 9]), np.ones(8, np.uint32))
    assert moment.differences(shown, []).tolist() == []
    late = EntryColumns(np.array([0, 1, 3, 4, 5, 6, 7, 8, 9]), np.array([1, 7, 1, 1, 1, 1, 1, 1, 1], np.uint32))
    assert moment.differences(late, []).tolist() == [1]
    assert moment.differences(late, [BranchChange(np.array([1]), 7)]).tolist() == []
    assert moment.differences(late, [BranchChange(np.array([1]), 8)]).tolist() == [1]


def test_a_change_that_was_not_acknowledged_may_be_seen_or_not() -> None:
    model = BranchModel("b", np.ones(2, np.uint32))

    def refuse() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        model.change(BranchChange(np.array([1]), 5), refuse)
    moment = model.moment()
    assert (moment.acknowledged, moment.versions.tolist()) == (0, [1, 1])
    since = model.since(moment)
    for shown in (1, 5):
        found = EntryColumns(np.array([0, 1]), np.array([1, shown], np.uint32))
        assert moment.differences(found, since).tolist() == []


def test_each_branch_is_equal_while_it_is_written_and_compacted(cast: StagingCast) -> None:
    cast.begin(purged=2000)
    assert list_logs(cast.area, CLEANUP.name).stepped_over == 2000
    with beside(cast.prover, *cast.writers.values()):
        for number, name in enumerate((CLEANUP.name, EXPERIMENT.name, EXPERIMENT.name)):
            compact_changed(cast, name, f"job-{number}")
        eventually(lambda: cast.prover.refused, "a reader finds the damage")
        eventually(lambda: cast.writers[COMMITTED.name].commits, "a commit")
        cast.restore()
    cast.check()
    assert cast.prover.different == []
    assert cast.prover.proven > 0
    for name in cast.writers:
        read = cast.prover.prove(name)
        assert all(item.exact and not item.different for item in read)
        assert sum(item.records for item in read) == cast.writers[name].model.records
    committed = cast.writers[COMMITTED.name].committed
    assert committed is not None
    assert cast.prover.shows(f"{COMMITTED.name}@", committed)
    assert list_logs(cast.area, CLEANUP.name).stepped_over < 2000


def test_a_lost_write_and_a_lost_deletion_are_noticed(cast: StagingCast) -> None:
    writer = cast.writers[EXPERIMENT.name]
    writer.model.change(BranchChange(np.array([5, 9]), 0), lambda: None)
    read = cast.prover.prove(EXPERIMENT.name)
    assert [number for item in read for number in item.different] == [5, 9]
    assert "2 records differ: logs/00000005" in cast.prover.different[0]


def test_the_damaged_range_belongs_to_one_branch(cast: StagingCast) -> None:
    cast.begin(purged=10)
    for name in cast.writers:
        tree = cast.area.references.commit(name).meta_range_id
        ids = {item.id for item in cast.area.ranges.ranges(tree)}
        assert (cast.damaged in ids) == (name == DAMAGED.name)
    cast.restore()
    assert not any(item.different for item in cast.prover.prove(DAMAGED.name))


def test_facts_are_those_of_records_and_counters(cast: StagingCast) -> None:
    assert set(look(cast.area)) == {branch.name for branch in BRANCHES}
    writer = cast.writers[CLEANUP.name]
    writer.purge(writers.THRESHOLDS["tombstones"])
    cast.area.counters.flush()
    facts = look(cast.area)[CLEANUP.name]
    assert facts.counts.tombstones == writers.THRESHOLDS["tombstones"]
    assert due(facts)
    tokens = cast.area.branches.get(CLEANUP.name).record.tokens
    compact(cast, CLEANUP.name, "job")
    facts = look(cast.area)[CLEANUP.name]
    assert facts.base
    assert not due(facts)
    assert left_over(cast.area, tokens).tokens == tokens


def test_the_policy_is_one_the_models_accept() -> None:
    policy = CompactionPolicy.from_object(writers.policy())
    area = policy.spec.store.staging_area
    assert area is not None
    assert area.thresholds.tombstones == writers.THRESHOLDS["tombstones"]


def test_secrets_are_in_their_documents_and_nowhere_else() -> None:
    text = secrets_yaml(writers.secrets({"secret_access_key": "hidden"}, "postgresql://u:p@/db"))
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(text)]
    assert names == [writers.CREDENTIALS_SECRET, writers.KV_SECRET]
    assert "hidden" not in yaml.safe_dump(writers.policy())


def test_more_is_below_logs_than_is_deleted_before() -> None:
    assert writers.PURGED < writers.LOGS
