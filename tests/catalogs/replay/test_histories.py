"""Random DDL that the reference ran: the same answers, entries, versions and fingerprints come from our commands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from compaction.catalogs.model.snapshots import restored
from support.catalogs.histories import History, answer, puts, records

pytestmark = pytest.mark.fixtures
SEEDS = [11, 14]


def path_of(shared_fixtures: Path, seed: int) -> Path:
    return shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"


@pytest.mark.parametrize("seed", SEEDS)
def test_commands_do_what_they_do_in_the_reference(shared_fixtures: Path, seed: int) -> None:
    history = History()
    seen: Counter[str] = Counter()
    for record in records(path_of(shared_fixtures, seed)):
        seen.update(run(history, record))
        assert history.latest.version == record["latest"]
        if "catalogSha256" in record:
            assert canonical.fingerprint(history.latest) == record["catalogSha256"]
            seen["catalog"] += 1
    assert seen["exec"] + seen["interleave"] > 200
    assert seen["catalog"] > 80
    assert seen["error"] > 50


def run(history: History, record: Any) -> list[str]:
    given = record["in"]
    if given["op"] == "config":
        history.start(record)
    elif given["op"] == "exec":
        assert history.run(given["cmds"], record) == answer(record["result"])
    elif given["op"] == "interleave":
        # Another manager commits `first` when this one has read the latest version, if it has something to write.
        commits = history.commits(given["cmds"])
        assert commits == (record["firstResult"] is not None)
        if commits:
            assert history.run(given["first"], record) == answer(record["firstResult"])
        assert history.run(given["cmds"], record) == answer(record["result"])
    elif given["op"] == "activeAt":
        times = {
            one.activation_time: number for number, one in history.versions.items() if number >= record["earliest"]
        }
        active = [times[time] for time in sorted(times) if time <= given["ts"]]
        assert answer(record["result"]) == (active[-1] if active else {"error": "CatalogNotFoundException"})
    failed = isinstance(record.get("result"), dict) and "error" in record["result"]
    return [given["op"], *["error"] * failed]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_leads_to_the_same_versions(shared_fixtures: Path, seed: int) -> None:
    """Each value decoded and applied; snapshots are the versions they stand for, and ours are theirs in order."""
    versions: dict[int, Catalog] = {0: EMPTY}
    snapshots = 0
    for record in records(path_of(shared_fixtures, seed)):
        for version, data, timestamp in puts(record):
            event = decode(data, f"catalog.update.{version}")
            if isinstance(event, VersionedUpdate):
                versions[version] = applied(versions[version - 1], event, timestamp)
                continue
            assert restored(event) == versions[version]
            assert versions[version].snapshot() == in_order(event)
            assert decode(encode(versions[version].snapshot()), "snapshot") == in_order(event)
            snapshots += 1
        if "catalogSha256" in record:
            assert canonical.fingerprint(versions[record["latest"]]) == record["catalogSha256"]
    assert snapshots >= 3


def in_order(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot,
        zones=tuple(sorted(snapshot.zones, key=lambda one: one.id)),
        schemas=tuple(
            replace(
                one,
                tables=tuple(sorted(one.tables, key=lambda table: table.id)),
                indexes=tuple(sorted(one.indexes, key=lambda index: index.id)),
                views=tuple(sorted(one.views, key=lambda view: view.id)),
            )
            for one in sorted(snapshot.schemas, key=lambda one: one.schema.id)
        ),
    )
