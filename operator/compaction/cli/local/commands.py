"""`compactor local`: a real control plane on this machine: what runs, up, down."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

import click

from compaction.errors import CompactionError
from compaction.local.cluster import control_plane
from compaction.local.cluster.control_plane import default_state_dir
from compaction.local.programs.binaries import find_binaries
from compaction.worker.spark.settings import find_java


def _state_dir() -> Path:
    """The directory given to the group, whose context the commands inherit, or the default."""
    given: Path | None = click.get_current_context().obj
    return given or default_state_dir()


STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_state_dir,
    show_default="~/.local/state/compaction-operator",
    help="Directory of its data, certificates, logs and kubeconfig.",
)
POLL_SECONDS = 0.5


@click.group(invoke_without_command=True)
@STATE_DIR
@click.pass_context
def group(context: click.Context, state_dir: Path) -> None:
    """Run a real control plane (etcd and kube-apiserver) on loopback, for a person or a test run.

    Without a command: show what runs; the exit code is 1 when nothing or only a part of it does.
    """
    context.obj = state_dir
    if context.invoked_subcommand is None:
        context.exit(_show(state_dir))


@group.command()
@click.option("--detach", is_flag=True, help="Run in the background; `compactor local down` stops it.")
@click.option("--audit", is_flag=True, help="Record every request in log/audit.log.")
@click.option("--check", "checking", is_flag=True, help="Start nothing: check that Java and all programs are here.")
@STATE_DIR
def up(state_dir: Path, *, detach: bool, audit: bool, checking: bool) -> int:
    """Start the control plane; without --detach it stops with this command (Ctrl-C)."""
    if checking:
        return _check()
    _start(state_dir, detach=detach, audit=audit)
    return 0


@group.command()
@STATE_DIR
def down(state_dir: Path) -> None:
    """Stop the control plane; its data stays and the next `up` continues with it."""
    state = control_plane.down(state_dir, report=_report)
    click.echo("nothing was running" if state is None else f"stopped {state.url}")


def _start(state_dir: Path, *, detach: bool, audit: bool) -> None:
    if os.environ.get("KUBECONFIG"):
        click.echo(f"note: KUBECONFIG={os.environ['KUBECONFIG']} stays what the other commands use", err=True)
    signal.signal(signal.SIGTERM, _interrupt)
    if detach:
        click.echo(
            f"export KUBECONFIG={control_plane.up(state_dir, detached=True, audit=audit, report=_report).kubeconfig}"
        )
        return
    with control_plane.up(state_dir, detached=False, audit=audit, report=_report) as running:
        click.echo(f"export KUBECONFIG={running.kubeconfig}")
        click.echo(f"ready at {running.url}; Ctrl-C stops it", err=True)
        while all(process.alive() for process in running.processes):
            time.sleep(POLL_SECONDS)
        ended = ", ".join(process.name for process in running.processes if not process.alive())
        raise CompactionError(f"{ended} ended; its log is in {running.directory / 'log'}")


def _show(state_dir: Path) -> int:
    state = control_plane.status(state_dir)
    if state is None:
        click.echo(f"no control plane is recorded in {state_dir}")
        return 1
    for process in state.processes:
        click.echo(f"{process.name:<16} pid {process.pid:<8} {'running' if process.alive() else 'gone'}")
    click.echo(f"export KUBECONFIG={state.kubeconfig}")
    return 0 if state.running else 1


def _check() -> int:
    java = find_java()
    click.echo(f"java {java.version}: {java.home}", err=True)
    found = find_binaries()
    if found is None:
        click.echo(
            "control plane: not here yet; it is downloaded or built when it is first needed (`make setup`)", err=True
        )
        return 1
    click.echo(f"control plane ({found.origin}): {found.etcd}, {found.kube_apiserver}, {found.kubectl}", err=True)
    return 0


def _report(line: str) -> None:
    click.echo(line, err=True)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
