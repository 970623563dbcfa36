"""Shared secrets in files: compared in constant time, read again when the file was replaced.

A file holds one secret per line, so an old and a new one can be valid together while writers change over. A file that
is gone, or holds something too short, authenticates no caller until it is back.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
from pathlib import Path
from typing import Final

import structlog

from compaction.serving.errors import IngestConfigError

SHORTEST: Final = 16
"""Characters of a secret, at least."""
_LARGEST: Final = 1 << 16
_UNREADABLE: Final = ()
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62})")
log = structlog.get_logger(__name__)


class SharedSecret:
    """The secrets of one file; a caller with one of them is the principal `secret:NAME`."""

    def __init__(self, name: str, path: Path) -> None:
        """Raises IngestConfigError for a name or file that is no use from the beginning."""
        if not _NAME.fullmatch(name):
            raise IngestConfigError(f"{name[:80]!r}: a secret's name has letters, digits, dots, - and _")
        self.principal = f"secret:{name}"
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._digests: tuple[bytes, ...] = ()
        problem = self._refresh()
        if problem:
            raise IngestConfigError(f"{path}: {problem}")

    def matches(self, token: str) -> bool:
        """Whether the token is one of the secrets."""
        with self._lock:
            if problem := self._refresh():
                log.error("a shared secret cannot be used", principal=self.principal, file=str(self._path), why=problem)
            digests = self._digests
        given = _digest(token)
        found = False
        for digest in digests:
            found |= hmac.compare_digest(given, digest)
        return found

    def _refresh(self) -> str:
        """Read the file again when it is another one; says what is new and wrong."""
        try:
            found = os.stat(self._path)
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if version == self._seen:
                return ""
            with self._path.open("rb") as file:
                text = file.read(_LARGEST).decode()
        except (OSError, UnicodeDecodeError) as error:
            # Not the text of a decoding error: it quotes the secret.
            known = self._seen == _UNREADABLE
            self._digests, self._seen = (), _UNREADABLE
            return "" if known else getattr(error, "strerror", None) or "is no text"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        problem = "" if lines else "holds no secret"
        if lines and min(map(len, lines)) < SHORTEST:
            problem = f"a secret has at least {SHORTEST} characters"
        self._digests, self._seen = () if problem else tuple(_digest(line) for line in lines), version
        return problem


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
