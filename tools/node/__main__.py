"""`python -m tools.node`, as `make node` calls it: a cluster of one node on this machine, up, down and its status."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

import click

from compaction.cli.main import run
from compaction.errors import CompactionError
from compaction.local.cluster import control_plane
from compaction.local.cluster.control_plane import default_state_dir
from tools.node.start import start_node, stop_node

POLL_SECONDS = 0.5
STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: default_state_dir() / "node",
    show_default="~/.local/state/compaction-operator/node",
    help="Where the data, certificates, logs and the kubeconfig of the node are kept.",
)


@click.group()
def group() -> None:
    """A cluster that runs pods on this machine: etcd, the servers of Kubernetes, kubelet, containerd (Linux, root)."""


@group.command()
@STATE_DIR
@click.option("--detach", is_flag=True, help="Run in the background; `python -m tools.node down` stops it.")
def up(state_dir: Path, detach: bool) -> None:
    """Start the node; without --detach it stops with this command (Ctrl-C)."""
    signal.signal(signal.SIGTERM, _interrupt)
    node = start_node(state_dir, detached=detach, report=_report)
    if detach:
        click.echo(f"export KUBECONFIG={node.kubeconfig}")
        return
    with node:
        click.echo(f"export KUBECONFIG={node.kubeconfig}")
        click.echo(f"ready at {node.plane.url}; Ctrl-C stops it", err=True)
        while node.keeper.alive():
            time.sleep(POLL_SECONDS)
        raise CompactionError(f"the node ended; its logs are in {node.layout.log}")


@group.command()
@STATE_DIR
def down(state_dir: Path) -> None:
    """Stop the node; its images stay."""
    state = stop_node(state_dir, report=_report)
    click.echo("nothing was running" if state is None else f"stopped the node at {state.url}")


@group.command()
@STATE_DIR
def status(state_dir: Path) -> int:
    """Show what runs; exit code 1 when nothing or only a part of it does."""
    state = control_plane.status(state_dir)
    if state is None:
        click.echo(f"no node is recorded in {state_dir}")
        return 1
    for process in state.processes:
        click.echo(f"{process.name:<16} pid {process.pid:<8} {'running' if process.alive() else 'gone'}")
    click.echo(f"export KUBECONFIG={state.kubeconfig}")
    return 0 if state.running else 1


def _report(line: str) -> None:
    click.echo(line, err=True)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run(group, "python -m tools.node"))
