"""Requests and answers of etcd's JSON gateway: keys and values in base64, 64-bit integers as texts, zeros left out
(docs/design/catalogs.md#client-of-etcd).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, Final

from compaction.catalogs.log.etcd.port import (
    Absent,
    Changes,
    Compare,
    DeleteRange,
    Get,
    KeyValue,
    Operation,
    Page,
    Put,
    Status,
    Transaction,
    TransactionAnswer,
)

Document = dict[str, Any]
RANGE: Final = "/v3/kv/range"
TRANSACTION: Final = "/v3/kv/txn"
COMPACTION: Final = "/v3/kv/compaction"
WATCH: Final = "/v3/watch"
STATUS: Final = "/v3/maintenance/status"
AUTHENTICATE: Final = "/v3/auth/authenticate"


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def range_request(what: Get, revision: int = 0) -> Document:
    """A read; of the newest revision it is linearizable."""
    request: Document = {"key": _text(what.key)}
    if what.end:
        request["range_end"] = _text(what.end)
    if what.limit:
        request["limit"] = what.limit
    if what.keys_only:
        request["keys_only"] = True
    if revision:
        request["revision"] = revision
    return request


def _operation(what: Operation) -> Document:
    match what:
        case Get():
            return {"request_range": range_request(what)}
        case Put():
            return {"request_put": {"key": _text(what.key), "value": _text(what.value)}}
        case DeleteRange():
            return {"request_delete_range": {"key": _text(what.key), "range_end": _text(what.end)}}


def _compare(what: Compare | Absent) -> Document:
    if isinstance(what, Absent):
        return {"key": _text(what.key), "target": "CREATE", "result": "EQUAL", "create_revision": 0}
    return {"key": _text(what.key), "target": "VALUE", "result": what.relation.value, "value": _text(what.value)}


def transaction_request(what: Transaction) -> Document:
    """A transaction."""
    return {
        "compare": [_compare(one) for one in what.compares],
        "success": [_operation(one) for one in what.success],
        "failure": [_operation(one) for one in what.failure],
    }


def watch_request(key: bytes, end: bytes, start: int) -> Document:
    """A watch of puts alone. Large revisions come in fragments, so no answer grows with what was missed."""
    wanted = {
        "key": _text(key),
        "range_end": _text(end),
        "start_revision": start,
        "progress_notify": True,
        "filters": ["NODELETE"],
        "fragment": True,
    }
    return {"create_request": wanted}


def document(body: bytes) -> Document:
    """An answer. ValueError when it is not a JSON object."""
    found = json.loads(body)
    if isinstance(found, dict):
        return found
    raise ValueError("the answer is not a JSON object")


def revision_of(answer: Document) -> int:
    """The store's revision when it answered."""
    return int(answer["header"]["revision"])


def _pair(pair: Document) -> KeyValue:
    return KeyValue(b64decode(pair["key"]), b64decode(pair.get("value", "")), int(pair["mod_revision"]))


def page(answer: Document, revision: int) -> Page:
    """What a range found; `revision` is the store's."""
    return Page(tuple(map(_pair, answer.get("kvs", ()))), bool(answer.get("more", False)), revision)


def transaction_answer(answer: Document, *, repeated: bool) -> TransactionAnswer:
    """What a transaction did and found."""
    revision = revision_of(answer)
    found = tuple(
        page(one["response_range"], revision) for one in answer.get("responses", ()) if "response_range" in one
    )
    return TransactionAnswer(bool(answer.get("succeeded", False)), found, revision, repeated)


def changes(result: Document) -> Changes:
    """A message of a watch. The revision in its header may be ahead of what the watch has delivered: it counts only in
    a notification of progress, which has no events.
    """
    pairs = tuple(_pair(event["kv"]) for event in result.get("events", ()) if event.get("type", "PUT") == "PUT")
    return Changes(pairs, pairs[-1].revision if pairs else int(result["header"].get("revision", 0)))


def status(answer: Document, endpoint: str) -> Status:
    """One member's status."""
    return Status(
        endpoint,
        int(answer["header"]["member_id"]),
        str(answer.get("version", "")),
        int(answer.get("dbSize", 0)),
        int(answer.get("dbSizeInUse", 0)),
        int(answer.get("dbSizeQuota", 0)),
        revision_of(answer),
        int(answer.get("leader", 0)),
    )
