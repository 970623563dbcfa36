"""Programs that only some tests need: on a fresh machine they are built beside the tests that need none of them.

A test says what it needs by a fixture (`versitygw_program`, `promtool_program`, or one that asks for these, such as
`s3`), or by the marker `programs` where that is not known before it runs. In a parallel run the scheduler hands out
last what needs a program that is missing, and one process builds them, one after the other (`Builder`). A test waits
for its programs before its time limit begins. Each program is tried once in a run: what went wrong is the failure of
all tests that need it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from compaction.local.errors import BinaryError
from compaction.local.processes.process import GUARD, ProcessId, exclusive
from support.pinned_modules import ensure_definitions, find_definitions
from tools.promtool import ensure_promtool, find_promtool
from tools.servers.versitygw import ensure_versitygw, find_versitygw

Report = Callable[[str], None]
STATE_INPUT: Final = "programs"
MARKER: Final = "programs"
ENDED: Final = "the run of the tests has ended"
_STATE = pytest.StashKey[Path]()
_REASON = pytest.StashKey[str]()
_BUILDER = pytest.StashKey["Builder"]()


@dataclass(frozen=True, slots=True)
class Program:
    """`find` says whether it is here, `ensure` builds it otherwise (BinaryError: it cannot)."""

    find: Callable[[], Path | None]
    ensure: Callable[[Report], Path]


PROGRAMS: Final = {
    "prometheus-operator": Program(find_definitions, lambda report: ensure_definitions(report=report)),
    "versitygw": Program(find_versitygw, lambda report: ensure_versitygw(report=report)),
    "promtool": Program(find_promtool, lambda report: ensure_promtool(report=report)),
}
"""In the order in which they are built: what takes seconds first, then what most tests need."""


def needs_of(item: pytest.Item) -> frozenset[str]:
    """The programs that a test needs."""
    fixtures = set(getattr(item, "fixturenames", ()))
    marked = {name for mark in item.iter_markers(MARKER) for name in mark.args}
    return frozenset(marked | {name for name in PROGRAMS if f"{name}_program" in fixtures})


def needs(*names: str) -> pytest.MarkDecorator:
    """The marker, for tests and for parameters of fixtures."""
    assert set(names) <= set(PROGRAMS), names
    return pytest.mark.programs(*names)


def later(needed: Mapping[str, Set[str]], missing: Set[str]) -> dict[str, int]:
    """Of groups of tests with the programs that they need: those that would wait for one that is missing, with the turn
    in which the last of these is built.
    """
    turns = {name: turn for turn, name in enumerate(PROGRAMS) if name in missing}
    return {group: max(turns[name] for name in names & missing) for group, names in needed.items() if names & missing}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What all processes of a run know of its programs: a directory with a lock for each that is being built, and a
    file for each that cannot be.
    """

    directory: Path

    def failure(self, name: str) -> str:
        """Why the program cannot be built; empty when nobody has found out."""
        try:
            return self._file(name).read_text()
        except FileNotFoundError:
            return ""

    def fail(self, name: str, reason: str) -> None:
        fresh = self.directory / f"{name}.{os.getpid()}"
        fresh.write_text(reason)
        fresh.rename(self._file(name))

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those that somebody must build, or builds: neither here nor given up."""
        return {name for name in names if PROGRAMS[name].find() is None and not self.failure(name)}

    @contextmanager
    def building(self, name: str, report: Report) -> Iterator[None]:
        """One process at a time; the others wait and say for whom."""
        with exclusive(self.directory / f"{name}.lock", what=f"building {name}", report=report):
            yield

    def provide(self, name: str, report: Report) -> str:
        """Build the program where it is not here yet, or wait for the process that does; why it cannot be built, else
        nothing.
        """
        if PROGRAMS[name].find() is not None:
            return ""
        with self.building(name, report):
            return self.build(name, report)

    def build(self, name: str, report: Report) -> str:
        """The same in the process that has its lock."""
        if not (reason := self.failure(name)):
            try:
                PROGRAMS[name].ensure(report)
            except (BinaryError, OSError) as error:
                reason = f"{name} cannot be built: {error}"
                self.fail(name, reason)
                report(reason)
        return reason

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.failed"


@dataclass(frozen=True, slots=True)
class Builder:
    """The process that builds what is missing, in a session of its own: a terminal's Ctrl-C reaches us, who stop it.
    The kernel ends it when we die.
    """

    outcomes: Outcomes
    names: tuple[str, ...]
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, outcomes: Outcomes, missing: Set[str]) -> Builder:
        """It has all its locks when this returns: a test that needs one of the programs waits and builds nothing."""
        names = tuple(name for name in PROGRAMS if name in missing)
        # Four compilers that collect their garbage a quarter as often would take the memory of the tests.
        environment = {name: value for name, value in os.environ.items() if name != "GOGC"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "support.programs", str(outcomes.directory), *names]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
        return cls(outcomes, names, process)

    def stop(self) -> None:
        """End it, and Go with it. What it has not built is given up first: no test that waits begins to build it."""
        for name in self.outcomes.missing(self.names):
            self.outcomes.fail(name, f"{name} cannot be built: {ENDED}")
        if found := ProcessId.of("builder", self.process.pid):
            found.stop(group=True)
        self.process.wait()


def build_all(outcomes: Outcomes, names: Iterable[str], *, ready: Callable[[], None], report: Report) -> None:
    """Build one after the other, and hold the lock of each until it is there or given up. `ready`: all are held."""
    with ExitStack() as held:
        locks: dict[str, ExitStack] = {}
        for name in names:
            locks[name] = held.enter_context(ExitStack())
            locks[name].enter_context(outcomes.building(name, report))
        ready()
        for name, lock in locks.items():
            outcomes.build(name, partial(_tell_of, name, report))
            lock.close()


def _tell_of(name: str, report: Report, line: str) -> None:
    report(f"{name}: {line}")


def main(directory: str, *names: str) -> int:
    """Says how it goes on standard error, where pytest's own output is not."""
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()

    def report(line: str) -> None:
        _tell(f"[programs {int(time.monotonic() - started):4d} s] {line}")

    def ready() -> None:
        report(f"building {', '.join(names)} beside the tests; those that need them come last")
        print("ready", flush=True)

    try:
        build_all(Outcomes(Path(directory)), names, ready=ready, report=report)
    except KeyboardInterrupt:
        return 130
    report("done")
    return 0


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def build_beside(config: pytest.Config, names: Iterable[str]) -> None:
    """Start to build those that are missing, for a parallel run."""
    outcomes = outcomes_of(config)
    if missing := outcomes.missing(names):
        config.stash[_BUILDER] = Builder.start(outcomes, missing)


