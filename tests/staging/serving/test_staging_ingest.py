"""The staging endpoint: writes, reads, commits and resets as a client meets them, on both databases."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from compaction.serving.service import RequestLimits
from compaction.staging.errors import CorruptMessageError, TooManyTriesError
from compaction.staging.flows.reading import Reader
from compaction.staging.format.identity import entry_identity, frame_value, split_value
from compaction.staging.format.messages import CatalogEntry
from compaction.staging.serving.server import StagingServer
from compaction.staging.serving.wire import MOST_CHANGES
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.errors import DatabaseUnavailableError
from support.endpoints import Answer, Endpoint, gate, serving

MAIN = "/v1/repositories/example/branches/main"
READ = "/v1/repositories/example/references/"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def store(kv_url: str, tmp_path: Path) -> Iterator[StagingStore]:
    """With the repository `example`."""
    opened = StagingStore.open(StagingConnection(kv_url), patience=0.1)
    opened.create("example", f"{tmp_path}/objects", committer="tester")
    yield opened
    opened.close()


@pytest.fixture
def endpoint(store: StagingStore, tmp_path: Path) -> Iterator[Endpoint]:
    with serving(store, lambda: gate(tmp_path), make=StagingServer) as running:
        yield running


def where(path: str, **query: Any) -> str:
    return path + ("?" + urlencode(query, quote_via=quote) if query else "")


def put(endpoint: Endpoint, key: str, value: Mapping[str, Any], path: str = MAIN, **query: Any) -> Answer:
    return endpoint.call("PUT", where(f"{path}/object", key=key, **query), json.dumps(value).encode())


def get(endpoint: Endpoint, key: str, reference: str = "main", **query: Any) -> Answer:
    return endpoint.call("GET", where(f"{READ}{reference}/object", key=key, **query))


def delete(endpoint: Endpoint, key: str) -> Answer:
    return endpoint.call("DELETE", where(f"{MAIN}/object", key=key))


def change(endpoint: Endpoint, *lines: Mapping[str, Any] | bytes) -> Answer:
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return endpoint.call("POST", f"{MAIN}/changes", body, headers=NDJSON)


def post(endpoint: Endpoint, what: str, **body: Any) -> Answer:
    return endpoint.call("POST", f"{MAIN}/{what}", json.dumps(body).encode())


def keys(endpoint: Endpoint, reference: str = "main", **query: Any) -> list[str]:
    answer = endpoint.call("GET", where(f"{READ}{reference}/objects", **query))
    assert answer.status == 200, answer.body
    return [item["key"] for item in answer.body["objects"]]


def test_an_object_is_written_read_and_deleted(endpoint: Endpoint, store: StagingStore) -> None:
    written = put(endpoint, "a/1", {"value": "text"})
    assert written.status == 200
    assert get(endpoint, "a/1").body == {"identity": written.body["identity"], "value": "text"}
    framed = Reader(store.area("example")).get("main", b"a/1")
    assert framed is not None
    assert split_value(framed) == (bytes.fromhex(written.body["identity"]), b"text")
    assert delete(endpoint, "a/1").status == delete(endpoint, "a/1").status == 200
    assert (get(endpoint, "a/1").status, get(endpoint, "a/1").code) == (404, "NotFound")


def test_an_entry_has_the_identity_of_lakefs(endpoint: Endpoint, store: StagingStore) -> None:
    entry = {
        "address": "data/x", "size": 7, "eTag": "e", "metadata": {"b": "1", "a": "2"}, "contentType": "text/plain",
        "lastModified": "2026-11-21T10:30:00.5Z", "addressType": "relative",
    }  # fmt: skip
    answer = put(endpoint, "x", {"entry": entry})
    bare = CatalogEntry("data/x", None, 7, "e", {"a": "2", "b": "1"}, 1, "text/plain")
    assert answer.body["identity"] == entry_identity(bare).hex()
    assert get(endpoint, "x").body["entry"] == entry
    put(endpoint, "y", {"entry": {"address": "s3://b/y"}})
    found = get(endpoint, "y").body["entry"]
    assert (found["addressType"], found["size"]) == ("full", 0)
    assert found["lastModified"].startswith("20")
    assert put(endpoint, "z", {"entry": entry | {"lastModified": "2026-13-41T10:30:00Z"}}).status == 400


def test_bytes_that_are_no_text(endpoint: Endpoint) -> None:
    key, value = base64.b64encode(b"k\xff").decode(), base64.b64encode(b"\xfe\0").decode()
    path = where(f"{MAIN}/object", keyBase64=key)
    assert endpoint.call("PUT", path, json.dumps({"valueBase64": value, "identity": "00ff"}).encode()).status == 200
    found = endpoint.call("GET", where(f"{READ}main/object", keyBase64=key)).body
    assert found == {"identity": "00ff", "valueBase64": value}
    listed = endpoint.call("GET", f"{READ}main/objects").body["objects"]
    assert listed == [{"keyBase64": key, "commonPrefix": False, "identity": "00ff", "bytes": 2}]
    assert endpoint.call("GET", f"{MAIN}/differences").body["differences"][0]["keyBase64"] == key
    assert endpoint.call("DELETE", path).status == 200
    assert keys(endpoint) == []


def test_conditions(endpoint: Endpoint) -> None:
    first = put(endpoint, "a", {"value": "1"}, ifAbsent="true")
    refused = put(endpoint, "a", {"value": "2"}, ifAbsent="true")
    assert (first.status, refused.status, refused.code) == (200, 412, "ConditionFailed")
    identity = first.body["identity"]
    assert put(endpoint, "a", {"value": "2"}, ifIdentity=identity).status == 200
    assert put(endpoint, "a", {"value": "3"}, ifIdentity=identity).status == 412
    assert get(endpoint, "a").body["value"] == "2"
    assert put(endpoint, "a", {"value": "3"}, ifIdentity=identity, ifAbsent="true").status == 400


def test_a_batch(endpoint: Endpoint) -> None:
    put(endpoint, "gone", {"value": "x"})
    answer = change(
        endpoint,
        {"op": "put", "key": "a", "value": "1"},
        {"op": "put", "key": "twice", "value": "1"},
        b"",
        {"op": "delete", "key": "gone"},
        {"op": "delete", "key": "twice"},
        {"op": "put", "keyBase64": base64.b64encode(b"b").decode(), "entry": {"address": "data/b", "size": 3}},
    )
    assert answer.body == {"written": 2, "deleted": 2}
    assert keys(endpoint) == ["a", "b"]
    assert change(endpoint).body == {"written": 0, "deleted": 0}
    text = endpoint.call("GET", "/metrics").body
    assert 'compaction_staging_ingest_changes_total{operation="put"} 3.0' in text.splitlines()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: "),
        (b"[]", "line 2: "),
        (b'{"op": "put", "key": "b"}', "give one of entry, value and valueBase64"),
        (b'{"op": "delete", "key": "b", "value": ""}', "a deletion has neither value nor identity"),
        (b'{"op": "delete"}', "give key or keyBase64"),
        (b'{"op": "delete", "key": ""}', "at least 1"),
        (b'{"op": "move", "key": "b"}', "op"),
        (b'{"op": "delete", "key": "b", "more": 1}', "more"),
        (b'{"op": "put", "key": "b", "valueBase64": "%"}', "no base64"),
        (b'{"op": "put", "key": "b", "value": "\\ud800"}', "line 2: "),
        (b'{"op": "put", "key": "b", "value": "x", "identity": ""}', "identity"),
        (b'{"op": "put", "key": "b", "entry": {"address": "x", "size": -1}}', "size"),
        (b'{"op": "put", "key": "b", "entry": {"address": "x", "lastModified": "2026-02-30T00:00:00Z"}}', "no time"),
        (b"[" * 100_000, "line 2: "),
        (b"\xff", "line 2: "),
    ],
)
def test_a_batch_with_a_wrong_line_is_refused_whole(endpoint: Endpoint, line: bytes, said: str) -> None:
    answer = change(endpoint, {"op": "put", "key": "a", "value": "1"}, line)
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert said in answer.body["message"]
    assert keys(endpoint) == []


def test_a_batch_is_bounded(endpoint: Endpoint) -> None:
    lines = [{"op": "put", "key": f"k{number}", "value": ""} for number in range(MOST_CHANGES + 1)]
    refused = change(endpoint, *lines)
    assert (refused.status, "send several" in refused.body["message"]) == (400, True)
    assert change(endpoint, *lines[:-1]).body == {"written": MOST_CHANGES, "deleted": 0}


def test_empty_lines_of_a_batch_count_for_its_numbers_alone(endpoint: Endpoint) -> None:
    empty = [b""] * (MOST_CHANGES + 10)
    line = {"op": "put", "key": "a", "value": "1"}
    assert change(endpoint, *empty, line, b"", {**line, "key": "b"}).body == {"written": 2, "deleted": 0}
    refused = change(endpoint, *empty, line, b"{}")
    assert refused.status == 400
    assert refused.body["message"].startswith(f"line {MOST_CHANGES + 12}: ")


def test_listings_have_prefixes_delimiters_and_pages(endpoint: Endpoint) -> None:
    change(endpoint, *({"op": "put", "key": key, "value": ""} for key in ("a", "b/1", "b/2", "b/c/3", "c/1", "ü")))
    assert keys(endpoint, delimiter="/") == ["a", "b/", "c/", "ü"]
    assert keys(endpoint, prefix="b/", delimiter="/") == ["b/1", "b/2", "b/c/"]
    assert keys(endpoint, prefix="b/", after="b/1") == ["b/2", "b/c/3"]
    first = endpoint.call("GET", f"{READ}main/objects?amount=2&delimiter=/").body
    assert [item["commonPrefix"] for item in first["objects"]] == [False, True]
    assert first["more"]
    assert keys(endpoint, after="b/", delimiter="/") == ["c/", "ü"]
    for query in ("amount=0", "amount=1001", "prefix=%FF", "prefix=a&prefix=b", "afterBase64=%25", "limit=1"):
        assert endpoint.call("GET", f"{READ}main/objects?{query}").status == 400, query


def test_a_page_is_bounded_in_bytes(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.staging.serving.operations.PAGE_BYTES", 250)
    change(endpoint, *({"op": "put", "key": f"k{number}", "value": "x" * 100} for number in range(5)))
    page = endpoint.call("GET", f"{READ}main/objects").body
    assert ([item["key"] for item in page["objects"]], page["more"]) == (["k0", "k1"][: len(page["objects"])], True)
    found, after = [], ""
    while True:
        answer = endpoint.call("GET", where(f"{READ}main/objects", after=after)).body
        found += [item["key"] for item in answer["objects"]]
        after = found[-1]
        if not answer["more"]:
            break
    assert found == [f"k{number}" for number in range(5)]


def test_commits_differences_and_references(endpoint: Endpoint) -> None:
    put(endpoint, "a", {"value": "1"})
    put(endpoint, "b", {"value": "1"})
    first = post(endpoint, "commits", message="first", metadata={"by": "test"})
    assert (first.status, len(first.body["id"])) == (200, 64)
    assert endpoint.call("GET", f"{MAIN}/differences").body == {"differences": [], "more": False}
    put(endpoint, "a", {"value": "2"})
    put(endpoint, "c", {"value": "2"})
    delete(endpoint, "b")
    found = endpoint.call("GET", f"{MAIN}/differences").body["differences"]
    assert [(item["key"], item["kind"]) for item in found] == [("a", "changed"), ("b", "removed"), ("c", "added")]
    page = endpoint.call("GET", f"{MAIN}/differences?amount=1&after=a").body
    assert ([item["key"] for item in page["differences"]], page["more"]) == (["b"], True)
    assert get(endpoint, "a", "main~0").body["value"] == "1"
    assert get(endpoint, "a", stagedOnly="true").body["value"] == "2"
    second = post(endpoint, "commits", message="second", committer="a writer").body
    assert second["parents"] == [first.body["id"]]
    since = endpoint.call("GET", where(f"{MAIN}/differences", since=first.body["id"])).body["differences"]
    assert [item["key"] for item in since] == ["a", "b", "c"]
    again = post(endpoint, "commits", message="again")
    assert (again.status, again.code) == (409, "NoChanges")
    assert post(endpoint, "commits", message="again", allowEmpty=True).status == 200
    assert get(endpoint, "b", first.body["id"]).body["value"] == "1"
    assert get(endpoint, "a", stagedOnly="true").status == 404


def test_resets(endpoint: Endpoint) -> None:
    change(endpoint, *({"op": "put", "key": key, "value": "1"} for key in ("a", "b/1", "b/2", "c")))
    for body in ({"key": "a"}, {"prefix": "b/"}, {"all": True}):
        assert post(endpoint, "resets", **body).status == 200
    assert keys(endpoint) == []
    put(endpoint, "a", {"value": "1"})
    for wrong in ({}, {"all": False}, {"key": "a", "prefix": "b"}, {"key": ""}, {"all": True, "keyBase64": "YQ=="}):
        assert post(endpoint, "resets", **wrong).status == 400, wrong
    assert keys(endpoint) == ["a"]


def test_what_is_not_there_and_what_cannot_be(endpoint: Endpoint, store: StagingStore) -> None:
    assert put(endpoint, "a", {"value": ""}, "/v1/repositories/other/branches/main").status == 404
    assert put(endpoint, "a", {"value": ""}, "/v1/repositories/example/branches/other").status == 404
    assert put(endpoint, "a", {"value": ""}, "/v1/repositories/example/branches/..%2Fx").status == 422
    assert put(endpoint, "a", {"value": ""}, "/v1/repositories/Example/branches/main").status == 422
    assert get(endpoint, "a", "nowhere").status == 404
    assert put(endpoint, "x" * 2600, {"value": ""}).status == 422
    for wrong in ({}, {"value": 1}, {"value": "", "entry": {"address": "x"}}, {"value": "", "identity": "xyz"}):
        assert put(endpoint, "a", wrong).status == 400, wrong
    for path in (
        f"{MAIN}/object",
        f"{MAIN}/object?key=",
        f"{MAIN}/object?key=a&keyBase64=YQ==",
        f"{MAIN}/object?key=%FF",
    ):
        assert endpoint.call("PUT", path, b'{"value": ""}').status == 400, path
    assert keys(endpoint) == []


def test_a_repository_that_was_created_again_is_another_one(
    endpoint: Endpoint, store: StagingStore, tmp_path: Path
) -> None:
    put(endpoint, "a", {"value": "1"})
    store.kv.delete("graveler", b"repos/example")
    assert get(endpoint, "a").status == 404
    store.create("example", f"{tmp_path}/others", committer="tester")
    assert get(endpoint, "a").status == 404
    assert keys(endpoint) == []


def test_a_value_that_a_foreign_writer_wrote_is_shown(endpoint: Endpoint, store: StagingStore) -> None:
    area = store.area("example")
    token = area.branches.get("main").record.staging_token
    odd = CatalogEntry(address="x" * 10_000, size=-1)
    area.tokens.set(token, b"odd", frame_value(entry_identity(odd), odd.encode()))
    area.tokens.set(token, b"far", frame_value(b"\1", b"\xff"))
    assert get(endpoint, "odd").body["entry"]["size"] == -1
    assert keys(endpoint) == ["far", "odd"]
    assert get(endpoint, "far").body["identity"] == "01"


# --- who may do what, and limits --------------------------------------------------------------------------------------


def test_only_known_callers_and_only_their_repositories(store: StagingStore, tmp_path: Path) -> None:
    store.create("other", f"{tmp_path}/other", committer="tester")
    rules = {"secret:writer": ["other"]}
    with serving(store, lambda: gate(tmp_path, tenants=rules), make=StagingServer) as endpoint:
        for method, path in (
            ("PUT", f"{MAIN}/object?key=a"), ("DELETE", f"{MAIN}/object?key=a"), ("POST", f"{MAIN}/changes"),
            ("POST", f"{MAIN}/commits"), ("POST", f"{MAIN}/resets"), ("GET", f"{MAIN}/differences"),
            ("GET", f"{READ}main/object?key=a"), ("GET", f"{READ}main/objects"),
        ):  # fmt: skip
            body = None if method == "GET" else b"{"
            assert endpoint.call(method, path, body, token=None).status == 401, path
            assert endpoint.call(method, path, body, token="wrong").status == 401, path
            assert endpoint.call(method, path, body).status == 403, path
        assert put(endpoint, "a", {"value": "1"}, "/v1/repositories/other/branches/main").status == 200


def test_neither_body_nor_store_is_read_before_the_caller_is_known(store: StagingStore, tmp_path: Path) -> None:
    limits = RequestLimits(body_bytes=1000, body_seconds=0.2)
    with serving(store, lambda: gate(tmp_path), make=StagingServer, limits=limits) as endpoint:
        endless = {"Content-Length": "100000000"}
        assert endpoint.call("PUT", f"{MAIN}/object?key=a", b"{", token=None, headers=endless).status == 401
        assert put(endpoint, "a", {"value": "x" * 2000}).status == 413
        slow = endpoint.call("PUT", f"{MAIN}/object?key=a", b"{", headers={"Content-Length": "100"})
        assert (slow.status, slow.code) == (408, "TooSlow")
        assert endpoint.call("PUT", f"{MAIN}/object?key=a", b"{}", headers={"Content-Type": "text/plain"}).status == 415
        assert endpoint.call("PUT", f"{MAIN}/object?key=a", b"{}", headers={"Content-Encoding": "gzip"}).status == 415
        assert endpoint.call("POST", f"{MAIN}/changes", b"").status == 415


def test_a_store_that_is_away_is_a_503_without_its_name(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for error, status, code in (
        (DatabaseUnavailableError("secret-host", "away"), 503, "Unavailable"),
        (TooManyTriesError("main", "write", 3), 503, "Busy"),
        (CorruptMessageError("secret-host", "BranchData", 0, "odd"), 500, "Failed"),
        (RuntimeError("secret-host"), 500, "Failed"),
    ):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("compaction.staging.serving.operations.put", fail)
            answer = put(endpoint, "a", {"value": ""})
        assert (answer.status, answer.code) == (status, code)
        assert "secret-host" not in str(answer.body)
