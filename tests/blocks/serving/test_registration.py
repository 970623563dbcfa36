"""Registration over HTTP: all or none, once, idempotent, and a word about each block."""

from __future__ import annotations

import errno
import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compaction.blocks.format import footer as footer_module
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.model import block_path
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.registration import describe as describe_module
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.orphan_collector import collect_orphans, find_orphans
from compaction.serving.service import RequestLimits
from support.blocks.block_stores import NOON, block_id, check, content, upload
from support.blocks.blocks import rows
from support.endpoints import Endpoint, gate, serving
from support.faults.store_faults import DAY, Aging
from support.timing import examples


@pytest.fixture
def endpoint(block_store: BlockStore, tmp_path: Path) -> Iterator[Endpoint]:
    with serving(block_store, lambda: gate(tmp_path)) as running:
        yield running


LACKING = (
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 4096 failed"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOSPC, "No space left on device"),
)


def block(path: str, **fields: Any) -> dict[str, Any]:
    return {"path": path, "tenant": "acme", "shard": 0} | fields


def test_uploaded_blocks_are_live_after_the_answer(endpoint: Endpoint, block_store: BlockStore) -> None:
    paths = [upload(block_store, number) for number in (1, 2)]
    other = upload(block_store, 3, tenant="other/../x", shard=7)
    answer = endpoint.register(*map(block, paths), block(other, tenant="other/../x", shard=7, level=2))
    assert (answer.status, answer.outcomes()) == (200, [("Registered", None)] * 3)
    assert [item["id"] for item in answer.body["blocks"]] == [block_id(number) for number in (1, 2, 3)]
    assert [(item.tenant, item.shard, item.level) for item in block_store.live().blocks] == [
        ("acme", 0, 0), ("acme", 0, 0), ("other/../x", 7, 2),
    ]  # fmt: skip
    assert len(content(block_store)) == 300


def test_a_repetition_changes_nothing(endpoint: Endpoint, block_store: BlockStore) -> None:
    paths = [upload(block_store, number) for number in (1, 2, 3)]
    endpoint.register(*map(block, paths[:2]))
    version = block_store.live()
    again = endpoint.register(*map(block, paths[:2]))
    assert (again.status, again.outcomes()) == (200, [("Known", None)] * 2)
    assert block_store.live().blocks == version.blocks
    mixed = endpoint.register(*map(block, [paths[2], paths[0], paths[2]]))
    assert mixed.outcomes() == [("Registered", None), ("Known", None), ("Registered", None)]
    check(block_store.index)


def test_the_column_of_times_is_that_of_the_request(endpoint: Endpoint, block_store: BlockStore) -> None:
    moments = {"made": pa.array([10, 20], pa.timestamp("us")), "seen": pa.array([910, 920], pa.timestamp("us"))}
    path = upload(block_store, 1, table=pa.table({"service": ["a", "b"], "time": ["x", "y"]} | moments))
    (refused,) = endpoint.register(block(path)).body["blocks"]
    assert "which column is the time?" in refused["message"]
    assert endpoint.register(block(path, timeColumn="seen")).status == 200
    (listed,) = block_store.live().blocks
    assert (listed.min_time, listed.max_time) == (910, 920)


def test_a_column_of_the_path_is_given_up_by_the_request(endpoint: Endpoint, block_store: BlockStore) -> None:
    source, path = upload(block_store, 1, metadata=BlockMetadata(id=block_id(1))), "lake/region=eu/a.parquet"
    block_store.objects.put(path, block_store.objects.get(source))
    (refused,) = endpoint.register(block(path)).body["blocks"]
    assert refused["message"].endswith("--drop-path-column region (over HTTP: dropPathColumns)")
    assert endpoint.register(block(path, dropPathColumns=["Region"])).outcomes() == [("Registered", None)]


