"""What a local run works with: a Spark application as the policy asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.progress_bar import ProgressBar
from compaction.local.cache import class_archives
from compaction.local.run.once import WORKER
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.errors import EngineLostError, EngineStartError
from compaction.worker.ports import JobRunner
from compaction.worker.runner import RunnerOfAllKinds
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings


@contextmanager
def spark(policy: CompactionPolicy, bar: ProgressBar, secrets: Secrets = NO_SECRETS) -> Iterator[JobRunner]:
    """A Spark application as the policy asks for; its own output is only kept when it fails. `secrets`: those that the
    policy names.
    """
    workers = policy.spec.workers
    descriptor, name = tempfile.mkstemp(prefix="compactor-run-", suffix=".log")
    with open(descriptor, "ab"):
        log_file = Path(name)
    bar.say("starting Spark")
    settings = SparkSettings(
        master=workers.spark_master,
        conf=workers.spark_conf,
        archives=class_archives(),
        app_name=f"compactor run {policy.metadata.name}",
        jobs=workers.slots,
        log_file=log_file,
    )
    keep_log = False
    try:
        with SparkEngine(settings) as engine:
            bar.say("compacting")
            yield RunnerOfAllKinds(engine, holder=WORKER, secrets=secrets)
    except (EngineStartError, EngineLostError):
        keep_log = True
        raise
    finally:
        if not keep_log:
            log_file.unlink(missing_ok=True)
