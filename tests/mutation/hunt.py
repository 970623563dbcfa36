"""Tries defects, a few at a time: each in a tree of its own, with the tests that are to notice it."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import pytest

from mutation.defect import Defect
from mutation.inside import FAILED, ROOT

# A private copy of the tree, in which a defect can be put while others work on the original.

ORIGINAL: Final = Path(__file__).resolve().parents[2]
_COPIED: Final = ("operator", "tests", "pyproject.toml")
_LINKED: Final = ("docs", "crds", "manifests", "spark-images")
_FLEETING: Final = shutil.ignore_patterns("*.pyc.*")
"""Compiled files as they are written: gone before they are copied, when other tests run beside this."""


@dataclass(frozen=True, slots=True)
class Run:
    """How tests ended in a tree: the exit code of pytest, the first test that failed, all that was printed."""

    code: int
    failed: str | None
    output: str
    seconds: float

    @property
    def killed(self) -> bool:
        """A test failed. A run that could not begin (a file that cannot be imported, no tests) has killed nothing."""
        return self.code == pytest.ExitCode.TESTS_FAILED and self.failed is not None

    @property
    def survived(self) -> bool:
        return self.code == pytest.ExitCode.OK


class Tree:
    """A copy in `folder`, which must not exist; gone with whatever directory it was put into."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.root.mkdir(parents=True)
        self._failed = folder / "failed"
        for name in _COPIED:
            source = ORIGINAL / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, symlinks=True, ignore=_FLEETING)
            else:
                shutil.copy2(source, self.root / name)
        for name in _LINKED:
            (self.root / name).symlink_to(ORIGINAL / name)
        # Reference files of other systems are looked for beside the tree.
        if (shared := ORIGINAL.parent / "shared").is_dir():
            (folder / "shared").symlink_to(shared)

    @contextmanager
    def having(self, defect: Defect) -> Iterator[None]:
        """The defect is in the copy for as long as the block runs. Raises ValueError as `Defect.applied`."""
        path = defect.path(self.root)
        sound = path.read_text()
        self._write(path, defect.applied(sound))
        try:
            yield
        finally:
            self._write(path, sound)

    def test(self, tests: Sequence[str]) -> Run:
        """Run `tests` (files or node ids below tests/) until one fails, each file in the order given."""
        self._failed.unlink(missing_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutation.inside", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=self.root,
            env=self._environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        failed = self._failed.read_text() if self._failed.exists() else None
        return Run(done.returncode, failed, done.stdout, time.monotonic() - began)

    def _environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Children of the tests import the copy as well: PYTHONPATH goes before what is installed."""
        kept = {name: value for name, value in inherited.items() if not name.startswith("PYTEST_")}
        path = os.pathsep.join(str(self.root / name) for name in ("operator", "tests"))
        return kept | {"PYTHONPATH": path, ROOT: str(self.root), FAILED: str(self._failed)}

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        # A compiled file counts as current when size and second are the same, and both changes fit into one.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


class Verdict(StrEnum):
    """What became of a defect."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"  # the tests could not be run with it, so they say nothing about it


@dataclass(frozen=True, slots=True)
class Found:
    """A defect and the run of its tests."""

    defect: Defect
    run: Run

    @property
    def verdict(self) -> Verdict:
        if self.run.killed:
            return Verdict.KILLED
        return Verdict.SURVIVED if self.run.survived else Verdict.BROKEN


def hunt(defects: Sequence[Defect], *, jobs: int) -> Iterator[Found]:
    """Each defect with what became of it, in the order in which they end.

    Raises ValueError as `Defect.applied`.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(min(jobs, len(defects))):
            trees.put(Tree(Path(folder) / str(number)))

        def one(defect: Defect) -> Found:
            tree = trees.get()
            try:
                with tree.having(defect):
                    return Found(defect, tree.test(defect.killers))
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            tries = [pool.submit(one, defect) for defect in defects]
            try:
                for done in as_completed(tries):
                    yield done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def without_defects(tests: Sequence[str]) -> Run:
    """The same tests on a sound copy: one that fails there as well has noticed nothing."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        return Tree(Path(folder) / "sound").test(tests)
