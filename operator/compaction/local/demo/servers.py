"""The servers of a store on this machine: versitygw for its objects, PostgreSQL for its index or its changes.

In the stage's `servers/`: `state.json` what was started, `s3/` objects and log, `postgres` a link to the place of the
database, which is one for temporary files (see `local/servers/postgres.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.cluster.state import LocalState, read_state, remove_state, write_state
from compaction.local.processes.process import ProcessId
from compaction.local.servers import postgres, versitygw
from compaction.local.servers.postgres import PostgresServer
from compaction.local.servers.versitygw import S3Gateway, ensure_versitygw, free_port

DATABASE: Final = "demo"
BUCKET: Final = "demo"
LINK: Final = "postgres"


@dataclass(frozen=True, slots=True)
class Servers:
    """Both, running and empty: one bucket, one database."""

    objects: S3Gateway
    database: PostgresServer

    def url(self, folder: str) -> str:
        """Of a folder in the bucket."""
        return f"s3://{BUCKET}/{folder}"

    @property
    def database_url(self) -> str:
        """With its password: for a Secret."""
        return self.database.url(DATABASE)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be seen nowhere."""
        return self.objects.secret_key, self.database.password


def start_servers(directory: Path, *, detached: bool, report: Callable[[str], None]) -> Servers:
    """Start both in `directory`, which keeps the record of it. `detached`: they outlive this process, else they end
    with the thread that called this.

    Raises:
        BinaryError, ControlPlaneError: one could not be made ready; `stop_servers` stops what was started.
    """
    program = ensure_versitygw(report=report)
    directory.mkdir(parents=True, mode=0o700)
    place = postgres.make_place()
    (directory / LINK).symlink_to(place)
    database = postgres.serve(place, detached=detached)
    _record(directory, database.process)
    objects = versitygw.serve(directory / "s3", program, port=free_port(), detached=detached)
    _record(directory, database.process, objects.process)
    database.create(DATABASE)
    objects.make_bucket(BUCKET)
    report(f"versitygw (S3) ready at {objects.endpoint}, PostgreSQL at {database.socket}")
    return Servers(objects, database)


def _record(directory: Path, *processes: ProcessId) -> None:
    write_state(directory, LocalState(url="", kubeconfig=Path(), processes=processes))


def stop_servers(directory: Path) -> None:
    """Stop the servers recorded in `directory`, and remove what the database had; safe when nothing is there."""
    state = read_state(directory) if directory.is_dir() else None
    for process in reversed(state.processes if state is not None else ()):
        if process.name == postgres.SERVER:
            postgres.stop_postgres(process)
        else:
            process.stop()
    link = directory / LINK
    if link.is_symlink():
        place = link.readlink()
        # Only what `make_place` made, whatever somebody has put there.
        if place.name.startswith(postgres.PREFIX) and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        link.unlink()
    if state is not None:
        remove_state(directory)
