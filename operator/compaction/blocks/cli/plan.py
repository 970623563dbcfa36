"""`compactor blocks plan`: what would be merged now, and why the rest is left out."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import click

from compaction.blocks.cli.open_jobs import OpenJobs
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.cli.policy.made import policy_of_place, secrets_of_place
from compaction.blocks.cli.policy.options import policy_options
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.local.run_view import show_plan
from compaction.cli.output import OutputFormat, output_option
from compaction.kube.logging import LogFormat, setup_logging
from compaction.local.run.once import WORKER, look
from compaction.local.run.this_process import this_process
from compaction.storage.adapter import open_store


@click.command()
@store_options()
@policy_options
@output_option()
@click.pass_context
def plan(context: click.Context, /, *, place: StorePlace, output: OutputFormat, **options: Any) -> None:
    """What would be merged now, and for everything that is left out, why. Changes nothing.

    Blocks of a process that has ended are planned: `compact` takes them over. While some are parked with a job on which
    no process seems to work, the exit code is 1.

    Example: compactor blocks plan --store DIR --all
    """
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
