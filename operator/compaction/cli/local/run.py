"""`compactor run -f FILE`: compact what a policy or catalogs describe on this machine, without any Kubernetes.

Exit codes: 0 everything that was due is compacted (or nothing was due); 1 something is wrong with the data or the
environment, named on stderr, everything else was compacted; 2 wrong usage.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TextIO

import click

from compaction.api.manifests.objects import holds
from compaction.api.names import CATALOG_KIND, POLICY_KIND
from compaction.api.policy.resource import CompactionPolicy
from compaction.cli.errors import errors_as_exit_code, report
from compaction.cli.local.policy_file import PolicyFile
from compaction.cli.local.run_engine import spark
from compaction.cli.local.run_view import RunOptions, problems_of, show_plan, show_result
from compaction.cli.local.run_watch import LOCK_TIMEOUT, StopSignals, keep_compacted
from compaction.cli.local.tables import NoOthers, OpenOthers, Others
from compaction.cli.output import OutputFormat, output_option
from compaction.cli.progress_bar import ProgressBar
from compaction.errors import CompactionError, InvalidManifestError
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.run.once import WORKER, LocalRun, look
from compaction.local.run.this_process import this_process
from compaction.registry import kind_of
from compaction.storage.adapter import open_store
from compaction.storage.processes import ThisProcess
from compaction.storage.secrets import Secrets


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
@click.option("--watch", is_flag=True, help="Keep running and compact as the policy says, until stopped.")
@click.option("--approve", "approved", metavar="HASH", help="Approve the plan of this hash (approval: Manual).")
@click.option("--policy", "wanted", help="Name of the policy, when the file holds several; catalogs are left out.")
@click.option("--catalog", help="Name of the CatalogCompaction; everything else in the file is left out.")
@click.option(
    "--secrets-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of Secrets that are not in the file: DIR/NAME/KEY.",
)
@click.option("--take-over", is_flag=True, help="Release all open jobs of the store first, also those of a cluster.")
@click.option("-v", "--verbose", is_flag=True, help="Log each step on standard error.")
@output_option()
def command(
    *,
    source: TextIO,
    dry_run: bool,
    watch: bool,
    approved: str | None,
    wanted: str | None,
    catalog: str | None,
    secrets_dir: Path | None,
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
    if wanted is not None and catalog is not None:
        raise click.UsageError("give --policy or --catalog, not both")
    setup_logging(LogFormat.TEXT, level=logging.INFO if verbose else logging.ERROR)
    signals = StopSignals() if watch else None
    with errors_as_exit_code():
        text = _text(source)
        plan = RunOptions(output, dry_run=dry_run, take_over=take_over)
        has_policy, has_catalog = (_has(source, text, kind) for kind in (POLICY_KIND, CATALOG_KIND))

        def policy() -> PolicyFile:
            return PolicyFile(source, text=text, wanted=wanted, approved=approved, secrets_dir=secrets_dir)

        if wanted is not None or (catalog is None and not has_catalog):
            problems = _policy(policy(), plan, signals)
        else:
            # Here, not above: all of catalogs costs half a second of a run that has none.
            from compaction.catalogs.cli.catalog_file import CatalogFile
            from compaction.catalogs.cli.run_catalogs import run_catalogs, watch_catalogs, watched_beside

            catalogs = CatalogFile(source, text, wanted=catalog, secrets_dir=secrets_dir)
            if catalog is None and has_policy:
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


def _policy(file: PolicyFile, plan: RunOptions, signals: StopSignals | None) -> list[str]:
    """What is wrong, one line for each thing; a watch (until `signals`) ends without."""
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
    """What is wrong, one line for each thing."""
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
    """What is wrong, one line for each thing."""
    policy = file.policy
    with closing(open_store(policy.spec, holder=WORKER, lock_timeout=LOCK_TIMEOUT, secrets=file)) as store:
        reading, plan = look(policy, store, others=others)
    show_plan(policy, reading, plan, output)
    return [*(problem.message for problem in reading.problems), *others.parked()]


def _run(file: PolicyFile, others: Others, output: OutputFormat, here: ThisProcess) -> list[str]:
    """What is wrong, one line for each thing; everything else was compacted."""
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
