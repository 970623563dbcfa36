"""`compactor staging verify`: everything is read again."""

from __future__ import annotations

import click

from compaction.api.text.formatting import plural
from compaction.cli.errors import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.staging import verifying
from compaction.staging.cli.options import StagingPlace, staging_options


@click.command()
@click.argument("reference", metavar="[REF]", required=False)
@staging_options(policy=True)
@output_option()
@click.pass_context
def verify(context: click.Context, /, *, reference: str | None, place: StagingPlace, output: OutputFormat) -> None:
    """Read every range of all commits and compacted bases, or of what REF shows, and every row of the tokens.

    Checked are the checksums of all blocks, the ids of ranges, metaranges and commits (computed again from what was
    read), counts, bounds, and that rows are what they should be. A line on stderr names each thing that is wrong; the
    exit code is then 1. Changes nothing.

    Example: compactor staging verify --repo logs
    """
    with place.area() as area:
        found = verifying.verify(area, reference)
    if output is not OutputFormat.TABLE:
        counts = {name: getattr(found, name) for name in ("commits", "trees", "ranges", "records", "tokens", "rows")}
        emit({**counts, "problems": list(found.problems)}, output)
    else:
        click.echo(
            f"{plural(found.commits, 'commit')}, {plural(found.trees, 'tree')}, {plural(found.ranges, 'range')} with "
            f"{plural(found.records, 'record')}, {plural(found.tokens, 'token')} with {plural(found.rows, 'row')}: "
            f"{plural(len(found.problems), 'problem')}"
        )
    if found.problems:
        report_all(found.problems)
        context.exit(EXIT_DATA_ERROR)
