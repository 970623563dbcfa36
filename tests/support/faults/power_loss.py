"""A disk that loses its power: every change of a directory tree recorded, and what may be left of it at any moment.

Model: a file has durable bytes and pending writes, a directory durable names and pending changes of them; a sync of one
makes its own pending changes durable, and nothing else. At a power failure each pending change is kept or lost, by
itself; a write may be cut. That is weaker than most file systems, so what survives here survives there.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from compaction.segments.directory import fs
from compaction.segments.model import FileIdentity
from support.timing import at_depth

RECORDED = (
    "create", "reopen", "write", "write_at", "sync", "sync_data", "sync_directory", "sync_file", "make_directory",
    "remove_directory", "link", "symlink", "rename", "unlink",
)  # fmt: skip
Keep = Callable[[], bool]


@dataclass(eq=False)
class File:
    """`durable` bytes and `pending` writes (offset, bytes), in order. `inode`, `mtime`: as the last call left them."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    inode: int = 0
    mtime: int = 0

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()

    def content(self, keep: Keep, cut: Callable[[int], int]) -> bytes:
        result = bytearray(self.durable)
        for offset, data in self.pending:
            if keep():
                _put(result, offset, data[: cut(len(data))])
        return bytes(result)


@dataclass(eq=False)
class Symlink:
    """Its content is durable with its name."""

    content: str
    inode: int = 0
    mtime: int = 0


@dataclass(eq=False)
class Folder:
    """`durable` names and `pending` changes of them: each a set of names with their new node, None for gone."""

    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    @property
    def now(self) -> dict[str, Node]:
        names = dict(self.durable)
        for change in self.pending:
            _apply(names, change)
        return names

    def names(self, keep: Keep) -> dict[str, Node]:
        names = dict(self.durable)
        for change in self.pending:
            if keep():
                _apply(names, change)
        return names


Node = File | Symlink | Folder


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """The tree below `root` at one point of the recorded calls."""

    def __init__(self, root: Path) -> None:
        """As the files are now, all of it durable."""
        self.root = root
        self.tree = _read(root)

    def folder(self, path: Path) -> Folder:
        node: Node = self.tree
        for part in path.relative_to(self.root).parts:
            assert isinstance(node, Folder)
            node = node.now[part]
        assert isinstance(node, Folder)
        return node

    def shows(self, path: Path) -> bool:
        """Whether there is anything under this name now."""
        node: Node | None = self.tree
        for part in path.relative_to(self.root).parts:
            node = node.now.get(part) if isinstance(node, Folder) else None
        return node is not None

    def node(self, path: Path) -> Node:
        return self.folder(path.parent).now[path.name]

    def file(self, path: Path) -> File:
        node = self.node(path)
        assert isinstance(node, File)
        return node

    def replay(self, call: Call) -> None:
        """Apply one recorded call."""
        match call:
            case ("create", Path() as path, int(inode), int(mtime)):
                self.folder(path.parent).pending.append({path.name: File(inode=inode, mtime=mtime)})
            case ("make_directory", Path() as path):
                self.folder(path.parent).pending.append({path.name: Folder()})
            case ("write", Path() as path, int(offset), bytes(data), int(mtime)):
                file = self.file(path)
                file.pending.append((offset, data))
                file.mtime = mtime
            case ("sync" | "sync_directory", Path() as path) if not self.shows(path):
                pass  # It was opened before its last name went: nothing is left to be durable.
            case ("sync", Path() as path):
                self.file(path).sync()
            case ("link", Path() as source, Path() as target):
                self.folder(target.parent).pending.append({target.name: self.file(source)})
            case ("symlink", str(content), Path() as path, int(inode), int(mtime)):
                self.folder(path.parent).pending.append({path.name: Symlink(content, inode, mtime)})
            case ("sync_directory", Path() as path):
                self.folder(path).sync()
            case ("rename", Path() as source, Path() as target):
                node = self.node(source)
                if node is self.folder(target.parent).now.get(target.name):
                    return  # Between two names of one file the kernel does nothing.
                if source.parent == target.parent:
                    self.folder(source.parent).pending.append({source.name: None, target.name: node})
                else:
                    self.folder(target.parent).pending.append({target.name: node})
                    self.folder(source.parent).pending.append({source.name: None})
            case ("unlink", Path() as path):
                self.folder(path.parent).pending.append({path.name: None})
            case _:
                raise AssertionError(f"not a call that changes the disk: {call!r}")

    def leave(self, target: Path, keep: Keep, cut: Callable[[int], int] = lambda size: size) -> None:
        """Write what is left after a power failure into `target`, an empty directory; `keep` is asked for each pending
        change, `cut` how much of a kept write is left.
        """
        _write(self.tree, target, keep, cut, {})


