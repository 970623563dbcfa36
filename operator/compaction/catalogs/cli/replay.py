"""`compactor catalogs replay`: a recorded history through our catalog."""

from __future__ import annotations

from pathlib import Path

import click

from compaction.api.text.formatting import plural
from compaction.api.text.safe import printable
from compaction.catalogs.replay.replaying import replay
from compaction.cli.errors import EXIT_DATA_ERROR


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def replay_command(context: click.Context, *, file: Path) -> None:
    """Run the commands of FILE, a history that Apache Ignite 3 recorded (plain or gzip), through this catalog.

    Writes, results, classes of errors, events, versions and their fingerprints are compared. Each difference is a line
    on stdout and makes the exit code 1; nothing is printed for a history that is the same, but the number of its steps
    on stderr.

    Example: compactor catalogs replay history.jsonl.gz
    """
    steps = different = 0
    for step in replay(file):
        steps += 1
        for difference in step.differences:
            different += 1
            click.echo(printable(f"line {step.line}: {step.name}: {difference}"))
    click.echo(f"{plural(steps, 'step')}, {plural(different, 'difference')}", err=True)
    if different:
        context.exit(EXIT_DATA_ERROR)
