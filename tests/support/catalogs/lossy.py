"""A client of etcd that loses requests and answers, by a plan or at chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from compaction.catalogs.log.etcd import wire
from compaction.catalogs.log.etcd.connections import EtcdAnswer
from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Document, Endpoint, EtcdSettings


class Loss(Enum):
    """What becomes of one request."""

    NONE = "arrives and is answered"
    REQUEST = "never arrives"
    ANSWER = "arrives, and the answer is lost"
    TWICE = "arrives a second time after it was answered"


class LossyClient(GatewayClient):
    """`plan` has a loss for each transaction in turn, then all is well. `between` runs after each that was lost."""

    def __init__(
        self, settings: EtcdSettings, plan: Iterator[Loss], between: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(settings, sleep=lambda _: None)
        self.plan = plan
        self.between = between
        self.lost = 0

    def _post(self, endpoint: Endpoint, path: str, what: Document) -> EtcdAnswer:
        loss = next(self.plan, Loss.NONE) if path == wire.TRANSACTION else Loss.NONE
        if loss is Loss.REQUEST:
            self._lose()
        answer = super()._post(endpoint, path, what)
        if loss is Loss.TWICE:
            super()._post(endpoint, path, what)
        if loss is Loss.ANSWER:
            self._lose()
        return answer

    def _lose(self) -> None:
        self.lost += 1
        self.between()
        raise ConnectionResetError("lost on the way")
