"""`compactor run -f policy.yaml`: compact what a policy describes on this machine, without any Kubernetes.

Exit codes: 0 everything that was due is compacted (or nothing was due); 1 something is wrong with the data or the
environment, named on stderr, everything else was compacted; 2 wrong usage.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from compaction.api.manifest import MAX_TEXT, load_policies
from compaction.api.policy import CompactionPolicy
from compaction.cli.errors import errors_as_exit_code, report
from compaction.cli.output import OutputFormat, output_option
from compaction.cli.run_view import problems_of, show_plan, show_result
from compaction.exceptions import CompactionError, EngineLostError, EngineStartError, InvalidManifestError
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.run import WORKER, LocalRun
from compaction.local.run_job import LocalJob
from compaction.rewrite.ports import JobRunner
from compaction.rewrite.segment import SegmentRewriter
from compaction.rewrite.session import SparkEngine
from compaction.rewrite.spark_settings import SparkSettings
from compaction.stores.adapter import open_store


@click.command("run")
@click.option(
    "-f",
    "--file",
    "source",
    required=True,
    type=click.File("r", encoding="utf-8"),
    help="The policy, as for kubectl apply -f (- reads standard input).",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; starts no Spark.")
@click.option("--policy", "wanted", help="Name of the policy, when the file holds several.")
@click.option("-v", "--verbose", is_flag=True, help="Log each step on standard error.")
@output_option()
def command(*, source: TextIO, dry_run: bool, wanted: str | None, verbose: bool, output: OutputFormat) -> None:
    """Compact what a policy file describes, without any Kubernetes."""
    setup_logging(LogFormat.TEXT, level=logging.INFO if verbose else logging.ERROR)
    with errors_as_exit_code():
        policy = _read_policy(source, wanted)
        store = open_store(policy.spec, holder=WORKER, lock_timeout=30.0)
        if dry_run:
            run = LocalRun(policy, store=store, open_runner=_no_runner)
            reading, plan = run.look(recover=False)
            show_plan(policy, reading, plan, output)
            problems = [problem.message for problem in reading.problems]
        else:
            with _ProgressBar() as bar:
                run = LocalRun(policy, store=store, open_runner=lambda: _spark(policy, bar), watch=bar.watch)
                result = run.run()
            show_result(policy, result, output)
            problems = problems_of(result)
    for problem in problems:
        report(CompactionError(problem))
    sys.exit(1 if problems else 0)


def _read_policy(source: TextIO, wanted: str | None) -> CompactionPolicy:
    """The one policy of the file. What is wrong with the file is wrong usage (exit code 2)."""
    try:
        policies = load_policies(source.read(MAX_TEXT + 1), source=source.name)
    except (InvalidManifestError, UnicodeDecodeError) as error:
        raise click.UsageError(str(error)) from error
    names = [policy.metadata.name for policy in policies]
    chosen = [policy for policy in policies if wanted in (None, policy.metadata.name)]
    if not chosen:
        raise click.UsageError(f"{source.name}: no policy {wanted}; there are {', '.join(names)}")
    if len(chosen) > 1:
        raise click.UsageError(f"{source.name} holds several policies, choose one with --policy: {', '.join(names)}")
    return chosen[0]


@contextmanager
def _no_runner() -> Iterator[JobRunner]:
    raise AssertionError("unreachable: a dry run runs nothing")
    yield


@contextmanager
def _spark(policy: CompactionPolicy, bar: _ProgressBar) -> Iterator[JobRunner]:
    """A Spark application as the policy asks for; its own output is only kept when it fails."""
    workers = policy.spec.workers
    descriptor, name = tempfile.mkstemp(prefix="compactor-run-", suffix=".log")
    with open(descriptor, "ab"):
        log_file = Path(name)
    bar.say("starting Spark")
    settings = SparkSettings(
        master=workers.spark_master,
        conf=workers.spark_conf,
        app_name=f"compactor run {policy.metadata.name}",
        jobs=workers.slots,
        log_file=log_file,
    )
    keep_log = False
    try:
        with SparkEngine(settings) as engine:
            bar.say("compacting")
            yield SegmentRewriter(engine, holder=WORKER)
    except (EngineStartError, EngineLostError):
        keep_log = True
        raise
    finally:
        if not keep_log:
            log_file.unlink(missing_ok=True)


class _ProgressBar:
    """Bytes copied, jobs ended; on standard error, and only when that is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[jobs]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._jobs: dict[str, LocalJob] = {}
        self._task: TaskID | None = None

    def __enter__(self) -> _ProgressBar:
        self._progress.start()
        self._task = self._progress.add_task("looking at the store", total=None, jobs="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        """Change the words before the bar."""
        assert self._task is not None
        self._progress.update(self._task, description=what)

    def watch(self, job: LocalJob) -> None:
        """A job changed (called from any thread)."""
        assert self._task is not None
        self._jobs[job.name] = job
        jobs = tuple(self._jobs.values())
        total = sum(max(1, job.planned.cost_bytes) for job in jobs)
        done = sum(max(1, job.planned.cost_bytes) * job.percent / 100 for job in jobs)
        ended = sum(job.percent == 100 for job in jobs)
        self._progress.update(self._task, total=total, completed=done, jobs=f"{ended}/{len(jobs)} jobs")
