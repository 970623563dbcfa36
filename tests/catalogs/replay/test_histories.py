"""Random DDL that the reference ran: the same answers, entries, versions and fingerprints come from our commands."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.model.applying import applied, restored
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.replay.recorded import in_order
from compaction.catalogs.replay.replaying import replay
from support.catalogs.histories import puts, records

pytestmark = pytest.mark.fixtures
SEEDS = [11, 14]


def path_of(shared_fixtures: Path, seed: int) -> Path:
    return shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_manager_does_what_the_reference_does(shared_fixtures: Path, seed: int) -> None:
    """Every step: answers, classes of errors, writes, events, versions, fingerprints."""
    seen: Counter[str] = Counter()
    for step in replay(path_of(shared_fixtures, seed)):
        assert step.differences == (), f"line {step.line}"
        seen[step.name] += 1
    assert seen["exec"] + seen["interleave"] > 200
    assert min(seen[name] for name in ("compact", "restart", "activeAt", "versions", "keys", "config")) >= 1


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
