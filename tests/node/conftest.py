"""A real node for the session. `make e2e` runs these tests: they need root and minutes, so `make test` does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.local.processes.process import cache_directory
from node.host_state import HostState, assert_no_trace, look
from node.on_node import Installation, installed
from node.private_servers import PrivateServers, private_servers
from support.timing import DEPTH, Depth
from tools.images.build import ensure_images
from tools.node.running import RunningNode
from tools.node.start import start_node

DIRECTORY_VARIABLE = "COMPACTION_NODE_DIR"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A short run leaves out what is only another attempt of a sort that it has."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    left_out = [item for item in ours if item.get_closest_marker("deep")] if DEPTH is Depth.SHORT else []
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in ours:
        if item not in left_out:
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
def host_before(report: Callable[[str], None]) -> HostState:
    """The machine before the first node of the session. Images are built by then: what the builder leaves on a machine
    where it has never been is not the node's.
    """
    ensure_images(report=report)
    return look()


@pytest.fixture(scope="session")
def node(node_directory: Path, host_before: HostState, report: Callable[[str], None]) -> Iterator[RunningNode]:
    """A node that is Ready. After the session it is gone without a trace, or the session fails."""
    with start_node(node_directory, report=report) as running:
        yield running
    assert_no_trace(host_before, node_directory)


@pytest.fixture(scope="session")
def installation(node: RunningNode, report: Callable[[str], None]) -> Iterator[Installation]:
    """The operator as docs/install.md says, word by word, first quickly, then for good, with an empty volume for logs;
    and its removal.
    """
    with installed(node, report) as running:
        yield running


@pytest.fixture(scope="session")
def servers(node: RunningNode, versitygw_program: Path, report: Callable[[str], None]) -> Iterator[PrivateServers]:
    """S3, PostgreSQL and etcd that pods reach, with certificates of an authority of their own."""
    with private_servers(node, versitygw_program, report) as running:
        yield running
