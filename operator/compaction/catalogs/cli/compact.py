"""`compactor catalogs participants`, `required-time`, `compact` and `conformance`: a round by hand, without
Kubernetes.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from compaction.api.catalog.reasons import UNDEFINED, Finding, Outcome
from compaction.api.text.printing import printable
from compaction.api.text.quantities import Duration
from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.compaction.deciding import compacting, cut, unusable
from compaction.catalogs.compaction.round import (
    ParticipantAnswer,
    Pin,
    Round,
    Topology,
    WatermarkRule,
    history_of,
    moved,
    required,
)
from compaction.catalogs.errors import ParticipantConfigError
from compaction.catalogs.log.port import SnapshotOutcome, UpdateLog
from compaction.catalogs.manager.clock import HybridClock
from compaction.catalogs.model.descriptors import physical
from compaction.catalogs.serving.client import AskLimits, ParticipantAddress, ParticipantClient, ReportRound, ask_all
from compaction.catalogs.serving.conformance.checks import PROTOCOL_CHECKS, ProbeSettings
from compaction.catalogs.serving.conformance.run import BEHAVIOR_CHECKS, CheckOutcome, CheckResult, run_checks
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option
from compaction.cli.serving import FILE
from compaction.cli.values import DurationParameter

# Participants that a command asks: their addresses, the secret, certificates; and one round of questions.

Command = TypeVar("Command", bound=Callable[..., Any])
_LONGEST_SECRET: Final = 16 << 10

SECRET_OPTION: Final = click.option(
    "--secret-file", type=FILE, required=True, help="File whose first line is the bearer token to send."
)
PLAIN_HTTP_OPTION: Final = click.option(
    "--plain-http", is_flag=True, help="Allow plain HTTP beyond loopback (a proxy encrypts)."
)
TIMEOUT_OPTION: Final = click.option(
    "--timeout", type=DurationParameter(least=0.1), default="10s", show_default=True, help="Of one request."
)


def authorities_option(name: str) -> Callable[[Command], Command]:
    """Return the option for the authorities to trust; a command that reaches etcd too has another name for it."""
    return click.option(
        name, type=FILE, help="Certificates (PEM) of the authorities to trust; the system's if not given."
    )


_OPTIONS = (
    click.option(
        "--participant",
        "participants",
        metavar="NAME=URL",
        multiple=True,
        required=True,
        help="A participant and its address; repeat it for each, as all are needed for a decision.",
    ),
    SECRET_OPTION,
    authorities_option("--participant-ca"),
    PLAIN_HTTP_OPTION,
    TIMEOUT_OPTION,
    click.option(
        "--max-clock-skew", type=DurationParameter(), default="500ms", show_default=True, help="Allowed clock skew."
    ),
    click.option(
        "--data-availability",
        type=DurationParameter(),
        default="10m",
        show_default=True,
        help="For so long readers may use old versions: the low watermark is that much before now.",
    ),
)


@dataclass(frozen=True, slots=True)
class Asking:
    """The settings with which a round asks the participants. `max_skew`, `data_availability` and `timeout`: seconds."""

    addresses: tuple[ParticipantAddress, ...]
    secret: str
    tls: ssl.SSLContext | None
    plain: bool
    timeout: float
    max_skew: float
    data_availability: float

    def round(self, clock: HybridClock) -> Round:
        """All participants asked at once; each is an answer or a reason. Raises ParticipantConfigError."""
        started = clock.now()
        skew = round(self.max_skew * 1000)
        found = asyncio.run(self._asked(clock))
        return Round(
            started,
            moved(UNDEFINED, WatermarkRule(0, round(self.data_availability * 1000), skew), physical(started)),
            Topology(frozenset(address.name for address in self.addresses)),
            found.answers,
            found.unanswered,
            skew,
        )

    async def _asked(self, clock: HybridClock) -> ReportRound:
        client = ParticipantClient(
            secret=lambda: self.secret,
            tls=self.tls,
            plain=self.plain,
            limits=AskLimits(seconds=self.timeout),
            clock=clock.now,
        )
        async with client:
            return await ask_all(client, self.addresses)


def asking_options(command: Command) -> Command:
    """The options that say whom to ask, passed to the command as `asking: Asking`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        participants: tuple[str, ...],
        secret_file: Path,
        participant_ca: Path | None,
        plain_http: bool,
        timeout: Duration,
        max_clock_skew: Duration,
        data_availability: Duration,
        **rest: Any,
    ) -> Any:
        asking = Asking(
            tuple(_address(participant) for participant in participants),
            secret_of(secret_file),
            None if participant_ca is None else authorities_of(participant_ca),
            plain_http,
            float(timeout),
            float(max_clock_skew),
            float(data_availability),
        )
        return command(*args, asking=asking, **rest)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


def _address(given: str) -> ParticipantAddress:
    name, equals, url = given.partition("=")
    if not (name and equals and url):
        raise click.UsageError(f"--participant {given}: write it as NAME=URL, such as node-1=https://node-1:8092")
    return ParticipantAddress(name, url)


def secret_of(file: Path) -> str:
    """The first line of a file. Raises ParticipantConfigError and OSError."""
    try:
        with file.open("rb") as opened:
            lines = opened.read(_LONGEST_SECRET).decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise ParticipantConfigError(f"{file}: a secret is ASCII text") from None
    if not (found := lines[0].strip()):
        raise ParticipantConfigError(f"{file}: its first line holds no secret")
    return found


def authorities_of(file: Path) -> ssl.SSLContext:
    """Certificates to trust. Raises ParticipantConfigError."""
    try:
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as error:
        raise ParticipantConfigError(f"{file}: cannot be used as certificates of authorities: {error}") from None


