"""The record of a directory: who may commit, what was committed, and what readers leave out; replaced in one rename.

`lines.json` says which tokens are claimed, the receipt of each job, which merged files count (`outputs`) and which
files were replaced, since when. A file `*.merged.jsonl` that is not an output is an attempt's own: readers skip it. So
a commit is the replacement of the record, under the lock `lines.lock`, with the token compared in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compaction.errors import CompactionError, StaleTokenError

# Every system call that changes a directory of lines, one small function each, so that a test can interrupt it.


def create(path: Path) -> int:
    """An empty file of that name, whatever was there; its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def write(fd: int, buffers: list[bytes]) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        file.writelines(buffers)


def sync(fd: int) -> None:
    os.fsync(fd)


def rename(source: Path, target: Path) -> None:
    """Atomic replacement."""
    source.rename(target)


def unlink(path: Path) -> None:
    path.unlink()


def put(path: Path, data: bytes) -> None:
    """A whole file, durable with its name."""
    fd = create(path)
    try:
        write(fd, [data])
        sync(fd)
    finally:
        os.close(fd)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


RECORD: Final = "lines.json"
LOCK: Final = "lines.lock"
MERGED: Final = ".merged.jsonl"


class LinesError(CompactionError):
    """The directory cannot be read or written, or its record makes no sense."""


class LinesChangedError(LinesError):
    """A source, or the file that is to replace them, is not there any more."""


@dataclass(frozen=True, slots=True)
class Record:
    """`tokens`: the largest that was accepted, by job; `claims`: those that stand. `replaced`: epoch seconds."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    claims: Mapping[str, int] = field(default_factory=dict)
    receipts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    replaced: Mapping[str, float] = field(default_factory=dict)

    def live(self, names: list[str]) -> list[str]:
        """Of the files of the directory those that readers read."""
        return [name for name in names if name not in self.replaced and name not in self.leftovers(names)]

    def leftovers(self, names: list[str]) -> list[str]:
        """And those that an attempt made and did not commit."""
        return [name for name in names if name.endswith(MERGED) and name not in self.outputs]

    def check(self, directory: Path, job: str, token: int) -> None:
        """Raises StaleTokenError unless the token is the one claimed last."""
        if self.claims.get(job) != token:
            raise StaleTokenError(str(directory), job, token, self.claims.get(job))


def listing(directory: Path) -> list[str]:
    """The files with lines in a directory, whether they count or not."""
    with errors(directory):
        return sorted(name for name in os.listdir(directory) if name.endswith(".jsonl"))


def read(directory: Path) -> Record:
    """The record as it is. Raises LinesError."""
    with errors(directory):
        try:
            data = json.loads((directory / RECORD).read_bytes())
        except FileNotFoundError:
            return Record()
        except ValueError as error:
            raise LinesError(f"{directory / RECORD}: it is not the record of a directory: {error}") from error
    return Record(**{**data, "outputs": tuple(data["outputs"])})


def claim(directory: Path, *, job: str, token: int) -> None:
    """From now on only this token may commit for the job; one that was committed keeps its receipt."""
    with _changing(directory) as record:
        if token <= record.tokens.get(job, 0):
            raise StaleTokenError(str(directory), job, token, record.tokens[job])
        tokens = {**record.tokens, job: token}
        _write(directory, replace(record, tokens=tokens, claims={**record.claims, job: token}))


def retire(directory: Path, job: str) -> None:
    """No token may commit for the job."""
    with _changing(directory) as record:
        if job in record.claims:
            claims = {name: token for name, token in record.claims.items() if name != job}
            _write(directory, replace(record, claims=claims))


def commit(
    directory: Path, *, job: str, token: int, sources: tuple[str, ...], output: str, receipt: dict[str, Any]
) -> dict[str, Any]:
    """The output takes the place of the sources; the receipt that counts, an earlier one if the job has it.

    Raises StaleTokenError, LinesChangedError.
    """
    with _changing(directory) as record:
        record.check(directory, job, token)
        if job in record.receipts:
            return record.receipts[job]
        names = listing(directory)
        gone = [name for name in sources if name not in record.live(names)]
        gone += [output] if output not in names else []
        if gone:
            raise LinesChangedError(f"{directory}: {', '.join(gone)} are not there any more")
        now = time.time()
        changed = replace(
            record,
            receipts={**record.receipts, job: receipt},
            outputs=(*record.outputs, output),
            replaced={**record.replaced, **dict.fromkeys(sources, now)},
        )
        _write(directory, changed)
    return receipt


def sweep(directory: Path, *, grace: float, active: frozenset[tuple[str, int]]) -> int:
    """Delete what was replaced longer than the grace ago and leftovers of attempts not in `active`; how many files."""
    with _changing(directory) as record:
        names, now = listing(directory), time.time()
        kept = {f"{job}.{token}{MERGED}" for job, token in active}
        due = {name for name, since in record.replaced.items() if since + grace <= now}
        gone = [name for name in names if name in due or (name in record.leftovers(names) and name not in kept)]
        for name in gone:
            unlink(directory / name)
        if due:
            # Only now that they are deleted: a file without its tombstone would be read again.
            sync_directory(directory)
            outputs = tuple(name for name in record.outputs if name not in due)
            replaced = {name: since for name, since in record.replaced.items() if name not in due}
            _write(directory, replace(record, outputs=outputs, replaced=replaced))
    return len(gone)


@contextmanager
def errors(directory: Path) -> Iterator[None]:
    """Errors of the operating system as LinesError."""
    try:
        yield
    except OSError as error:
        raise LinesError(f"{directory}: {error.strerror}") from error


@contextmanager
def _changing(directory: Path) -> Iterator[Record]:
    """The record, under the lock."""
    with errors(directory):
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield read(directory)
        finally:
            os.close(fd)


def _write(directory: Path, record: Record) -> None:
    new = directory / f"{RECORD}.new"
    put(new, json.dumps(asdict(record)).encode())
    rename(new, directory / RECORD)
    sync_directory(directory)
