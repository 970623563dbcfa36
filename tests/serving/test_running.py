"""On a port: TLS whose files may be replaced, loopback unless told otherwise, an end that breaks no request."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.local.cluster.certs import Authority, ensure_authority
from compaction.serving.errors import IngestConfigError
from compaction.serving.service import Address, TlsFiles
from compaction.storage.objects.store import Retrying, open_objects
from support.blocks.block_stores import fill, upload
from support.clocks import eventually
from support.endpoints import gate, serving


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    opened = BlockStore.open(BlockStoreConnection(f"{tmp_path}/objects", f"sqlite:///{tmp_path}/index.db"))
    yield opened
    opened.close()


def write(authority: Authority, directory: Path) -> TlsFiles:
    """A new certificate and its key, as a mounted Secret has them: replaced by renaming."""
    pair = authority.issue_server(["127.0.0.1"])
    files = TlsFiles(directory / "tls.crt", directory / "tls.key")
    for path, content in ((files.certificate, pair.certificate), (files.key, pair.key)):
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.replace(new, path)
    return files


def certificate(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        found = connection.getpeercert(binary_form=True)
        assert found
        return found


def test_tls_and_a_new_certificate_without_a_restart(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction.serving.service.LOOK_SECONDS", 0.05)
    authority = ensure_authority(tmp_path / "authority")
    files = write(authority, tmp_path)
    context = ssl.create_default_context(cafile=str(authority.ca))
    address = Address(port=0, tls=files)
    with serving(store, lambda: gate(tmp_path), address=address, tls=context) as endpoint:
        fill(store, [1])
        assert len(endpoint.list().body["blocks"]) == 1
        first = certificate(endpoint.port, context)
        files.key.write_text("no key")
        files.certificate.write_text("no certificate")
        assert endpoint.list().status == 200, "the old one stays"
        write(authority, tmp_path)
        eventually(lambda: certificate(endpoint.port, context) != first, "the new certificate")
        assert endpoint.list().status == 200


def test_files_that_are_no_certificate_are_an_error_at_the_start(store: BlockStore, tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("x")
    (tmp_path / "tls.key").write_text("x")
    address = Address(port=0, tls=TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key"))
    with (
        pytest.raises(IngestConfigError, match=r"tls\.crt.*cannot be used for TLS"),
        serving(store, lambda: gate(tmp_path), address=address),
    ):
        pytest.fail("it is served")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "some.host"])
def test_beyond_loopback_plain_http_is_refused(host: str) -> None:
    with pytest.raises(IngestConfigError, match="bearer tokens would travel readably"):
        Address(host).check()
    Address(host, plain=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    Address(host).check()


def test_a_port_in_use_is_named(store: BlockStore, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address(port=other.getsockname()[1])
        with (
            pytest.raises(IngestConfigError, match="choose another port"),
            serving(store, lambda: gate(tmp_path), address=address),
        ):
            pytest.fail("it is served")


def test_a_request_under_way_is_answered_before_the_end(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()
    describe = BlockStore.describe

    def slow(self: BlockStore, *args: Any, **options: Any) -> Any:
        begun.set()
        release.wait()
        return describe(self, *args, **options)

    monkeypatch.setattr(BlockStore, "describe", slow)
    answers: list[int] = []
    block = {"path": upload(store, 1), "tenant": "acme", "shard": 0}
    with serving(store, lambda: gate(tmp_path)) as endpoint:
        writer = threading.Thread(target=lambda: answers.append(endpoint.register(block).status))
        writer.start()
        begun.wait()
        threading.Timer(0.3, release.set).start()
    writer.join()
    assert answers == [200]
    assert len(store.live().blocks) == 1


def test_a_writer_that_hangs_up_before_the_answer_may_repeat_itself(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    register = BlockStore.register_blocks

    def slow(self: BlockStore, blocks: Any) -> Any:
        try:
            return register(self, blocks)
        finally:
            done.set()

    monkeypatch.setattr(BlockStore, "register_blocks", slow)
    path = upload(store, 1)
    body = f'{{"blocks": [{{"path": "{path}", "tenant": "acme", "shard": 0}}]}}'.encode()
    with serving(store, lambda: gate(tmp_path)) as endpoint:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
            head = f"Authorization: Bearer {endpoint.token}\r\nContent-Type: application/json\r\nHost: x\r\n"
            connection.sendall(f"POST /v1/blocks HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        done.wait()
        assert endpoint.call("POST", "/v1/blocks", body).outcomes() == [("Known", None)]
    assert len(store.live().blocks) == 1


def test_a_store_or_an_index_that_is_away_is_told_from_a_refusal(store: BlockStore, tmp_path: Path) -> None:
    """The writer repeats the same request later; where store and index are is not its business."""
    block = {"path": upload(store, 1), "tenant": "acme", "shard": 0}
    options = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "access_key_id": "x", "secret_access_key": "y"}
    quick = Retrying(tries=2, base=0.01, cap=0.01)
    no_objects = replace(store, objects=open_objects("s3://some-bucket/x", options=options, retrying=quick))
    no_index = replace(
        store, index=IndexDatabase.open("postgresql://user:word@127.0.0.1:9/some-database", patience=0.1)
    )
    for away in (no_objects, no_index):
        with serving(away, lambda: gate(tmp_path)) as endpoint:
            answers = [endpoint.register(block)] + ([endpoint.list()] if away is no_index else [])
        for answer in answers:
            assert (answer.status, answer.code) == (503, "Unavailable")
            assert not any(word in str(answer.body) for word in ("some-bucket", "some-database", "127.0.0.1"))
    no_index.close()
    with serving(store, lambda: gate(tmp_path)) as endpoint:
        assert endpoint.register(block).outcomes() == [("Registered", None)]
