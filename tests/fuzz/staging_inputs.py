"""Targets of what is handed to a staging area: lines of records, histories of operations, bodies of requests."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from compaction.cli.histories import object_of
from compaction.cli.lazy import describe
from compaction.errors import CompactionError, RecordLineError, RecordTextError
from compaction.serving.refusals import malformed
from compaction.staging.cli.exec import CREATE_REPO, carry_out, name_of
from compaction.staging.cli.exec_session import RepositorySession
from compaction.staging.cli.options import StagingPlace
from compaction.staging.cli.tables import MAX_LINE_BYTES, properties_of, read_lines, record_line
from compaction.staging.format.identity import entry_identity, frame_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.format.ranges import TableKind
from compaction.staging.refs.branches import RepositoryRecord
from compaction.staging.refs.names import REPOSITORIES_PARTITION, REPOSITORY_KEYS
from compaction.staging.serving.server import STAGING_REFUSALS, BatchLineError, changes_in
from compaction.staging.serving.wire import CommitRequest, ObjectValue, ResetRequest, framed_value, object_answer
from compaction.staging.store import StagingConnection, StagingStore
from fuzz.target import Target, check_error, refusing

NAME: Final = "records.jsonl"
_NOW: Final = 1_795_000_000.0
_ENTRY: Final = CatalogEntry("data/x", ProtoTimestamp(5, 7), 9, "e", {"a": "b"}, 1, "text/plain")
_VALUE: Final = frame_value(entry_identity(_ENTRY), _ENTRY.encode())


def _lines(data: bytes, _: Path) -> None:
    """Records that are read are the records of the lines that are printed of them, whatever they are taken for."""
    with refusing(NAME, RecordLineError):
        records = [pair for batch in read_lines(io.BytesIO(data), name=NAME) for pair in batch.pairs()]
        assert [key for key, _ in records] == sorted({key for key, _ in records})
        for kind in (None, *TableKind):
            printed = b"\n".join(json.dumps(record_line(key, value, kind)).encode() for key, value in records)
            again = [pair for batch in read_lines(io.BytesIO(printed), name=NAME) for pair in batch.pairs()]
            assert again == records


def _properties(data: bytes, directory: Path) -> None:
    path = directory / "properties.json"
    path.write_bytes(data)
    try:
        found = properties_of(path)
    except RecordTextError as error:
        check_error(error, names="")
        return
    assert all(isinstance(name, bytes) and isinstance(value, bytes) for name, value in found.items())


@cache
def _template() -> Path:
    """A store with a little of everything, made once; each input gets a copy."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-history-"))
    connection = StagingConnection(f"sqlite:///{folder}/kv.db")
    with StagingPlace(connection).open_unchecked() as store:
        store.create("logs", f"{folder}/objects", committer="tester")
        for line in _HISTORY.splitlines():
            _carry_out(RepositorySession(StagingPlace(connection), store, "logs"), line)
    return folder


def _moved(store: StagingStore, namespace: str) -> None:
    """The copy of the repository has its own objects."""
    key = (REPOSITORY_KEYS + "logs").encode()
    record = RepositoryRecord.decode(store.kv.get(REPOSITORIES_PARTITION, key) or b"")
    store.kv.set(REPOSITORIES_PARTITION, key, replace(record, storage_namespace=namespace).encode())


def _carry_out(session: RepositorySession, line: bytes) -> None:
    given = object_of(line, most=MAX_LINE_BYTES)
    if name_of(given) == CREATE_REPO:
        return  # where its objects are is for the one to say who starts the command
    json.dumps(dict(carry_out(session, name_of(given), given)))


def _history(data: bytes, directory: Path) -> None:
    """Any line is carried out or refused with clear words, and the branch can be read afterwards."""
    shutil.copytree(_template(), directory / "store")
    connection = StagingConnection(f"sqlite:///{directory}/store/kv.db")
    with StagingPlace(connection).open_unchecked(lambda: _NOW) as store:
        _moved(store, f"{directory}/store/objects")
        session = RepositorySession(StagingPlace(connection), store, "logs")
        for line in data.split(b"\n")[:20]:
            try:
                _carry_out(session, line)
            except (CompactionError, OSError) as error:
                check_error(Exception(describe(error)), names="")
        for after in (b'{"op": "list", "ref": "main"}', b'{"op": "get", "ref": "main@", "key": "a"}'):
            _carry_out(session, after)


def _batch(data: bytes, _: Path) -> None:
    try:
        changes = changes_in(data, now=_NOW)
    except BatchLineError as error:
        if isinstance(error.error, ValidationError):
            _refused(error.error)
        else:
            check_error(error, names=f"line {error.number}")
        return
    except ValueError as error:
        check_error(error, names="send several")
        return
    for line, framed in changes:
        assert line.key_bytes
        if framed:
            object_answer(framed).to_json()


