"""Targets of the rows of staging areas: every message, rows of tokens by the column, branches of a live lakeFS."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compaction import staging
from compaction.staging.errors import CorruptMessageError
from compaction.staging.flows.branching import JournalledToken
from compaction.staging.format.columns import TOMBSTONE
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import (
    BranchData,
    CatalogEntry,
    CommitData,
    ProtoTimestamp,
    RangeData,
    StagingMessage,
    TagData,
    read_fields,
)
from compaction.staging.lakefs.journal import MergeEntry
from compaction.staging.lakefs.repository import read_branch_row
from compaction.staging.refs.branches import BranchRecord, RepositoryRecord
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.rows import FEW, decode_row, decode_rows, encode_row
from fuzz.target import Target, refusing

NAME: Final = "repo/branches/main"
_COMMIT: Final = "c" * 64
_TOKENS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x7f",
    b"\x98\x06\x05",
    b"\xaa\x06\x01x",
    b"\xe2\x06\x05\x0a\x01j\x10\x07",
    b"\x22\x02t1",
)
_CUT: Final = b"\xff\xfe\xff"
"""Between rows of an input: in no message."""


for _module in pkgutil.walk_packages(staging.__path__, f"{staging.__name__}."):
    importlib.import_module(_module.name)


def every_message(kind: type[StagingMessage] = StagingMessage) -> Iterator[type[StagingMessage]]:
    """All messages that are kept in a key-value store, or in values."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from every_message(subclass)


def _message(data: bytes, _: Path) -> None:
    """What is decoded is encoded to the same message, by each of them."""
    for kind in every_message():
        with refusing(NAME, CorruptMessageError):
            message = kind.decode(data, name=NAME)
            again = kind.decode(message.encode())
            assert again == message
            assert again.encode() == message.encode()


def _rows(data: bytes, _: Path) -> None:
    """A page of rows by the column is what the rows are one by one, or no page at all."""
    messages = data.split(_CUT)
    keys = [b"%06d" % number for number in range(len(messages))]
    rows = [(key, message.replace(b"KEY---", key)) for key, message in zip(keys, messages, strict=True)]
    rows += [(b"z%03d" % number, encode_row(b"z%03d" % number, _VALUE)) for number in range(FEW)]
    single: list[bytes] | None = []
    for key, row in rows:
        with refusing("token: row", CorruptMessageError):
            value = decode_row("token", key, row)
            if single is not None:
                single.append(value)
            continue
        single = None
    with refusing("token: row", CorruptMessageError):
        found = decode_rows("token", rows)
        assert single is not None, "a row that is damaged went unnoticed"
        assert found.values.to_pylist() == single
        assert found.keys.to_pylist() == [key for key, _ in rows]
        return
    assert single is None, "rows that are read one by one are read together"


def _branch(data: bytes, _: Path) -> None:
    """A row that a server may have written keeps everything but its tokens."""
    with refusing("main", CorruptMessageError):
        row = read_branch_row(data, name="main", repository="repo")
        merged = read_branch_row(row.with_sealed(["fresh"]), name="main", repository="repo")
        sealed = read_branch_row(row.with_seal("fresh"), name="main", repository="repo")
        assert (merged.sealed, merged.data.staging_token) == (("fresh",), row.data.staging_token)
        assert (sealed.data.staging_token, sealed.sealed) == ("fresh", (row.data.staging_token, *row.sealed))
        for item in (merged, sealed):
            assert (item.data.commit_id, item.data.hidden) == (row.data.commit_id, row.data.hidden)
            assert item.data.unknown == row.data.unknown
        assert merged.with_sealed(row.sealed) == row.raw or not row.sealed or _apart(row.raw)


def _apart(raw: bytes) -> bool:
    """Whether the sealed tokens of a row are not all behind each other: written again they are."""
    numbers = [field.number for field in read_fields(raw)]
    return 4 in numbers and numbers[numbers.index(4) :][: numbers.count(4)] != [4] * numbers.count(4)


_VALUE: Final = frame_value(b"identity", b"data")
_MESSAGES: Final = (
    BranchData("main", "c", "s", ("t2", "t1"), True).encode() + b"\x98\x06\x05",
    CommitData("i", "c", "m", ProtoTimestamp(5, 7), "r", {"a": "b"}, ("p", "q"), 1, 2).encode(),
    CatalogEntry("x", ProtoTimestamp(5), 9, "e", {"a": "b"}, 1, "text/plain").encode(),
    RangeData(b"a", b"z", 5, 2).encode(),
    TagData("v1", _COMMIT).encode(),
    BranchRecord("main", _COMMIT, "s", ("t",), compacted_base="b", claim_job="j", claim_token=3).unclaimed().encode(),
    RepositoryRecord("repo", "s3://b/r", default_branch_id="main", compactable=True).encode(),
    MergeEntry("f", "p", "main", _COMMIT, ("o",), 2, 5, 6, "h", ("1:ab",), "v").encode(),
    JournalledToken("t", "repo", 5, -1).encode(),
    Counts(3, 1, 99).encode(),
)
_ROWS: Final = tuple(
    _CUT.join(encode_row(b"KEY---", value) for value in values)
    for values in ([_VALUE], [_VALUE, TOMBSTONE, frame_value(b"i" * 300, b"")], [TOMBSTONE])
)
_BRANCHES: Final = (
    BranchData("main", _COMMIT, "s", ("t2", "t1"), True).encode(),
    BranchData("main", _COMMIT, "s").encode() + b"\x98\x06\x05\xaa\x06\x01x",
)

ROW_TARGETS: Final = (
    Target("staging-message", _message, _MESSAGES, _TOKENS),
    Target("staging-rows", _rows, _ROWS, (*_TOKENS, _CUT, b"\x0a\x06KEY---")),
    Target("lakefs-branch", _branch, _BRANCHES, _TOKENS),
)
