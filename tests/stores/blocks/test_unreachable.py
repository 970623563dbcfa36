"""What is said of a store that cannot be reached: which server, why, and where its address and keys are written."""

from __future__ import annotations

import pytest

from compaction.blocks.errors import BlockStoreError
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.store import BlockStoreConnection
from compaction.storage.errors import (
    DatabaseError,
    DatabaseLoginError,
    DatabaseUnavailableError,
    DatabaseUnreachableError,
    ObjectAccessError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
)
from compaction.storage.objects.store import Retrying, open_objects
from compaction.storage.opened import explaining

PASSWORD = "hunter2"
ENDPOINT = f"http://key:{PASSWORD}@127.0.0.1:9/{PASSWORD}"


def connection(url: str = "s3://bucket/x", **options: str) -> BlockStoreConnection:
    return BlockStoreConnection(url, "sqlite:///x", options, "Secret creds2" if options else "", "Secret idx3")


def explained(error: BlockStoreError, place: BlockStoreConnection) -> str:
    with pytest.raises(type(error)) as raised, explaining(place.address):
        raise error
    assert PASSWORD not in repr(raised.value)
    assert raised.value.__cause__ is None
    return str(raised.value)


@pytest.mark.parametrize(
    ("error", "place", "said"),
    [
        (
            ObjectStoreUnavailableError("_compaction/identity", "the store gave no usable answer (timeout)"),
            connection(aws_endpoint_url=ENDPOINT),
            "s3://bucket/x: http://127.0.0.1:9 gave no usable answer (timeout). "
            'Check "aws_endpoint_url" in Secret creds2 and the network.',
        ),
        (
            ObjectStoreUnavailableError("acme/1", "the store answered 503 SlowDown"),
            connection(endpoint="https://[::1]:9000"),
            "s3://bucket/x/acme/1: https://[::1]:9000 answered 503 SlowDown. "
            'Check "endpoint" in Secret creds2 and the network.',
        ),
        (
            ObjectStoreUnavailableError("s3://bucket/x", "the store gave no usable answer"),
            connection(),
            "s3://bucket/x: the store gave no usable answer. Check the network.",
        ),
        (
            ObjectStoreUnavailableError("", "the store gave no usable answer"),
            connection(endpoint="http://[hunter2"),
            's3://bucket/x: the store gave no usable answer. Check "endpoint" in Secret creds2 and the network.',
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (403)"),
            connection(access_key_id=PASSWORD),
            "s3://bucket/x: access denied (403). Check the keys in Secret creds2 and the bucket policy.",
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (403)"),
            connection(),
            "s3://bucket/x: access denied (403). Check the identity and the bucket policy.",
        ),
        (
            ObjectAccessError("a", "the bucket cannot be used (NoSuchBucket)"),
            connection(endpoint=ENDPOINT),
            "s3://bucket/x/a: the bucket cannot be used (NoSuchBucket). Create it or correct the URL.",
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (permission)"),
            connection("file:///lake"),
            "file:///lake: access denied (permission). Check the folder and its permissions.",
        ),
        (ObjectMissingError("a", "there is no such object"), connection(), "a: there is no such object"),
        (
            DatabaseUnreachableError('Index database "db" at h:1', "refused the connection."),
            connection(),
            'Index database "db" at h:1 refused the connection. Check the URL in Secret idx3.',
        ),
        (
            DatabaseLoginError('Index database "db" at h:1', "refused the login (no password supplied)."),
            connection(),
            'Index database "db" at h:1 refused the login (no password supplied). Check the URL in Secret idx3.',
        ),
        (
            DatabaseUnavailableError(
                'Index database "db" at h:1', "did not answer in time (locked). Repeating is safe."
            ),
            connection(),
            'Index database "db" at h:1 did not answer in time (locked). Repeating is safe.',
        ),
        (DatabaseError("Index database x", "what now"), connection(), "Index database x: what now"),
    ],
)
def test_an_error_says_what_to_check_and_no_secret(
    error: BlockStoreError, place: BlockStoreConnection, said: str
) -> None:
    assert explained(error, place) == said


@pytest.mark.parametrize(
    ("endpoint", "cause"), [("http://127.0.0.1:9", "connection refused"), ("http://nosuch.invalid", "no such host")]
)
def test_a_server_without_an_answer_has_a_cause(endpoint: str, cause: str) -> None:
    options = {"endpoint": endpoint, "region": "x", "access_key_id": "a", "secret_access_key": PASSWORD}
    options |= {"allow_http": "true"}
    objects = open_objects("s3://bucket/x", options=options, retrying=Retrying(tries=1))
    with pytest.raises(ObjectStoreUnavailableError, match=rf"^a: the store gave no usable answer \({cause}\)$"):
        objects.get("a")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("127.0.0.1:9", 'Index database "db" at 127.0.0.1:9 refused the connection.'),
        ("nosuch.invalid", 'Index database "db" at nosuch.invalid is unreachable (no such host).'),
    ],
)
def test_a_database_without_a_connection_has_a_cause(server: str, said: str) -> None:
    index = IndexDatabase.open(f"postgresql://user:{PASSWORD}@{server}/db", patience=0)
    with pytest.raises(DatabaseUnreachableError) as raised:
        live_blocks(index)
    assert str(raised.value) == said
