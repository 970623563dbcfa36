"""`compactor demo`: from a policy to reclaimed bytes on a real control plane, with a proof."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from compaction.local.demo.run import Demo

PLAIN_WIDTH = 160


@click.command("demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where logs, control plane and operator keep their files; made anew by each run.",
)
@click.option("--keep", is_flag=True, help="Leave everything running at the end and print its KUBECONFIG.")
@click.option("--down", is_flag=True, help="Stop what --keep left running, and do nothing else.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Use this cluster instead of a control plane of our own; definitions and a namespace are created in it.",
)
def command(directory: Path, keep: bool, down: bool, kubeconfig: Path | None) -> int:
    """Make four logs, apply a policy, watch the operator compact them, and prove that nothing was lost.

    Exit codes: 0 every claim held, 1 one did not or it could not be carried through.
    """
    # The records of what was started must be found again from any directory.
    demo = Demo(directory=directory.absolute(), console=_console(), keep=keep, kubeconfig=kubeconfig)
    # A polite kill must clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    if down:
        demo.stop()
        return 0
    return 0 if demo.run() else 1


def _console() -> Console:
    """The terminal as it is; in a pipe or a log nothing is wrapped, whatever width is assumed there."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
