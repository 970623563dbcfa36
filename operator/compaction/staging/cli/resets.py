"""`compactor staging reset`: uncommitted changes go, or the branch goes to another commit."""

from __future__ import annotations

from collections.abc import Sequence

import click

from compaction.staging.cli.branches import SHORT
from compaction.staging.cli.merges import merger_of
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.values import shown_key
from compaction.staging.flows.resetting import Resetter
from compaction.staging.flows.writing import Writer


@click.command()
@click.argument("branch")
@click.option("--key", "keys", type=KeyParameter(), multiple=True, help="Discard the changes of this key.")
@click.option("--prefix", type=KeyParameter(), help="Discard the changes of all keys that begin with this.")
@click.option("--all", "everything", is_flag=True, help="Discard all uncommitted changes.")
@click.option("--hard", metavar="REF", help="Go to the commit of REF, on a branch without uncommitted changes.")
@staging_options()
def reset(
    *,
    branch: str,
    keys: Sequence[bytes],
    prefix: bytes | None,
    everything: bool,
    hard: str | None,
    place: StagingPlace,
) -> None:
    """Discard uncommitted changes of a branch: of keys, below a prefix, or --all of them; --hard moves the branch.

    Example: compactor staging reset main --prefix logs/tmp/ --repo logs
    """
    if sum((bool(keys), prefix is not None, everything, hard is not None)) != 1:
        raise click.UsageError("what is to be reset? Give one of --key, --prefix, --all, --hard")
    if prefix == b"":
        raise click.UsageError("an empty --prefix would discard all changes: give --all")
    with place.area() as area:
        if hard is not None:
            commit = merger_of(area).hard_reset(branch, hard)
            click.echo(f"branch {branch} is on commit {commit.id}")
            return
        resetter = Resetter(area, Writer(area))
        if everything:
            resetter.reset(branch)
            words = "all uncommitted changes"
        elif prefix is not None:
            resetter.reset_prefix(branch, prefix)
            words = f"uncommitted changes below {ascii_key(prefix)}"
        else:
            for key in keys:
                resetter.reset_key(branch, key)
            words = f"uncommitted changes of {', '.join(map(ascii_key, keys))}"
        head = area.branches.get(branch).record.commit_id
    click.echo(f"{words} discarded: branch {branch} is on commit {head[:SHORT]}")


def ascii_key(key: bytes) -> str:
    """A key in a sentence."""
    return ascii(shown_key(key))
