"""The owners of files: the signs by which a table format, or another block store, owns the folder that holds a file.

A merge replaces files and deletes them after the grace. The metadata of a table go on naming them: the table is lost,
and rows that it has deleted are back in what was merged. So what belongs to others is neither registered nor deleted,
and no option lifts that.

Signs are searched for in each folder from that of the file up to the top of its bucket or file system, because a store
may begin inside a table, and in the footer of the file, which may lie elsewhere than the metadata. Each folder is asked
once, whatever it holds: six small requests, or none where a listing has shown all of it. What may not be listed above
the root of the store is left out: the credentials of many stores end there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from compaction.blocks.errors import ForeignFileError
from compaction.storage.errors import ObjectAccessError, ObjectError, ObjectMissingError, ObjectPathError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage, check_path

ASKED_AT_ONCE: Final = 8
MOST_KNOWN: Final = 100_000
"""Folders, about 30 MB: those that clients of an endpoint name have no end."""
_METADATA: Final = "metadata"
_HINT: Final = "version-hint.text"
IDENTITY_PATH: Final = "_compaction/identity"
"""What makes a folder a block store. No path of a block: those have three parts, and a tenant may have this name."""


class FileOwner(NamedTuple):
    """An owner of files, and the remedy: the program that compacts them instead of us."""

    what: str
    remedy: str


DELTA: Final = FileOwner("a Delta Lake table", "Delta Lake itself compacts it: OPTIMIZE, then VACUUM")
ICEBERG: Final = FileOwner(
    "an Apache Iceberg table", "Iceberg itself compacts it: rewrite_data_files, then expire_snapshots"
)
HUDI: Final = FileOwner("an Apache Hudi table", "Hudi itself compacts it: clustering, compaction and cleaning")
SPARK_SINK: Final = FileOwner(
    "the output of a Spark streaming query",
    "Spark's readers take only the files that its log names: read it with Spark, write the rows to another folder, and "
    "register that",
)
BLOCK_STORE: Final = FileOwner("another block store", "register and compact it by naming that store (--store)")

_FOLDERS: Final[Mapping[str, FileOwner]] = {"_delta_log": DELTA, ".hoodie": HUDI, "_spark_metadata": SPARK_SINK}
_KEYS: Final = (
    (b"iceberg.", ICEBERG),
    (b"org.apache.hudi.", HUDI),
    (b"com.uber.hoodie.", HUDI),
    (b"hoodie_", HUDI),
)
"""How keys of footers begin that no other writer leaves: `iceberg.schema`; the bloom filters and the smallest and
largest record key of Hudi.
"""
_HUDI_COLUMNS: Final = frozenset({"_hoodie_commit_time", "_hoodie_record_key"})
"""Every row of a Hudi table has both, unless its meta fields were switched off."""


class OwnerSign(NamedTuple):
    """`owner` owns all below `folder`, a path from the top of the bucket or file system; `evidence` shows it."""

    owner: FileOwner
    folder: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.owner.what} ({self.evidence}): {self.owner.remedy}"


def sign_of_path(path: str) -> OwnerSign | None:
    """Return the sign of an owner that the path of any object shows by itself; None when it shows none."""
    *folders, name = path.split("/")
    for number, folder in enumerate(folders):
        if folder in _FOLDERS:
            return OwnerSign(_FOLDERS[folder], "/".join(folders[:number]), "/".join(folders[: number + 1]))
    inside = folders[-1:] == [_METADATA]
    list_of_manifests = name.startswith("snap-") and name.endswith(".avro")
    if name == _HINT or (inside and (name.endswith((".metadata.json", ".metadata.json.gz")) or list_of_manifests)):
        return OwnerSign(ICEBERG, "/".join(folders[:-1] if inside else folders), path)
    if "/".join((*folders[-1:], name)) == IDENTITY_PATH:
        return OwnerSign(BLOCK_STORE, "/".join(folders[:-1]), path)
    return None


def owner_by_footer(metadata: Mapping[bytes, bytes], columns: Iterable[str]) -> tuple[FileOwner, str] | None:
    """Return the owner that the footer of a file shows, with the key or column that shows it."""
    for key in metadata:
        for start, owner in _KEYS:
            if key.startswith(start):
                return owner, f"the key {key[:60].decode(errors='replace')} of its footer"
    if _HUDI_COLUMNS.issubset(columns):
        return HUDI, "its columns _hoodie_commit_time and _hoodie_record_key"
    return None


class FolderOwners:
    """The owners of a store's folders. What was found is believed for `keep` seconds; without it, as long as this
    object lives: each deletion makes a new one. Safe for threads.
    """

    def __init__(
        self, objects: ObjectStorage, *, keep: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects, self._keep, self._clock = objects, keep, clock
        self._known: dict[str, tuple[float, OwnerSign | None]] = {}
        self._shown: dict[str, OwnerSign] = {}
        self._listed: list[str] = []

    def of(self, paths: Iterable[str]) -> dict[str, OwnerSign]:
        """Those of the paths below the store's root that belong to others, with the sign. What no object can have as a
        path is left out: it is refused for that.

        Raises ObjectError: the store does not say.
        """
        wanted = {path: self._from_top(path) for path in paths if _is_path(path)}
        found = {path: sign for path, place in wanted.items() if (sign := sign_of_path(place)) and self._counts(sign)}
        chains = {path: _around(place) for path, place in wanted.items() if path not in found}
        now = self._clock()
        if len(self._known) > MOST_KNOWN:
            self._known = {}
        known = self._known
        fresh = {item for item, (at, _) in tuple(known.items()) if self._keep is None or now - at < self._keep}
        asked = sorted({folder for chain in chains.values() for folder in chain} - fresh)
        with ThreadPoolExecutor(max(1, min(ASKED_AT_ONCE, len(asked)))) as pool:
            known.update(zip(asked, ((now, sign) for sign in pool.map(self._ask, asked)), strict=True))
        for path, chain in chains.items():
            if (sign := next((sign for item in chain if (sign := known[item][1])), None)) is not None:
                found[path] = sign
        where = "" if self._objects.folder is not None or not found else self._top.url.rstrip("/")
        return {path: sign._replace(evidence=f"{where}/{sign.evidence}") for path, sign in found.items()}

    def refuse_new_store(self) -> None:
        """Raise ForeignFileError when the store's own folder belongs to others: no store can begin in it."""
        if (sign := self.of((IDENTITY_PATH,)).get(IDENTITY_PATH)) is not None:
            raise ForeignFileError(self._objects.url, f"no store can begin in this folder: it belongs to {sign}")

    def noting(self, folder: str, infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Pass on a listing of all below a folder of the store: when it ends, no folder in it need be asked."""
        for info in infos:
            sign = sign_of_path(self._from_top(info.path))
            if sign is not None and self._counts(sign):
                self._shown.setdefault(sign.folder, sign)
            yield info
        if self._objects.folder is None:  # a local folder may hold an empty `_delta_log`, which no listing shows
            self._listed.append(self._from_top(folder))

    @cached_property
    def _place(self) -> tuple[ObjectStorage, str]:
        """All of the bucket, which costs as much to open as the store, and the store's root in it."""
        return self._objects.from_top()

    @property
    def _top(self) -> ObjectStorage:
        return self._place[0]

    @property
    def _root(self) -> str:
        return self._place[1]

    def _from_top(self, path: str) -> str:
        return "/".join(filter(None, (self._root, path)))

    def _counts(self, sign: OwnerSign) -> bool:
        """The store is not another one than itself, by whatever name its folder is reached."""
        folder = self._objects.folder
        own = sign.folder == self._root or (folder is not None and sign.folder == str(folder.resolve()).strip("/"))
        return sign.owner is not BLOCK_STORE or not own

    def _ask(self, folder: str) -> OwnerSign | None:
        if folder in self._shown:
            return self._shown[folder]
        if any(not item or folder == item or folder.startswith(f"{item}/") for item in self._listed):
            return None
        try:
            signs = _signs_in(Path("/", folder)) if self._objects.folder is not None else self._remote(folder)
            return next(filter(self._counts, signs), None)
        except (ObjectAccessError, PermissionError):
            # Above the root of the store this is usual: the credentials of many stores end there.
            above = folder != self._root and not folder.startswith(f"{self._root}/") and bool(self._root)
            if above:
                return None
            raise ObjectAccessError(folder, "access denied: its owner is not known") from None
        except OSError as error:
            raise ObjectError(folder, f"its owner is not known: {error.strerror}") from None

    def _remote(self, folder: str) -> Iterator[OwnerSign]:
        """One request for each sign; most folders have none, and their other objects are not listed."""
        below = f"{folder}/" if folder else ""
        for name in (*_FOLDERS, _METADATA):
            # Whatever lies below one of the first names is a sign. A tenant may be named metadata, with all its blocks
            # in folders below it: there only what lies right in it can be one.
            place = f"{below}{name}"
            for info in self._top.inside(place) if name == _METADATA else self._top.list(place):
                if (sign := sign_of_path(info.path)) is not None and sign.folder == folder:
                    yield sign
                    break
        for path in (f"{below}{_HINT}", f"{below}{IDENTITY_PATH}"):
            try:
                self._top.get_range(path, 0, 1)
            except ObjectMissingError:
                continue
            if (sign := sign_of_path(path)) is not None:
                yield sign


def _signs_in(folder: Path) -> Iterator[OwnerSign]:
    """Of a local folder, and of the one that a link to it leads to."""
    for place in dict.fromkeys((folder, *_leads_to(folder))):
        names = [name for name in _FOLDERS if (place / name).is_dir()]
        names += [_HINT] if (place / _HINT).is_file() else []
        if (place / _METADATA).is_dir():
            names += [f"{_METADATA}/{item.name}" for item in (place / _METADATA).iterdir()]
        names += [IDENTITY_PATH] if (place / IDENTITY_PATH).is_file() else []
        for name in names:
            path = f"{place}/{name}".removeprefix("/")
            # A folder by itself is a sign: a table without a commit yet.
            sign = sign_of_path(f"{path}/" if name in _FOLDERS else path)
            if sign is not None:
                yield sign


def _leads_to(folder: Path) -> Iterator[Path]:
    real = folder.resolve()
    if real != folder:
        yield real
        yield from real.parents


def _is_path(path: str) -> bool:
    try:
        check_path(path)
    except ObjectPathError:
        return False
    return True


def _around(path: str) -> list[str]:
    """The folders that hold an object, the innermost first, up to the top."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
