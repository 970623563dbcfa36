"""The OpenAPI document says what the handlers do: the same routes, requests, answers and refusals.

Every answer that any test of this folder gets is held against it (support.stores.ingest); here the other direction.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.blocks.index.tombstones import forget_blocks
from compaction.blocks.serving.messages import Problem, RegistrationOutcome
from compaction.blocks.serving.server import API, IngestServer
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.serving.errors import TokenReviewUnavailableError
from compaction.serving.service import RequestLimits
from compaction.storage.errors import DatabaseError, DatabaseUnavailableError
from support.blocks.block_histories import compact_meanwhile, sweep
from support.blocks.block_stores import NOON, fill, upload
from support.blocks.blocks import rows
from support.cluster.control_plane import ROOT
from support.endpoints import SECRET, Endpoint, check_routes, check_whole, gate, problems, secured, serving
from support.timing import examples

# The OpenAPI document says what the handlers do: the same routes, requests, answers and refusals.
#
# Every answer that any test of this folder gets is held against it (support.endpoints); here the other direction.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    opened = BlockStore.open(
        BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db"), patience=0.1
    )
    yield opened
    opened.close()


@pytest.fixture
def endpoint(store: BlockStore, tmp_path: Path) -> Iterator[Endpoint]:
    with serving(store, lambda: gate(tmp_path)) as running:
        yield running


def test_routes_are_those_of_the_document(store: BlockStore, tmp_path: Path) -> None:
    check_routes(IngestServer(store, gate(tmp_path)), API.document("1"))


def test_the_document_is_whole(endpoint: Endpoint) -> None:
    found = endpoint.document
    check_whole(found)
    schemas = found["components"]["schemas"]
    assert schemas["Problem"]["enum"] == [problem.value for problem in Problem]
    assert schemas["RegistrationOutcome"]["enum"] == [outcome.value for outcome in RegistrationOutcome]
    assert secured(found) == {"registerBlocks", "listBlocks"}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**40), st.sampled_from(["", "x", "acme", "0", "x" * 2000]),
    st.just([]), st.just({}), st.just(1.5),
)  # fmt: skip
BLOCKS = st.fixed_dictionaries(
    {"path": st.just("acme/0/x.parquet"), "tenant": st.just("acme"), "shard": st.just(0)},
    optional={
        "level": st.integers(-1, 3),
        "timeColumn": st.sampled_from(["", "time"]),
        "dropPathColumns": st.lists(st.sampled_from(["", "region"]), max_size=1),
    },
)
FIELDS = st.sampled_from(
    ["path", "tenant", "shard", "level", "timeColumn", "dropPathColumns", "time_column", "id", "Path"]
)


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """Requests, most of them with something wrong."""
    block = dict(draw(BLOCKS))
    for name in draw(st.lists(FIELDS, max_size=2)):
        if draw(st.booleans()):
            block[name] = draw(VALUES)
        else:
            block.pop(name, None)
    blocks = draw(st.sampled_from([[block], [block, block], [], block, [block, None]]))
    return draw(st.sampled_from([{"blocks": blocks}, {"blocks": blocks}, {"blocks": blocks, "x": 1}, blocks, {}]))


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(body=bodies())
def test_the_handler_takes_exactly_the_requests_of_the_document(endpoint: Endpoint, body: Any) -> None:
    schema = endpoint.document["paths"]["/v1/blocks"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    answer = endpoint.call("POST", "/v1/blocks", json.dumps(body).encode())
    assert (answer.status == 400) == bool(problems(body, schema, endpoint.document)), answer.body


def test_the_handler_takes_exactly_the_parameters_of_the_document(endpoint: Endpoint) -> None:
    parameters = endpoint.document["paths"]["/v1/blocks"]["get"]["parameters"]
    values = {"tenant": "acme", "from": "0", "to": "2026-01-01T00:00:00Z", "after": "x"}
    names = {parameter["name"]: values.get(parameter["name"], "1") for parameter in parameters}
    assert set(names) == {"tenant", "shard", "level", "from", "to", "limit", "version", "after"}
    assert all(parameter["in"] == "query" and not parameter["required"] for parameter in parameters)
    for name, value in names.items():
        extra = "&version=0" if name == "after" else ""
        assert endpoint.call("GET", f"/v1/blocks?{name}={value}{extra}").status in {200, 410}
    for name in ("start", "end", "Tenant", "offset"):
        assert endpoint.call("GET", f"/v1/blocks?{name}=1").status == 400


class Away:
    """The review of tokens while the API server is away."""

    async def __call__(self, token: str) -> str | None:
        raise TokenReviewUnavailableError("away")


def test_every_answer_of_the_document_is_given(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is documented and never happens would be a promise that nobody keeps."""
    options: dict[str, Any] = {"secrets": {"writer": SECRET}, "tenants": {"secret:writer": ["acme"]}}
    limits = RequestLimits(body_seconds=0.2)
    with serving(store, lambda: gate(tmp_path, **options), limits=limits) as endpoint:
        block = {"tenant": "acme", "shard": 0}
        endpoint.register({"path": upload(store, 1)} | block)
        endpoint.list(tenant="acme")
        for path in ("/healthz", "/readyz", "/metrics"):
            endpoint.call("GET", path)
        endpoint.server.ready = False
        endpoint.call("GET", "/readyz")
        endpoint.list(tenant="acme", limit=0)
        endpoint.register()
        endpoint.list(token=None)
        endpoint.register(token=None)
        endpoint.list(tenant="other")
        endpoint.register({"path": "p", "tenant": "other", "shard": 0})
        endpoint.register({"path": "missing"} | block)
        endpoint.register({"path": upload(store, 1, table=rows(7))} | block)
        endpoint.call("POST", "/v1/blocks", b" " * (2 << 20))
        endpoint.call("POST", "/v1/blocks", b"{", headers={"Content-Length": "100"})
        endpoint.call("POST", "/v1/blocks", b"{}", headers={"Content-Type": "text/plain"})
        upload(store, 1)
        fill(store, [2])
        compact_meanwhile(store, "j", list(store.live().blocks), number=3)
        sweep(store, grace=0)
        forget_blocks(store.index, before=NOON * 2)
        endpoint.list(tenant="acme", version=1)
        for error in (
            DatabaseUnavailableError("index", "away"),
            DatabaseError("postgresql://secret-host/db", "odd"),
            RuntimeError("nobody expects this of secret-host"),
        ):
            with monkeypatch.context() as patch:

                def fail(*_: Any, error: Exception = error, **__: Any) -> None:
                    raise error

                patch.setattr("compaction.blocks.serving.server.page", fail)
                patch.setattr("compaction.blocks.serving.server.register", fail)
                listed = endpoint.list(tenant="acme")
                entered = endpoint.register({"path": "p"} | block)
                assert listed.status == entered.status
                assert "secret-host" not in str(listed.body) + str(entered.body)
        assert endpoint.documented - endpoint.seen == set()