def _bad(store: BlockStore, what: str) -> dict[str, Any]:
    """A block that cannot be registered."""
    path = block_path("acme", 0, block_id(9))
    match what:
        case "corrupt":
            store.objects.put(path, b"no parquet, but long enough")
        case "truncated":
            data = store.objects.get(upload(store, 9))
            store.objects.put(path, data[: len(data) // 2])
        case "of a table":
            store.objects.put("table/_delta_log/0.json", b"{}")
            return block(upload(store, 9, tenant="table"), tenant="table")
        case "with a column in its path only":
            path = "lake/region=eu/part-0.parquet"
            store.objects.put(path, store.objects.get(upload(store, 9)))
        case "of another tenant by its own word":
            upload(store, 9, metadata=BlockMetadata(tenant="other"))
        case "of another tenant by its place":
            return block(upload(store, 9, tenant="other"))
        case "of another shard":
            return block(upload(store, 9), shard=1)
        case "without a time":
            upload(store, 9, table=pa.table({"service": ["a"], "time": ["x"]}))
        case "without an id":
            path = "lake/part-0.parquet"
            store.objects.put(path, store.objects.get(upload(store, 9)))
        case "outside of the store":
            path = "../../etc/passwd"
        case "of a tenant that cannot be":
            return block(path, tenant="x" * 500)
    return block(path)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("missing", "ObjectMissing"), ("corrupt", "Corrupt"), ("truncated", "Corrupt"),
        ("of another tenant by its own word", "Unsuitable"), ("of another tenant by its place", "Unsuitable"),
        ("of another shard", "Unsuitable"), ("without a time", "Unsuitable"), ("without an id", "Unsuitable"),
        ("of a table", "Unsuitable"), ("with a column in its path only", "Unsuitable"),
        ("outside of the store", "Invalid"), ("of a tenant that cannot be", "Invalid"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_a_block_keeps_all_out_and_is_named(
    endpoint: Endpoint, block_store: BlockStore, what: str, code: str
) -> None:
    good = [upload(block_store, number) for number in (1, 2)]
    bad = _bad(block_store, what)
    answer = endpoint.register(block(good[0]), bad, block(good[1]))
    assert (answer.status, answer.code) == (422, "BlocksRefused")
    fine = ("NotRegistered", None)
    assert answer.outcomes() == [fine, ("Refused", code), fine]
    assert answer.body["blocks"][1]["message"]
    assert answer.body["message"] == "1 of 3 blocks were refused, and none was registered"
    assert block_store.live().blocks == ()
    assert endpoint.register(*map(block, good)).status == 200


def test_what_fails_for_no_known_reason_is_refused_and_not_to_be_repeated(
    endpoint: Endpoint, block_store: BlockStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = upload(block_store, 1), upload(block_store, 2)
    plain = describe_module.describe_footer

    def fails(objects: Any, footer: Any, *args: Any, **known: Any) -> Any:
        return footer.nothing if footer.info.path == bad else plain(objects, footer, *args, **known)

    monkeypatch.setattr(describe_module, "describe_footer", fails)
    answer = endpoint.register(block(good), block(bad))
    assert (answer.status, answer.outcomes()) == (422, [("NotRegistered", None), ("Refused", "Unsuitable")])
    message = answer.body["blocks"][1]["message"]
    assert "an unexpected AttributeError at " in message
    assert "nothing" not in message
    assert f"unexpected failure of {bad}" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", LACKING, ids=str)
def test_what_this_machine_lacks_is_no_fault_of_a_block(
    endpoint: Endpoint, block_store: BlockStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A writer that is told 422 drops the block; a repetition registers it."""
    path = upload(block_store, 1)
    for module in (footer_module, describe_module):
        with monkeypatch.context() as patched:
            patched.setattr(module, "pq", Mock(ParquetFile=Mock(side_effect=error)))
            answer = endpoint.register(block(path))
        assert (answer.status, answer.body["code"]) == (503, "Unavailable")
    assert endpoint.register(block(path)).status == 200


def test_every_bad_block_is_named_not_only_the_first(endpoint: Endpoint, block_store: BlockStore) -> None:
    missing = [block_path("acme", 0, block_id(number)) for number in range(20)]
    answer = endpoint.register(*map(block, missing))
    assert answer.outcomes() == [("Refused", "ObjectMissing")] * 20
    assert [item["path"] for item in answer.body["blocks"]] == missing


def test_another_content_under_a_known_id_is_a_conflict(endpoint: Endpoint, block_store: BlockStore) -> None:
    endpoint.register(block(upload(block_store, 1)))
    other, second = upload(block_store, 1, table=rows(7)), upload(block_store, 2)
    answer = endpoint.register(block(second), block(other))
    assert (answer.status, answer.outcomes()) == (409, [("NotRegistered", None), ("Refused", "Conflict")])
    assert "give it a new id" in answer.body["blocks"][1]["message"]
    assert len(block_store.live().blocks) == 1


def test_a_writer_that_died_before_registration_leaves_a_collectable_orphan(
    endpoint: Endpoint, block_store: BlockStore, age: Aging
) -> None:
    """And one that comes back too late is told so, instead of registering what is being deleted."""
    known, orphan = upload(block_store, 1), upload(block_store, 2)
    endpoint.register(block(known))
    age(block_store.objects, IDENTITY_PATH, 30 * DAY)
    for path in (known, orphan):
        age(block_store.objects, path, DAY + 60)
    assert [orphan.path for orphan in find_orphans(block_store.objects, block_store.index).orphans] == [orphan]
    assert collect_orphans(block_store.objects, block_store.index, now=NOON).objects == 1
    assert endpoint.register(block(orphan)).outcomes() == [("Refused", "ObjectMissing")]
    upload(block_store, 2)
    late = endpoint.register(block(orphan))
    assert (late.status, late.outcomes()) == (409, [("Refused", "Conflict")])
    assert "upload it under a new id" in late.body["blocks"][0]["message"]
    assert endpoint.register(block(known)).outcomes() == [("Known", None)]
    assert len(content(block_store)) == 100


def test_many_writers_register_the_same_and_different_blocks_at_once(
    endpoint: Endpoint, block_store: BlockStore
) -> None:
    """Each block is new for exactly one of them, and there once."""
    paths = [upload(block_store, number) for number in range(24)]
    barrier = threading.Barrier(8)

    def write(writer: int) -> list[tuple[str, str]]:
        barrier.wait()
        found = []
        for start in range(0, 24, 6):
            mine = [paths[(start + place + writer) % 24] for place in range(6)]
            answer = endpoint.register(*map(block, mine))
            assert answer.status == 200, answer.body
            found += [(item["path"], item["outcome"]) for item in answer.body["blocks"]]
        return found

    with ThreadPoolExecutor(8) as pool:
        results = [item for found in pool.map(write, range(8)) for item in found]
    assert sorted(path for path, outcome in results if outcome == "Registered") == sorted(paths)
    assert {outcome for _, outcome in results} == {"Registered", "Known"}
    assert len(content(block_store)) == 2400
    check(block_store.index)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Invalid JSON"), (b"{", "Invalid JSON"), (b"\xff\xfe", "Invalid JSON"), (b"[]", "object"),
        (b"[" * 100_000, "Invalid JSON"), (b'{"blocks": []}', "blocks"), (b'{"blocks": {}}', "blocks"),
        (b'{"blocks": [{"path": "p", "tenant": "t"}]}', "blocks.0.shard: Field required"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": "0"}]}', "shard"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": 1.5}]}', "shard"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": -1}]}', "shard"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": true}]}', "shard"),
        (b'{"blocks": [{"path": "p", "tenant": "", "shard": 0}]}', "tenant"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": 0, "level": 99999}]}', "level"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": 0, "time_column": "x"}]}', "time_column: Extra"),
        (b'{"blocks": [{"path": "p", "tenant": "t", "shard": 0}], "dryRun": true}', "dryRun: Extra"),
        (b'{"blocks": [{"path": "\\ud800", "tenant": "t", "shard": 0}]}', "Invalid JSON"),
        (json.dumps({"blocks": [{"path": "p", "tenant": "t", "shard": 0}] * 1001}).encode(), "1000"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_a_clear_error(endpoint: Endpoint, body: bytes, said: str) -> None:
    answer = endpoint.call("POST", "/v1/blocks", body)
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert said in answer.body["message"]
    assert len(answer.body["message"]) < 1100


def test_a_huge_body_is_refused_before_it_is_read(endpoint: Endpoint) -> None:
    answer = endpoint.call("POST", "/v1/blocks", b"[" + b" " * (1 << 20) + b"]")
    assert (answer.status, answer.code) == (413, "TooLarge")


def test_a_body_that_never_ends_is_given_up(block_store: BlockStore, tmp_path: Path) -> None:
    limits = RequestLimits(body_seconds=0.2)
    with serving(block_store, lambda: gate(tmp_path), limits=limits) as endpoint:
        answer = endpoint.call("POST", "/v1/blocks", b"{", headers={"Content-Length": "100"})
    assert (answer.status, answer.code) == (408, "TooSlow")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_another_media_type_is_refused(endpoint: Endpoint, kind: str) -> None:
    answer = endpoint.call("POST", "/v1/blocks", b"{}", headers={"Content-Type": kind})
    assert (answer.status, answer.code) == (415, "UnsupportedMediaType")


def test_a_compressed_body_is_refused_and_never_unpacked(endpoint: Endpoint) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    for body in (bomb, gzip.compress(b"{}"), b"no gzip"):
        answer = endpoint.call("POST", "/v1/blocks", body, headers={"Content-Encoding": "gzip"})
        assert (answer.status, answer.code) == (415, "UnsupportedMediaType")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(path=st.text(min_size=1, max_size=900), tenant=st.text(min_size=1, max_size=1024))
@example(path="_compaction/identity", tenant="_compaction")
@example(path="acme/0/" + block_id(1) + ".parquet/x", tenant="acme")
@example(path="a" * 900, tenant="a" * 1024)
@example(path="é/" * 450, tenant="\x00")
def test_any_text_is_a_clear_answer(endpoint: Endpoint, path: str, tenant: str) -> None:
    answer = endpoint.register(block(path, tenant=tenant))
    assert (answer.status, len(answer.body["blocks"])) == (422, 1)
    assert answer.body["blocks"][0]["code"] in {"ObjectMissing", "Invalid", "Corrupt", "Unsuitable"}


def test_other_places_and_methods_are_json_too(endpoint: Endpoint) -> None:
    assert (endpoint.call("GET", "/v2/blocks").code, endpoint.call("GET", "/../etc").status) == ("NotFound", 404)
    wrong = endpoint.call("DELETE", "/v1/blocks")
    assert (wrong.status, wrong.code, wrong.headers["Allow"]) == (405, "MethodNotAllowed", "GET,POST")
