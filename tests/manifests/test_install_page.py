"""docs/install.md, followed word by word on a real API server. What needs a kubelet is for a node (tests/node)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.local.programs.binaries import Binaries
from manifests.leftovers import everything, finish_deleted_namespaces
from manifests.pages import commands_of, script_of
from support.cluster.control_plane import ControlPlane
from support.cluster.rendered import MANIFESTS, ROOT

PAGE = ROOT / "docs" / "install.md"
COMMANDS = commands_of(PAGE)
#: These wait for pods to run, or build what runs in them.
OF_A_NODE = {("rollout", "status"), ("wait",), ("images",)}
COPY = script_of(PAGE, "cp -r")
EXAMPLES = sorted(path.parent.name for path in (MANIFESTS / "examples").glob("*/kustomization.yaml"))


def needs_a_node(command: list[str]) -> bool:
    return any(tuple(command[1 : 1 + len(words)]) == words for words in OF_A_NODE)


def test_the_page_says_what_it_is_about() -> None:
    programs = {command[0] for command in COMMANDS}
    assert programs == {"make", "kubectl"}
    assert sum(not needs_a_node(command) for command in COMMANDS) >= 10


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_that_is_copied_as_the_page_says_builds_in_another_repository(
    rendered: Callable[[Path], list[dict[str, Any]]], binaries: Binaries, tmp_path: Path, example: str
) -> None:
    script, replaced = re.subn(r"\binstallation\b", example, COPY)
    assert replaced >= 2
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(binaries.kubectl)
    environment = os.environ | {"REPOSITORY": str(tmp_path / "fleet"), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def run(text: str) -> None:
        answer = subprocess.run(
            ["sh", "-ec", text], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr

    run(script)
    copy = tmp_path / "fleet" / "compaction"
    copied = [path.parent for path in copy.rglob("kustomization.yaml")]
    (own,) = [path for path in copied if not (ROOT / path.relative_to(copy)).exists()]
    assert rendered(own) == rendered(MANIFESTS / "examples" / example)
    # The next release replaces what is ours and leaves alone what is theirs.
    (own / "kustomization.yaml").write_text((own / "kustomization.yaml").read_text() + "# theirs\n")
    run(script.splitlines()[1])
    assert (own / "kustomization.yaml").read_text().endswith("# theirs\n")


@pytest.mark.apiserver
def test_every_command_of_the_page_works(empty_plane: ControlPlane) -> None:
    before = everything(empty_plane)
    done: list[str] = []
    for command in COMMANDS:
        if needs_a_node(command):
            continue
        program, *arguments = command
        assert program == "kubectl"
        if arguments[0] == "delete" and "--ignore-not-found" in arguments:
            arguments.append("--wait=false")  # there is no controller that lets the namespace go
        answer = subprocess.run(
            [str(empty_plane.binaries.kubectl), f"--kubeconfig={empty_plane.kubeconfig}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{' '.join(command)}\nafter {done}\n{answer.stderr}"
        assert "Warning" not in answer.stderr, answer.stderr
        done.append(" ".join(command))
    finish_deleted_namespaces(empty_plane, "compaction-system")
    left = {
        item for item in everything(empty_plane) - before if "/storage/" not in item and not item.endswith("/storage")
    }
    assert left == set(), "what is left is the namespace of the logs, with its volume"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "runbooks").glob("*.md")), ids=lambda page: page.stem)
def test_runbooks_name_commands_and_pages_that_exist(page: Path) -> None:
    for command in commands_of(page):
        assert command[0] in {"kubectl", "compactor"}, command
    for target in _links(page.read_text()):
        path = target.partition("#")[0]
        assert not path or (page.parent / path).exists(), target


def _links(text: str) -> list[str]:
    return [part.partition(")")[0] for part in text.split("](")[1:]]
