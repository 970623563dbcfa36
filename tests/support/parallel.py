"""How the tests run beside each other: their files lie in memory, what pytest compiles is compiled once, and parallel
workers (pytest-xdist) share the tests out by file, the long ones first.
"""

from __future__ import annotations

import compileall
import gc
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.assertion import rewrite
from xdist.scheduler import LoadScopeScheduling

from support.programs import build_beside, later, needs_of, outcomes_of

TESTS = Path(__file__).resolve().parents[1]
_SCRATCH = pytest.StashKey[Path]()

# Each of these takes minutes: the first half waits for servers and clocks, the second half computes. Workers take a
# file of each in turn, so that the cores are busy while others wait, and what is short fills the gaps at the end.
WAITING = ("demos", "e2e", "chaos", "manifests", "local", "segments/drill", "kube", "cli", "examples")
COMPUTING = ("simulation", "conformance", "crash", "blocks", "worker", "bench", "fuzz", "contract")

# Files that share a Spark application, or an API server to which another test adds what takes it long; and those that
# read all modules of the package.
TOGETHER = {
    "the sources of the package": (
        "house/test_house_rules.py",
        "house/test_layers.py",
        "house/test_layers.py",
        "house/test_pages.py",
        "house/test_seam.py",
        "tools/images/test_contents.py",
    ),
    "a Spark application": ("worker/spark/test_blocks.py", "worker/spark/test_engine.py"),
    "definitions of Spark operators": (
        "kube/launchers/test_applications.py",
        "kube/launchers/test_hazard_rows.py",
        "kube/launchers/test_played_operator.py",
        "kube/launchers/test_pod_launcher.py",
        "kube/launchers/test_store_secrets.py",
    ),
}


MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "compaction-tests-"
ASKED: Final = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}.asked"
"""Where the first worker says of which groups tests share its API server (`served`), and which programs tests need
(`programs`): only workers know what tests ask for.
"""
ASKED_INPUT: Final = "asked"
ROOM: Final = 6 << 30
"""Bytes: a run leaves a gigabyte and a half, and its servers and JVMs need memory besides."""


