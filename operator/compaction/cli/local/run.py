"""`compactor run -f FILE`: compact what a policy or catalogs describe on this machine, without any Kubernetes.

Exit codes: 0 everything that was due is compacted (or nothing was due); 1 something is wrong with the data or the
environment, named on stderr, everything else was compacted; 2 wrong usage.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

import click

from compaction.api.enums import JobState
from compaction.api.manifests import holds
from compaction.api.names import ANNOTATION_APPROVE, CATALOG_KIND, POLICY_KIND
from compaction.api.policy.configuration import NO_DEFAULTS, OperatorConfiguration
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_bytes, format_cost, plural, printable
from compaction.cli.lazy import errors_as_exit_code, report
from compaction.cli.local.policy_file import PolicyFile
from compaction.cli.local.run_view import NoOthers, OpenOthers, Others, RunOptions, problems_of, show_plan, show_result
from compaction.cli.output import OutputFormat, ProgressBar, emit, output_option, print_pairs
from compaction.cli.values import ConfigurationFile
from compaction.errors import CompactionError, InvalidManifestError
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.processes.process import class_archives, this_process
from compaction.local.run.job import PLAN_PENDING, News
from compaction.local.run.once import WORKER, LocalRun, LocalWatch, compared, look, scan_of
from compaction.registry import kind_of
from compaction.storage.adapter import open_store
from compaction.storage.opened import ThisProcess
from compaction.storage.secrets import NO_SECRETS, Secrets
from compaction.worker.attempt import RunnerOfAllKinds
from compaction.worker.errors import EngineLostError, EngineStartError
from compaction.worker.ports import JobRunner
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings

# The engine of a local run: a Spark application as the policy asks for.


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
            yield RunnerOfAllKinds(engine, holder=WORKER, secrets=secrets, meter=engine)
    except (EngineStartError, EngineLostError):
        keep_log = True
        raise
    finally:
        if not keep_log:
            log_file.unlink(missing_ok=True)


# `compactor run --watch`: its messages, and the summary at its end.
#
# Exit codes: 0 stopped by SIGINT or SIGTERM; 1 it could not begin; 2 wrong usage.

LOCK_TIMEOUT: Final = 30.0
"""Seconds that a local run waits for a lock of the store: there is nothing else it could do meanwhile."""


class StopSignals:
    """The first SIGINT or SIGTERM ends a watch in order, a second one at once. Made before anything is opened: one that
    comes earlier than `stop` is given ends what begins then.
    """

    def __init__(self) -> None:
        self._came = False
        self._stop: Callable[[], None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def call(self, stop: Callable[[], None]) -> None:
        """Call `stop` at the first signal, or now if it has come."""
        self._stop = stop
        if self._came:
            stop()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        self._came = True
        self._stop()


def keep_compacted(file: PolicyFile, output: OutputFormat, here: ThisProcess, signals: StopSignals) -> None:
    """Run until a signal, telling on standard error what happens; then print the summary."""
    with ProgressBar() as bar:
        watch = LocalWatch(
            file.policy,
            open_store=lambda policy: open_store(
                policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=file, here=here
            ),
            open_runner=lambda policy: spark(policy, bar, file),
            reread=file.reread,
            tell=lambda news: bar.line(_line(news, file)),
            progress=bar.note,
        )
        signals.call(watch.stop)
        watch.run()
    _show(watch, output)


def _line(news: News, file: PolicyFile) -> str:
    about = f"{news.job}: " if news.job else ""
    text = news.message
    if news.reason == PLAN_PENDING:
        plan_hash = text.partition(":")[0]
        where = f"in {file.path}, or start again with --approve" if file.path is not None else "with --approve"
        text += f"; approve it by the annotation {ANNOTATION_APPROVE}: {plan_hash} {where}"
    mark = "warning: " if news.warning else ""
    return f"{time.strftime('%H:%M:%S')}  {news.reason:<18}  {mark}{about}{printable(text)}"


def _show(watch: LocalWatch, output: OutputFormat) -> None:
    data = summary(watch)
    seconds = data["cpuSeconds"]
    nouns = kind_of(watch.objects.policy.spec.store).nouns
    if output is not OutputFormat.TABLE:
        emit(data, output)
        return
    print_pairs(
        [
            ("Policy", data["policy"]),
            ("Jobs", f"{data['succeeded']} succeeded, {data['faulty']} faulty, {data['unfinished']} not finished"),
            ("Reclaimed", format_bytes(data["bytesReclaimed"])),
            *([("Cost", format_cost(seconds, data["gainPerCpuSecond"]))] if seconds is not None else []),
            ("Deleted", plural(data["deleted"], nouns.deleted)),
            ("Quarantined", plural(len(data["quarantined"]), nouns.source)),
        ]
    )
    for item in data["quarantined"]:
        click.echo(printable(f"  {item['target']}/{item['source']}: {item['message']}"))


def summary(watch: LocalWatch) -> dict[str, Any]:
    """Return the outcome of the run, in exact values."""
    policy, jobs = watch.objects.policy, watch.objects.jobs.values()
    states, cost = [job.status.state for job in jobs], policy.status.cost
    return {
        "policy": policy.metadata.name,
        "succeeded": policy.status.succeeded,
        "faulty": policy.status.faulty,
        "unfinished": sum(state not in (JobState.SUCCEEDED, JobState.FAULTY) for state in states),
        "bytesReclaimed": policy.status.bytes_reclaimed,
        "cpuSeconds": cost.cpu_seconds if cost is not None else None,
        "gainPerCpuSecond": cost.gain_per_cpu_second if cost is not None else None,
        "deleted": watch.deleted,
        "quarantined": [source.to_object() for source in policy.status.quarantined],
        "problems": [error.to_object() for error in policy.status.target_errors],
    }


@click.command("run")
@click.option(
    "-f",
    "--file",
    "source",
    required=True,
    type=click.File("r", encoding="utf-8"),
    help="Policy and catalogs, as for kubectl apply -f (- reads standard input).",
)
@click.option("--dry-run", is_flag=True, help="Show the plan without changes; does not start Spark.")
@click.option(
    "--against",
    type=click.File("r", encoding="utf-8"),
    help="With --dry-run: another version of the file; both plans are shown, side by side.",
)
@click.option("--watch", is_flag=True, help="Keep running and compact as the policy says, until stopped.")
@click.option("--approve", "approved", metavar="HASH", help="Approve the plan of this hash (approval: Manual).")
@click.option("--policy", "wanted", help="Name of the policy, when the file holds several; catalogs are left out.")
@click.option("--catalog", help="Name of the CatalogCompaction; everything else in the file is left out.")
@click.option(
    "--secrets-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of Secrets that are not in the file: DIR/NAME/KEY.",
)
@click.option(
    "--config", "configuration", type=ConfigurationFile(), help="Defaults of policies: the file of an operator."
)
@click.option("--take-over", is_flag=True, help="Release all open jobs of the store first, also those of a cluster.")
@click.option("-v", "--verbose", is_flag=True, help="Log each step on standard error.")
@output_option()
def command(
    *,
    source: TextIO,
    dry_run: bool,
    against: TextIO | None,
    watch: bool,
    approved: str | None,
    wanted: str | None,
    catalog: str | None,
    secrets_dir: Path | None,
    configuration: OperatorConfiguration | None,
    take_over: bool,
    verbose: bool,
    output: OutputFormat,
) -> None:
    """Compact what a file describes, without any Kubernetes: once, or for as long as it runs.

    Once means now: everything that is due is compacted, whatever schedule and windows say. With --watch they hold, and
    the file is read again when it changes: an edited spec is in force at once, and the annotation
    compaction.dev/approve approves a plan, as in a cluster. SIGINT and SIGTERM end it before the next commit.

    Each CatalogCompaction of the file has one round; with --watch, rounds as its spec says. Its participants are those
    under spec.participants.urls.
    """
    if dry_run and watch:
        raise click.UsageError("give --dry-run or --watch, not both")
    if against is not None and not dry_run:
        raise click.UsageError("--against compares plans: give --dry-run, too")
    if wanted is not None and catalog is not None:
        raise click.UsageError("give --policy or --catalog, not both")
    setup_logging(LogFormat.TEXT, level=logging.INFO if verbose else logging.ERROR)
    signals = StopSignals() if watch else None
    with errors_as_exit_code():
        text = _text(source)
        plan = RunOptions(output, dry_run=dry_run, take_over=take_over)
        has_policy, has_catalog = (_has(source, text, kind) for kind in (POLICY_KIND, CATALOG_KIND))

        defaults = NO_DEFAULTS if configuration is None else configuration.defaults
        older = None if against is None else _text(against)
        read = partial(PolicyFile, wanted=wanted, secrets_dir=secrets_dir, defaults=defaults)

        def policy() -> PolicyFile:
            return read(source, text=text, approved=approved)

        def older_policy() -> PolicyFile | None:
            return None if against is None else read(against, text=older)

        if wanted is not None or (catalog is None and not has_catalog):
            problems = _policy(policy(), plan, signals, older_policy())
        else:
            # Here, not above: all of catalogs costs half a second of a run that has none.
            from compaction.catalogs.cli.run_catalogs import (
                CatalogFile,
                compare_catalogs,
                run_catalogs,
                watch_catalogs,
                watched_beside,
            )

            catalogs = CatalogFile(source, text, wanted=catalog, secrets_dir=secrets_dir)
            if against is not None and older is not None:
                before = CatalogFile(against, older, wanted=catalog, secrets_dir=secrets_dir)
                problems = _policy(policy(), plan, signals, older_policy()) if catalog is None and has_policy else []
                problems += compare_catalogs(before, catalogs, plan)
            elif catalog is None and has_policy:
                file = policy()
                with watched_beside(catalogs, plan) if watch else nullcontext():
                    problems = _policy(file, plan, signals)
                problems += [] if watch else run_catalogs(catalogs, plan)
            elif signals is not None:
                watch_catalogs(catalogs, plan, signals)
                problems = []
            else:
                problems = run_catalogs(catalogs, plan)
    for problem in problems:
        report(CompactionError(problem))
    sys.exit(1 if problems else 0)


def _text(source: TextIO) -> str:
    try:
        return source.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(str(error)) from error


def _has(source: TextIO, text: str, kind: str) -> bool:
    try:
        return holds(text, kind, source=source.name)
    except InvalidManifestError as error:
        raise click.UsageError(str(error)) from error


def _policy(
    file: PolicyFile, plan: RunOptions, signals: StopSignals | None, before: PolicyFile | None = None
) -> list[str]:
    """Run the policy of the file, or compare it with that of another one, and return what is wrong, one line for each
    thing; a watch (until `signals`) ends without.
    """
    if before is not None:
        return _compare(before, file, plan.output)
    if signals is None:
        return _once(file, plan)
    _watch(file, plan, signals)
    return []


def _watch(file: PolicyFile, plan: RunOptions, signals: StopSignals) -> None:
    here = this_process()
    if plan.take_over:
        with _open_jobs_of(file.policy, file, here=here, taking=True) as others:
            others.tell(take_over=True)
            keep_compacted(file, plan.output, here, signals)
        return
    # Open jobs are not looked for here: a watch begins also while the index is away.
    keep_compacted(file, plan.output, here, signals)


def _once(file: PolicyFile, plan: RunOptions) -> list[str]:
    """Run once and return what is wrong, one line for each thing."""
    here, dry_run = this_process(), plan.dry_run
    with _open_jobs_of(file.policy, file, here=here, taking=not dry_run) as others:
        others.tell(take_over=plan.take_over and not dry_run)
        return _dry_run(file, others, plan.output) if dry_run else _run(file, others, plan.output, here)


def _open_jobs_of(
    policy: CompactionPolicy, secrets: Secrets, *, here: ThisProcess, taking: bool
) -> AbstractContextManager[Others]:
    """Those of the policy's store."""
    door = kind_of(policy.spec.store).doors.open_jobs
    if door is None:
        return nullcontext(NoOthers())
    opened: OpenOthers = door.open()
    return opened(policy, secrets, here=here, taking=taking)