def _body(data: bytes, _: Path) -> None:
    """The bodies that are no lines."""
    for model in (ObjectValue, CommitRequest, ResetRequest):
        try:
            found: Any = model.model_validate_json(data, by_name=False, by_alias=True)
        except ValidationError as error:
            _refused(error)
            continue
        if isinstance(found, ObjectValue):
            try:
                framed = framed_value(found, now=_NOW)
            except ValueError as error:
                check_error(error, names="lastModified")
                continue
            object_answer(framed).to_json()
        json.loads(found.to_json())


def _refused(error: ValidationError) -> None:
    """The answer says what is wrong, in few words."""
    body = STAGING_REFUSALS.of_error(malformed(error), operation="fuzz").body
    assert isinstance(body, bytes)
    answer = json.loads(body)
    check_error(Exception(answer["message"]), names="")


_HISTORY: Final = b"""{"op": "set", "branch": "main", "key": "a", "value": "1"}
{"op": "set_many", "branch": "main", "values": {"b/1": "1", "b/2": "2"}}
{"op": "commit", "branch": "main", "message": "first"}
{"op": "create_branch", "branch": "other", "source": "main"}
{"op": "set", "branch": "other", "key": "a", "value": "2"}
{"op": "commit", "branch": "other", "message": "second"}
{"op": "delete", "branch": "main", "key": "b/1"}
{"op": "seal", "branch": "main"}"""
_OPERATIONS: Final = (
    b'{"op": "set_if", "branch": "main", "key": "a", "value": "3", "if_value": "1"}',
    b'{"op": "set", "branch": "main", "key_base64": "/w==", "entry": {"address": "s3://b/x", "size": 3}}',
    b'{"op": "delete_many", "branch": "main", "keys": ["a", "b/2"]}\n{"op": "diff_uncommitted", "branch": "main"}',
    b'{"op": "list", "ref": "main~1", "prefix": "b/", "delimiter": "/", "after": "b/1", "amount": 1}',
    b'{"op": "merge", "source": "other", "into": "main", "strategy": "source-wins"}',
    b'{"op": "reset", "branch": "main"}\n{"op": "cherry_pick", "branch": "main", "ref": "other"}',
    b'{"op": "compact", "branch": "main", "take_over": true}\n{"op": "verify"}',
    b'{"op": "import", "branch": "other", "records": [{"key": "z", "value_base64": "AA=="}], "prefixes": ["b/"]}',
    b'{"op": "revert", "branch": "other", "ref": "other^1", "parent": 0}',
    b'{"op": "hard_reset", "branch": "main", "ref": "other"}',
    b'{"op": "create_tag", "tag": "v1", "ref": "main@"}\n{"op": "log", "ref": "v1", "amount": 2}',
    b'{"op": "reset_prefix", "branch": "main", "prefix": "b/"}\n{"op": "sweep", "grace": 0}',
    b'{"op": "diff", "left": "main", "right": "other"}\n{"op": "inspect", "branch": "main"}',
)
_WORDS: Final = (
    b'"op": "', b'"branch": "main"', b'"ref": "main', b'_base64": "', b'"\\ud800"', b"\\u0000", b"null", b"1e999",
    b"-1", b"9" * 30, b"[" * 50, b"~99999", b"^2", b'"metadata": {"a": "b"}', b"2026-11-21T10:30:00.5Z", b"\xff", b"\n",
)  # fmt: skip
_LINES: Final = (
    b'{"key": "YQ==", "value": "AgJh"}\n{"key": "Yg==", "identity": "AAE=", "data": ""}\n',
    b'{"key": "", "entry": {"address": "x", "lastModified": "2026-11-21T10:30:00.5Z", "metadata": {"a": "b"}}}',
    json.dumps(record_line(b"x", _VALUE, None)).encode(),
)
_BATCHES: Final = (
    b'{"op": "put", "key": "a", "value": "1"}\n\n{"op": "delete", "keyBase64": "/w=="}\n',
    b'{"op": "put", "key": "a", "entry": {"address": "s3://b/x", "size": 3, "lastModified": "2026-11-21T10:30:00.5Z"}}',
    b'{"op": "put", "key": "a", "valueBase64": "AA==", "identity": "00ff"}',
)
_BODIES: Final = (
    b'{"value": "1", "identity": "00ff"}',
    b'{"entry": {"address": "x", "metadata": {"a": "b"}, "contentType": "t", "addressType": "relative"}}',
    b'{"message": "m", "committer": "c", "metadata": {"a": "b"}, "allowEmpty": true}',
    b'{"prefixBase64": "YQ=="}',
    b'{"all": true}',
)
_PROPERTIES: Final = (b'{"properties": {"type": "ranges", "min_keyBase64": "/w=="}}', b'{"properties": {}}')

INPUT_TARGETS: Final = (
    Target("record-lines", _lines, _LINES, _WORDS),
    Target("record-properties", _properties, _PROPERTIES, _WORDS),
    Target("history", _history, _OPERATIONS, _WORDS),
    Target("staging-batch", _batch, _BATCHES, _WORDS),
    Target("staging-body", _body, _BODIES, _WORDS),
)
