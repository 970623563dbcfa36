"""The stage of every demo: a directory, a control plane, servers of its store, the operator, and an orderly end."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import yaml
from rich.console import Console
from rich.table import Table

from compaction.api.crd.definitions import crd_files
from compaction.api.names import CATALOG_KIND
from compaction.local.cluster import control_plane
from compaction.local.cluster.control_plane import LocalState, read_state, remove_state, write_state
from compaction.local.errors import DemoError
from compaction.local.processes.process import ProcessId, spawn
from compaction.local.programs.binaries import ensure_binaries
from compaction.local.tenants import Check
from compaction.worker.spark.settings import find_java
from demos import scenes
from demos.cluster import (
    NAMESPACE,
    DemoCluster,
    DemoObservation,
    Replicas,
    secrets_yaml,
    start_replicas,
    stop_replicas,
)
from tools.servers import postgres, versitygw
from tools.servers.postgres import PostgresServer
from tools.servers.versitygw import S3Gateway, ensure_versitygw, free_port

# The servers of a store on this machine: versitygw for its objects, PostgreSQL for its index or its changes.
#
# In the stage's `servers/`: `state.json` what was started, `s3/` objects and log, `postgres` a link to the place of
# the database, which is one for temporary files (see `local/servers/postgres.py`).

DATABASE: Final = "demo"
BUCKET: Final = "demo"
LINK: Final = "postgres"


@dataclass(frozen=True, slots=True)
class Servers:
    """Both, running and empty: one bucket, one database."""

    objects: S3Gateway
    database: PostgresServer

    def url(self, folder: str) -> str:
        """Of a folder in the bucket."""
        return f"s3://{BUCKET}/{folder}"

    @property
    def database_url(self) -> str:
        """With its password: for a Secret."""
        return self.database.url(DATABASE)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be seen nowhere."""
        return self.objects.secret_key, self.database.password


def start_servers(directory: Path, *, detached: bool, report: Callable[[str], None]) -> Servers:
    """Start both in `directory`, which keeps the record of it. `detached`: they outlive this process, else they end
    with the thread that called this.

    Raises:
        BinaryError, ControlPlaneError: one could not be made ready; `stop_servers` stops what was started.
    """
    program = ensure_versitygw(report=report)
    directory.mkdir(parents=True, mode=0o700)
    place = postgres.make_place()
    (directory / LINK).symlink_to(place)
    database = postgres.serve(place, detached=detached)
    _record(directory, database.process)
    objects = versitygw.serve(directory / "s3", program, port=free_port(), detached=detached)
    _record(directory, database.process, objects.process)
    database.create(DATABASE)
    objects.make_bucket(BUCKET)
    report(f"versitygw (S3) ready at {objects.endpoint}, PostgreSQL at {database.socket}")
    return Servers(objects, database)


def _record(directory: Path, *processes: ProcessId) -> None:
    write_state(directory, LocalState(url="", kubeconfig=Path(), processes=processes))


def stop_servers(directory: Path) -> None:
    """Stop the servers recorded in `directory`, and remove what the database had; safe when nothing is there."""
    state = read_state(directory) if directory.is_dir() else None
    for process in reversed(state.processes if state is not None else ()):
        if process.name == postgres.SERVER:
            postgres.stop_postgres(process)
        else:
            process.stop()
    link = directory / LINK
    if link.is_symlink():
        place = link.readlink()
        # Only what `make_place` made, whatever somebody has put there.
        if place.name.startswith(postgres.PREFIX) and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        link.unlink()
    if state is not None:
        remove_state(directory)


# The base of every demo: a directory of its own, a control plane, the operator's replicas, and an end in which nothing
# is left running.
#
# The directory (default `.demo`) is created again by each run, and only one that carries the demo's mark is ever
# emptied. Whatever an earlier run left in it, of this demo or another one, is stopped by the records that are found
# there.

MARK: Final = ".compaction-demo"
LOOK_SECONDS: Final = 1.0
STALL_SECONDS: Final = 300.0
"""Without any change for this long it is stuck. Not a measure of speed: a Spark session on a busy machine may take a
minute.
"""
LONGEST_SECONDS: Final = 1200.0
"""After so long it does not come to an end any more, whatever changes: a policy's status may, at each reading."""
LOG_LINES: Final = 25
_SIGN_IN: Final = re.compile(r"^Sign in: (\S+)$", re.MULTILINE)


class Show(Protocol):
    """The door `Doors.demo` of a kind."""

    def __call__(self, stage: DemoStage) -> bool:
        """Show everything on this stage; True when every claim held."""
        ...


