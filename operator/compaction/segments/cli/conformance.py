"""`compactor segments conformance`: which rules an owner in any language keeps, by what a directory shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.safe import printable
from compaction.api.text.values import Duration
from compaction.cli.durations import DurationParameter
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.segments.checking.facts import SystemFacts
from compaction.segments.checking.growth import violations
from compaction.segments.checking.reading import read_facts
from compaction.segments.checking.rules import CHECKLIST, NUMBERS, Problem, Rule, Seen
from compaction.segments.checking.run import Outcome, Verdict, problems_of, verdicts
from compaction.segments.cli.options import described_snapshot, log_options
from compaction.segments.cli.verify import problem_object
from compaction.segments.directory.faults import storage_errors
from compaction.segments.snapshot.seq import LiveSet

_WIDEST: Final = max(len(rule) for rule in Rule)


@click.command("conformance")
@log_options
@click.option(
    "--while",
    "duration",
    type=DurationParameter(),
    metavar="DURATION",
    help="Read again and again for so long while the owner works, and compare each reading with the one before.",
)
@click.option(
    "--every", type=DurationParameter(least=0.01), default="1s", show_default=True, help="Time between two readings."
)
@output_option()
@click.pass_context
def conformance_command(
    context: click.Context,
    /,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    duration: Duration | None,
    every: Duration,
    output: OutputFormat,
) -> None:
    """Check the owner of the log, or of the system of logs, in DIR by what it has written, in whatever language it is
    written itself. Each rule is a line; the exit code is 1 when a rule is broken.

    Reads only. With --while also the rules that take two readings. `known`: Ra 3.1.10 breaks the rule in the same way
    (docs/design/segment-commit.md). The rules are explained in docs/segment-logs.md.

    Example: compactor segments conformance system --while 30s
    """
    with storage_errors(directory):
        described = described_snapshot(directory, snapshot, live)
        read = partial(read_facts, directory, described=described, wal_directory=wal_dir)
        readings, problems = _watched(read, duration, every)
        results = list(verdicts(readings, problems))
    if output is not OutputFormat.TABLE:
        emit([_object(one, len(readings)) for one in results], output)
    else:
        for one in results:
            for line in _lines(one, len(readings)):
                click.echo(printable(line))
    counts = Counter(one.outcome for one in results)
    seen = len(results) - counts[Outcome.NOT_SEEN]
    click.echo(f"{counts[Outcome.PASS]} of {seen} rules that were seen hold", err=True)
    if counts[Outcome.FAIL] + counts[Outcome.KNOWN]:
        context.exit(EXIT_DATA_ERROR)


def _watched(
    read: Callable[[SystemFacts | None], SystemFacts], duration: Duration | None, every: Duration
) -> tuple[list[SystemFacts], list[Problem]]:
    """The first and the last reading, and the problems of all: payloads are read in the last one."""
    first = last = read(None)
    problems: list[Problem] = []
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
    if verdict.outcome is not Outcome.NOT_SEEN:
        return text.sentence
    if text.seen is Seen.TEST:
        return f"{text.sentence} (a test of the owner shows it; here {text.test})"
    if text.seen is Seen.WHILE and readings < 2:
        return f"{text.sentence} (--while shows it)"
    return f"{text.sentence} (nothing of the kind is here)"


def _object(verdict: Verdict, readings: int) -> dict[str, Any]:
    return {
        "number": NUMBERS[verdict.rule],
        "rule": str(verdict.rule),
        "result": verdict.outcome.value,
        "detail": _detail(verdict, readings),
        "problems": [problem_object(problem) for problem in verdict.problems if not problem.note],
        "notes": [problem_object(problem) for problem in verdict.problems if problem.note],
    }
