"""`compactor blocks compact` and `plan`: merges that are due, on this machine, without Kubernetes or Spark."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.cli.policy import policy_of_place, policy_options, secrets_of_place
from compaction.cli.lazy import EXIT_DATA_ERROR, end_interrupted, report
from compaction.cli.output import OutputFormat, ProgressBar, output_option
from compaction.errors import CompactionError
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.processes.process import this_process

if TYPE_CHECKING:
    from compaction.storage.secrets import Secrets
    from compaction.worker.ports import JobRunner

# `compactor blocks compact`: merge what is due, on this machine, without Kubernetes or Spark.
#
# The options become a policy, and that is run as `compactor run` runs one: the same look, planner, scheduler, attempt
# and commit. Only the engine is another one: threads of this process.


@click.command()
@store_options()
@policy_options
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of concurrent merges.")
@click.option("--take-over", is_flag=True, help="Release the claims of all open jobs first, also those of a cluster.")
@click.option("-v", "--verbose", is_flag=True, help="Log each step on standard error.")
@output_option()
@click.pass_context
def compact(
    context: click.Context,
    /,
    *,
    place: StorePlace,
    jobs: int,
    take_over: bool,
    verbose: bool,
    output: OutputFormat,
    **options: Any,
) -> None:
    """Merge what is due now, level by level, until nothing is: claim, merge, verify, commit.

    What is replaced stays readable for the grace; what ended longer ago, replaced or by the policy's retention, is
    deleted at the end. A block that cannot be merged is reported and quarantined, the others are merged without it; the
    exit code is then 1. Blocks that an open job of another process has are left to it, and named; those of a process
    that has ended, or has given no sign of life for a minute, are taken over.

    Example: compactor blocks compact --store DIR --all --jobs 2
    """
    # Who asks for help waits for no import of what runs a policy, nor of the models of policies.
    from compaction.cli.local.run_view import problems_of, show_result
    from compaction.local.run.once import WORKER, LocalRun
    from compaction.storage.adapter import open_store

    setup_logging(LogFormat.TEXT, level=logging.INFO if verbose else logging.ERROR)
    policy, secrets = policy_of_place(place, options, jobs=jobs), secrets_of_place(place)
    here = this_process()
    with place.open() as blocks, closing(open_store(policy.spec, holder=WORKER, secrets=secrets, here=here)) as store:
        others = OpenJobs(blocks, here)
        others.tell(take_over=take_over)
        with ProgressBar() as bar:
            run = LocalRun(
                policy,
                store=store,
                open_runner=lambda: _threads(secrets, jobs),
                progress=bar.note,
                others=others,
            )
            with interrupts():
                result = run.run()
        parked = others.parked()
    show_result(policy, result, output)
    problems = [*problems_of(policy, result), *parked]
    for problem in problems:
        report(CompactionError(problem))
    if problems:
        context.exit(EXIT_DATA_ERROR)


@contextmanager
def _threads(secrets: Secrets, jobs: int) -> Iterator[JobRunner]:
    from compaction.local.run.once import WORKER
    from compaction.local.run.workers import ThreadEngine
    from compaction.worker.attempt import RunnerOfAllKinds

    with ThreadEngine(max(jobs, os.cpu_count() or 1)) as engine:
        yield RunnerOfAllKinds(engine, holder=WORKER, secrets=secrets)


@contextmanager
def interrupts() -> Iterator[None]:
    """The first interrupt ends a run in order, which takes as long as a merge that is under way; the second one at
    once: the claims are given up then too, and what the merge has on scratch stays there.
    """
    times = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times == 1:
            click.echo("interrupted: waiting for the merge that runs; again: do not wait", err=True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if times > 1:
            end_interrupted()
        raise
    finally:
        signal.signal(signal.SIGINT, before)


# `compactor blocks plan`: what would be merged now, and why the rest is left out.


@click.command()
@store_options()
@policy_options
@output_option()
@click.pass_context
def plan(context: click.Context, /, *, place: StorePlace, output: OutputFormat, **options: Any) -> None:
    """Show what would be merged now, and for everything that is left out, why. Changes nothing.

    Blocks of a process that has ended are planned: `compact` takes them over. While some are parked with a job on which
    no process seems to work, the exit code is 1.

    Example: compactor blocks plan --store DIR --all
    """
    from compaction.cli.local.run_view import show_plan
    from compaction.local.run.once import WORKER, look
    from compaction.storage.adapter import open_store

    setup_logging(LogFormat.TEXT, level=logging.ERROR)
    policy, secrets = policy_of_place(place, options), secrets_of_place(place)
    with place.open() as blocks, closing(open_store(policy.spec, holder=WORKER, secrets=secrets)) as store:
        others = OpenJobs(blocks, this_process(), taking=False)
        others.tell()
        reading, planned = look(policy, store, others=others)
        parked = others.parked()
    show_plan(policy, reading, planned, output)
    if parked:
        context.exit(EXIT_DATA_ERROR)
