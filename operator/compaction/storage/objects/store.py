"""Objects in a store, through the few operations that stores need: S3, Google, Azure by URL, or a local folder.

What can be relied on: a put is all or nothing; a put that returned is durable; `if_absent` has one winner; a read gives
exactly what was asked for or an error; a deletion of what is not there is a deletion. Failures that may pass (503,
timeouts, broken answers) are retried with jitter; every operation here may be repeated, also by the caller.
Objects are never changed in place.
"""

from __future__ import annotations

import bisect
import errno
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from os import listdir, stat_result
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, TypeVar

import obstore

from compaction.storage.errors import (
    ObjectAccessError,
    ObjectError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectPathError,
    ObjectRefusedError,
    ObjectStoreUnavailableError,
    ObjectTruncatedError,
)
from compaction.storage.objects.opening import FAILURES, StorageConnection, Store, connect, translate
from compaction.storage.objects.reader import ObjectReader

# Paths that an object may have, in every store alike.

MAX_PATH: Final = 900
"""Bytes; S3 has 1024 for the root and the path together."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_STAGED: Final = re.compile(r"#[0-9]+\Z", re.ASCII)


def is_staged(path: str) -> bool:
    """Return whether a file of a local folder is one that is being written, or was when the writer died."""
    return _STAGED.search(path) is not None


def check_path(path: str, *, folder: bool = False) -> str:
    """Return the path of an object (or of a folder, which may be the root, ""). Raises ObjectPathError."""
    if folder and not path:
        return path
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise ObjectPathError(path[:MAX_PATH], "parts of a path are neither empty nor . or ..")
    if _CONTROL.search(path):
        raise ObjectPathError(ascii(path[:MAX_PATH]), "a path holds no control characters and no backslash")
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > 255 for part in path.split("/")):
        raise ObjectPathError(path[:MAX_PATH], f"longer than {MAX_PATH} bytes, or 255 in one part")
    if is_staged(path):
        raise ObjectPathError(path, "names that end in # and digits are those of unfinished writes")
    return path


# All files below a folder, as the library that keeps objects in folders lists them; and on where that one gives up.
#
# The library follows links to folders and ends at one that leads in a circle, or at a name that is no text, without
# listing what else there is. Here such an entry is passed over and named: nothing is lost by it, because what a
# circle leads to is listed where it lies, and an object never has such a name.

_NO_NAME: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_GONE: Final = (FileNotFoundError, NotADirectoryError)
FolderId = tuple[int, int]
"""Device and inode."""


class ListedFile(NamedTuple):
    """A file as `ObjectInfo` has it."""

    path: str
    size: int
    etag: str
    modified: datetime


def files_below(root: Path, prefix: str, skipped: MutableMapping[str, str]) -> Iterator[ListedFile]:
    """The files below `root/prefix`, by their paths below `root`, in no order that counts. `skipped` is called with
    every entry that is passed over, and why.

    Raises ObjectAccessError, ObjectStoreUnavailableError: a folder cannot be read, and is named.
    """
    parts = prefix.split("/") if prefix else []
    above = [_folder_id(root.joinpath(*parts[:count])) for count in range(len(parts) + 1)]
    open_folders = [(prefix, frozenset(item for item in above if item is not None))]
    while open_folders:
        folder, holding = open_folders.pop()
        for name in _names(root / folder, folder):
            path = f"{folder}/{name}" if folder else name
            if _NO_NAME.search(name):
                skipped[ascii(path)] = "no object can have this name"
                continue
            found = _stat(root, path, skipped)
            if found is None:
                continue
            if stat.S_ISREG(found.st_mode):
                if not is_staged(path):
                    yield _listed(path, found)
            elif stat.S_ISDIR(found.st_mode):
                mine = (found.st_dev, found.st_ino)
                if mine in holding:
                    skipped[path] = "a symbolic link leads back to a folder that holds it"
                else:
                    open_folders.append((path, holding | {mine}))


def _folder_id(folder: Path) -> FolderId | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _names(folder: Path, path: str) -> list[str]:
    try:
        return listdir(folder)
    except _GONE:
        return []
    except OSError as error:
        raise _refused(path or str(folder), error) from None


def _stat(root: Path, path: str, skipped: MutableMapping[str, str]) -> stat_result | None:
    try:
        return (root / path).stat()
    except _GONE:
        return None  # deleted meanwhile, or a link to nothing
    except OSError as error:
        if error.errno == errno.ELOOP:
            skipped[path] = "a symbolic link leads to itself"
            return None
        raise _refused(path, error) from None


def _refused(path: str, error: OSError) -> ObjectAccessError | ObjectStoreUnavailableError:
    if isinstance(error, PermissionError):
        return ObjectAccessError(path, "access denied (permission)")
    return ObjectStoreUnavailableError(path, f"the folder refused: {error.strerror}")


def _listed(path: str, found: stat_result) -> ListedFile:
    micros = found.st_mtime_ns // 1000
    etag = f'"{found.st_ino:x}-{micros:x}-{found.st_size:x}"'
    return ListedFile(path, found.st_size, etag, _EPOCH + timedelta(microseconds=micros))


DELETE_BATCH: Final = 1000
"""What one request of S3 deletes at most."""
GIVE_UP: Final = 3
"""After so many objects in a row to which the store gave no usable answer, it is not asked for the rest of a batch."""
PART_BYTES: Final = 8 << 20
"""Larger objects are uploaded in parts of this size; memory for an upload is about `UPLOADS` of them."""
UPLOADS: Final = 4
DOWNLOADS: Final = 8
NEAR_BYTES: Final = 256 << 10
"""What is read along costs less than another request up to this size."""
SPAN_BYTES: Final = 16 << 20

T = TypeVar("T")
Paths: TypeAlias = list[str]
Parts: TypeAlias = list[bytes]
Failures: TypeAlias = list[tuple[str, ObjectError]]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The store's record of an object: `etag` changes when it is replaced; `modified` in UTC."""

    path: str
    size: int
    etag: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class Retrying:
    """The number of tries and the pauses between them: the pause before try n is random in 0..min(cap, base * 2^n)
    seconds (full jitter).
    """

    tries: int = 6
    base: float = 0.2
    cap: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random

    def pause(self, attempt: int) -> None:
        self.sleep(self.chance() * min(self.cap, self.base * 2**attempt))