# `compactor catalogs participants`, `required-time` and `compact`: a round by hand, without Kubernetes.

_COLUMNS = (
    OutputColumn("name", "Name"),
    OutputColumn("minimum", "Required from"),
    OutputColumn("cause", "Cause"),
    OutputColumn("subject", "Subject"),
    OutputColumn("partitions", "Partitions", right=True),
    OutputColumn("indexBuilds", "Index builds", right=True),
    OutputColumn("rebalances", "Rebalances", right=True),
    OutputColumn("answer", "Answer"),
)


@click.command("participants")
@asking_options
@output_option()
@click.pass_context
def participants_command(context: click.Context, *, asking: Asking, output: OutputFormat) -> None:
    """Ask each participant what it needs of the catalog. The exit code is 1 when one has no answer that counts.

    Example: compactor catalogs participants --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    found = asking.round(HybridClock())
    rows = [_report(item) for item in found.by_name.values()]
    rows += [{**_nothing(item.name), "answer": f"{item.reason}: {item.message}"} for item in found.unanswered]
    emit(rows, output, columns=_COLUMNS)
    if found.unanswered:
        context.exit(EXIT_DATA_ERROR)


@click.command("required-time")
@asking_options
@output_option()
@click.pass_context
def required_time_command(context: click.Context, *, asking: Asking, output: OutputFormat) -> None:
    """Show from which time on the catalog is needed, and who pins it. The exit code is 1 when that is not known.

    Example: compactor catalogs required-time --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    found = asking.round(HybridClock())
    missing = unusable(found)
    if missing is not None:
        emit(_finding(missing), output)
        context.exit(EXIT_DATA_ERROR)
    emit(_pin(required(found)), output)


@click.command("compact")
@asking_options
@log_options
@click.option(
    "--trim",
    is_flag=True,
    help="Drop column sets that no retained version uses; kept while a participant may read rows of older ones.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be cut, and cut nothing.")
@click.option(
    "--token",
    type=click.IntRange(1, 2**53 - 1),
    help="Fencing token to cut with, larger than any before; not with --dry-run.",
)
@output_option()
@click.pass_context
def compact_command(
    context: click.Context,
    *,
    asking: Asking,
    place: LogPlace,
    trim: bool,
    dry_run: bool,
    token: int | None,
    output: OutputFormat,
) -> None:
    """Cut the versions of a catalog that none of its participants needs, and not one more.

    Every participant has to be named: a version that one of them needs is lost otherwise. The exit code is 1 when
    the participants or the log do not allow the decision.

    Example: compactor catalogs compact --dry-run --participant node-1=http://127.0.0.1:8092 --secret-file SECRET
    """
    if dry_run == (token is not None):
        raise click.UsageError("name either --dry-run or the --token to cut with")
    clock = HybridClock()
    found = replace(asking.round(clock), dry_run=dry_run, trim=trim)
    with place.opened() as log:
        row, done = _compacted(log, found, clock, token or 0)
    emit(row, output)
    if not done:
        context.exit(EXIT_DATA_ERROR)


def _compacted(log: UpdateLog, found: Round, clock: HybridClock, token: int) -> tuple[dict[str, Any], bool]:
    """Return the row to show, and whether the decision was possible and the log took it."""
    now, kept = clock.now(), log.recover()
    decided = compacting(found, history_of(kept.events), now)
    pinned = {} if decided.pin is None else _pin(decided.pin)
    if isinstance(decided.step, Finding):
        return {**_finding(decided.step), **pinned}, decided.step.outcome is Outcome.SKIPPED
    largest = kept.token
    if token > largest and (claimed := log.claim(token)) > token:
        largest = claimed  # another process has claimed it since
    if token <= largest:
        message = f"the log has seen token {largest}: nothing is cut; name a larger one, such as --token {largest + 1}"
        return {"outcome": SnapshotOutcome.FENCED.value, "message": message, **pinned}, False
    outcome, _ = cut(log, decided.step.candidate, token, trim=decided.step.trim)
    row = {
        "outcome": outcome.value,
        "earliest": decided.step.candidate.version,
        "versions": decided.step.versions,
        "trimmed": decided.step.trim,
    }
    return {**row, **pinned}, outcome is not SnapshotOutcome.FENCED


def _finding(found: Finding) -> dict[str, Any]:
    return {"outcome": found.reason.value, "message": found.message}


def _pin(pin: Pin) -> dict[str, Any]:
    since = None if pin.since == UNDEFINED else moment(pin.since)
    return {
        "requiredTime": moment(pin.time),
        "pinnedBy": pin.participant or "coordinator",
        "reason": pin.reason.value,
        "subject": pin.subject or None,
        "since": since,
    }


def _report(answer: ParticipantAnswer) -> dict[str, Any]:
    report = answer.report
    return {
        "name": report.name,
        "minimum": moment(report.minimum),
        "cause": report.cause.value,
        "subject": report.subject or "-",
        "partitions": len(report.partitions),
        "indexBuilds": len(report.index_builds),
        "rebalances": len(report.rebalances),
        "answer": "Received",
    }


def _nothing(name: str) -> dict[str, Any]:
    empty = dict.fromkeys(("minimum", "cause", "subject", "partitions", "indexBuilds", "rebalances"), "-")
    return {"name": name, **empty}


# `compactor catalogs conformance`: whether a participant keeps the rules of the protocol.

_WIDEST_NAME: Final = max(len(check.name) for check in (*PROTOCOL_CHECKS, *BEHAVIOR_CHECKS))


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
        emit([_row(result) for result in results], output)
    counts = Counter(result.outcome for result in results)
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
