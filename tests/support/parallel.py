"""How the tests are shared out between parallel workers (pytest-xdist): by file, the long ones first."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# Each of these takes minutes: the first half waits for servers and clocks, the second half computes. Workers take a
# file of each in turn, so that the cores are busy while others wait, and what is short fills the gaps at the end.
WAITING = ("e2e", "chaos", "local", "drill", "kube/launchers", "cli")
COMPUTING = ("simulation", "crash", "stores/blocks", "rewrite", "bench", "fuzz", "contract")


def place(item: pytest.Item) -> str:
    """The file of a test, relative to tests/."""
    return item.path.relative_to(TESTS).as_posix()


def _rank(file: str, folders: tuple[str, ...]) -> int | None:
    return next((rank for rank, folder in enumerate(folders) if file.startswith(f"{folder}/")), None)


def in_turns(files: list[str]) -> list[str]:
    """Files in the order in which workers take them: waiting and computing in turns, the others last."""
    waiting = sorted((rank, file) for file in files if (rank := _rank(file, WAITING)) is not None)
    computing = sorted((rank, file) for file in files if (rank := _rank(file, COMPUTING)) is not None)
    turns: list[str] = []
    for index in range(max(len(waiting), len(computing))):
        turns += [queue[index][1] for queue in (waiting, computing) if index < len(queue)]
    return turns + [file for file in files if file not in set(turns)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only in a worker: elsewhere the order of the files is that in which people expect them."""
    if not hasattr(config, "workerinput"):
        return
    files = in_turns(list(dict.fromkeys(place(item) for item in items)))
    order = {file: index for index, file in enumerate(files)}
    items.sort(key=lambda item: order[place(item)])
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(place(item)))
