"""The commands of README.md, run as they stand there and in their order; output is compared with what the page shows.

What needs minutes or a kubelet runs elsewhere: `make demo` (tests/local), the images (tests/images), a drill on a store
of one's own (tests/segments/drill), transcripts of a demo's end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clocks import eventually
from support.cluster.by_kubectl import PROGRAMS
from support.cluster.control_plane import ROOT, ControlPlane

# Commands in the documentation, so that tests can run them as they stand there.

_CODE = re.compile(r"`([^`]+)`")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page in their order, split into words: the lines of its fenced blocks without a language."""
    return [shlex.split(line, comments=True) for block in blocks_of(page) for line in block]


def blocks_of(page: Path) -> list[list[str]]:
    """The same as written, with comments and pipes, block by block."""
    blocks = [text for language, text in _FENCE.findall(page.read_text()) if not language]
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def script_of(page: Path, words: str) -> str:
    """The one shell script of a page that has these words: a fenced block in the language `sh`."""
    (found,) = [text for language, text in _FENCE.findall(page.read_text()) if language == "sh" and words in text]
    return str(found)


def sessions_of(page: Path) -> list[list[str]]:
    """The typed lines (behind `$`) of the fenced blocks of a page that show a terminal, block by block."""
    blocks = [text for language, text in _FENCE.findall(page.read_text()) if language == "console"]
    return [[line[2:] for line in block.splitlines() if line.startswith("$ ")] for block in blocks]


def inline_commands_of(page: Path, *programs: str) -> list[str]:
    """Whole commands in running text: what stands in backticks and begins with one of the programs."""
    text = _FENCE.sub("", page.read_text())
    found = [" ".join(code.split()) for code in _CODE.findall(text)]
    return [code for code in found if code.partition(" ")[0] in programs and " " in code]


PAGE = ROOT / "README.md"
ELSEWHERE = ("make images", "pip install", "kubectl get cpol", "kubectl compaction status", "compactor drill")
"""Beginnings of commands that other tests run."""
OPERATOR = "compactor operator"
SECONDS = re.compile(r"\d+\.\d{3}$")


def runs_here(line: str) -> bool:
    return not line.startswith(ELSEWHERE)


def clean(line: str) -> str:
    return re.sub(r"\s+#.*$", "", line)


class Shell:
    """A shell at the root of the checkout, with the kubeconfig of a control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        path = f"{PROGRAMS}:{plane.binaries.kubectl.parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig), "PATH": path}

    def run(self, line: str, *, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=cwd, capture_output=True, text=True, check=False, env=self.environment
        )

    def expect(self, line: str) -> str:
        answer = self.run(line)
        assert answer.returncode == 0, f"{line}: {answer.stderr}"
        return answer.stdout


def block_with(words: str) -> list[str]:
    (found,) = [block for block in blocks_of(PAGE) if any(words in line for line in block)]
    return [clean(line) for line in found]


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {command[1] for command in commands_of(PAGE) if command[0] == "make"}
    assert {"demo", "test", "images"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.apiserver
def test_the_installation_as_it_stands(empty_plane: ControlPlane) -> None:
    shell = Shell(empty_plane)
    for line in block_with("manifests/examples/installation"):
        if runs_here(line):
            shell.expect(line)
    assert "compactionpolicy" in shell.expect("kubectl get cpol -n storage -o name")


@pytest.mark.apiserver
def test_the_operator_as_a_process_as_it_stands(empty_plane: ControlPlane, tmp_path: Path) -> None:
    """From an empty cluster: the page creates the namespace it uses, and grants the account what the operator does."""
    shell = Shell(empty_plane)
    account = empty_plane.running.kubeconfig_for("NAME", tmp_path / "operator.kubeconfig")
    running: subprocess.Popen[bytes] | None = None
    log = tmp_path / "operator.log"
    try:
        for line in block_with(OPERATOR):
            if line.startswith(OPERATOR):
                free_ports = f"{line} --metrics-port 0 --health-port 0 --kubeconfig {account} --state-dir {tmp_path}"
                with log.open("wb") as out:
                    running = subprocess.Popen(
                        ["bash", "-c", f"exec {free_ports}"], env=shell.environment, stdout=out, stderr=out
                    )
            elif runs_here(line):
                shell.expect(line)
        eventually(lambda: observed(shell), "the policy to be observed")
    finally:
        if running is not None:
            running.send_signal(signal.SIGTERM)
            running.wait()
    assert "Forbidden" not in log.read_text()


def observed(shell: Shell) -> bool:
    items = json.loads(shell.expect("kubectl get cpol -n storage -o json"))["items"]
    return [item["status"]["observedGeneration"] for item in items] == [1]


@pytest.mark.apiserver
def test_a_job_by_hand_as_it_stands(control_plane: ControlPlane, namespace: str) -> None:
    """The worker's part, that the job is complete, is written by the test."""
    shell = Shell(control_plane)
    inside = f"kubectl --namespace={namespace}"
    shell.expect(f"{inside} create -f manifests/examples/job.yaml")
    complete = {"type": "Complete", "status": "True", "reason": "Succeeded", "message": ""}
    complete["lastTransitionTime"] = "2026-11-01T00:00:00Z"
    status = json.dumps({"status": {"observedGeneration": 1, "state": "Succeeded", "conditions": [complete]}})
    shell.expect(f"{inside} patch cjob/by-hand --type=merge --subresource=status -p '{status}'")
    block = block_with("cjob/by-hand")
    assert len(block) == 3
    for line in block:
        shell.expect(line.replace("kubectl", inside, 1))


def test_a_log_on_one_machine_shows_what_the_page_shows(tmp_path: Path, control_plane: ControlPlane) -> None:
    text = PAGE.read_text()
    (session,) = [
        session for session in sessions_of(PAGE) if any(line.startswith("compactor segments") for line in session)
    ]
    assert len(session) == 3
    for line in session:
        answer = Shell(control_plane).run(line, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        shown = text.split(f"$ {line}\n")[1].split("\n$ ")[0].split("\n```")[0]
        assert timeless(answer.stdout) == timeless(shown), line


def timeless(table: str) -> list[str]:
    """Without the seconds that a command took, and without the width that they gave to their column."""
    return [" ".join(SECONDS.sub("S", line.rstrip()).split()) for line in table.rstrip().splitlines()]


@pytest.mark.apiserver
def test_a_wrong_policy_is_refused_with_the_words_of_the_page(control_plane: ControlPlane, tmp_path: Path) -> None:
    text = PAGE.read_text()
    policy: dict[str, Any] = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    policy["spec"]["store"]["segmentLogs"]["root"] = "data/ra"
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    answer = Shell(control_plane).run("kubectl apply --server-side -f policy.yaml", cwd=tmp_path)
    shown = text.split("$ kubectl apply --server-side -f policy.yaml\n")[1].split("\n```")[0]
    assert answer.stderr.strip() == shown


def test_every_session_is_run_by_a_test() -> None:
    """Here, or where `ELSEWHERE` says."""
    here = ("compactor segments", "kubectl apply --server-side -f policy.yaml")
    lines = [line for session in sessions_of(PAGE) for line in session]
    assert [line for line in lines if not line.startswith(here + ELSEWHERE)] == []
