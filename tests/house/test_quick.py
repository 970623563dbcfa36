"""What `make quick` runs: the tests nearest to a change, without servers, within its time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.quick import Source, changed_files, distances, read_source, select


def source(path: str, *imports: str, servers: bool = False) -> Source:
    module = path.partition("/")[2].removesuffix(".py").replace("/", ".")
    return Source(path, module, frozenset(imports), servers)


SOURCES = [
    source("operator/compaction/fence.py"),
    source("operator/compaction/commit.py", "compaction.fence"),
    source("operator/compaction/job.py", "compaction.commit"),
    source("tests/conftest.py"),
    source("tests/a/test_fence.py", "compaction.fence"),
    source("tests/a/test_job.py", "compaction.job"),
    source("tests/b/conftest.py"),
    source("tests/b/test_cluster.py", "compaction.fence", servers=True),
    source("tests/b/test_other.py"),
    source("tests/node/test_node.py", "compaction.fence"),
]
FENCE = {"operator/compaction/fence.py"}


def test_the_nearest_tests_are_taken_and_none_that_starts_servers() -> None:
    found = select(SOURCES, FENCE, {})
    assert found.chosen == ("tests/a/test_fence.py", "tests/a/test_job.py")
    assert found.left == 1
    assert distances(SOURCES, FENCE)["tests/a/test_job.py"] == 3


def test_what_does_not_fit_into_the_time_is_left() -> None:
    found = select(SOURCES, FENCE, {"a/test_job.py": 119.5, "a/test_fence.py": 1.0})
    assert found.chosen == ("tests/a/test_fence.py",)


def test_a_changed_test_is_always_run_and_a_conftest_changes_what_is_below_it() -> None:
    costly = {"b/test_cluster.py": 500.0}
    assert select(SOURCES, {"tests/b/test_cluster.py"}, costly).chosen == ("tests/b/test_cluster.py",)
    assert select(SOURCES, {"tests/b/conftest.py"}, {}).chosen == ("tests/b/test_other.py",)
    assert select(SOURCES, {"README.md"}, {}).chosen == ()


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("import compaction.api\ndef test_it(): pass\n", False),
        ("def test_it(control_plane): pass\n", True),
        ("import pytest\npytestmark = pytest.mark.spark\n", True),
    ],
)
def test_a_file_says_whether_its_tests_start_servers(tmp_path: Path, text: str, servers: bool) -> None:
    path = tmp_path / "tests" / "a" / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = read_source(path, tmp_path)
    assert (found.module, found.servers, found.is_test) == ("a.test_it", servers, True)


def test_changes_are_those_since_the_last_commit_or_in_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-q", "-m", name)
    assert changed_files(tmp_path) == {"two"}
    (tmp_path / "one").write_text("changed")
    (tmp_path / "three").write_text("new")
    assert changed_files(tmp_path) == {"one", "three"}
