"""Tries defects, a few at a time: each in a tree of its own, with the tests that are to notice it."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mutation.defect import Defect
from mutation.tree import Run, Tree


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