def outcomes_of(config: pytest.Config) -> Outcomes:
    """Of this run: workers have those of the process that started them."""
    if given := getattr(config, "workerinput", None):
        return Outcomes(Path(given[STATE_INPUT]))
    if _STATE not in config.stash:
        config.stash[_STATE] = Path(tempfile.mkdtemp(prefix="compaction-programs-"))
    return Outcomes(config.stash[_STATE])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[STATE_INPUT] = str(outcomes_of(node.config).directory)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Before the workers are ended: one that waits for a program would begin to build it."""
    if builder := session.config.stash.get(_BUILDER, None):
        builder.stop()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _STATE in config.stash:
        shutil.rmtree(config.stash[_STATE], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around that of pytest-timeout, whose clock begins afterwards; nothing is captured here."""
    names = sorted(needs_of(item))
    if missing := [name for name in names if PROGRAMS[name].find() is None]:
        outcomes = outcomes_of(item.config)
        reasons = [outcomes.provide(name, lambda line: _tell(f"{item.nodeid}: {line}")) for name in missing]
        item.stash[_REASON] = "; ".join(filter(None, reasons))
    return (yield)


def _tell(line: str) -> None:
    # Not by sys.stderr: xdist's workers have their own.
    os.write(2, f"\n{line}\n".encode())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := item.stash.get(_REASON, ""):
        pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="session")
def versitygw_program() -> Path:
    """The S3 server (`s3` is a running one)."""
    return ensure_versitygw(report=print)


@pytest.fixture(scope="session")
def promtool_program() -> Path:
    return ensure_promtool(report=print)


# A machine of one's own for the search for programs: small fake programs in temporary directories, no PATH of the
# host.

Programs = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """`programs("folder", "etcd", ...)` makes a directory with executable files of these names."""

    def make(folder: str, *names: str) -> Path:
        directory = tmp_path / folder
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            (directory / name).write_text("#!/bin/sh\nexit 0\n")
            (directory / name).chmod(0o755)
        return directory

    return make


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