Call = tuple[Any, ...]


def _read(path: Path) -> Folder:
    return _read_folder(path, {})


def _read_folder(path: Path, files: dict[int, File]) -> Folder:
    """Two names of one file are one node."""
    result = Folder()
    for entry in os.scandir(path):
        status = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            result.durable[entry.name] = Symlink(os.readlink(entry.path), status.st_ino, status.st_mtime_ns)
        elif entry.is_dir():
            result.durable[entry.name] = _read_folder(Path(entry.path), files)
        else:
            if status.st_ino not in files:
                content = bytearray(Path(entry.path).read_bytes())
                files[status.st_ino] = File(content, inode=status.st_ino, mtime=status.st_mtime_ns)
            result.durable[entry.name] = files[status.st_ino]
    return result


def _write(folder: Folder, target: Path, keep: Keep, cut: Callable[[int], int], written: dict[File, Path]) -> None:
    for name, node in folder.names(keep).items():
        path = target / name
        if isinstance(node, Folder):
            path.mkdir()
            _write(node, path, keep, cut, written)
        elif isinstance(node, Symlink):
            path.symlink_to(node.content)
            os.utime(path, ns=(node.mtime, node.mtime), follow_symlinks=False)
            INODES.same(path, node.inode)
        elif node in written:
            os.link(written[node], path)
        else:
            written[node] = path
            path.write_bytes(node.content(keep, cut))
            os.utime(path, ns=(node.mtime, node.mtime))
            INODES.same(path, node.inode)


