"""How the tests are shared out between parallel workers (pytest-xdist): by file, the long ones first."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]

# Each of these takes minutes: the first half waits for servers and clocks, the second half computes. Workers take a
# file of each in turn, so that the cores are busy while others wait, and what is short fills the gaps at the end.
WAITING = ("local/demo", "e2e", "chaos", "manifests", "local", "drill", "kube", "cli", "examples")
COMPUTING = ("simulation", "conformance", "crash", "stores/blocks", "rewrite", "bench", "fuzz", "contract")

# Files that share an API server to which somebody adds what takes it long.
TOGETHER = {
    "definitions of Spark operators": (
        "kube/launchers/test_applications.py",
        "kube/launchers/test_hazard_rows.py",
        "kube/launchers/test_played_operator.py",
        "kube/launchers/test_pod_launcher.py",
        "kube/launchers/test_store_secrets.py",
    )
}


def place(item: pytest.Item) -> str:
    """The file of a test, relative to tests/."""
    return item.path.relative_to(TESTS).as_posix()


def _rank(file: str, folders: tuple[str, ...]) -> int | None:
    return next((rank for rank, folder in enumerate(folders) if file.startswith(f"{folder}/")), None)


def in_turns(files: list[str]) -> list[str]:
    """Files in the order in which workers take them: waiting and computing in turns, the others last."""
    waiting = sorted((rank, file) for file in files if (rank := _rank(file, WAITING)) is not None)
    computing = sorted((rank, file) for file in files if (rank := _rank(file, COMPUTING)) is not None)
    turns = (one[1] for pair in zip_longest(waiting, computing) for one in pair if one is not None)
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


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out one group after the other to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Groups by name of the file: marks (`--dist loadgroup` of pytest-xdist 3.8) are not seen with pytest 9.2."""
    return ByGroup(config, log)
