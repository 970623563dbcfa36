"""The Secrets of a worker that is a process: files that are this user's alone, never its arguments or its environment.

    <state-dir>/workers/<worker>.secrets/<secret>/<key>

The directory is locked by a descriptor that the worker inherits, so it is the kernel that says when the worker is gone,
however it ended and from whichever process; each check of a launcher removes what no process holds any more.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from compaction.kube.errors import LaunchError
from compaction.storage.errors import SecretError
from compaction.storage.secrets import DirectorySecrets, Secrets, write_secrets
from compaction.worker.scratch import hold, remove_abandoned

SUFFIX: Final = "secrets"
REFRESH_SECONDS: Final = 15.0
"""How often the Secrets of running workers are compared with what they have."""


class HandedOver(NamedTuple):
    """Where the worker finds its Secrets, and the descriptors that it has to inherit; nothing when it needs none."""

    directory: Path | None
    descriptors: tuple[int, ...]


def read_all(secrets: Secrets | None, names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Name -> key -> text. Raises LaunchError naming the Secret that cannot be read; nothing was written then."""
    if names and secrets is None:
        raise LaunchError(f"Secret {names[0]} is needed, and this launcher was given none")
    try:
        return {name: secrets.read(name) for name in names} if secrets is not None else {}
    except SecretError as error:
        raise LaunchError(str(error)) from error


@contextmanager
def handed_over(base: Path, worker: str, values: Mapping[str, Mapping[str, str]]) -> Iterator[HandedOver]:
    """Write them below `base`, for a worker that is started inside the block and inherits the lock.

    Without a worker that holds it, the directory is removed at the end. Raises OSError, FileExistsError for a name that
    was used before.
    """
    if not values:
        yield HandedOver(None, ())
        return
    path = base / f"{worker}.{SUFFIX}"
    with _alone(base, operation=fcntl.LOCK_EX):
        path.mkdir(mode=0o700)
        lock = hold(path)
    try:
        write_secrets(path, values)
        yield HandedOver(path, (lock,))
    finally:
        os.close(lock)
        remove_abandoned(base, path.name)


def refresh(base: Path, worker: str, secrets: Secrets) -> None:
    """Write the Secrets of a running worker again that have changed, as the kubelet does for pods. What cannot be read
    now stays as it is.
    """
    path = base / f"{worker}.{SUFFIX}"
    written = DirectorySecrets(str(path))
    with suppress(FileNotFoundError):
        names = [entry.name for entry in path.iterdir() if entry.is_dir()]
        for name in names:
            try:
                values = secrets.read(name)
                if values == written.read(name):
                    continue
                with _alone(base, operation=fcntl.LOCK_EX):
                    write_secrets(path, {name: values})
                log.info("a changed Secret was handed on", worker=worker, secret=name)
            except SecretError as error:
                log.warning("a worker keeps the Secret that it has", worker=worker, error=str(error))


def remove_unheld(base: Path) -> None:
    """Remove the Secrets of workers that have ended; those of one that is just being started are left alone."""
    with suppress(BlockingIOError, FileNotFoundError), _alone(base, operation=fcntl.LOCK_EX | fcntl.LOCK_NB):
        remove_abandoned(base, f"*.{SUFFIX}")


@contextmanager
def _alone(base: Path, *, operation: int) -> Iterator[None]:
    """No other process creates or removes directories of Secrets: one that is not locked yet is not abandoned."""
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


log = structlog.get_logger(__name__)
