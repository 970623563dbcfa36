"""`compactor worker`: one Spark application that takes jobs of one policy until no job needs it any more.

Started by the operator (launchers), never by hand in ordinary life. Exit codes: 0 idle; 1 it could not start; 2 wrong
usage; 64 asked to stop; 65 its Lease is gone; 66 the API server did not answer; 67 Spark went away; 68 the heartbeat
ended; 143 SIGTERM.
"""

from __future__ import annotations

import queue
import signal
import sys
from types import FrameType

import click
import structlog

from compaction.cli.lazy import freeze_modules, report
from compaction.errors import CompactionError
from compaction.kube.client.config import load_connection, own_server
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.processes.process import class_archives
from compaction.storage.secrets import MOUNTED_AT, DirectorySecrets
from compaction.worker.attempt import EndReason, Inbox, JobEnded, RunnerOfAllKinds
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import EXIT_WORDS, LAST_WORDS, Worker
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings

log = structlog.get_logger(__name__)


def spark_settings(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`--conf key=value`, repeatable, as a mapping."""
    conf: dict[str, str] = {}
    for value in values:
        key, separator, setting = value.partition("=")
        if not separator or not key.startswith("spark."):
            raise click.BadParameter(f"{value!r} is not of the form spark.key=value")
        conf[key] = setting
    return conf


@click.command("worker")
@click.option("--namespace", required=True, help="Namespace of the policy.")
@click.option("--policy", required=True, help="Name of the policy whose jobs are taken.")
@click.option("--name", required=True, help="Unique name of this worker and its Lease.")
@click.option("--slots", type=click.IntRange(1, 256), default=2, show_default=True, help="Number of concurrent jobs.")
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Exit after this time without jobs.",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(1, 3600),
    default=15,
    show_default=True,
    help="Duration of the worker's Lease.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master URL.")
@click.option("--conf", multiple=True, callback=spark_settings, metavar="KEY=VALUE", help="Spark configuration.")
@click.option(
    "--secrets-dir",
    type=click.Path(file_okay=False),
    default=MOUNTED_AT,
    show_default=True,
    help="Directory of the Secrets of the policy's store: a directory for each, a file for each key.",
)
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Path to a kubeconfig.")
@click.option(
    "--log-format", type=click.Choice([f.value for f in LogFormat]), default=LogFormat.TEXT.value, show_default=True
)
def command(
    *,
    namespace: str,
    policy: str,
    name: str,
    slots: int,
    idle_seconds: float,
    lease_seconds: int,
    master: str,
    conf: dict[str, str],
    secrets_dir: str,
    kubeconfig: str | None,
    log_format: str,
) -> None:
    """Run one Spark worker for a policy (started by the operator)."""
    # They have a client of the API, which help does without.
    from compaction.kube.assignments import WorkerIdentity, lease_port
    from compaction.kube.launchers.pods import IN_CLUSTER_MASTER

    freeze_modules()
    setup_logging(LogFormat(log_format))
    structlog.contextvars.bind_contextvars(policy=f"{namespace}/{policy}")
    inbox: Inbox = queue.SimpleQueue()
    _end_on_signals(inbox)
    identity = WorkerIdentity(name=name, namespace=namespace, policy=policy, lease_seconds=lease_seconds)
    try:
        if master == IN_CLUSTER_MASTER:
            master = f"k8s://{own_server()}"
        connect = lease_port(load_connection(kubeconfig, namespace=namespace), identity)
        # Spark first: its start must never be charged to the lease of a job.
        settings = SparkSettings(master=master, conf=conf, app_name=name, jobs=slots, archives=class_archives())
        with SparkEngine(settings) as engine:
            worker = Worker(
                heartbeat=Heartbeat(connect, inbox=inbox, slots=slots, lease_seconds=lease_seconds),
                inbox=inbox,
                runner=RunnerOfAllKinds(engine, holder=name, secrets=DirectorySecrets(secrets_dir), meter=engine),
                slots=slots,
                idle_seconds=idle_seconds,
            )
            code = worker.run()
    except CompactionError as error:
        report(error)
        sys.exit(1)
    why = f"{LAST_WORDS}: {EXIT_WORDS.get(int(code), 'nothing to do')}"
    log.info(why, worker=name, code=int(code), reason=code.name)
    sys.exit(int(code))


def _end_on_signals(inbox: Inbox) -> None:
    """SIGTERM and SIGINT become an event: running jobs stop before their next commit and report."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        inbox.put(JobEnded(EndReason.TERMINATED))

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