def room_in_memory() -> int:
    """Bytes that temporary files may take in memory; 0 where programs cannot be started from there."""
    try:
        found = os.statvfs(MEMORY)
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    if found.f_flag & os.ST_NOEXEC:
        return 0
    (available,) = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return min(found.f_bavail * found.f_frsize, available // 2)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files of the tests, and of all that they start, lie in memory where that has room: servers wait for
    every sync, and a quarter of the CPU time of tests on files is that of a disk's journal. What a device does is not
    tested anywhere: what is not synced is lost where the tests say so, by their own hand.
    """
    if not config.getoption("numprocesses", None):
        # Until all tests are collected: of what is imported and collected nothing becomes garbage, and looking for it
        # was a quarter of the CPU time.
        gc.disable()
    if hasattr(config, "workerinput") or os.environ.get("TMPDIR") or room_in_memory() < ROOM:
        return
    for left in MEMORY.glob(f"{PREFIX}*"):
        process = left.name.removeprefix(PREFIX)
        if process.isdigit() and not Path("/proc", process).exists():
            shutil.rmtree(left, ignore_errors=True)
    scratch = MEMORY / f"{PREFIX}{os.getpid()}"
    # As /tmp is: PostgreSQL has files of its own in it, as a user who is not root.
    scratch.mkdir()
    scratch.chmod(0o1777)
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    config.stash[_SCRATCH] = scratch


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What a failed run has left is kept until the next one."""
    scratch = session.config.stash.get(_SCRATCH, None)
    if scratch is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(scratch, ignore_errors=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before the workers start, which import everything at the same moment: in a fresh clone each of them compiled all
    of it, which was half of its first minute.
    """
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or sys.dont_write_bytecode:
        return
    files = [path for folder in (TESTS, TESTS.parent / "operator") for path in folder.rglob("*.py")]
    forked = multiprocessing.get_context("fork")
    processes = [forked.Process(target=compile_ahead, args=(config, files[begin::2])) for begin in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """All that was imported and collected stays until the end: the collector need not look at its million objects."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Before the scheduler hears that the tests are collected.
    given = getattr(session.config, "workerinput", {})
    if given.get("workerid") == "gw0":
        served = {group(item.nodeid) for item in session.items if "control_plane" in getattr(item, "fixturenames", ())}
        programs: defaultdict[str, set[str]] = defaultdict(set)
        for item in session.items:
            if names := needs_of(item):
                programs[group(item.nodeid)] |= names
        asked = {"served": list(served), "programs": {each: list(names) for each, names in programs.items()}}
        Path(given[ASKED_INPUT]).write_text(json.dumps(asked))


def compile_ahead(config: pytest.Config, files: Iterable[Path]) -> None:
    """Compile those that have changed since, as they are imported: tests with asserts that explain themselves."""
    for path in files:
        if not (path.name.startswith("test_") or path.name == "conftest.py"):
            compileall.compile_file(path, quiet=2)
        elif rewrite._read_pyc(path, compiled(path)) is None:
            # pytest has no function for it that is not its own.
            compiled(path).parent.mkdir(exist_ok=True)
            source, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled(path))


def compiled(path: Path) -> Path:
    """Where pytest keeps what it has compiled."""
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def place(item: pytest.Item) -> str:
    """The file of a test, relative to tests/."""
    return item.path.relative_to(TESTS).as_posix()


def _rank(file: str, folders: tuple[str, ...]) -> int | None:
    return next((rank for rank, folder in enumerate(folders) if file.startswith(f"{folder}/")), None)


def in_turns(files: list[str]) -> list[str]:
    """Files in the order in which workers take them: waiting and computing in turns, the others last."""
    waiting = sorted((rank, file) for file in files if (rank := _rank(file, WAITING)) is not None)
    computing = sorted((rank, file) for file in files if (rank := _rank(file, COMPUTING)) is not None)
    turns = (item[1] for pair in zip_longest(waiting, computing) for item in pair if item is not None)
    return list(dict.fromkeys([*turns, *files]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only in a worker: elsewhere the order of the files is that in which people expect them."""
    if not hasattr(config, "workerinput"):
        return
    files = in_turns(list(dict.fromkeys(place(item) for item in items)))
    order = {file: index for index, file in enumerate(files)}
    items.sort(key=lambda item: order[place(item)])


def group(nodeid: str) -> str:
    """What runs in one process, one after the other: the tests of a file, and those of files that share more."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return next((name for name, files in TOGETHER.items() if file in files), file)


def next_of(waiting: Iterable[str], served: Set[str], *, first_half: bool, later: Mapping[str, int]) -> str:
    """Which of the waiting groups a worker takes: the first of those whose tests share the worker's API server
    (`served`) in the first half of the workers, of the others in the second; when there is none left, the first of all.
    Those that would wait for a program come after all others, in the turns in which their programs are built (`later`).

    Each worker that begins with one starts a server, which costs a CPU second a minute until the end.
    """
    by_turn: defaultdict[int, list[str]] = defaultdict(list)
    for item in waiting:
        by_turn[later.get(item, -1)].append(item)
    groups = by_turn[min(by_turn)]
    return next((item for item in groups if (item in served) is first_half), groups[0])


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out one group after the other to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def schedule(self) -> None:
        if self.collection is None:
            # It is not there if that worker has died.
            told = json.loads(ASKED.read_text()) if ASKED.exists() else {"served": [], "programs": {}}
            ASKED.unlink(missing_ok=True)
            self.served = set(told["served"])
            self.needed = {name: set(names) for name, names in told["programs"].items()}
            build_beside(self.config, self.programs)
        super().schedule()

    @property
    def programs(self) -> set[str]:
        return set().union(*self.needed.values())

    def _assign_work_unit(self, node: Any) -> None:
        first_half = self.nodes.index(node) < (len(self.nodes) + 1) // 2
        waiting = later(self.needed, outcomes_of(self.config).missing(self.programs))
        chosen = next_of(self.workqueue, self.served, first_half=first_half, later=waiting)
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[ASKED_INPUT] = str(ASKED)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Groups by name of the file: marks (`--dist loadgroup` of pytest-xdist 3.8) are not seen with pytest 9.2."""
    return ByGroup(config, log)
