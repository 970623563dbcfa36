"""`python -m replicated_kv`: a member, and what one asks members."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

import click

from compaction.errors import CompactionError
from replicated_kv.client import Client
from replicated_kv.errors import KeyValueError
from replicated_kv.member import Member
from replicated_kv.members import Members, parse_members
from replicated_kv.replica import Limits
from replicated_kv.workload import Workload, difference

_LIMITS: Final = Limits()
COLUMNS: Final = (
    "name", "term", "leader", "last", "commit", "applied", "snapshot", "keys", "entries", "segments", "installed",
)  # fmt: skip


def main() -> None:
    """Errors in a line, exit code 1."""
    try:
        cli(standalone_mode=False, auto_envvar_prefix="REPLICATED_KV")
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except (KeyValueError, CompactionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@click.group()
@click.option("--members", required=True, help="a=127.0.0.1:7101,b=...: all of them (or $REPLICATED_KV_MEMBERS)")
@click.pass_context
def cli(context: click.Context, members: str) -> None:
    """A replicated key-value store whose values stay in the log."""
    context.obj = parse_members(members)


@cli.command()
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), required=True, help="where its data is, or will be")
@click.option("--term", type=click.IntRange(1), default=1, show_default=True)
@click.option("--leader", required=True, help="who leads in this term")
@click.option("--snapshot-every", type=click.IntRange(1), default=_LIMITS.snapshot_every, show_default=True)
@click.option("--wal-bytes", type=click.IntRange(1), default=_LIMITS.wal_bytes, show_default=True)
@click.option("--segment-entries", type=click.IntRange(1, 65535), default=_LIMITS.segment_entries, show_default=True)
@click.pass_obj
def member(
    members: Members,
    name: str,
    directory: Path,
    term: int,
    leader: str,
    snapshot_every: int,
    wal_bytes: int,
    segment_entries: int,
) -> None:
    """Run member NAME until it receives SIGTERM or SIGINT."""
    for item in (name, leader):
        if item not in members:
            raise KeyValueError(f"{item} is not one of the members {', '.join(members)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    limits = Limits(snapshot_every=snapshot_every, wal_bytes=wal_bytes, segment_entries=segment_entries)
    running = Member(name, members, directory, term=term, leader=leader, limits=limits)

    def stop(*_: object) -> None:
        # Not in this thread: it is the one that serves, and would wait for itself.
        threading.Thread(target=running.stop, daemon=True).start()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    running.run()
    if running.failure is not None:
        raise KeyValueError(f"{name} stopped: {running.failure}")


@cli.command()
@click.argument("key")
@click.argument("value")
@click.pass_obj
def put(members: Members, key: str, value: str) -> None:
    """Store VALUE under KEY; prints the entry that holds it."""
    with Client(members) as client:
        click.echo(client.put(key.encode(), value.encode()))


@cli.command()
@click.argument("key")
@click.pass_obj
def get(members: Members, key: str) -> None:
    """Print the value of KEY; exit code 1 when there is none."""
    with Client(members) as client:
        value = client.get(key.encode())
    if value is None:
        raise KeyValueError(f"there is no key {key!r}")
    click.echo(value)


@cli.command()
@click.argument("key")
@click.pass_obj
def delete(members: Members, key: str) -> None:
    """Delete KEY; prints the entry that says so."""
    with Client(members) as client:
        click.echo(client.delete(key.encode()))


@cli.command()
@click.pass_obj
def status(members: Members) -> None:
    """A line for each member."""
    rows: list[list[str]] = [[column.upper() for column in COLUMNS]]
    with Client(members) as client:
        for name in members:
            try:
                found = client.status(name)
                rows.append([str(getattr(found, column)) for column in COLUMNS])
            except (OSError, KeyValueError) as error:
                rows.append([name, f"does not answer: {error}"])
    widths = [max(len(row[at]) for row in rows if len(row) == len(COLUMNS)) for at in range(len(COLUMNS))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


@cli.command()
@click.option("--seconds", type=click.FloatRange(0), default=10.0, show_default=True)
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=2000, show_default=True)
@click.option("--value-bytes", type=click.IntRange(32, 65536), default=1024, show_default=True)
@click.option("--pause", type=click.FloatRange(0), default=0.0, show_default=True, help="seconds after each batch")
@click.pass_obj
def load(members: Members, seconds: float, keys: int, value_bytes: int, pause: float) -> None:
    """Overwrite and delete keys, then compare each of them on every member with what was acknowledged."""
    workload = Workload(members, keys=keys, value_bytes=value_bytes, pause=pause, seed=time.time_ns())
    with Client(members) as client:
        workload.clear(client)
    thread = threading.Thread(target=workload.run, daemon=True)
    thread.start()
    thread.join(seconds)
    workload.stopped.set()
    thread.join()
    if workload.error is not None:
        raise workload.error
    click.echo(f"{workload.written} changes of {keys} keys acknowledged, the last one is entry {workload.last_index}")
    with Client(members) as client:
        found = [workload.compare(client, name) for name in members]
    for item in found:
        click.echo(f"{item.member}: {item.keys} keys, {len(item.different)} differ")
    if wrong := difference(found):
        raise KeyValueError(wrong)
