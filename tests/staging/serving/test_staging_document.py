"""The OpenAPI document of the staging endpoint says what it answers: each documented status is given by some request.

Every answer that any test of this folder gets is held against the document (support.endpoints).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from compaction.serving.service import RequestLimits
from compaction.staging.errors import CorruptMessageError
from compaction.staging.serving.operations import OpenRepositories
from compaction.staging.serving.server import STAGING_API, StagingServer
from compaction.staging.serving.wire import StagingProblem
from compaction.staging.store import StagingConnection, StagingStore
from compaction.storage.errors import DatabaseUnavailableError
from support.endpoints import Answer, Endpoint, check_routes, check_whole, gate, secured, serving

LINE = b'{"op": "put", "key": "k", "value": "1"}'
NDJSON = "application/x-ndjson"


@dataclass(frozen=True)
class Request:
    """One operation, as a caller may use it. `place`: with the name of a branch, or of a reference, to come."""

    method: str
    place: str
    query: str = ""
    body: bytes | None = None
    wrong: bytes | None = None
    kind: str = "application/json"

    def send(
        self, endpoint: Endpoint, name: str = "main", *, repository: str = "example", query: str = "", **options: Any
    ) -> Answer:
        """The answer. `options`: other ones than those of the request."""
        path = f"/v1/repositories/{repository}/{self.place.format(name)}?{self.query}{query}"
        given = {"body": self.body, "headers": {"Content-Type": self.kind} if self.body is not None else {}} | options
        return endpoint.call(self.method, path, **given)


WRITES = (
    Request("PUT", "branches/{}/object", "key=k", b'{"value": "1"}', b"{}"),
    Request("DELETE", "branches/{}/object", "key=k"),
    Request("POST", "branches/{}/changes", body=LINE, wrong=b"[]", kind=NDJSON),
    Request("POST", "branches/{}/commits", body=b'{"message": "m"}', wrong=b"{}"),
    Request("POST", "branches/{}/resets", body=b'{"key": "k"}', wrong=b"{}"),
)
READS = (
    Request("GET", "branches/{}/differences"),
    Request("GET", "references/{}/object", "key=k"),
    Request("GET", "references/{}/objects"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StagingStore]:
    """With the repository `example`."""
    opened = StagingStore.open(StagingConnection(f"sqlite:///{tmp_path}/kv.db"), patience=0.1)
    opened.create("example", f"{tmp_path}/objects", committer="tester")
    yield opened
    opened.close()


def test_routes_are_those_of_the_document(store: StagingStore, tmp_path: Path) -> None:
    check_routes(StagingServer(store, gate(tmp_path)), STAGING_API.document("1"))


def test_the_document_is_whole() -> None:
    found = STAGING_API.document("1")
    check_whole(found)
    assert found["components"]["schemas"]["StagingProblem"]["enum"] == [problem.value for problem in StagingProblem]
    assert secured(found) == {
        *("putObject", "deleteObject", "changeObjects", "commitBranch", "resetBranch"),
        *("listDifferences", "getObject", "listObjects"),
    }


def test_the_handlers_take_exactly_the_parameters_of_the_document(store: StagingStore, tmp_path: Path) -> None:
    values = {"amount": "1", "since": "main@", "ifIdentity": "00ff", "ifAbsent": "false", "stagedOnly": "false"}
    with serving(store, lambda: gate(tmp_path), make=StagingServer) as endpoint:
        for write in WRITES + READS:
            path = "/v1/repositories/{repository}/" + write.place.replace("{}", "{branch}")
            operations = (
                endpoint.document["paths"].get(path)
                or endpoint.document["paths"][path.replace("{branch}", "{reference}")]
            )
            parameters = operations[write.method.lower()].get("parameters", [])
            for name in [found["name"] for found in parameters if found["in"] == "query"]:
                query = f"{name}={values.get(name, 'YQ==')}"
                key = "" if name in {"key", "keyBase64"} else write.query
                assert replace(write, query=key).send(endpoint, query=f"&{query}").status in {200, 404, 412}, (
                    write,
                    name,
                )
                assert write.send(endpoint, query=f"&{query}&{query}").status == 400, (write, name)


def test_every_answer_of_the_document_is_given(
    store: StagingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is documented and never happens would be a promise that nobody keeps."""
    limits = RequestLimits(body_bytes=1000, body_seconds=0.2)
    rules = {"secret:writer": ["example"]}
    with serving(store, lambda: gate(tmp_path, tenants=rules), make=StagingServer, limits=limits) as endpoint:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert endpoint.call("GET", path).status == 200
        endpoint.server.ready = False
        assert endpoint.call("GET", "/readyz").status == 503
        put, _, _, commit, reset = WRITES
        for read in (put, *READS, *WRITES, reset, commit):
            answer = read.send(endpoint)
            assert answer.status == (409 if answer.body.get("code") == "NoChanges" else 200), (read, answer)
        for write in WRITES + READS:
            _refused(endpoint, write)
        assert put.send(endpoint, query="&ifAbsent=true").status == 412
        assert READS[1].send(endpoint, query="&stagedOnly=true").status in {200, 404}
        for write in WRITES:
            if write.body is not None:
                _refused_body(endpoint, write)
        _broken(endpoint, monkeypatch)
        area = OpenRepositories.area
        with monkeypatch.context() as patch:
            patch.setattr(OpenRepositories, "area", lambda self, name: _read_only(area(self, name)))
            assert [write.send(endpoint).status for write in WRITES + READS] == [409] * len(WRITES) + [200] * len(READS)
        assert endpoint.documented - endpoint.seen == set()


def _read_only(area: Any) -> Any:
    return replace(area, repository=replace(area.repository, read_only=True))


def _refused(endpoint: Endpoint, one: Request) -> None:
    wrong = {"body": one.wrong} if one.wrong is not None else {"query": "&other=1"}
    assert one.send(endpoint, **wrong).status == 400, one
    assert one.send(endpoint, token=None).status == 401, one
    assert one.send(endpoint, repository="other").status == 403, one
    assert one.send(endpoint, "nowhere").status == 404, one
    assert one.send(endpoint, "..%2Fx").status == 422, one


def _refused_body(endpoint: Endpoint, one: Request) -> None:
    assert one.send(endpoint, body=b" " * 2000).status == 413, one
    slow = {"Content-Type": one.kind, "Content-Length": "100"}
    assert one.send(endpoint, headers=slow).status == 408, one
    assert one.send(endpoint, headers={"Content-Type": "text/plain"}).status == 415, one


def _broken(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away, and a store that is damaged."""
    for error, status in (
        (DatabaseUnavailableError("secret-host", "away"), 503),
        (CorruptMessageError("secret-host", "BranchData", 0, "odd"), 500),
    ):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(OpenRepositories, "area", fail)
            for write in WRITES + READS:
                answer = write.send(endpoint)
                assert answer.status == status, write
                assert "secret-host" not in str(answer.body)
