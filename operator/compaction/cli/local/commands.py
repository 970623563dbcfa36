"""`compactor local`: a real control plane on this machine (up, down, status), and the images as archives."""

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
from compaction.local.images.build import BuildSettings, Image, ensure_images
from compaction.local.node.start import start_node, stop_node
from compaction.local.programs.binaries import find_binaries
from compaction.worker.spark.settings import find_java

# `compactor local images`: the operator's and the worker's image, built and saved as archives.


@click.command("images")
@click.option("--only", type=click.Choice([image.value for image in Image]), help="Build only this image.")
@click.option("--base-image", metavar="IMAGE", help="Debian (bookworm) base image; default: pulled, or built here.")
@click.option("--engine", type=click.Choice(["auto", "docker", "buildah"]), default="auto", show_default=True)
@click.option("--fresh", is_flag=True, help="Rebuild the base without cached layers, to include fixes of Debian.")
def command(*, only: str | None, base_image: str | None, engine: str, fresh: bool) -> None:
    """Build the images of this checkout; unchanged images are not built again.

    Prints one line for each: name, archive (what `docker load` and `ctr images import` read), size.
    """
    settings = BuildSettings(base_image=base_image, engine=engine, fresh=fresh)
    images = tuple(Image) if only is None else (Image(only),)
    for built in ensure_images(images, report=lambda line: click.echo(line, err=True), settings=settings):
        click.echo(f"{built.tag}\t{built.archive}\t{built.bytes >> 20} MiB")


# `compactor local`: a real control plane on this machine: up, down, status.

STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_state_dir,
    show_default="~/.local/state/compaction-operator",
    help="Where the data, certificates, logs and the kubeconfig of the control plane are kept.",
)
POLL_SECONDS = 0.5
NODE = "node"
"""Below the state directory: the node's own, with a kubeconfig of its own."""


@click.group()
def group() -> None:
    """A real control plane (etcd and kube-apiserver) on loopback, or a whole node, for one person or a test run."""


group.add_command(command)


@group.command()
@STATE_DIR
@click.option("--detach", is_flag=True, help="Run in the background; `compactor local down` stops it.")
@click.option("--audit", is_flag=True, help="Record every request in log/audit.log (a node always does).")
@click.option("--node", is_flag=True, help="Also start kubelet and containerd: a cluster that runs pods (Linux, root).")
def up(state_dir: Path, detach: bool, audit: bool, node: bool) -> None:
    """Start the control plane; without --detach it stops with this command (Ctrl-C)."""
    if os.environ.get("KUBECONFIG"):
        click.echo(f"note: KUBECONFIG={os.environ['KUBECONFIG']} stays what the other commands use", err=True)
    signal.signal(signal.SIGTERM, _interrupt)
    if node:
        _up_node(state_dir / NODE, detach=detach)
        return
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


def _up_node(directory: Path, *, detach: bool) -> None:
    node = start_node(directory, detached=detach, report=_report)
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
    """Stop the control plane (its data stays and the next `up` continues with it), and the node (its images stay)."""
    state, node = control_plane.down(state_dir, report=_report), stop_node(state_dir / NODE, report=_report)
    if node is not None:
        click.echo(f"stopped the node at {node.url}")
    if state is not None:
        click.echo(f"stopped {state.url}")
    if state is None and node is None:
        click.echo("nothing was running")


@group.command()
@STATE_DIR
def status(state_dir: Path) -> int:
    """Show what runs; exit code 1 when nothing or only a part of it does."""
    states = [
        found
        for found in (control_plane.status(state_dir), control_plane.status(state_dir / NODE))
        if found is not None
    ]
    if not states:
        click.echo(f"no control plane is recorded in {state_dir}")
        return 1
    for state in states:
        for process in state.processes:
            click.echo(f"{process.name:<16} pid {process.pid:<8} {'running' if process.alive() else 'gone'}")
        click.echo(f"export KUBECONFIG={state.kubeconfig}")
    return 0 if all(state.running for state in states) else 1


@group.command()
def check() -> int:
    """Say whether this machine has what the demo and the tests need: Java and the programs of the control plane."""
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
