"""What a refusal of etcd means: a code of gRPC and a sentence (docs/design/catalogs.md#client-of-etcd)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from compaction.catalogs.errors import (
    CatalogLogAccessError,
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogFullError,
    CatalogLogRefusedError,
    CatalogLogSizeError,
)
from compaction.catalogs.log.etcd.connections import Answer
from compaction.catalogs.log.etcd.wire import document

CANCELLED, UNKNOWN, DEADLINE, DENIED, OUT_OF_RANGE, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 1, 2, 4, 7, 11, 13, 14, 16
TRANSIENT: Final = frozenset({CANCELLED, DEADLINE, INTERNAL, UNAVAILABLE})
"""Another member, or this one in a moment, may do it: no leader, a leader that changes, a server that stops."""
STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
NO_USER: Final = (
    "user name is empty",
    "authentication failed",
    "user name not found",
    "permission denied",
    # The gateway of an etcd with users takes no certificate that has a common name.
    "commonname of client",
)
BUSY: Final = ("too many requests",)
TOO_LARGE: Final = ("request is too large", "received message larger than max")
"""Of etcd, above `--max-request-bytes`; and of gRPC before it, above that by half a mebibyte."""
FULL: Final = "database space exceeded"
"""The alarm NOSPACE: until it is disarmed etcd takes what deletes, and nothing that puts."""
COMPACTED: Final = "required revision has been compacted"
SENTENCE: Final = 300
"""Characters of a foreign message that are repeated."""


class Fate(Enum):
    """What to do after a refusal."""

    RETRY = auto()
    RENEW_TOKEN = auto()
    GIVE_UP = auto()


def refusal(answer: Answer, log: str) -> tuple[Fate, CatalogLogError]:
    """The fate of a request that was answered with anything but 200, and the error if it is given up."""
    code, sentence = _content(answer)
    lowered = sentence.lower()
    if any(words in lowered for words in STALE_TOKEN):
        return Fate.RENEW_TOKEN, CatalogLogAccessError(log, sentence)
    if code in {DENIED, UNAUTHENTICATED} or any(words in lowered for words in NO_USER):
        return Fate.GIVE_UP, CatalogLogAccessError(log, sentence)
    if COMPACTED in lowered:
        return Fate.GIVE_UP, CatalogLogCutError(log, "the revision that was asked for is compacted")
    if FULL in lowered:
        return Fate.GIVE_UP, CatalogLogFullError(log, sentence)
    if any(words in lowered for words in TOO_LARGE):
        return Fate.GIVE_UP, CatalogLogSizeError(log, code, sentence)
    refused = CatalogLogRefusedError(log, code, sentence)
    transient = code in TRANSIENT or answer.status >= 500 or any(words in lowered for words in BUSY)
    return (Fate.RETRY if transient else Fate.GIVE_UP), refused


def _content(answer: Answer) -> tuple[int, str]:
    """Code and sentence; of an answer that is not in JSON, its status and its text."""
    try:
        found = document(answer.body)
        return int(found.get("code", UNKNOWN)), str(found.get("message") or found.get("error") or "")[:SENTENCE]
    except (ValueError, TypeError):
        text = answer.body[:SENTENCE].decode("utf-8", "replace")
        return UNKNOWN, f"HTTP status {answer.status}, {' '.join(text.split())!a}"
