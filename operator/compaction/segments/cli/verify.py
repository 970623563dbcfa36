"""`compactor segments verify`: all that a log holds is read and compared, or an owner's rules with it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import plural, printable
from compaction.api.text.quantities import Duration
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all, warn
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    ProgressBar,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
)
from compaction.cli.values import DurationParameter
from compaction.segments.checking.all_checks import (
    RuleOutcome,
    Verdict,
    log_problems,
    payload_bytes,
    problems_of,
    system_problems,
    verdicts,
)
from compaction.segments.checking.facts import (
    CHECKLIST,
    NUMBERS,
    CheckProblem,
    LogFacts,
    OwnerRule,
    SeenFacts,
    SystemFacts,
)
from compaction.segments.checking.growth import violations
from compaction.segments.checking.reading import read_facts
from compaction.segments.cli.options import described_snapshot, log_options, refuse_given
from compaction.segments.directory.fs import storage_errors
from compaction.segments.snapshot.live_indexes import LiveSet

# `compactor segments verify`: everything that a log, or a system of logs, holds is read and compared.

_LOGS: Final = (
    OutputColumn("log", "log"),
    OutputColumn("verified", "verified"),
    OutputColumn("segments", "segments", right=True),
    OutputColumn("entries", "entries", right=True),
    OutputColumn("payloadBytes", "payload", optional_bytes, right=True),
    OutputColumn("waiting", "in wal", right=True),
    OutputColumn("snapshotIndex", "snapshot", optional, right=True),
    OutputColumn("liveEntries", "live", optional, right=True),
    OutputColumn("problems", "problems", right=True),
)


@click.command()
@log_options
@click.option("--rules", is_flag=True, help="Check the rules of an owner instead, a line for each.")
@click.option(
    "--while",
    "duration",
    type=DurationParameter(),
    metavar="DURATION",
    help="With --rules: read again and again for so long while the owner works, and compare each reading with the one "
    "before.",
)
@click.option(
    "--every",
    type=DurationParameter(least=0.01),
    default="1s",
    show_default=True,
    help="With --rules: time between two readings.",
)
@output_option()
@click.pass_context
def verify(
    context: click.Context,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    rules: bool,
    duration: Duration | None,
    every: Duration,
    output: OutputFormat,
) -> None:
    """Read everything of the log, or of the system of logs, in DIR, and name what is wrong: the checksum of every
    payload, every live entry, segments, links, half-done compactions, snapshots, the write-ahead log, and each against
    the others.

    Reads only, also while an owner writes and a compactor compacts. Each problem is a sentence on stderr that names the
    object and what to do; the exit code is then 1. What is harmless is a warning.

    With --rules the owner is checked by what it has written, in whatever language it is written itself: each rule is a
    line; the exit code is 1 when a rule is broken. With --while also the rules that take two readings. `known`: Ra
    3.1.10 breaks the rule in the same way (docs/design/segment-commit.md). The rules are explained in
    docs/segment-logs.md.

    Example: compactor segments verify system --rules --while 30s
    """
    if not rules:
        refuse_given(("duration", "every"), "needs --rules")
    with storage_errors(directory):
        described = described_snapshot(directory, snapshot, live)
    read = partial(read_facts, directory, described=described, wal_directory=wal_dir)
    if _verify_rules(directory, read, duration, every, output) if rules else _verify_all(directory, read, output):
        context.exit(EXIT_DATA_ERROR)


def _verify_all(directory: Path, read_all: Callable[[], SystemFacts], output: OutputFormat) -> bool:
    """Show the logs and what is wrong with them; returns whether something is."""
    with storage_errors(directory), ProgressBar("logs") as bar:
        facts = read_all()
        rows, problems = _verified(facts, bar)
    hard = [problem for problem in problems if not problem.note]
    if output is not OutputFormat.TABLE:
        emit(_object(facts, rows, problems), output)
    else:
        print_table(rows, _LOGS)
        entries, waiting = (sum(row[key] for row in rows) for key in ("entries", "waiting"))
        read = f"{plural(entries, 'entry', 'entries')} in segments and {waiting} in the write-ahead log"
        click.echo(f"\n{plural(len(rows), 'log')} with {read}: {plural(len(hard), 'problem')}")
    if output is OutputFormat.TABLE:
        for problem in problems:
            if problem.note:
                warn(problem.sentence)
    report_all([problem.sentence for problem in hard])
    return bool(hard)


def _verified(facts: SystemFacts, bar: ProgressBar) -> tuple[list[dict[str, Any]], list[CheckProblem]]:
    """A row for each log, and all problems; progress is shown by the bytes of payload."""
    rows, problems = [], list(system_problems(facts))
    for log in facts.logs:
        bar.note(log.name, payload_bytes(log), 0)
    bar.say("reading payloads")
    for log in facts.logs:
        own = list(_noted(log, bar))
        rows.append(_row(log, own))
        problems += own
    return rows, problems


def _noted(log: LogFacts, bar: ProgressBar) -> Iterator[CheckProblem]:
    size, read = payload_bytes(log), 0

    def on_bytes(count: int) -> None:
        nonlocal read
        read += count
        bar.note(log.name, size, min(99, read * 100 // max(1, size)))

    yield from log_problems(log, on_bytes)
    bar.note(log.name, size, 100)


def _row(log: LogFacts, problems: list[CheckProblem]) -> dict[str, Any]:
    count = sum(not problem.note for problem in problems)
    row = log.row
    return {
        "log": log.name,
        "verified": "WRONG" if count else "right",
        "segments": len(log.state.segments),
        "entries": sum(int(log.state.readable(ref).size) for ref in log.state.refs),
        "payloadBytes": payload_bytes(log),
        "waiting": len(log.waiting or {}),
        "snapshotIndex": row.snapshot_index,
        "liveEntries": None if row.live is None else len(row.live),
        "problems": count,
    }


def _object(facts: SystemFacts, rows: list[dict[str, Any]], problems: list[CheckProblem]) -> dict[str, Any]:
    return {
        "directory": str(facts.directory),
        "logs": rows,
        "wal": [wal.path.name for wal in facts.wal],
        "problems": [problem_object(problem) for problem in problems if not problem.note],
        "notes": [problem_object(problem) for problem in problems if problem.note],
    }


def problem_object(problem: CheckProblem) -> dict[str, Any]:
    """A problem with its rule, for machines."""
    return {
        "rule": str(problem.rule),
        "path": problem.path,
        "sentence": problem.sentence,
        "window": None if problem.window is None else str(problem.window),
    }


# `compactor segments verify --rules`: the rules that an owner in any language keeps, by what a directory shows.

_WIDEST: Final = max(len(rule) for rule in OwnerRule)


def _verify_rules(
    directory: Path,
    read: Callable[[SystemFacts | None], SystemFacts],
    duration: Duration | None,
    every: Duration,
    output: OutputFormat,
) -> bool:
    """Show a line for each rule; returns whether one is broken."""
    with storage_errors(directory):
        readings, problems = _watched(read, duration, every)
        results = list(verdicts(readings, problems))
    if output is not OutputFormat.TABLE:
        emit([_verdict_object(result, len(readings)) for result in results], output)
    else:
        for result in results:
            for line in _lines(result, len(readings)):
                click.echo(printable(line))
    counts = Counter(result.outcome for result in results)
    seen = len(results) - counts[RuleOutcome.NOT_SEEN]
    click.echo(f"{counts[RuleOutcome.PASS]} of {seen} rules that were seen hold", err=True)
    return bool(counts[RuleOutcome.FAIL] + counts[RuleOutcome.KNOWN])


def _watched(
    read: Callable[[SystemFacts | None], SystemFacts], duration: Duration | None, every: Duration
) -> tuple[list[SystemFacts], list[CheckProblem]]:
    """The first and the last reading, and the problems of all: payloads are read in the last one."""
    first = last = read(None)
    problems: list[CheckProblem] = []
    end = time.monotonic() + float(duration or 0)
    count = 1
    while duration is not None and (count < 2 or time.monotonic() < end):
        time.sleep(min(float(every), max(0.0, end - time.monotonic())))
        reading = read(last)
        problems += violations(last, reading)
        last, count = reading, count + 1
    problems += problems_of(last)
    return ([first] if last is first else [first, last]), problems


def _lines(verdict: Verdict, readings: int) -> Iterator[str]:
    """The rule; and for each problem or note its sentence below."""
    head = f"{verdict.outcome.value:<8} {NUMBERS[verdict.rule]:>2} {verdict.rule:<{_WIDEST}}"
    yield f"{head}  {_detail(verdict, readings)}"
    for problem in verdict.problems:
        mark = "note" if problem.note else str(problem.window or "")
        yield f"{mark:>11} {problem.sentence}"


def _detail(verdict: Verdict, readings: int) -> str:
    text = CHECKLIST[verdict.rule]
    if verdict.outcome is not RuleOutcome.NOT_SEEN:
        return text.sentence
    if text.seen is SeenFacts.TEST:
        return f"{text.sentence} (a test of the owner shows it; here {text.test})"
    if text.seen is SeenFacts.WHILE and readings < 2:
        return f"{text.sentence} (--while shows it)"
    return f"{text.sentence} (nothing of the kind is here)"


def _verdict_object(verdict: Verdict, readings: int) -> dict[str, Any]:
    return {
        "number": NUMBERS[verdict.rule],
        "rule": str(verdict.rule),
        "result": verdict.outcome.value,
        "detail": _detail(verdict, readings),
        "problems": [problem_object(problem) for problem in verdict.problems if not problem.note],
        "notes": [problem_object(problem) for problem in verdict.problems if problem.note],
    }