def test_too_many_requests_at_once_are_told_to_come_back(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        begun.set()
        release.wait()
        raise DatabaseUnavailableError("index", "away")

    monkeypatch.setattr("compaction.blocks.serving.server.page", slow)
    with serving(store, lambda: gate(tmp_path), limits=RequestLimits(in_flight=1)) as endpoint:
        first = threading.Thread(target=endpoint.list)
        first.start()
        begun.wait()
        answer = endpoint.list()
        assert (answer.status, answer.code) == (503, "Busy")
        assert endpoint.call("GET", "/healthz").status == 200
        release.set()
        first.join()
        assert endpoint.list().code == "Unavailable"


def test_metrics_count_requests_and_blocks(endpoint: Endpoint, store: BlockStore) -> None:
    block = {"path": upload(store, 1), "tenant": "acme", "shard": 0}
    endpoint.register(block)
    endpoint.register(block)
    endpoint.register(block | {"path": "missing"})
    endpoint.call("GET", "/no/such/place")
    text = endpoint.call("GET", "/metrics").body
    for line in (
        'compaction_ingest_blocks_total{outcome="Registered",reason=""} 1.0',
        'compaction_ingest_blocks_total{outcome="Known",reason=""} 1.0',
        'compaction_ingest_blocks_total{outcome="Refused",reason="ObjectMissing"} 1.0',
        'compaction_ingest_requests_total{code="200",operation="registerBlocks"} 2.0',
        'compaction_ingest_requests_total{code="422",operation="registerBlocks"} 1.0',
        'compaction_ingest_requests_total{code="404",operation="none"} 1.0',
        "compaction_ingest_requests_running 1.0",
    ):
        assert line in text.splitlines(), line


# What docs/block-ingest.md shows works as it is written.

PAGE = (ROOT / "docs" / "block-ingest.md").read_text()


def test_the_program_that_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    index = tmp_path / "_compaction" / "index.db"
    index.parent.mkdir()
    store = BlockStore.open(BlockStoreConnection(str(tmp_path), f"sqlite:///{index}"))
    fill(store, [1, 2])
    store.close()
    program = program.replace("/data/lake", str(tmp_path)).replace("1_767_225_600_000_000", "150")
    exec(compile(program + "\nstore.close()", "docs/block-ingest.md", "exec"), {})
    assert capsys.readouterr().out == "50\n100\n"
