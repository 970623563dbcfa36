"""Values that the reference wrote: each decodes to what its own reader holds, and is written again byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode_exact, encode
from compaction.catalogs.errors import CatalogValueError

pytestmark = pytest.mark.fixtures


def lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def test_every_file_decodes_as_the_reference_reads_it_and_is_written_again(shared_fixtures: Path) -> None:
    """`reencodeLatest*`: what the reference writes of it with its newest serializers, where it can."""
    root = shared_fixtures / "ignite"
    records = list(lines(root / "reader_head.jsonl.gz"))
    for record in records:
        name = record["file"]
        data = (root / name).read_bytes()
        found = decode_exact(data, name)
        assert canonical.text(canonical.event(found.event)) == canonical.text(record["value"]), name
        assert found.protocol == record["protocol"]
        assert found.encode() == data, name
        if "reencodeError" in record:
            with pytest.raises(CatalogValueError, match="names its columns"):
                encode(found.event, found.protocol)
            continue
        newest = encode(found.event, found.protocol)
        assert (len(newest), newest == data) == (record["reencodeLatestBytes"], record["reencodeLatestEqual"]), name
    assert len(records) == len(list(root.glob("serialization_v*/*.bin"))) > 30


@pytest.mark.parametrize("seed", [11, 14])
def test_values_of_histories(shared_fixtures: Path, seed: int) -> None:
    """Both ways with the newest serializers: what was decoded is written with the same bytes, without a trace, except
    for the order of names of dropped columns and of lists in snapshots, which the reference leaves to chance.
    """
    total = 0
    for record in lines(shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"):
        puts = [put for transaction in record.get("txns", ()) for put in transaction["puts"]]
        values = [bytes.fromhex(data) for key, data in puts if key.startswith("catalog.update.")]
        for data, expected in zip(values, record.get("decoded", ()), strict=True):
            found = decode_exact(data, "value")
            assert canonical.text(canonical.event(found.event)) == canonical.text(expected)
            assert found.encode() == data
            assert sorted(encode(found.event)) == sorted(data)
            total += 1
    assert total > 90
