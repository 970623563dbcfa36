"""`compactor catalogs apply` and `debug replay`: DDL commands of a file, and a recorded history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from compaction.api.text.printing import plural, printable
from compaction.catalogs.cli.place import LogPlace, log_options
from compaction.catalogs.cli.versions import moment
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.errors import CatalogDdlError, CatalogValidationError
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.replay.parsing import command_of
from compaction.catalogs.replay.replaying import replay
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, TableStream, emit, output_option

# DDL commands in YAML: the members of each are those of a recorded history (docs/design/catalogs.md#histories).

LARGEST = 16 << 20
"""Bytes of a file."""


class _Members(dict[str, Any]):
    """A mapping that knows which of its members were read: what is left over was misspelt, or has no effect."""

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__({name: _noting(value) for name, value in given.items()})
        self.read: set[object] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def unread(self) -> Iterator[str]:
        """Names of members that nothing read, of what is inside too."""
        for name, value in self.items():
            if name not in self.read:
                yield str(name)
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, _Members):
                    yield from (f"{name}.{item}" for item in inner.unread())


def batches_of(file: Path) -> tuple[tuple[CatalogCommand, ...], ...]:
    """The commands of a file, those that become one version together.

    Raises CatalogDdlError, which names the file, the step and the member, and OSError.
    """
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise CatalogDdlError(str(file), "", f"larger than {LARGEST >> 20} MiB; split it")
    try:
        given = yaml.load(data, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise CatalogDdlError(str(file), "", f"not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(given, list):
        raise CatalogDdlError(str(file), "", "not a list; write each command as an item that begins with `- type:`")
    return tuple(
        tuple(_command(file, f"step {step}", each) for each in (item if isinstance(item, list) else [item]))
        for step, item in enumerate(given, start=1)
    )


def _command(file: Path, step: str, given: object) -> CatalogCommand:
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise CatalogDdlError(str(file), step, "not a command; write a mapping with `type`, such as CREATE_TABLE")
    shown = _Members(given)
    named = f"{step}, {given['type'][:40]}"
    try:
        command = command_of(shown)
    except CatalogValidationError as error:
        raise CatalogDdlError(str(file), named, str(error)) from error
    except KeyError as error:
        name = str(error.args[0])[:80]
        reason = (
            "no such command; docs/catalogs.md lists them" if name == given["type"] else f"{name} is missing or unknown"
        )
        raise CatalogDdlError(str(file), named, reason) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CatalogDdlError(str(file), named, f"a member has a value of another type ({error})"[:300]) from error
    unread = sorted(shown.unread())
    if unread:
        raise CatalogDdlError(str(file), named, f"{', '.join(unread)[:200]}: no such member of this command")
    return command


def _noting(value: Any) -> Any:
    if isinstance(value, dict):
        return _Members(value)
    return (
        [_noting(item) for item in value]
        if isinstance(value, Sequence) and not isinstance(value, str | bytes)
        else value
    )


# `compactor catalogs apply`: commands of a file, each a version.

_COLUMNS = (
    OutputColumn("step", "Step", right=True),
    OutputColumn("version", "Version", right=True),
    OutputColumn("applied", "Applied"),
    OutputColumn("activeAt", "Active at"),
)


@click.command("apply")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--delay",
    metavar="MILLISECONDS",
    type=click.IntRange(1, 3_600_000),
    default=Settings().delay,
    show_default=True,
    help="From the writing of a version to its activation; all processes of a catalog have the same.",
)
@click.option(
    "--max-skew",
    metavar="MILLISECONDS",
    type=click.IntRange(0, 3_600_000),
    default=Settings().max_skew,
    show_default=True,
    help="Most that the clocks of two processes are apart.",
)
@log_options
@output_option(jsonl=True)
def apply_command(*, file: Path, delay: int, max_skew: int, place: LogPlace, output: OutputFormat) -> None:
    """Run the DDL commands of FILE, a YAML list: each item is a command, or a list of them that becomes one version.

    Each step is shown when all processes see it; the first that is refused ends the run, and those before it stay. A
    step that has nothing to do writes no version. `type` names the command, docs/catalogs.md lists them:

    \b
      - type: CREATE_ZONE
        zone: fast
        storageProfiles: [default]

    Example: compactor catalogs apply ddl.yaml --etcd http://127.0.0.1:2379 --prefix /catalogs/orders
    """
    batches = batches_of(file)
    table = TableStream(_COLUMNS)
    rows: list[dict[str, Any]] = []
    with place.opened() as log:
        manager = CatalogManager(log, settings=Settings(delay=delay, max_skew=max_skew))
        try:
            manager.start()
            manager.initialization.result()
            for row in _run(manager, batches):
                rows.append(row)
                if output is OutputFormat.TABLE:
                    table.print(row)
                elif output is OutputFormat.JSONL:
                    emit(row, output)
        finally:
            manager.close()
            if output in (OutputFormat.JSON, OutputFormat.YAML):
                emit(rows, output)


def _run(manager: CatalogManager, batches: Sequence[Sequence[CatalogCommand]]) -> Iterator[dict[str, Any]]:
    for step, running in enumerate(manager.execute_in_turn(batches), start=1):
        done = running.result()
        if done is not None:
            applied = f"{sum(done.applied)} of {len(done.applied)}"
            yield {"step": step, "version": done.version, "applied": applied, "activeAt": moment(done.time)}


# `compactor catalogs debug replay`: a recorded history through our catalog.


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def replay_command(context: click.Context, *, file: Path) -> None:
    """Run the commands of FILE, a history that Apache Ignite 3 recorded (plain or gzip), through this catalog.

    Writes, results, classes of errors, events, versions and their fingerprints are compared. Each difference is a line
    on stdout and makes the exit code 1; nothing is printed for a history that is the same, but the number of its steps
    on stderr.

    Example: compactor catalogs debug replay history.jsonl.gz
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
