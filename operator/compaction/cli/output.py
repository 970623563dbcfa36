"""Results in one way, `-o table|json|yaml`, and the progress of a local run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compaction.api.text.printing import format_bytes, printable

if TYPE_CHECKING:
    from rich.progress import TaskID


# One way to print results: `-o table|json|yaml`.
#
# json and yaml carry exact values under the names of the data; a table is for people (rich on a terminal, plain
# columns in a pipe or file).

Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


class OutputFormat(StrEnum):
    """The format in which results are printed. JSONL (one object per line) is only offered where rows are many, WIDE (a
    table with more columns) where there are more.
    """

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A table column: `key` in the row, its heading, how a value becomes text, and on which side it stands."""

    key: str
    title: str
    text: Callable[[Any], str] = str
    right: bool = False


def output_option(
    *, default: OutputFormat = OutputFormat.TABLE, jsonl: bool = False, wide: bool = False
) -> Callable[[Command], Command]:
    """The option `-o/--output`, passed to the command as `output: OutputFormat`."""
    asked = {OutputFormat.JSONL: jsonl, OutputFormat.WIDE: wide}
    formats = [f.value for f in OutputFormat if asked.get(f, True)]
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=default.value,
        show_default=True,
        callback=lambda _context, _parameter, value: OutputFormat(value),
        help="Format of the result.",
    )


def apply_option(command: Command) -> Command:
    """The option `--apply`, passed as `applying`: without it a command shows what it would change."""
    return click.option("--apply", "applying", is_flag=True, help="Apply (default: dry run).")(command)


def optional_bytes(value: int | None) -> str:
    """`1.5Mi`; `-` for None."""
    return "-" if value is None else format_bytes(value)


def optional(value: Any) -> str:
    """`-` for None."""
    return "-" if value is None else str(value)


def emit(data: Row | Sequence[Row], fmt: OutputFormat, *, columns: Sequence[OutputColumn] = ()) -> None:
    """Print an object or rows. As a table: rows under `columns`; an object as one line per key."""
    if fmt is OutputFormat.JSON:
        click.echo(json.dumps(data, indent=2))
    elif fmt is OutputFormat.YAML:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    elif fmt is OutputFormat.JSONL:
        for row in [data] if isinstance(data, Mapping) else data:
            click.echo(json.dumps(row))
    elif isinstance(data, Mapping):
        print_pairs([(key, optional(value)) for key, value in data.items()])
    else:
        print_table(data, columns)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """`name:  value` lines with the values aligned."""
    width = max((len(name) for name, _ in pairs), default=0) + 1
    for name, value in pairs:
        click.echo(f"{name + ':':<{width}}  {printable(value)}")


def print_table(rows: Sequence[Row], columns: Sequence[OutputColumn], *, terminal: bool | None = None) -> None:
    """Rows under upper-case headings, as kubectl prints them; on a terminal with bold headings."""
    cells = [_cells(row, columns) for row in rows]
    titles = _titles(columns)
    widths = [max(map(len, texts)) for texts in zip(titles, *cells, strict=True)]
    if sys.stdout.isatty() if terminal is None else terminal:
        _print_rich(titles, cells, columns, width=sum(widths) + 3 * len(widths))
        return
    for line in [titles, *cells]:
        click.echo(_aligned(line, widths, columns))


class TableStream:
    """A table whose rows come one by one, as for `kubectl get --watch`: a column never becomes narrower again."""

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self._columns = columns
        self._widths: list[int] = []

    def print(self, row: Row) -> None:
        """Print a row; before the first one the headings."""
        cells, titles = _cells(row, self._columns), _titles(self._columns)
        first = not self._widths
        known = self._widths or [len(title) for title in titles]
        self._widths = [max(width, len(text)) for width, text in zip(known, cells, strict=True)]
        for line in [titles, cells] if first else [cells]:
            click.echo(_aligned(line, self._widths, self._columns))


def _cells(row: Row, columns: Sequence[OutputColumn]) -> list[str]:
    return [printable(column.text(row.get(column.key))) for column in columns]


def _titles(columns: Sequence[OutputColumn]) -> list[str]:
    return [column.title.upper() for column in columns]


def _aligned(line: Sequence[str], widths: Sequence[int], columns: Sequence[OutputColumn]) -> str:
    parts = [
        text.rjust(width) if column.right else text.ljust(width)
        for text, width, column in zip(line, widths, columns, strict=True)
    ]
    return "   ".join(parts).rstrip()


def _print_rich(titles: list[str], cells: list[list[str]], columns: Sequence[OutputColumn], *, width: int) -> None:
    # What only some outputs need is imported by those: a command that lists takes no longer than what it asks.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for title, column in zip(titles, columns, strict=True):
        table.add_column(title, justify="right" if column.right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*map(Text, line))
    # At least as wide as the content: a narrow terminal wraps the line, which is better than losing half a name.
    Console(width=max(width, Console().width)).print(table)


def stream(rows: Iterable[Row], fmt: OutputFormat, *, columns: Sequence[OutputColumn]) -> None:
    """Print rows as they come, in constant memory; a table's columns are as wide as their headings ask."""
    # Not click.echo, which flushes after each line: an order of magnitude slower on a hundred thousand rows.
    out = sys.stdout
    for line in _lines(rows, fmt, columns):
        out.write(line + "\n")
    out.flush()


def _lines(rows: Iterable[Row], fmt: OutputFormat, columns: Sequence[OutputColumn]) -> Iterator[str]:
    if fmt is OutputFormat.JSONL:
        yield from (json.dumps(row) for row in rows)
    elif fmt is OutputFormat.YAML:
        import yaml

        empty = True
        for row in rows:
            empty = False
            yield yaml.safe_dump([dict(row)], sort_keys=False).rstrip("\n")
        if empty:
            yield "[]"
    elif fmt is OutputFormat.JSON:
        pending = "["
        for row in rows:
            yield pending
            pending = f"  {json.dumps(row)},"
        yield pending.rstrip(",")
        yield "]"
    else:
        yield "\t".join(column.title.upper() for column in columns)
        yield from ("\t".join(_cells(row, columns)) for row in rows)


# The display of a local run while it works.


class ProgressBar:
    """Bytes copied, jobs ended; on standard error, and only when that is a terminal."""

    def __init__(self, noun: str = "jobs") -> None:
        """`noun`: what the parts of the work are called."""
        # As for tables: it takes longer to import than most commands take to answer.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._noun = noun
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[jobs]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._jobs: dict[str, tuple[int, int]] = {}
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        self._task = self._progress.add_task("scanning the store", total=None, jobs="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        """Change the words before the bar."""
        assert self._task is not None
        self._progress.update(self._task, description=what)

    def note(self, job: str, cost_bytes: int, percent: int) -> None:
        """A job changed (called from any thread)."""
        assert self._task is not None
        self._jobs[job] = (max(1, cost_bytes), percent)
        jobs = tuple(self._jobs.values())
        ended = sum(percent == 100 for _, percent in jobs)
        self._progress.update(
            self._task,
            total=sum(cost for cost, _ in jobs),
            completed=sum(cost * percent / 100 for cost, percent in jobs),
            jobs=f"{ended}/{len(jobs)} {self._noun}",
        )

    def clear(self, what: str) -> None:
        """Nothing is under way any more."""
        assert self._task is not None
        self._jobs.clear()
        self._progress.reset(self._task, total=None, description=what, jobs="")

    def line(self, text: str) -> None:
        """Print a line, above the bar when there is one."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
