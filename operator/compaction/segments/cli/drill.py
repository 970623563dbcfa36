"""`compactor drill fencing`: a proof on a user's own cluster, with a scratch log. All it makes is gone when it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compaction.cli.cluster.flags import kubeconfig_option, namespace_option

if TYPE_CHECKING:
    from compaction.local.tenants import Check
    from compaction.segments.drill.fencing import FencingDrill


@click.command()
@namespace_option("Where the scratch Lease is made. Default: the kubeconfig's.")
@kubeconfig_option()
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Directory of the scratch log: on the file system of your logs, outside of every policy's root. "
    "Default: the directory for temporary files.",
)
@click.option("--lease-seconds", type=click.IntRange(2, 300), default=5, show_default=True, help="The job's lease.")
def fencing(namespace: str | None, kubeconfig: Path | None, directory: Path | None, lease_seconds: int) -> int:
    """Let a job's first attempt sleep through its lease and a second finish the job; wake the first, see it refused.

    Needs get, create, update and delete on Leases in the namespace, and nothing else: no operator, no policy, no Spark.

    Exit codes: 0 every claim held, 1 one did not or the drill could not be carried through.
    """
    # Who asks for help waits for no import of what a drill needs: an API client, the rewrites of segments.
    from compaction.segments.drill.fencing import DrillSettings, FencingDrill

    settings = DrillSettings(directory, kubeconfig, namespace, lease_seconds)
    try:
        checks = asyncio.run(_interruptible(FencingDrill(settings, tell=_tell)))
    except asyncio.CancelledError as error:
        # A signal cancelled the drill, which has cleaned up by now.
        raise click.Abort from error
    return 0 if _verdict(checks) else 1


async def _interruptible(drill: FencingDrill) -> tuple[Check, ...]:
    """SIGTERM, and a terminal that is closed, clean up as Ctrl-C does: the drill is cancelled, and the caller
    waits until it has ended. A shell's background job ignores SIGINT from birth; it, too, ends on request.
    """
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    return await drill.run()


def _tell(seconds: float, text: str) -> None:
    click.echo(f"{seconds:6.1f} s  {text}")


def _verdict(checks: Sequence[Check]) -> bool:
    click.echo()
    for check in checks:
        click.echo(f"{'yes' if check.holds else 'NO ':<4} {check.claim}: {check.fact or 'it did not'}")
    held = bool(checks) and all(check.holds for check in checks)
    click.echo(
        "\nfencing holds" if held else "\nFENCING IS BROKEN: do not run compactions here until this is explained"
    )
    return held