class Inodes:
    """A file that is left after a power failure is the one of before, though it lies in another directory here: what
    compares files by their inodes sees one number for both within `kept`.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next = 1 << 60

    def new(self, inode: int) -> int:
        """The number of a file that was just created, whose inode may have been another's before."""
        self._next += 1
        self._numbers[inode] = self._next
        return self._next

    def same(self, path: Path, number: int) -> None:
        """The file at `path` is the one with this number."""
        self._numbers[os.lstat(path).st_ino] = self.of(number)

    def of(self, inode: int) -> int:
        return self._numbers.get(inode, inode)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Every identity of a file bears its number within the block."""
        original = FileIdentity.__dict__["of"]

        def of(kind: type[FileIdentity], stat: os.stat_result) -> FileIdentity:
            inode = self.of(stat.st_ino)
            return kind(device=stat.st_dev, inode=inode, size=stat.st_size, mtime_ns=stat.st_mtime_ns)

        FileIdentity.of = classmethod(of)  # type: ignore[assignment]
        try:
            yield
        finally:
            FileIdentity.of = original  # type: ignore[method-assign]


INODES = Inodes()


@dataclass
class Recorder(AbstractContextManager["Recorder"]):
    """Records every call that changes a tree, and marks that the test sets between them. Syncs do not wait.

    Calls of all threads are recorded in the order in which they happened. `before` is called with the name of each call
    before it; what it raises takes the call's place.
    """

    before: Callable[[str], None] = lambda name: None

    calls: list[Call] = field(default_factory=list)
    marks: list[tuple[int, Any]] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)
    _original: dict[str, Callable[..., Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def mark(self, what: Any) -> None:
        """Remember that something was promised at this point of the calls."""
        with self._lock:
            self.marks.append((len(self.calls), what))

    def promised(self, calls: int) -> list[Any]:
        """The marks that were set before call number `calls`."""
        return [what for at, what in self.marks if at <= calls]

    def __enter__(self) -> Recorder:
        for name in RECORDED:
            self._original[name] = getattr(fs, name)
            setattr(fs, name, self._announced(name, getattr(self, f"_{name}")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, function in self._original.items():
            setattr(fs, name, function)

    def _announced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.before(name)
            return function(*args, **kwargs)

        return call

    def _create(self, path: Path, *, mode: int = 0o644) -> int:
        with self._lock:
            fd: int = self._original["create"](path, mode=mode)
            self._paths[fd] = path
            status = os.fstat(fd)
            self.calls.append(("create", path, INODES.new(status.st_ino), status.st_mtime_ns))
            return fd

    def _reopen(self, path: Path) -> int:
        with self._lock:
            fd: int = self._original["reopen"](path)
            self._paths[fd] = path
            return fd

    def _write(self, fd: int, buffers: Sequence[memoryview | bytes]) -> None:
        with self._lock:
            offset = os.lseek(fd, 0, os.SEEK_CUR)
            self._original["write"](fd, buffers)
            self.calls.append(("write", self._paths[fd], offset, b"".join(buffers), os.fstat(fd).st_mtime_ns))

    def _write_at(self, fd: int, data: bytes, offset: int) -> None:
        with self._lock:
            self._original["write_at"](fd, data, offset)
            self.calls.append(("write", self._paths[fd], offset, bytes(data), os.fstat(fd).st_mtime_ns))

    def _sync(self, fd: int) -> None:
        with self._lock:
            self.calls.append(("sync", self._paths[fd]))

    def _sync_data(self, fd: int) -> None:
        self._sync(fd)

    def _sync_file(self, path: Path) -> None:
        with self._lock:
            self.calls.append(("sync", path))

    def _link(self, source: Path, target: Path) -> None:
        with self._lock:
            self._original["link"](source, target)
            self.calls.append(("link", source, target))

    def _symlink(self, content: str, path: Path) -> None:
        with self._lock:
            self._original["symlink"](content, path)
            status = path.lstat()
            self.calls.append(("symlink", content, path, INODES.new(status.st_ino), status.st_mtime_ns))

    def _sync_directory(self, path: Path) -> None:
        with self._lock:
            self.calls.append(("sync_directory", path))

    def _make_directory(self, path: Path) -> None:
        with self._lock:
            self._original["make_directory"](path)
            self.calls.append(("make_directory", path))

    def _rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._original["rename"](source, target)
            self.calls.append(("rename", source, target))
            for fd, path in list(self._paths.items()):
                if path == source or source in path.parents:
                    self._paths[fd] = target / path.relative_to(source)

    def _unlink(self, path: Path) -> None:
        with self._lock:
            self._original["unlink"](path)
            self.calls.append(("unlink", path))

    def _remove_directory(self, path: Path) -> None:
        with self._lock:
            self._original["remove_directory"](path)
            self.calls.append(("unlink", path))


def nothing_kept() -> bool:
    return False


def all_kept() -> bool:
    return True


def by_chance(random: Random) -> Keep:
    """Each pending change is kept or lost by itself."""
    return lambda: random.random() < 0.5


def ways(seed: int) -> Iterator[tuple[str, Keep, Callable[[int], int]]]:
    """What is left of the pending changes: nothing, everything, any of them, and of writes any first part."""
    random = Random(seed)
    yield "nothing", nothing_kept, lambda size: size
    yield "everything", all_kept, lambda size: size
    yield "torn", all_kept, lambda size: random.randrange(size + 1)
    yield "some", by_chance(random), lambda size: size
    yield "some torn", by_chance(random), lambda size: random.randrange(size + 1)


def lose_power_everywhere(
    root: Path,
    recorder: Recorder,
    disk: Disk,
    check: Callable[[Path, int], None],
    *,
    kept: frozenset[str] = frozenset(),
    every: int = 1,
    within: Callable[[], AbstractContextManager[object]] = Recorder,
) -> int:
    """At every call; of a short run each moment sees one way, and all ways come in turn, unless `kept` names some.

    `check` takes the directory that is left, below `root`, and how many calls there were. `every`: of so many calls
    only one. `within`: what a check runs in; by default syncs do not wait, since what is checked loses no power, and
    calls that no recording knows are refused. Returns how many states were checked.
    """
    calls, tried = recorder.calls, 0
    for number in range(len(calls) + 1):
        possible = list(ways(number))
        turn = at_depth(short=possible[number % len(possible) :][:1], deep=possible)
        for name, keep, cut in [way for way in possible if way[0] in kept] or turn if number % every == 0 else []:
            left = root / f"{number}-{name}"
            left.mkdir()
            disk.leave(left, keep, cut)
            try:
                with within():
                    check(left, number)
            except Exception as error:
                error.add_note(f"power lost before call {number} ({calls[number : number + 1]}), kept: {name}")
                raise
            shutil.rmtree(left)
            tried += 1
        if number < len(calls):
            disk.replay(calls[number])
    return tried


class Without:
    """The module of system calls as another module sees it, some calls left out."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return _nothing if name in self._names else getattr(fs, name)


def _nothing(*_: object, **__: object) -> None:
    pass
