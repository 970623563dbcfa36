"""`.ci/run`: parts that run beside each other, what is heard of them, and how it ends. A script stands in for make."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from house.sources import ROOT
from support.clocks import eventually
from support.processes.operators import descendants, still_alive

MAKE = """#!/usr/bin/env bash
# await FILE: another part has made it.
await() { for _ in {1..3600}; do [[ -e "$1" ]] && return; sleep 0.05; done; echo "no $1"; exit 9; }
cd "$PARTS"
. ./"${@: -1}"
"""
SUMMARY = "======== 5 passed in 1.00s ========"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A checkout with nothing but `.ci/run`, and the scripts that its parts are."""

    checkout: Path

    @property
    def parts(self) -> Path:
        return self.checkout / "parts"

    def start(self, *, e2e: str, test: str, compiled: str = "", user: int = 0) -> subprocess.Popen[str]:
        """`compiled`: the last word of the call that checks. `user`: who seems to run it."""
        for name, script in {"compiled": compiled, "e2e": e2e, "test": test}.items():
            (self.parts / name).write_text(script)
        for name, script in {
            "make": MAKE,
            "id": f"#!/bin/sh\necho {user}\n",
            "uname": "#!/bin/sh\necho Linux\n",
        }.items():
            program = self.checkout / "bin" / name
            program.write_text(script)
            program.chmod(0o755)
        known = os.environ | {"PATH": f"{self.checkout / 'bin'}:{os.environ['PATH']}", "PARTS": str(self.parts)}
        return subprocess.Popen(
            [self.checkout / ".ci" / "run"],
            env=known | {"TMPDIR": str(self.checkout / "tmp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *, e2e: str, test: str, compiled: str = "", user: int = 0) -> tuple[int, list[str]]:
        """The exit code, and the lines."""
        process = self.start(e2e=e2e, test=test, compiled=compiled, user=user)
        output, _ = process.communicate()
        assert list((self.checkout / "tmp").iterdir()) == []
        return process.returncode, output.splitlines()


@pytest.fixture
def verdict(tmp_path: Path) -> Verdict:
    for name in (".ci", "bin", "parts", "tmp"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return Verdict(tmp_path)


def test_the_parts_run_beside_each_other_and_the_last_line_is_that_of_make_test(verdict: Verdict) -> None:
    code, lines = verdict.run(
        e2e="echo begun >&2; touch node; await tested; printf 'the last'",
        test=f"printf '..'; await node; echo '.. [100%]'; echo '{SUMMARY}'; touch tested",
    )
    assert code == 0
    assert {"node: begun", ".... [100%]"} <= set(lines), "a line of one part is not broken by those of the other"
    assert lines[-2:] == ["node: the last", SUMMARY]
    assert {line.partition(":")[0] for line in lines if ", CPU " in line} == {"make check", "make e2e", "make test"}


@pytest.mark.parametrize(("node", "others"), [(0, 2), (2, 0), (2, 2)])
def test_a_part_that_fails_hides_nothing_and_is_summed_up_at_the_end(verdict: Verdict, node: int, others: int) -> None:
    said = ["=== short test summary info ===", "FAILED a.py::test_it", "== 1 failed, 4 passed =="]
    script = "printf '%s\\n' " + " ".join(f"'{line}'" for line in said)
    code, lines = verdict.run(e2e=f"{script}; exit {node}", test=f"{script}; exit {others}")
    assert code == 2
    assert lines[-6:] == [*(f"node: {line}" for line in said), *said]


def test_checks_that_fail_are_the_verdict(verdict: Verdict) -> None:
    assert verdict.run(compiled="echo no; exit 2", e2e="echo e2e", test="echo test") == (2, ["no"])


def test_without_root_there_are_no_tests_on_a_node(verdict: Verdict) -> None:
    code, lines = verdict.run(e2e="exit 1", test=f"echo '{SUMMARY}'", user=1000)
    assert code == 0
    assert "need Linux and root" in lines[0]
    assert (lines[-1], lines.count(SUMMARY)) == (SUMMARY, 2)
    assert not [line for line in lines if line.startswith("node:")]


ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("checking", [True, False])
def test_interrupted_it_ends_what_it_has_started_and_says_what_that_said(
    verdict: Verdict, number: signal.Signals, checking: bool
) -> None:
    works = "trap 'echo takes down; exit 2' INT; touch begun-$BASHPID; sleep 600"
    process = verdict.start(compiled=works if checking else "", e2e=works, test=works)
    parts = 1 if checking else 2
    eventually(lambda: len(list(verdict.parts.glob("begun-*"))) == parts, "the parts to begin", pause=0.05)
    family: list[psutil.Process] = descendants(process.pid)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == ENDS[number]
    assert sorted(output.split("\n")) == (["", "takes down"] if checking else ["", "node: takes down", "takes down"])
    assert still_alive(family, seconds=10) == []
    assert list((verdict.checkout / "tmp").iterdir()) == []


def test_a_part_that_ignores_the_interruption_is_ended(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started in the background of a script, all of it ignores SIGINT."""
    monkeypatch.setenv("GRACE_SECONDS", "0")
    deaf = "trap '' INT; touch begun-$BASHPID; while :; do sleep 600; done"
    process = verdict.start(e2e=deaf, test=f"trap '' TERM; {deaf}")
    eventually(lambda: len(list(verdict.parts.glob("begun-*"))) == 2, "the parts to begin", pause=0.05)
    family: list[psutil.Process] = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == ENDS[signal.SIGTERM]
    assert still_alive(family, seconds=10) == []
