"""Listing over HTTP: the live blocks of one instant, page by page, whatever happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.index.tombstones import forget_blocks
from compaction.blocks.model import RowFingerprint
from compaction.blocks.store import BlockStore
from support.blocks.block_histories import compact_meanwhile, sweep
from support.blocks.block_stores import NOON, block_id, fill, upload
from support.endpoints import Endpoint, gate, serving


@pytest.fixture
def endpoint(block_store: BlockStore, tmp_path: Path) -> Iterator[Endpoint]:
    with serving(block_store, lambda: gate(tmp_path)) as running:
        yield running


def ids(endpoint: Endpoint, **query: Any) -> list[str]:
    answer = endpoint.list(**query)
    assert answer.status == 200, answer.body
    return [item["id"] for item in answer.body["blocks"]]


def walked(endpoint: Endpoint, limit: int) -> list[dict[str, Any]]:
    """All pages of one listing."""
    answer = endpoint.list(limit=limit).body
    blocks: list[dict[str, Any]] = answer["blocks"]
    while answer["more"]:
        answer = endpoint.list(limit=limit, version=answer["version"], after=blocks[-1]["id"]).body
        blocks += answer["blocks"]
    return blocks


def test_a_block_is_listed_as_it_is(endpoint: Endpoint, block_store: BlockStore) -> None:
    fill(block_store, [1])
    (block,) = block_store.live().blocks
    (found,) = endpoint.list().body["blocks"]
    assert RowFingerprint.parse(found.pop("fingerprint")) == block.fingerprint
    assert found == {
        "id": block_id(1), "tenant": "acme", "shard": 0, "level": 0, "path": block.path, "minTime": 100,
        "maxTime": 199, "rows": 100, "bytes": block.bytes, "sortKey": ["service", "time"],
        "schemaId": block.schema_id,
    }  # fmt: skip


def test_filters(endpoint: Endpoint, block_store: BlockStore) -> None:
    fill(block_store, [1, 2])
    fill(block_store, [3], tenant="other & co")
    fill(block_store, [4], shard=7)
    one, two, three, four = map(block_id, (1, 2, 3, 4))
    assert ids(endpoint) == [one, two, three, four]
    assert ids(endpoint, tenant="other & co") == [three]
    assert ids(endpoint, tenant="nobody") == []
    assert ids(endpoint, shard=7) == [four]
    assert ids(endpoint, level=1) == []
    assert ids(endpoint, from_=200, to=300) == [two, three]
    assert ids(endpoint, to="1970-01-01T00:00:00.000199Z") == [one]
    assert ids(endpoint, from_="1970-01-01T01:00:00.000200+01:00") == [two, three, four]
    assert ids(endpoint, to=-1) == []


def test_pages_are_of_one_instant(endpoint: Endpoint, block_store: BlockStore) -> None:
    fill(block_store, range(5))
    first = endpoint.list(limit=2).body
    compact_meanwhile(block_store, "j", list(block_store.live().blocks)[1:], number=9)
    fill(block_store, [7])
    rest = endpoint.list(version=first["version"], after=first["blocks"][-1]["id"]).body
    assert (first["more"], rest["more"], rest["version"]) == (True, False, first["version"])
    assert [item["id"] for item in first["blocks"] + rest["blocks"]] == [block_id(number) for number in range(5)]
    assert ids(endpoint) == [block_id(0), block_id(7), block_id(9)]


def test_the_next_page_may_come_from_another_replica(
    endpoint: Endpoint, block_store: BlockStore, tmp_path: Path
) -> None:
    fill(block_store, range(4))
    first = endpoint.list(limit=2).body
    compact_meanwhile(block_store, "j", list(block_store.live().blocks), number=9)
    with serving(block_store, lambda: gate(tmp_path)) as other:
        rest = other.list(version=first["version"], after=first["blocks"][-1]["id"]).body
    assert [item["id"] for item in rest["blocks"]] == [block_id(2), block_id(3)]


def test_a_version_that_is_forgotten_is_gone(endpoint: Endpoint, block_store: BlockStore) -> None:
    fill(block_store, [1, 2])
    version = endpoint.list().body["version"]
    compact_meanwhile(block_store, "j", list(block_store.live().blocks), number=3)
    sweep(block_store, grace=0)
    assert len(ids(endpoint, version=version)) == 2
    forget_blocks(block_store.index, before=NOON * 2)
    answer = endpoint.list(version=version)
    assert (answer.status, answer.code) == (410, "SnapshotExpired")
    assert "take a new snapshot" in answer.body["message"]
    assert endpoint.list(version=2**40).status == 410


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=1001", "limit=x", "shard=-1", "shard=1.5", "level=", "from=yesterday", "from=2026-01-01",
        "to=2026-01-01T00:00:00", "to=99999999999999999999", "from=0&from=1", "tenant=a&tenant=b", "tenants=a",
        "start=1", "version=-1", "after=x", "from=9999-99-99T00:00:00Z", "from=%FF", "to=%00",
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_a_clear_error(endpoint: Endpoint, query: str) -> None:
    answer = endpoint.call("GET", f"/v1/blocks?{query}")
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert answer.body["message"]


def test_hostile_values_find_nothing(endpoint: Endpoint, block_store: BlockStore) -> None:
    fill(block_store, [1])
    version = endpoint.list().body["version"]
    for value in ("' OR 1=1 --", "%", "\u0000", "é" * 500):
        answer = endpoint.list(tenant=value)
        assert answer.status in {200, 400}
        assert answer.body.get("blocks", []) == []
        assert endpoint.list(version=version, after=value).status in {200, 400}


def test_listings_under_load_have_every_row_once(endpoint: Endpoint, block_store: BlockStore) -> None:
    """Blocks are registered and merged all the time; the pages of each listing hold the rows of a prefix of what was
    registered, at least of all that was before it began.
    """
    total, registered, begun, over = 24, [0], [0], threading.Event()

    def write() -> None:
        for number in range(total):
            path = upload(block_store, number)
            begun[0] = number + 1
            answer = endpoint.register({"path": path, "tenant": "acme", "shard": 0})
            assert answer.status == 200
            registered[0] = number + 1

    def merge() -> None:
        turn = 0
        while not over.is_set():
            alike: dict[int, list[Any]] = {}
            for block in block_store.live().blocks:
                alike.setdefault(block.level, []).append(block)
            for blocks in alike.values():
                if len(blocks) > 2:
                    turn += 1
                    compact_meanwhile(block_store, f"j{turn}", blocks[:3], number=1000 + turn)

    def read() -> int:
        listings = 0
        while not over.is_set() or not listings:
            before = registered[0]
            blocks = walked(endpoint, limit=2)
            after = begun[0]
            spans = sorted((block["minTime"], block["maxTime"], block["rows"]) for block in blocks)
            rows = sum(count for _, _, count in spans)
            assert before * 100 <= rows <= after * 100
            assert all(low[1] < high[0] for low, high in pairwise(spans)), "rows are there twice"
            assert not spans or (spans[0][0], spans[-1][1]) == (0, rows - 1)
            listings += 1
        return listings

    with ThreadPoolExecutor(4) as pool:
        merging, reading = pool.submit(merge), [pool.submit(read), pool.submit(read)]
        try:
            pool.submit(write).result()
        finally:
            over.set()
    merging.result()
    assert all(each.result() > 0 for each in reading)
