"""`compactor catalogs conformance`: whether a participant keeps the rules of the protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from pathlib import Path
from typing import Final

import click

from compaction.api.text.safe import printable
from compaction.api.text.values import Duration
from compaction.catalogs.cli.asking import (
    PLAIN_HTTP_OPTION,
    SECRET_OPTION,
    TIMEOUT_OPTION,
    authorities_of,
    authorities_option,
    secret_of,
)
from compaction.catalogs.serving.conformance.behavior import BEHAVIOR_CHECKS
from compaction.catalogs.serving.conformance.checks import PROTOCOL_CHECKS
from compaction.catalogs.serving.conformance.probe import ProbeSettings
from compaction.catalogs.serving.conformance.run import CheckOutcome, CheckResult, run_checks
from compaction.cli.durations import DurationParameter
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.output import OutputFormat, emit, output_option

_WIDEST_NAME: Final = max(len(one.name) for one in (*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS))


@click.command("conformance")
@click.argument("url", metavar="URL")
@SECRET_OPTION
@click.option("--admin", is_flag=True, help="Drive the participant through /v1/admin, and check what it does.")
@authorities_option("--ca")
@PLAIN_HTTP_OPTION
@click.option(
    "--coordinator-token",
    type=click.IntRange(1, 2**53 - 2),
    default=1,
    show_default=True,
    help="Fencing token to come with; the next one is used too.",
)
@click.option("--max-skew", type=DurationParameter(), default="500ms", show_default=True, help="Allowed clock skew.")
@TIMEOUT_OPTION
@output_option()
@click.pass_context
def conformance_command(
    context: click.Context,
    *,
    url: str,
    secret_file: Path,
    admin: bool,
    ca: Path | None,
    plain_http: bool,
    coordinator_token: int,
    max_skew: Duration,
    timeout: Duration,
    output: OutputFormat,
) -> None:
    """Check the participant at URL, in whatever language it is written. Each rule is a line; the exit code is 1 when a
    rule is broken.

    The run stores minimums and uses up two fencing tokens: run it against an instance of its own. With --admin it adds
    and removes objects with the id 2,000,000,000, and restarts the participant.

    Example: compactor catalogs conformance http://127.0.0.1:8092 --secret-file SECRET --admin
    """
    settings = ProbeSettings(
        url, secret_of(secret_file), coordinator_token, round(max_skew * 1000), seconds=float(timeout)
    )
    tls = None if ca is None else authorities_of(ca)
    results = asyncio.run(_run(settings, admin=admin, tls=tls, plain=plain_http, output=output))
    if output is not OutputFormat.TABLE:
        emit([_row(one) for one in results], output)
    counts = Counter(one.outcome for one in results)
    broken = counts[CheckOutcome.FAIL] + counts[CheckOutcome.NOT_RUN]
    click.echo(f"{counts[CheckOutcome.PASS]} of {len(results)} rules hold", err=True)
    if broken:
        context.exit(EXIT_DATA_ERROR)


async def _run(
    settings: ProbeSettings, *, admin: bool, tls: ssl.SSLContext | None, plain: bool, output: OutputFormat
) -> list[CheckResult]:
    """All results; lines are printed as they come."""
    found: list[CheckResult] = []
    async for result in run_checks(settings, admin=admin, tls=tls, plain=plain):
        found.append(result)
        if output is OutputFormat.TABLE:
            # As they come: a participant that does not answer takes its time for each.
            line = f"{result.outcome.value:<8} {result.name:<{_WIDEST_NAME}}  {result.detail or result.rule}"
            click.echo(printable(line))
    return found


def _row(result: CheckResult) -> dict[str, str]:
    return {
        "check": result.name,
        "result": result.outcome.value,
        "detail": result.detail or result.rule,
    }
