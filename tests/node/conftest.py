"""A real node for the session. `make e2e` runs these tests: they need root and minutes, so `make test` does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.local.binaries import cache_directory
from compaction.local.node.running import RunningNode
from compaction.local.node.start import start_node
from support.host_state import HostState, assert_no_trace, look

DIRECTORY_VARIABLE = "COMPACTION_NODE_DIR"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.node)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Says what takes long, also while pytest captures the output."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[node] {line}", end="", flush=True)

    return say


@pytest.fixture(scope="session")
def node_directory() -> Path:
    """Where the node keeps its images between sessions."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or cache_directory() / "node")


@pytest.fixture(scope="session")
def host_before() -> HostState:
    """The machine before the first node of the session."""
    return look()


@pytest.fixture(scope="session")
def node(node_directory: Path, host_before: HostState, report: Callable[[str], None]) -> Iterator[RunningNode]:
    """A node that is Ready. After the session it is gone without a trace, or the session fails."""
    with start_node(node_directory, report=report) as running:
        yield running
    assert_no_trace(host_before, node_directory)
