"""The operator's shared parts around a client, with nothing running behind them."""

from __future__ import annotations

from pathlib import Path

from compaction.kube.client.api import ApiClient
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import ObjectCache
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.process import ProcessLauncher
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Runtime


def quiet_runtime(client: ApiClient, state_dir: Path) -> Runtime:
    """A leader's parts; its cache is empty."""
    return Runtime(
        client=client,
        cache=ObjectCache(),
        queue=WorkQueue(),
        launcher=ProcessLauncher(state_dir),
        events=EventRecorder(client),
        metrics=Metrics(),
        is_leader=lambda: True,
        epoch=1,
        identity="test",
        namespace="ns",
        state_dir=state_dir,
    )
