"""The demo from beginning to end. Everything it starts is stopped, however it ends; with `keep`, only when it failed.

Directory (default `.demo`): `data/` the logs, `policy.yaml` what is applied, `control-plane/`, `operator/`. It is made
anew by each run, and only a directory that carries the demo's mark is ever emptied.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from compaction.api.crd import crd_files
from compaction.api.enums import JobState
from compaction.exceptions import DemoError
from compaction.local import lifecycle
from compaction.local.binaries import ensure_binaries
from compaction.local.demo import proof, scenario, view
from compaction.local.demo.cluster import Cluster, Observation
from compaction.local.demo.facts import LogFacts, measure, waiting
from compaction.local.demo.replicas import Replicas, start_replicas, stop_replicas
from compaction.local.demo.scenario import NAMESPACE, POLICY, Scenario
from compaction.rewrite.java import find_java

MARK: Final = ".compaction-demo"
LOOK_SECONDS: Final = 1.0
STALL_SECONDS: Final = 300.0
"""Without any change for this long it is stuck. Not a measure of speed: a Spark session on a busy machine may take a
minute.
"""
LOG_LINES: Final = 25
QUARANTINED: Final = r'{range .status.quarantined[*]}{.reason}: {.message}{"\n"}{end}'
DONE: Final = (JobState.SUCCEEDED, JobState.FAULTY)


@dataclass(frozen=True, slots=True)
class Demo:
    """One run in `directory`. `kubeconfig`: a cluster of the user's instead of a control plane of our own."""

    directory: Path
    console: Console
    keep: bool = False
    kubeconfig: Path | None = None

    def run(self) -> bool:
        """Show it all; True when every claim held.

        Raises:
            CompactionError: it could not be carried through; what was started has been stopped.
        """
        find_java()
        self._step("stopping what an earlier run left" if self._clear() else "preparing")
        finished = False
        try:
            held = self._show()
            finished = True
            return held
        finally:
            with _undisturbed():
                if not (self.keep and finished):
                    self._step("stopping everything that was started")
                    self.stop()

    def stop(self) -> None:
        """Stop the operator, its workers and the control plane of this directory; safe when nothing runs."""
        stop_replicas(self._operator)
        lifecycle.down(self._control_plane, report=self._step)

    def _show(self) -> bool:
        with ThreadPoolExecutor(max_workers=1) as pool:
            self._step(
                f"writing four logs below {self._data} (512 MiB, one of them damaged) while the control plane starts"
            )
            logs: Future[tuple[Scenario, list[LogFacts]]] = pool.submit(_create_and_measure, self._data)
            cluster = self._start_cluster()
            self._apply_definitions(cluster)
            story, before = logs.result()
        for facts in before:
            self._step(f"{facts.path.name}: {facts.entries} readable live entries, sha256 {facts.fingerprint[:12]}")
        self._step(f"damaged on purpose: {story.damaged.name}/{story.damage.file}, live index {story.damage.index}")
        replicas = start_replicas(self._operator, kubeconfig=cluster.kubeconfig, detached=self.keep)
        self._step("operator: two replicas started, one will lead")
        self._command(cluster, "apply", "-f", str(self._write_policy(story)))
        with view.watching(self.console) as shown:
            seen = self._watch(cluster, replicas, story, shown)
        self._command(cluster, "get", "cpol,cjob,lease")
        after = {facts.path: measure(facts.path) for facts in before}
        return self._prove(proof.prove_logs(before, after, seen), seen, story, replicas=replicas, cluster=cluster)

    def _start_cluster(self) -> Cluster:
        # In this thread: the kernel ends guarded children with the thread that started them, not with the process.
        if self.kubeconfig is not None:
            return Cluster(ensure_binaries(report=self._step).kubectl, self.kubeconfig)
        running = lifecycle.up(self._control_plane, detached=self.keep, report=self._step)
        self._step(f"control plane ready at {running.url}")
        return Cluster(ensure_binaries(report=self._step).kubectl, running.kubeconfig)

    def _apply_definitions(self, cluster: Cluster) -> None:
        definitions = self.directory / "crds"
        definitions.mkdir()
        for name, text in crd_files().items():
            (definitions / name).write_text(text)
        self._command(cluster, "apply", "-f", str(definitions))
        cluster.run("wait", "--for=condition=Established", "--timeout=60s", "-f", str(definitions))
        if self.kubeconfig is not None:
            cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        cluster.run("create", "namespace", NAMESPACE)

    def _write_policy(self, story: Scenario) -> Path:
        path = self.directory / "policy.yaml"
        path.write_text(yaml.safe_dump(scenario.policy(story.root), sort_keys=False))
        return path

    def _watch(self, cluster: Cluster, replicas: Replicas, story: Scenario, shown: view.View) -> Observation:
        """Look and show until nothing is left to do and the old names are gone."""
        last, changed = "", time.monotonic()
        while True:
            seen = cluster.look()
            shown.show(seen)
            if _settled(seen) and not any(waiting(log) for log in story.logs):
                return seen
            if not replicas.alive:
                raise DemoError(f"both replicas of the operator ended:\n{self._operator_log(replicas)}")
            if repr(seen) != last:
                last, changed = repr(seen), time.monotonic()
            elif time.monotonic() - changed > STALL_SECONDS:
                raise DemoError(f"nothing changed for {STALL_SECONDS:.0f} s:\n{self._operator_log(replicas)}")
            time.sleep(LOOK_SECONDS)

    def _prove(
        self,
        proofs: Sequence[proof.LogProof],
        seen: Observation,
        story: Scenario,
        *,
        replicas: Replicas,
        cluster: Cluster,
    ) -> bool:
        checks = proof.checks(proofs, seen, story, replicas_alive=len(replicas.alive))
        self._command(cluster, "get", "cpol", POLICY, "-o", f"jsonpath={QUARANTINED}")
        for table in (view.receipts_table(proofs), view.proof_table(proofs)):
            self.console.print()
            self.console.print(table)
        self.console.print()
        self.console.print(view.checks_table(checks))
        held = all(check.holds for check in checks)
        self.console.print(
            "\nall of it held" if held else "\nNOT all of it held", style="bold green" if held else "bold red"
        )
        if self.keep:
            self.console.print(f"\nleft running; to look around:  export KUBECONFIG={cluster.kubeconfig}")
            self.console.print(f"                               kubectl -n {NAMESPACE} get cpol,cjob,lease")
            self.console.print(f"to stop it:                    compactor demo --down --directory {self.directory}")
        else:
            self._delete_policy(cluster)
        return held

    def _delete_policy(self, cluster: Cluster) -> None:
        """End as a user would: without the policy, its workers stop and its jobs go."""
        cluster.run("delete", "cpol", POLICY, "--wait", "--timeout=60s")
        if self.kubeconfig is not None:
            cluster.run("delete", "namespace", NAMESPACE, "--wait=false")

    def _clear(self) -> bool:
        """Stop and remove what an earlier run left; True when there was something.

        Raises:
            DemoError: the directory is not the demo's, so nothing in it is touched.
        """
        used = self.directory.exists() and any(self.directory.iterdir())
        if used and not (self.directory / MARK).exists():
            raise DemoError(f"{self.directory} holds other files: name an empty directory with --directory")
        if used:
            self.stop()
            shutil.rmtree(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / MARK).touch()
        return used

    def _command(self, cluster: Cluster, *arguments: str) -> None:
        self.console.print(f"\n$ kubectl {' '.join(arguments)}", style="bold", highlight=False, soft_wrap=True)
        self.console.print(cluster.run(*arguments).rstrip(), highlight=False, markup=False, soft_wrap=True)

    def _operator_log(self, replicas: Replicas) -> str:
        ends = (
            replicas.log(process.name).read_text(errors="replace").splitlines()[-LOG_LINES:]
            for process in replicas.processes
        )
        return "\n".join(line for end in ends for line in end)

    def _step(self, line: str) -> None:
        self.console.print(f"> {line}", style="dim", highlight=False, markup=False, soft_wrap=True)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _control_plane(self) -> Path:
        return self.directory / "control-plane"

    @property
    def _operator(self) -> Path:
        return self.directory / "operator"


def _create_and_measure(root: Path) -> tuple[Scenario, list[LogFacts]]:
    story = scenario.create_logs(root)
    return story, [measure(log) for log in story.logs]


def _settled(seen: Observation) -> bool:
    """True when the last look of the operator came after the last job's end and found nothing left to do."""
    if seen.policy is None or not seen.jobs or any(job.status.state not in DONE for job in seen.jobs):
        return False
    status = seen.policy.status
    ends = [job.status.finished_at for job in seen.jobs if job.status.finished_at is not None]
    return (
        status.debt is not None
        and status.debt.segments == 0
        and status.active == status.queued == 0
        and status.last_sense_time is not None
        and status.last_sense_time >= max(ends)
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the stopping, or something would stay."""
    previous = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
