"""`compactor crds`: print the resource definitions, write them to a directory, or check that a directory has them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compaction.api.crd.definitions import crd_files
from compaction.errors import CrdDriftError

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--write", metavar="DIR", type=_DIRECTORY, help="Write one file per resource into DIR.")
@click.option("--check", metavar="DIR", type=_DIRECTORY, help="Fail when the files in DIR differ from the models.")
def command(write: Path | None, check: Path | None) -> None:
    """Print the CustomResourceDefinitions as YAML, ready for `kubectl apply -f -`."""
    if write is not None and check is not None:
        raise click.UsageError("give --write or --check, not both")
    files = crd_files()
    if write is not None:
        write_files(write, files)
    elif check is not None:
        check_files(check, files)
    else:
        sys.stdout.write("---\n".join(files.values()))


def write_files(directory: Path, files: dict[str, str]) -> None:
    """Write the files that differ, and name them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in drifted(directory, files):
        path = directory / name
        if name in files:
            path.write_text(files[name], encoding="utf-8")
            click.echo(f"wrote {path}")
        else:
            path.unlink()
            click.echo(f"removed {path}: the resource does not exist any more")


def check_files(directory: Path, files: dict[str, str]) -> None:
    """Raise CrdDriftError naming every file that is missing, different or left over."""
    names = drifted(directory, files)
    if names:
        raise CrdDriftError(
            f"{directory}: not what the models say: {', '.join(names)}; run `compactor crds --write {directory}`"
        )


def drifted(directory: Path, files: dict[str, str]) -> list[str]:
    """Names of the files that are missing, different, or of this group and no longer generated."""
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("compaction.dev_*.yaml")}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