@dataclass(frozen=True, slots=True)
class DemoStage:
    """One run in `directory`. `kubeconfig`: a cluster of the user's instead of a control plane of our own."""

    directory: Path
    console: Console
    keep: bool = False
    kubeconfig: Path | None = None

    def perform(self, show: Show) -> bool:
        """Carry out `show` and stop everything, however it ends; with `keep`, only when it failed.

        Raises:
            CompactionError: it could not be carried through; what was started has been stopped.
        """
        find_java()
        self.step("stopping what an earlier run left" if self._clear() else "preparing")
        finished = False
        try:
            held = show(self)
            finished = True
            return held
        finally:
            with _undisturbed():
                if not (self.keep and finished):
                    self.step("stopping everything that was started")
                    self.stop()

    def stop(self) -> None:
        """Stop the operator, its workers, servers and the control plane of this directory; safe when nothing runs."""
        stop_replicas(self.operator)
        self._stop_console()
        stop_servers(self.servers)
        control_plane.down(self._control_plane, report=self.step)

    def _stop_console(self) -> None:
        directory = self._console_log.parent
        state = read_state(directory) if directory.is_dir() else None
        if state is not None:
            for process in state.processes:
                process.stop()
            remove_state(directory)

    def start_cluster(self, *, policy: str, resources: str = "cpol,cjob,lease") -> DemoCluster:
        """A control plane, or the user's, with our definitions and an empty namespace. See `DemoCluster`."""
        # In this thread: the kernel ends guarded children with the thread that started them, not with the process.
        cluster = self._cluster(policy, resources)
        definitions = self.directory / "crds"
        definitions.mkdir()
        for name, text in crd_files().items():
            (definitions / name).write_text(text)
        self.command(cluster, "apply", "-f", str(definitions))
        cluster.run("wait", "--for=condition=Established", "--timeout=60s", "-f", str(definitions))
        if self.kubeconfig is not None:
            cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        cluster.run("create", "namespace", NAMESPACE)
        return cluster

    def _cluster(self, policy: str, resources: str) -> DemoCluster:
        if self.kubeconfig is not None:
            return DemoCluster(ensure_binaries(report=self.step).kubectl, self.kubeconfig, policy, resources)
        running = control_plane.up(self._control_plane, detached=self.keep, report=self.step)
        self.step(f"control plane ready at {running.url}")
        return DemoCluster(ensure_binaries(report=self.step).kubectl, running.kubeconfig, policy, resources)

    def start_operator(self, cluster: DemoCluster) -> Replicas:
        """Two replicas, as a user would start them."""
        replicas = start_replicas(self.operator, kubeconfig=cluster.kubeconfig, detached=self.keep)
        self.step("operator: two replicas started, one will lead")
        if self.keep:
            self._say(f"the console, in a browser on this machine:  {self._start_console(cluster)}")
        return replicas

    def _start_console(self, cluster: DemoCluster) -> str:
        """The console, for as long as everything else is kept; returns the address that signs in a browser.

        Raises:
            DemoError: it ended at once; names its log.
        """
        self._console_log.parent.mkdir()
        command = [sys.executable, "-m", "compaction.cli.main", "ui", "--port", "0", "-n", NAMESPACE]
        command += ["--kubeconfig", str(cluster.kubeconfig)]
        child = spawn(command, cwd=self._console_log.parent, log=self._console_log, detached=True)
        process = ProcessId.of("console", child.pid)
        while process is not None and process.alive():
            write_state(self._console_log.parent, LocalState("", cluster.kubeconfig, processes=(process,)))
            if addresses := _SIGN_IN.findall(self._console_log.read_text()):
                return str(addresses[-1])
            time.sleep(LOOK_SECONDS / 10)
        raise DemoError(f"the console ended at once: see {self._console_log}")

    def apply_secrets(self, cluster: DemoCluster, secrets: Mapping[str, Mapping[str, str]]) -> None:
        """Secrets by name. They are given to kubectl and written nowhere."""
        cluster.run("apply", "-f", "-", input=secrets_yaml(secrets))
        self.step(f"Secrets applied: {', '.join(secrets)}")

    def apply_policy(self, cluster: DemoCluster, policy: dict[str, Any]) -> None:
        path = self.directory / "policy.yaml"
        path.write_text(yaml.safe_dump(policy, sort_keys=False))
        self.command(cluster, "apply", "-f", str(path))

    def watch(
        self, cluster: DemoCluster, replicas: Replicas, show: Callable[[DemoObservation], None], *,
        done: Callable[[DemoObservation], bool],
    ) -> DemoObservation:  # fmt: skip
        """Look and show until it is done.

        Raises:
            DemoError: the operator ended, nothing changed for minutes (with the end of its log), or it takes too long.
        """
        began = changed = time.monotonic()
        last = ""
        while True:
            seen = cluster.look()
            show(seen)
            if done(seen):
                return seen
            if not replicas.alive:
                raise DemoError(f"both replicas of the operator ended:\n{ends_of(replicas)}")
            if repr(seen) != last:
                last, changed = repr(seen), time.monotonic()
            elif time.monotonic() - changed > STALL_SECONDS:
                raise DemoError(f"nothing changed for {STALL_SECONDS:.0f} s:\n{ends_of(replicas)}")
            if time.monotonic() - began > LONGEST_SECONDS:
                raise DemoError(f"not at its end after {LONGEST_SECONDS:.0f} s; see {self.operator}")
            time.sleep(LOOK_SECONDS)

    def conclude(self, cluster: DemoCluster, checks: list[Check], *tables: Table) -> bool:
        """The last screen: `tables`, what was claimed, and whether it held. Ends as a user would."""
        for table in (*tables, scenes.checks_table(checks)):
            self.console.print()
            self.console.print(table)
        kind = cluster.resources.partition(",")[0]
        self.plugin(cluster, "history", f"{kind}/{cluster.policy}")
        self._preview(cluster)
        held = all(check.holds for check in checks)
        self.console.print(
            "\nall of it held" if held else "\nNOT all of it held", style="bold green" if held else "bold red"
        )
        if self.keep:
            self._say(f"\nleft running; to look around:  export KUBECONFIG={cluster.kubeconfig}")
            self._say(f"                               kubectl -n {NAMESPACE} get {cluster.resources}")
            self._say(f"                               the console's next address: tail -n 1 {self._console_log}")
            self._say(f"to stop it:                    python -m demos --down --directory {self.directory}")
        else:
            self._delete_policy(cluster)
        return held

    def _preview(self, cluster: DemoCluster) -> None:
        """What another spec would do: a policy that plans at night only, a catalog whose rounds only decide."""
        (changed,) = yaml.safe_load_all((self.directory / "policy.yaml").read_text())
        if changed["kind"] == CATALOG_KIND:
            changed["spec"]["dryRun"] = True
        else:
            changed["spec"]["trigger"] = changed["spec"].get("trigger", {}) | {"schedule": "0 2 * * *"}
        path = self.directory / "changed.yaml"
        path.write_text(yaml.safe_dump(changed, sort_keys=False))
        self.plugin(cluster, "plan", "-f", str(path))

    def _say(self, line: str) -> None:
        """Lines that a user copies: a terminal breaks them, not we."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _delete_policy(self, cluster: DemoCluster) -> None:
        """Without the policy, its workers stop and its jobs go; without the catalog, its rounds end."""
        cluster.run("delete", cluster.resources.partition(",")[0], cluster.policy, "--wait", "--timeout=60s")
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

    def command(self, cluster: DemoCluster, *arguments: str) -> None:
        """Show a command of kubectl and what it answers."""
        self.print_answer(f"kubectl {' '.join(arguments)}", cluster.run(*arguments))

    def plugin(self, cluster: DemoCluster, *arguments: str) -> None:
        """Show a command of the plugin and what it answers."""
        self.print_answer(f"kubectl compaction {' '.join(arguments)}", cluster.plugin(*arguments))

    def print_answer(self, command: str, answer: str) -> None:
        """What a user types, and what the answer is."""
        self.console.print(f"\n$ {command}", style="bold", highlight=False, soft_wrap=True)
        self.console.print(answer.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def step(self, line: str) -> None:
        """Say what is done now."""
        self.console.print(f"> {line}", style="dim", highlight=False, markup=False, soft_wrap=True)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def operator(self) -> Path:
        return self.directory / "operator"

    @property
    def _console_log(self) -> Path:
        return self.directory / "console" / "console.log"

    @property
    def servers(self) -> Path:
        return self.directory / "servers"

    @property
    def _control_plane(self) -> Path:
        return self.directory / "control-plane"


def ends_of(replicas: Replicas) -> str:
    """The last lines of their logs."""
    ends = (
        replicas.log(process.name).read_text(errors="replace").splitlines()[-LOG_LINES:]
        for process in replicas.processes
    )
    return "\n".join(line for end in ends for line in end)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the stopping, or something would stay."""
    previous = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