def open_objects(
    url: str, *, options: Mapping[str, str] = MappingProxyType({}), retrying: Retrying = Retrying()
) -> ObjectStorage:
    """Open a store. Nothing is sent yet, except that a local folder is made.

    `url`: `s3://bucket/prefix`, `gs://`, `az://`, `file:///folder` or the path of a folder. `options`: `endpoint`,
    `region`, `access_key_id`, `secret_access_key`, `session_token`, ... as object_store names them, and those of
    `opening.CLIENT`. What is missing is looked for where the cloud's own tools do.

    Raises ObjectStoreUrlError: unknown scheme, credentials in the URL, an unknown option (named, its value is not).
    """
    return ObjectStorage(connect(url, options), retrying)


class ObjectStorage:
    """One store, or a prefix of one. Safe for threads; can be sent to another process as its URL and options only."""

    def __init__(self, connection: StorageConnection, retrying: Retrying) -> None:
        """Use `open_objects`."""
        self.url = connection.url
        self._connection = connection
        self._store, self._kind = connection.store, connection.kind
        self._retrying, self._folder = retrying, connection.folder
        self.skipped: dict[str, str] = {}
        """What listings of a folder have passed over so far: path and reason."""

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    @property
    def folder(self) -> Path | None:
        """The folder in which the objects are files; None when they are not."""
        return self._folder

    def from_top(self) -> tuple[ObjectStorage, str]:
        """All of the bucket and the path of this store in it; a folder itself, and its path without the first slash."""
        top = self._connection.top
        return self if top is None else ObjectStorage(top(), self._retrying), self._connection.root

    def get(self, path: str) -> bytes:
        """The whole object. Raises ObjectMissingError and other ObjectError."""
        check_path(path)
        return self._try(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def get_range(self, path: str, start: int, length: int, *, etag: str = "") -> bytes:
        """Exactly `length` bytes from `start`. With `etag`: of that version, or ObjectChangedError.

        Raises ObjectTruncatedError when the object ends before that.
        """
        check_path(path)
        if length == 0:
            return b""
        options: Any = {"range": (start, start + length)}
        if etag:
            options["if_match"] = etag
        data = self._try(path, lambda: bytes(obstore.get(self._store, path, options=options).bytes()))
        if len(data) != length:
            raise ObjectTruncatedError(path, f"holds {len(data)} of {length} bytes from {start} on")
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Parts:
        """The (start, length) ranges, in their order; near ones in one request, others at the same time."""
        # Not with obstore.get_ranges: it panics when a range begins behind the end.
        check_path(path)
        spans = coalesce(ranges)
        with ThreadPoolExecutor(max(1, min(DOWNLOADS, len(spans)))) as pool:
            parts = list(pool.map(lambda span: self.get_range(path, *span), spans))
        starts = [start for start, _ in spans]

        def cut(start: int, length: int) -> bytes:
            number = bisect.bisect_right(starts, start) - 1
            return parts[number][start - starts[number] : start - starts[number] + length]

        return [cut(start, length) if length else b"" for start, length in ranges]

    def head(self, path: str) -> ObjectInfo:
        """Return the store's record of an object. Raises ObjectMissingError."""
        check_path(path)
        try:
            return _info(self._try(path, lambda: obstore.head(self._store, path)))
        except ObjectMissingError:
            # The answer to a HEAD has no body, so a missing bucket looks like a missing object: this tells.
            self._try(path, lambda: obstore.get(self._store, path, options={"range": (0, 1)}).bytes())
            raise

    def put(self, path: str, data: bytes | Path | BinaryIO, *, if_absent: bool = False) -> None:
        """Write an object, durable when this returns. A file-like object is read from where it stands.

        With `if_absent` ObjectExistsError when there is one already; of several writers exactly one succeeds. The whole
        object is in memory then; otherwise a few parts of it.
        """
        check_path(path)
        if if_absent:
            self._create(path, _contents(path, data))
        else:
            start = data.tell() if not isinstance(data, bytes | Path) else 0
            self._try(path, lambda: self._upload(path, data, start))
        self._sync(path)

    def delete(self, paths: Iterable[str]) -> Failures:
        """Delete objects; those that could not be, with the reason. An object that is not there counts as deleted."""
        failed: Failures = []
        batch: Paths = []
        for path in paths:
            batch.append(check_path(path))
            if len(batch) == DELETE_BATCH:
                failed += self._delete_batch(batch)
                batch = []
        return failed + (self._delete_batch(batch) if batch else [])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder `prefix` (`a` is not the prefix of `ab/c`), in no order that counts.

        An interrupted listing of a remote store goes on behind the last path it gave. One of a folder passes over what
        cannot be listed, such as links that lead in a circle, and notes it in `skipped`.
        """
        check_path(prefix, folder=True)
        if self._folder is not None:
            yield from (ObjectInfo(*found) for found in files_below(self._folder, prefix, self.skipped))
            return
        last: str | None = None
        attempt = 0
        while True:
            try:
                for chunk in obstore.list(self._store, prefix or None, offset=last):
                    for meta in chunk:
                        last, attempt = meta["path"], 0
                        yield _info(meta)
                return
            except FAILURES as error:
                problem = translate(error, prefix or self.url, self._kind)
                if not self._may_pass(problem, attempt):
                    raise problem from None
                self._retrying.pause(attempt)
                attempt += 1

    def inside(self, folder: str) -> Sequence[ObjectInfo]:
        """The objects right in a folder, however many lie in the folders below it."""
        found = self._try(folder, lambda: obstore.list_with_delimiter(self._store, folder))
        return [_info(meta) for meta in found["objects"]]

    def reader(
        self, path: str, *, info: ObjectInfo | None = None, before: Callable[[int], None] = lambda _: None
    ) -> ObjectReader:
        """A file-like object for pyarrow: ranged reads, a bounded buffer, all of one version of the object. `before` is
        called with the number of bytes before they are fetched.
        """
        known = info or self.head(path)

        def fetch(start: int, length: int) -> bytes:
            before(length)
            return self.get_range(path, start, length, etag=known.etag)

        return ObjectReader(path, known.size, fetch)

    @cached_property
    def _bulk(self) -> Any:
        """Opened for the first upload: most of what is opened only reads."""
        return self._connection.bulk()

    def _upload(self, path: str, data: bytes | Path | BinaryIO, start: int) -> None:
        if not isinstance(data, bytes | Path):
            data.seek(start)
        obstore.put(self._bulk, path, data, chunk_size=PART_BYTES, max_concurrency=UPLOADS)

    def _create(self, path: str, data: bytes) -> None:
        """Create, and find out who won when an answer was lost: what is there is compared with what was sent."""
        for attempt in range(self._retrying.tries):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
                return
            except FAILURES as error:
                problem = translate(error, path, self._kind)
            if (
                isinstance(problem, ObjectExistsError)
                and attempt
                and (self.head(path).size == len(data) and self.get(path) == data)
            ):
                return
            if not self._may_pass(problem, attempt):
                raise problem
            self._retrying.pause(attempt)

    def _delete_batch(self, paths: Sequence[str]) -> Failures:
        try:
            self._try(paths[0], lambda: obstore.delete(self._store, paths))
            return []
        except ObjectError:
            # One of them, or all: only one by one says which. What was deleted above is deleted once more.
            return self._delete_each(paths)

    def _delete_each(self, paths: Sequence[str]) -> Failures:
        failed: Failures = []
        silent = 0
        for path in paths:
            problem = self._delete_one(path) if silent < GIVE_UP else failed[-1][1]
            silent = silent + 1 if isinstance(problem, ObjectStoreUnavailableError) else 0
            if problem is not None:
                failed.append((path, problem))
        return failed

    def _delete_one(self, path: str) -> ObjectError | None:
        try:
            self._try(path, lambda: obstore.delete(self._store, path))
        except ObjectError as problem:
            return None if isinstance(problem, ObjectMissingError) else problem
        return None

    def _try(self, path: str, call: Callable[[], T]) -> T:
        attempt = 0
        while True:
            try:
                return call()
            except FAILURES as error:
                problem = translate(error, path, self._kind)
            if not self._may_pass(problem, attempt):
                raise problem
            self._retrying.pause(attempt)
            attempt += 1

    def _may_pass(self, problem: ObjectError, attempt: int) -> bool:
        passing = isinstance(problem, ObjectStoreUnavailableError) and self._kind is Store.REMOTE
        return passing and attempt + 1 < self._retrying.tries

    def _sync(self, path: str) -> None:
        """A folder keeps a file through a loss of power only when it, and the names that lead to it, are synced."""
        if self._folder is not None:
            try:
                sync_file(self._folder, path)
            except OSError as error:
                raise ObjectStoreUnavailableError(path, f"could not be made durable: {error.strerror}") from None


def coalesce(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Fewer (start, length) that hold all of these: gaps of up to `NEAR_BYTES` are read along. Ascending, disjoint."""
    spans: list[tuple[int, int]] = []
    for start, length in sorted(item for item in ranges if item[1]):
        if spans:
            begin, size = spans[-1]
            end = max(begin + size, start + length)
            if start <= begin + size or (start <= begin + size + NEAR_BYTES and end - begin <= SPAN_BYTES):
                spans[-1] = (begin, end - begin)
                continue
        spans.append((start, length))
    return spans


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    modified = meta["last_modified"] or datetime.fromtimestamp(0, UTC)
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or "", modified)


def _contents(path: str, data: bytes | Path | BinaryIO) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return data.read_bytes() if isinstance(data, Path) else data.read()
    except OSError as error:
        raise ObjectRefusedError(path, f"what is to be written cannot be read: {error.strerror}") from None


def sync_file(root: Path, path: str) -> None:
    """Make a file and all names from the root down to it durable. Raises OSError."""
    target = root / path
    for place in (target, *[parent for parent in target.parents if parent == root or root in parent.parents]):
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
