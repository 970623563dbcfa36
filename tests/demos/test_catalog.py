"""Parts of the demo of catalogs: the model says where history begins, the reader notices every difference, a pin counts
only when it is named and holds, and what etcd and participants are asked is what they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus
from compaction.api.catalog.reasons import Reason
from compaction.catalogs.manager.history import START, CatalogHistory
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.local.errors import DemoError
from compaction.local.programs.binaries import Binaries
from demos.__main__ import DEMOS
from demos.catalog import nodes, run
from demos.catalog.history import Author, StoredVersions, opened, stored
from demos.catalog.nodes import Model, Node, digest, start_node, wait_ready
from demos.catalog.proof import (
    CatalogProver,
    CatalogStory,
    PinScene,
    Shown,
    checks,
    needed_by,
    shows,
    since_of,
)
from demos.proving import beside
from demos.stage import Show
from house.test_seam import lacks
from support.catalogs.rounds import World
from support.clocks import eventually
from support.cluster.orders import catalog_object
from tools.servers.etcd import LocalEtcd, start_etcd


def written(count: int) -> list[Catalog]:
    """So many versions of the demo's DDL, version n active at second n."""
    world = World.started()
    found = [world.catalog]
    commands = (item for source in (nodes.beginning(), nodes.changes()) for item in source)
    for batch in islice(commands, count - 1):
        world.run(*batch)
        found.append(world.catalog)
    return found


@pytest.fixture(scope="module")
def versions() -> list[Catalog]:
    return written(40)


def model_of(versions: list[Catalog]) -> Model:
    model = Model()
    for version in versions:
        model.record(version)
    return model


def prover_of(model: Model, versions: list[Catalog]) -> CatalogProver:
    history = CatalogHistory(versions)
    return CatalogProver(model, lambda: history, lambda: history)


def test_every_step_of_the_ddl_is_a_version(versions: list[Catalog]) -> None:
    assert [version.version for version in versions] == list(range(1, 41))


def test_the_last_version_has_no_table_whose_partitions_no_participant_holds() -> None:
    # Beside these, the index is registered and begun to be built.
    last = written(nodes.VERSIONS - 2)[-1]
    assert {table.name for table in last.tables.values()} == set(nodes.TABLES)


@pytest.mark.parametrize(
    ("required", "first"),
    [(hybrid(1000), 1), (hybrid(2000), 1), (hybrid(30_000), 29), (hybrid(30_999), 29), (hybrid(10**9), 39)],
)
def test_history_begins_before_the_version_that_is_needed(versions: list[Catalog], required: int, first: int) -> None:
    # Activation is 5 ms after the second.
    assert model_of(versions).first_kept(required + (5 << 16)) == first


def test_equal_versions_are_proven_and_cut_ones_are_refused(versions: list[Catalog]) -> None:
    prover = prover_of(model_of(versions), versions)
    prover.prove()
    assert (prover.proven, prover.refused, prover.wrong, prover.earliest) == (80, 0, 0, [1])
    prover.follow = lambda: CatalogHistory(versions[30:])
    prover.prove()
    assert (prover.proven, prover.refused, prover.wrong, prover.earliest) == (100, 90, 0, [1, 31])


def test_another_descriptor_an_absent_and_a_false_version_are_noticed(versions: list[Catalog]) -> None:
    model = model_of(versions)
    changed = [*versions[:-1], replace(versions[-1], zones=versions[0].zones)]
    prover = prover_of(model, changed)
    prover.prove()
    assert (prover.wrong, prover.different) == (2, ["version 40 has other descriptors than were written"] * 2)

    later = [
        *versions[:20],
        *(replace(version, activation_time=version.activation_time + 1) for version in versions[20:]),
    ]
    prover = prover_of(model, later)
    prover.prove()
    assert prover.wrong >= 20
    assert "version 20 is active, 21 was written" in prover.different[0]


def test_the_digest_sees_descriptors_and_no_column_sets_of_the_past(versions: list[Catalog]) -> None:
    last = versions[-1]
    table = next(table for table in last.tables.values() if len(table.versions) > 1)
    assert digest(last) != digest(versions[-2])
    trimmed = replace(table, base=table.base + 1, versions=table.versions[1:])
    assert digest(replace(last, tables=last.tables.put(table.id, trimmed))) == digest(last)
    renamed = replace(table, name="OTHER")
    assert digest(replace(last, tables=last.tables.put(table.id, renamed))) != digest(last)


