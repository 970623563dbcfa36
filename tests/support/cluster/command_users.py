"""People who type `kubectl compaction ...`: each with a kubeconfig and a role of their own."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.cli.main import main
from support.cluster.by_kubectl import apply, bind

RBAC = Path(__file__).resolve().parents[3] / "manifests" / "rbac" / "roles.yaml"
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with a kubeconfig, at a shell in which kubectl finds its plugin."""

    kubectl: Path
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}

    def plugin(self, *args: str) -> Answer:
        """`kubectl compaction ARGS`, as a process."""
        command = [str(self.kubectl), "compaction", *args]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.environment, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def run(self, *args: str, typed: str | None = None) -> Answer:
        """The same in this process, which saves a second each time. `typed`: what is typed at a terminal; None: there
        is none.
        """
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("KUBECONFIG", str(self.kubeconfig))
            patch.setattr("sys.stdin", io.StringIO() if typed is None else _Terminal(typed))
            code = main(list(args))
        return Answer(code, out.getvalue(), err.getvalue())

    def prints(self, *args: str) -> str:
        answer = self.run(*args)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def refused(self, *args: str, code: int = 1) -> str:
        answer = self.run(*args)
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer.stderr


def exit_code(command: Sequence[str]) -> int:
    """Of `compactor` in this process, also of a command that ends the process itself, as `run` does."""
    try:
        return main(list(command))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def make_user(control_plane: Any, namespace: str, directory: Path, *, role: str) -> User:
    """A user of a namespace with one of the roles we ship, or with none."""
    apply(control_plane.admin, yaml.safe_load_all(RBAC.read_text()), namespace=namespace)
    name = f"{role or 'nobody'}-{namespace}"
    if role:
        bind(control_plane.admin, role, name, namespace=namespace)
    kubeconfig = control_plane.running.kubeconfig_for(name, directory / f"{name}.kubeconfig", namespace=namespace)
    return User(control_plane.binaries.kubectl, kubeconfig)


def columns_of(table: str) -> list[dict[str, str]]:
    """The rows of a table by heading; cells may hold single spaces."""
    head, *lines = table.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+( \S+)*", head)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    return [{head[a:b].strip(): line[a:b].strip() for a, b in spans} for line in lines]
