"""`python -m demos`, as `make demo` calls it: from a policy to a compacted store, with a proof."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console

from compaction.cli.cluster.flags import kubeconfig_option
from compaction.cli.lazy import end_interrupted
from compaction.cli.main import run
from demos.blocks.run import show as show_blocks
from demos.catalog.run import show as show_catalog
from demos.segments.run import show as show_logs
from demos.stage import DemoStage, Show
from demos.staging.run import show as show_staging

PLAIN_WIDTH = 160


DEMOS: Final[Mapping[str, Show]] = {
    "logs": show_logs,
    "blocks": show_blocks,
    "staging": show_staging,
    "catalog": show_catalog,
}
"""What can be shown, by the name of the store."""


@click.command("demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where stores, control plane and operator keep their files; created again by each run.",
)
@click.option("--keep", is_flag=True, help="Keep everything running at the end and print its KUBECONFIG.")
@click.option("--down", is_flag=True, help="Only stop what --keep left running.")
@click.option(
    "--store",
    type=click.Choice(list(DEMOS)),
    default=next(iter(DEMOS)),
    show_default=True,
    help="Segment logs in files; a block store or a staging area on versitygw (S3) and PostgreSQL; a catalog in etcd.",
)
@kubeconfig_option(
    "Use this cluster instead of a control plane of our own; definitions and a namespace are created in it.",
    exists=True,
)
def command(directory: Path, keep: bool, down: bool, store: str, kubeconfig: Path | None) -> int:
    """Make a store, apply a policy, watch the operator compact it, and prove that nothing was lost.

    Logs: four of them, one damaged. Blocks: three tenants write all the time, and a reader compares every row at one
    instant after the other, while a worker is killed. Staging: four branches are written all the time, one has a
    million deletions, and a reader compares them with a model, while a worker and the coordinator are killed. Catalog:
    a history of 1,000 versions shrinks as participants release it one after the other, and a reader compares every
    version with what was written.

    Exit codes: 0 every claim held, 1 one did not or it could not be carried through.
    """
    # The records of what was started must be found again from any directory.
    stage = DemoStage(directory.absolute(), _console(), keep=keep, kubeconfig=kubeconfig)
    # A polite kill must clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if down:
            stage.stop()
            return 0
        return 0 if stage.perform(DEMOS[store]) else 1
    except KeyboardInterrupt:
        # All that was started is stopped; writers and readers may still be in native code of their libraries.
        click.echo("interrupted", err=True)
        end_interrupted()


def _console() -> Console:
    """The terminal as it is; in a pipe or a log nothing is wrapped, whatever width is assumed there."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run(command, "python -m demos"))