def status_of(**status: object) -> CatalogCompactionStatus:
    return CatalogCompaction.from_object(catalog_object() | {"status": status}).status


PINNED = {
    "earliestVersion": 29,
    "latestVersion": 40,
    "coordinator": "replica-a",
    "versionsCut": 28,
    "bytesCut": 5,
    "requiredTime": {
        "value": 5,
        "time": "2026-01-01T00:00:00Z",
        "reason": "Transaction",
        "participant": "node-1",
        "since": "2026-01-01T00:00:01Z",
    },
    "compaction": {
        "outcome": "Skipped",
        "reason": "Transaction",
        "participant": "node-1",
        "subject": "transaction 7",
        "since": "2026-01-01T00:00:09Z",
        "finishedAt": "2026-01-01T00:01:00Z",
    },
}
SCENE = PinScene(Reason.TRANSACTION, "node-1", 29, "it ends", lambda: None)


def test_a_pin_is_shown_when_it_is_named_and_history_begins_where_it_must() -> None:
    status = status_of(**PINNED)
    assert shows(status, SCENE)
    assert str(since_of(status)) == "2026-01-01 00:00:01+00:00"
    assert not shows(status, replace(SCENE, first=28))
    assert not shows(status, replace(SCENE, participant="node-2"))
    assert not shows(status, replace(SCENE, reason=Reason.REPLAY))
    assert not shows(CatalogCompactionStatus(), SCENE)


def story_of(versions: list[Catalog]) -> CatalogStory:
    """Of a run in which everything held."""
    model = model_of(versions)
    prover = prover_of(model, versions)
    for _ in range(4):
        prover.prove()
    for first in (29, 39):
        prover.follow = lambda first=first: CatalogHistory(versions[first - 1 :])  # type: ignore[misc]
        prover.prove()
        prover.prove()
    status = status_of(**PINNED | {"earliestVersion": 39, "versionsCut": 38})
    missing = status_of(
        **PINNED | {"earliestVersion": 1, "compaction": PINNED["compaction"] | {"reason": "MissingParticipant"}}  # type: ignore[operator]
    )
    begin = replace(SCENE, reason=Reason.MISSING_PARTICIPANT, first=1)
    shown = [Shown(begin, missing, None, 1, 2), Shown(SCENE, status_of(**PINNED), None, 30, 2)]
    return CatalogStory(shown, status, 39, prover, StoredVersions(40, 900), StoredVersions(2, 90), [], 2)


def test_every_claim_holds_and_each_can_fail(versions: list[Catalog]) -> None:
    story = story_of(versions)
    assert [check.claim for check in checks(story) if not check.holds] == []
    pinned = story.shown[1]
    failures = {
        "Transaction of node-1 is named, and holds version 29": [
            replace(story, shown=[story.shown[0], replace(pinned, rounds=0)]),
            replace(story, shown=[story.shown[0], replace(pinned, needed=28)]),
        ],
        "history begins where the rules say, and not one version further": [replace(story, first=38)],
        "nothing is left but the two versions that always stay": [
            replace(story, after=StoredVersions(3, 90)),
            replace(story, status=story.shown[1].status),
        ],
        "etcd holds fewer bytes": [replace(story, after=StoredVersions(2, 900))],
        "the shared secret is in no object, log or process": [replace(story, leaks=["a.log"])],
        "one replica led while the other stood by": [replace(story, replicas_alive=1)],
    }
    for claim, stories in failures.items():
        for item in stories:
            assert claim in [check.claim for check in checks(item) if not check.holds]
    story.prover.wrong = 1
    lost = [check.claim for check in checks(story) if not check.holds]
    assert lost == [
        "active(t) is what was written, for every allowed t, all the time",
        "versions that were cut are refused by name",
    ]