def _dry_run(file: PolicyFile, others: Others, output: OutputFormat) -> list[str]:
    """Show the plan and return what is wrong, one line for each thing."""
    policy = file.policy
    with closing(open_store(policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=file)) as store:
        reading, plan = look(policy, store, others=others)
    show_plan(policy, reading, plan, output)
    return [*(problem.message for problem in reading.problems), *others.parked()]


def _compare(before: PolicyFile, file: PolicyFile, output: OutputFormat) -> list[str]:
    """Show what both would do, and return what is wrong, one line for each thing."""
    from compaction.cli.previews import show_previews

    here, scans, parked = this_process(), [], []
    for version in (before, file):
        policy = version.policy
        # Each version with its own Secrets, and one after the other: a store in a file takes one process at a time.
        with _open_jobs_of(policy, version, here=here, taking=False) as others:
            others.tell()
            with closing(open_store(policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=version)) as store:
                scans.append(scan_of(store, others=others))
            parked += others.parked()
    preview = compared(before.policy, file.policy, (scans[0], scans[1]))
    name = "standard input" if file.path is None else str(file.path)
    show_previews([(preview, {"policy": file.policy.metadata.name, "file": name})], output)
    problems = [problem.message for scan in scans for problem in scan.problems]
    return list(dict.fromkeys((*problems, *parked)))


def _run(file: PolicyFile, others: Others, output: OutputFormat, here: ThisProcess) -> list[str]:
    """Compact the store and return what is wrong, one line for each thing; everything else was compacted."""
    policy = file.policy
    with closing(open_store(policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=file, here=here)) as store:
        with ProgressBar() as bar:
            run = LocalRun(
                policy,
                store=store,
                open_runner=lambda: spark(policy, bar, file),
                progress=bar.note,
                others=others,
            )
            result = run.run()
        show_result(policy, result, output)
    return [*problems_of(policy, result), *others.parked()]
