"""`compactor drill fencing` against the real control plane: what it proves, that it says so when it is not so, and that
it leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction.cli.main import main
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster, apply, bind
from support.processes.operators import descendants, still_alive

pytestmark = pytest.mark.apiserver

ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "fencing-drill"},
    "rules": [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "create", "update", "delete"],
        }
    ],
}
ANY_TOKEN = "from compaction.segments.commit import fence\nfence.check_token = lambda *args, **names: None\n"
ANY_HOLDER = """
from compaction.kube.assignments import KubeLeasePort
async def read(port, job_name, token):
    return await port._get(job_name)
KubeLeasePort._read_job = read
"""


@dataclass
class Drill:
    """Starts the command as a user who may do what the documentation asks for."""

    plane: Any
    namespace: str
    directory: Path
    kubeconfig: Path
    environment: dict[str, str]

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    def arguments(self, kubeconfig: Path, lease: int) -> list[str]:
        where = ["--directory", str(self.scratch), "--kubeconfig", str(kubeconfig)]
        return ["drill", "fencing", *where, "--lease-seconds", str(lease)]

    def start(self, *, lease: int = 2) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "compaction.cli.main", *self.arguments(self.kubeconfig, lease)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | self.environment
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        with self.start() as process:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def break_with(self, patch: str) -> None:
        """Python reads this file at the start of every process of the drill."""
        broken = self.directory / "broken"
        broken.mkdir()
        (broken / "sitecustomize.py").write_text(patch)
        self.environment["PYTHONPATH"] = str(broken)

    def assert_nothing_left(self) -> None:
        assert list(self.scratch.iterdir()) == []
        assert self.leases() == []

    def leases(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.cluster.list("lease")]

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.plane, self.namespace)


@pytest.fixture
def drill(control_plane: Any, namespace: str, tmp_path: Path) -> Drill:
    (tmp_path / "scratch").mkdir()
    apply(control_plane.admin, [ROLE], namespace=namespace)
    bind(control_plane.admin, "fencing-drill", "driller", namespace=namespace, kind="Role")
    kubeconfig = control_plane.running.kubeconfig_for("driller", tmp_path / "kubeconfig", namespace=namespace)
    return Drill(control_plane, namespace, tmp_path, kubeconfig, {})


def claims(text: str) -> dict[str, bool]:
    """Claim -> whether it held."""
    lines = [line.partition(" ") for line in text.splitlines() if line.startswith(("yes ", "NO "))]
    return {rest.strip().partition(":")[0]: word == "yes" for word, _, rest in lines}


def test_a_woken_attempt_is_refused_by_store_and_api_server(drill: Drill) -> None:
    answer = drill.run()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = claims(answer.stdout)
    assert found == dict.fromkeys(found, True)
    assert {"the store refused its commit", "the API server refused its renewal", "no half-done file is left"} <= {
        *found
    }
    steps = ("is stopped (SIGSTOP)", "assigned to attempt 2 with token 2", "is awake (SIGCONT)", "token 2 is claimed")
    assert [answer.stdout.index(step) for step in steps] == sorted(answer.stdout.index(step) for step in steps)
    assert answer.stdout.endswith("\nfencing holds\n")
    assert "Traceback" not in answer.stderr
    drill.assert_nothing_left()


@pytest.mark.parametrize(
    ("patch", "claim"),
    [(ANY_TOKEN, "the store refused its commit"), (ANY_HOLDER, "the API server refused its renewal")],
    ids=["store", "lease"],
)
def test_broken_fencing_is_found(drill: Drill, patch: str, claim: str) -> None:
    drill.break_with(patch)
    answer = drill.run()
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert claims(answer.stdout)[claim] is False
    assert "FENCING IS BROKEN" in answer.stdout
    drill.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_interrupted_it_takes_everything_along(drill: Drill, number: signal.Signals) -> None:
    # Far longer than the test: a drill that did not hear the signal is still asleep when the answer is due.
    with drill.start(lease=300) as process:
        family = stopped_attempt(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err.strip()) == (130, "interrupted"), out
    assert still_alive(family, seconds=60) == []
    drill.assert_nothing_left()


def test_a_background_job_of_a_shell_hears_the_interrupt_too(drill: Drill) -> None:
    """Whoever hears SIGINT although it was told to ignore it hears it in a terminal."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a shell without job control does to its `&`
    try:
        process = drill.start(lease=300)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        family = stopped_attempt(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err.strip()) == (130, "interrupted"), out
    assert still_alive(family, seconds=60) == []
    drill.assert_nothing_left()


def test_killed_it_leaves_no_process(drill: Drill) -> None:
    with drill.start(lease=60) as process:
        family = stopped_attempt(process)
        process.kill()
    assert still_alive(family, seconds=60) == []
    [lease] = drill.leases()
    assert lease.startswith("fencing-drill-")
    assert [lease["metadata"]["name"] for lease in drill.cluster.leases("drill")] == [lease]
    drill.cluster.delete(f"lease/{lease}")


def test_a_lease_deleted_by_somebody_is_no_verdict(drill: Drill) -> None:
    with drill.start(lease=60) as process:
        [attempt] = stopped_attempt(process)
        for lease in drill.leases():
            drill.cluster.delete(f"lease/{lease}")
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert err.startswith("error: ")
    assert "not found" in err
    assert still_alive([attempt], seconds=60) == []
    drill.assert_nothing_left()


def stopped_attempt(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All processes of a drill whose first attempt sleeps."""

    def asleep() -> list[psutil.Process]:
        family = descendants(process.pid)
        return family if any(item.status() == psutil.STATUS_STOPPED for item in family) else []

    return eventually(asleep, "the first attempt to be stopped", pause=0.05)


@pytest.mark.parametrize(
    ("kubeconfig", "words"),
    [
        (lambda drill: drill.directory / "missing", ["kubeconfig", "missing"]),
        (lambda drill: unreachable(drill), ["127.0.0.1:1"]),
        (lambda drill: stranger(drill), ["create leases.coordination.k8s.io in namespace", "kubectl create role"]),
    ],
    ids=["no kubeconfig", "no answer", "no permission"],
)
def test_what_it_needs_is_said_in_one_line(
    drill: Drill, kubeconfig: Callable[[Drill], Path], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any process is started."""
    assert main(drill.arguments(kubeconfig(drill), lease=2)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    drill.assert_nothing_left()


def unreachable(drill: Drill) -> Path:
    path = drill.directory / "unreachable"
    path.write_text(drill.kubeconfig.read_text().replace(drill.plane.url, "https://127.0.0.1:1"))
    return path


def stranger(drill: Drill) -> Path:
    path: Path = drill.plane.running.kubeconfig_for("stranger", drill.directory / "other", namespace=drill.namespace)
    return path
