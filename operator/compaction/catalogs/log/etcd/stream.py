"""A watch of etcd over one connection: lines of JSON for as long as it lasts
(docs/design/catalogs.md#client-of-etcd).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable

from compaction.catalogs.errors import CatalogLogCutError, CatalogLogUnavailableError
from compaction.catalogs.log.etcd import wire
from compaction.catalogs.log.etcd.connections import Answer, shut
from compaction.catalogs.log.etcd.port import Changes
from compaction.catalogs.log.etcd.refusals import Fate, refusal


class GatewayStream:
    """A `Stream`. One thread reads, any other may close."""

    def __init__(
        self, connection: http.client.HTTPConnection, log: str, forget: Callable[[GatewayStream], object]
    ) -> None:
        """Waits for the first message: the member has made the watch, or says why not. From then on a read has no time
        limit, since nothing may happen for hours. OSError and http.client.HTTPException as a request.
        """
        self._connection, self._log, self._forget = connection, log, forget
        self._socket = connection.sock  # the connection forgets it where the answer ends with the connection
        self._response = connection.getresponse()
        self._status = self._response.status
        self._refusal = self._response.read() if self._status != http.client.OK else b""
        self._first = b""
        if self._status == http.client.OK:
            self._first = self._response.readline()
            if not self._first:
                raise http.client.RemoteDisconnected("the watch ended before it was made")
            self._socket.settimeout(None)

    def refused(self) -> Answer | None:
        """What a member answered that does not watch; the connection is closed then."""
        if self._status == http.client.OK:
            return None
        self.close()
        return Answer(self._status, self._refusal)

    def next(self) -> Changes:
        while True:
            result = self._message()
            if int(result.get("compact_revision", 0)):
                self.close()
                raise CatalogLogCutError(self._log, "the history before the watch is compacted")
            if result.get("canceled"):
                self.close()
                reason = str(result.get("cancel_reason", ""))[:200] or "no reason given"
                raise CatalogLogUnavailableError(self._log, f"the watch was cancelled: {reason}")
            # The answer to the request itself says nothing about what this watch has seen.
            if not result.get("created"):
                return wire.changes(result)

    def _message(self) -> wire.Document:
        try:
            line, self._first = self._first or self._response.readline(), b""
            if not line:
                raise CatalogLogUnavailableError(self._log, "the watch ended")
            message = wire.document(line)
        # ValueError also where another thread closed the connection under the read, AttributeError in the same race.
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise CatalogLogUnavailableError(self._log, f"the watch broke off ({type(error).__name__})") from error
        if "result" not in message:
            failed = message.get("error")
            body = json.dumps(failed if isinstance(failed, dict) else message).encode()
            fate, refused = refusal(Answer(http.client.OK, body), self._log)
            if fate is Fate.GIVE_UP:
                raise refused
            # A member that is asked to stop says so in the stream; another one, or a new token, goes on from here.
            raise CatalogLogUnavailableError(self._log, f"the watch was ended: {refused.reason}")
        found: wire.Document = message["result"]
        return found

    def close(self) -> None:
        shut(self._socket)
        self._connection.close()
        self._forget(self)