def test_a_version_further_than_the_rules_say_is_noticed(versions: list[Catalog]) -> None:
    story = story_of(versions)
    story.prover.follow = lambda: CatalogHistory(versions[39:])
    for _ in range(2):
        story.prover.prove()
    (failed,) = [check for check in checks(story) if not check.holds]
    assert failed.fact == "1 -> 29 -> 39 -> 40, expected [1, 29, 39]"


def test_the_demo_is_offered_beside_those_of_the_kinds() -> None:
    assert list(DEMOS) == ["logs", "blocks", "staging", "catalog"]
    assert DEMOS["catalog"] is run.show
    for show in DEMOS.values():
        assert lacks(show, Show) == []


def test_the_manifest_is_one_that_the_operator_takes() -> None:
    document = nodes.compaction("https://127.0.0.1:2379", {"node-1": "http://127.0.0.1:1"})
    catalog = CatalogCompaction.from_object(document)
    assert catalog.spec.topology.participants == nodes.NODES
    assert set(catalog.spec.secret_names) == {nodes.ETCD_SECRET, nodes.PARTICIPANTS_SECRET}


@pytest.fixture
def etcd(tmp_path: Path, binaries: Binaries) -> Iterator[LocalEtcd]:
    with start_etcd(tmp_path / "etcd", binaries.etcd, sync=False) as running:
        yield running


@contextmanager
def started(directory: Path, name: str) -> Iterator[Node]:
    found = start_node(directory, name, "a secret of the demo", checkpoints=name == nodes.NODES[0], detached=False)
    try:
        wait_ready(found, directory)
        yield found
    finally:
        found.close()
        found.process.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with started(tmp_path, nodes.NODES[0]) as found:
        yield found


def test_what_is_written_is_read_cut_and_counted(
    etcd: LocalEtcd, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in {
        "CHECKPOINT_AT": 10, "FIRST_TRANSACTION_AT": 12, "SECOND_TRANSACTION_AT": 14, "INDEX_AT": 16,
    }.items():  # fmt: skip
        monkeypatch.setattr(nodes, name, version)
    monkeypatch.setattr("demos.catalog.history.VERSIONS", 20)
    told: list[str] = []
    with (
        started(tmp_path, nodes.NODES[1]) as other,
        opened(etcd.settings) as manager,
        opened(etcd.settings) as follower,
    ):
        author = Author(manager, Model(), [node, other])
        author.write_all(told.append)
        assert manager.latest.version == 20
        model = author.model
        assert model.first_kept(author.checkpointed_at) == 9
        assert model.first_kept(author.first_transaction) == 11
        assert model.first_kept(author.second_transaction) == 13
        eventually(lambda: follower.latest.version == 20, "the versions in another process")
        prover = CatalogProver(model, lambda: follower.history, lambda: follower.history)
        with beside(prover):
            eventually(lambda: prover.readings > 0, "a reading")
            before = stored(etcd.settings)
            manager.compact(8, 1).result()
            eventually(lambda: prover.earliest == [1, 8], "the cut")
            eventually(lambda: prover.refused > 0, "a refusal")
        assert (prover.wrong, prover.error) == (0, None)
        after = stored(etcd.settings)
        assert (before.versions, after.versions) == (20, 13)
        assert after.bytes < before.bytes
        eventually(lambda: needed_by([node, other], model) == 10, "what the oldest published minimum needs")
        author.finish_index()
        assert manager.latest.version == 21


def test_a_participant_that_refuses_or_is_gone_is_named(node: Node, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="node-1 refused POST /v1/admin/finish: 4"):
        node.act("finish", timestamp="77")
    node.process.stop()
    with pytest.raises(DemoError, match="node-1 does not answer GET /v1/report"):
        node.report()
    with pytest.raises(DemoError, match=r"node-1 did not start: see .*node-1\.log"):
        wait_ready(node, tmp_path)
    assert "a secret of the demo" not in (tmp_path / "node-1.log").read_text()


def test_version_one_is_where_a_history_begins() -> None:
    update = VersionedUpdate(1, 5, World().run(*islice(nodes.beginning(), 1).__next__()).entries)
    first = applied(EMPTY, update, hybrid(1000))
    assert START.appended(first).latest.version == 1
    assert model_of([first]).first_kept(first.activation_time) == 1
