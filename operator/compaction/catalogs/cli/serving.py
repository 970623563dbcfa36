"""`compactor catalogs serve` and `debug conformance`: the reference participant as a process, and the rules that any
participant is checked by.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import structlog

from compaction.api.text.printing import printable
from compaction.api.text.quantities import Duration
from compaction.catalogs.cli.participants import (
    PLAIN_HTTP_OPTION,
    SECRET_OPTION,
    TIMEOUT_OPTION,
    authorities_of,
    authorities_option,
    secret_of,
)
from compaction.catalogs.cli.place import LogPlace, followed_log_options
from compaction.catalogs.errors import CatalogError
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import LONGEST_TEXT
from compaction.catalogs.participants.watermark import (
    AVAILABILITY_MILLISECONDS,
    SKEW_MILLISECONDS,
    UPDATE_MILLISECONDS,
    CatalogVersions,
    WatermarkFile,
    WatermarkSettings,
)
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.cli.serving import FILE, Serving, serving_options
from compaction.cli.values import DurationParameter

if TYPE_CHECKING:
    from compaction.catalogs.serving.conformance.checks import ProbeSettings
    from compaction.catalogs.serving.conformance.run import CheckResult

PORT: Final = 8092
AUDIENCE: Final = "compaction-participant"
log = structlog.get_logger(__name__)


@click.command("serve")
@click.option("--name", required=True, help="Name of the participant, which it keeps after a restart.")
@click.option("--admin", is_flag=True, help="Let callers drive the participant through /v1/admin.")
@click.option("--watermark-file", type=FILE, help="Keep the low watermark in this file; in memory if not given.")
@click.option(
    "--availability",
    type=DurationParameter(),
    default=f"{AVAILABILITY_MILLISECONDS // 1000}s",
    show_default=True,
    help="Time for which the past stays readable: the low watermark is that far behind.",
)
@click.option(
    "--update-interval",
    type=DurationParameter(least=0.1),
    default=f"{UPDATE_MILLISECONDS // 1000}s",
    show_default=True,
    help="Interval at which the low watermark moves.",
)
@click.option("--checkpoint-interval", type=DurationParameter(least=0.1), help="Take checkpoints; none if not given.")
@click.option(
    "--no-old-rows",
    is_flag=True,
    help="Report that no rows of older column sets are read: a cut may drop those sets where spec.trim asks for it.",
)
@followed_log_options
@serving_options(
    port=PORT, audience=AUDIENCE, purpose="ask", rules="--operations", noun="operation", nouns="operations"
)
def serve_command(
    *,
    name: str,
    admin: bool,
    watermark_file: Path | None,
    availability: Duration,
    update_interval: Duration,
    checkpoint_interval: Duration | None,
    no_old_rows: bool,
    place: LogPlace | None,
    serving: Serving,
) -> None:
    """Serve a reference participant of a catalog until SIGTERM or SIGINT.

    It has real state (transactions, partitions, checkpoints, index builds, rebalances, a low watermark), which callers
    drive with --admin: implementations in other languages test their coordinators against it. Operations that
    --operations may allow a caller are report, minimum and admin. With --etcd and --prefix its versions are those of
    that catalog, which it follows; without, those that `add-version` lists.

    Example: compactor catalogs serve --name node1 --admin --secret-file coordinator=SECRET
    """
    if not 1 <= len(name) <= LONGEST_TEXT or not name.isprintable():
        raise click.UsageError(f"--name: 1 to {LONGEST_TEXT} printable characters")
    settings = WatermarkSettings(
        availability=round(availability * 1000), update=round(update_interval * 1000), skew=SKEW_MILLISECONDS
    )
    store = None if watermark_file is None else WatermarkFile(watermark_file)
    with _followed(place) as versions:
        participant = ReferenceParticipant(
            name, store=store, settings=settings, reads_old_rows=not no_old_rows, versions=versions
        )
        _run(participant, admin, checkpoint_interval, serving)


@contextmanager
def _followed(place: LogPlace | None) -> Iterator[CatalogVersions | None]:
    """The versions of the catalog, as long as the block lasts; None without one."""
    if place is None:
        yield None
        return
    with place.opened() as log:
        manager = CatalogManager(log, report=_not_followed)
        try:
            manager.start()
            manager.initialization.result()
            yield CatalogVersions(manager.active)
        finally:
            manager.close()


def _not_followed(error: BaseException) -> None:
    """Log the error and keep the state: the participant needs no less of the catalog than before."""
    log.error("the catalog is not followed as it should be", error=str(error))


def _run(
    participant: ReferenceParticipant, admin: bool, checkpoint_interval: Duration | None, serving: Serving
) -> None:
    # Who asks for help waits for no import of what serves.
    from compaction.catalogs.serving.messages import MOST_MINIMUM_BYTES
    from compaction.catalogs.serving.server import ParticipantServer

    stop = threading.Event()
    work: list[Callable[[], None]] = [lambda: participant.watermark.keep_updating(participant.now, stop)]
    if checkpoint_interval is not None:
        seconds = float(checkpoint_interval)
        work.append(lambda: _checkpoints(participant, seconds, stop))
    threads = [threading.Thread(target=_logged, args=(each, stop), name="participant") for each in work]
    for thread in threads:
        thread.start()
    try:
        serving.run(
            lambda gate, limits: ParticipantServer(
                participant,
                gate,
                admin=participant if admin else None,
                limits=replace(limits, body_bytes=min(limits.body_bytes, MOST_MINIMUM_BYTES)),
            )
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _checkpoints(participant: ReferenceParticipant, seconds: float, stop: threading.Event) -> None:
    """One after the other, until `stop`."""
    while not stop.wait(seconds):
        participant.checkpoint()


def _logged(work: Callable[[], None], stop: threading.Event) -> None:
    """A thread that fails says so; the participant still answers, and what it needs no longer moves."""
    try:
        work()
    except CatalogError as error:
        if not stop.is_set():
            log.error("the participant does no more of this work", error=str(error))


# `compactor catalogs debug conformance`: the rules of the protocol that a participant keeps.


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

    Example: compactor catalogs debug conformance http://127.0.0.1:8092 --secret-file SECRET --admin
    """
    # Who asks for help waits for no import of what asks a participant.
    from compaction.catalogs.serving.conformance.checks import ProbeSettings
    from compaction.catalogs.serving.conformance.run import CheckOutcome

    settings = ProbeSettings(
        url, secret_of(secret_file), coordinator_token, round(max_skew * 1000), seconds=float(timeout)
    )
    tls = None if ca is None else authorities_of(ca)
    results = asyncio.run(_checked(settings, admin=admin, tls=tls, plain=plain_http, output=output))
    if output is not OutputFormat.TABLE:
        emit([_row(result) for result in results], output)
    counts = Counter(result.outcome for result in results)
    broken = counts[CheckOutcome.FAIL] + counts[CheckOutcome.NOT_RUN]
    click.echo(f"{counts[CheckOutcome.PASS]} of {len(results)} rules hold", err=True)
    if broken:
        context.exit(EXIT_DATA_ERROR)


async def _checked(
    settings: ProbeSettings, *, admin: bool, tls: ssl.SSLContext | None, plain: bool, output: OutputFormat
) -> list[CheckResult]:
    """All results; lines are printed as they come."""
    from compaction.catalogs.serving.conformance.checks import PROTOCOL_CHECKS
    from compaction.catalogs.serving.conformance.run import BEHAVIOR_CHECKS, run_checks

    found: list[CheckResult] = []
    widest = max(len(check.name) for check in (*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS))
    async for result in run_checks(settings, admin=admin, tls=tls, plain=plain):
        found.append(result)
        if output is OutputFormat.TABLE:
            # As they come: a participant that does not answer takes its time for each.
            line = f"{result.outcome.value:<8} {result.name:<{widest}}  {result.detail or result.rule}"
            click.echo(printable(line))
    return found


def _row(result: CheckResult) -> dict[str, str]:
    return {
        "check": result.name,
        "result": result.outcome.value,
        "detail": result.detail or result.rule,
    }
