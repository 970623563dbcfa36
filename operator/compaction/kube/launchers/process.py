"""Workers as local subprocesses, for the local mode, and their Secrets in files of this user alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PolicyKey, WorkerObservation, WorkerPhase, WorkerRef, WorkerRequest
from compaction.kube.launchers.pod_status import ending_of
from compaction.storage.errors import SecretError
from compaction.storage.secrets import DirectorySecrets, Secrets, write_secrets
from compaction.worker.scratch import hold, remove_abandoned

# The Secrets of a worker that is a process: files that are this user's alone, never its arguments or its environment.
#
#     <state-dir>/workers/<worker>.secrets/<secret>/<key>
#
# The directory is locked by a descriptor that the worker inherits, so it is the kernel that says when the worker is
# gone, however it ended and from whichever process; each check of a launcher removes what no process holds any more.

SUFFIX: Final = "secrets"
REFRESH_SECONDS: Final = 15.0
"""How often the Secrets of running workers are compared with what they have."""


class HandedOver(NamedTuple):
    """The directory in which the worker finds its Secrets, and the descriptors that it has to inherit; nothing when it
    needs none.
    """

    directory: Path | None
    descriptors: tuple[int, ...]


def read_all(secrets: Secrets | None, names: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Name -> key -> text. Raises LaunchError naming the Secret that cannot be read; nothing was written then."""
    if names and secrets is None:
        raise LaunchError(f"Secret {names[0]} is needed, and this launcher was given none")
    try:
        return {name: secrets.read(name) for name in names} if secrets is not None else {}
    except SecretError as error:
        raise LaunchError(str(error)) from error


@contextmanager
def handed_over(base: Path, worker: str, values: Mapping[str, Mapping[str, str]]) -> Iterator[HandedOver]:
    """Write them below `base`, for a worker that is started inside the block and inherits the lock.

    Without a worker that holds it, the directory is removed at the end. Raises OSError, FileExistsError for a name that
    was used before.
    """
    if not values:
        yield HandedOver(None, ())
        return
    path = base / f"{worker}.{SUFFIX}"
    with _alone(base, operation=fcntl.LOCK_EX):
        path.mkdir(mode=0o700)
        lock = hold(path)
    try:
        write_secrets(path, values)
        yield HandedOver(path, (lock,))
    finally:
        os.close(lock)
        remove_abandoned(base, path.name)


def refresh(base: Path, worker: str, secrets: Secrets) -> None:
    """Write the Secrets of a running worker again that have changed, as the kubelet does for pods. What cannot be read
    now stays as it is.
    """
    path = base / f"{worker}.{SUFFIX}"
    written = DirectorySecrets(str(path))
    with suppress(FileNotFoundError):
        names = [entry.name for entry in path.iterdir() if entry.is_dir()]
        for name in names:
            try:
                values = secrets.read(name)
                if values == written.read(name):
                    continue
                with _alone(base, operation=fcntl.LOCK_EX):
                    write_secrets(path, {name: values})
                log.info("a changed Secret was handed on", worker=worker, secret=name)
            except SecretError as error:
                log.warning("a worker keeps the Secret that it has", worker=worker, error=str(error))


def remove_unheld(base: Path) -> None:
    """Remove the Secrets of workers that have ended; those of one that is just being started are left alone."""
    with suppress(BlockingIOError, FileNotFoundError), _alone(base, operation=fcntl.LOCK_EX | fcntl.LOCK_NB):
        remove_abandoned(base, f"*.{SUFFIX}")


@contextmanager
def _alone(base: Path, *, operation: int) -> Iterator[None]:
    """No other process creates or removes directories of Secrets: one that is not locked yet is not abandoned."""
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


log = structlog.get_logger(__name__)


# Workers as local subprocesses: the launcher of the local mode.
#
# Each worker is a session leader of its own (setsid), so it survives the coordinator that started it, and takes its
# Spark JVM along when it is killed. What is known about it lives in files, so that any later coordinator on this
# machine finds it again:
#
#     <state-dir>/workers/<name>.json   pid, the process's start time in clock ticks, policy, command
#     <state-dir>/workers/<name>.log    its stdout and stderr
#     <state-dir>/workers/<name>.secrets/  what it needs of its store's Secrets (process_secrets.py)
#
# A pid alone proves nothing: the kernel uses it again. A process is ours only while its start time equals the one in
# the file, and only then is it ever signalled. The exit code is known to the coordinator that started the worker; a
# successor sees it as Lost, which says nothing about success: the worker's Lease and the store do.

#: What a worker inherits from the operator's environment; everything else is passed on purpose, or not at all.
PASSED_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "JAVA_HOME",
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
    "COMPACTION_CACHE",
)
_LARGEST_PID: Final = 2**31 - 1
_TAIL_BYTES: Final = 8192
_KEPT_LOGS: Final = 50


@dataclass(frozen=True, slots=True)
class _Record:
    """One worker's file."""

    name: str
    policy: PolicyKey
    pid: int
    start_ticks: int
    started: datetime

    def to_json(self, command: Sequence[str]) -> str:
        return json.dumps(
            {
                "name": self.name,
                "namespace": self.policy.namespace,
                "policy": self.policy.name,
                "pid": self.pid,
                "startTicks": self.start_ticks,
                "started": self.started.isoformat(),
                "command": list(command),
            },
            indent=2,
        )

    @classmethod
    def parse(cls, text: str, *, name: str) -> _Record:
        """The record in the file of worker `name`. Raises ValueError when it is anything else.

        Every field is checked: what it says is looked up below /proc, signalled, and compared with our clock.
        """
        try:
            data = json.loads(text)
        except RecursionError as error:
            # Raised for deep nesting by the JSON parser; callers expect ValueError for whatever is no record.
            raise ValueError("it is nested too deeply") from error
        if not isinstance(data, dict) or data.get("name") != name:
            raise ValueError(f"it is not the record of worker {name}")
        texts = [data.get(key) for key in ("namespace", "policy", "started")]
        numbers = [data.get(key) for key in ("pid", "startTicks")]
        if not all(isinstance(value, str) for value in texts) or not all(type(value) is int for value in numbers):
            raise ValueError("a field is missing or of another type")
        if not 1 < data["pid"] <= _LARGEST_PID:
            raise ValueError(f"{data['pid']} is no process of ours")
        started = datetime.fromisoformat(data["started"])
        if started.tzinfo is None:
            raise ValueError("its start has no time zone")
        return cls(
            name=name,
            policy=PolicyKey(data["namespace"], data["policy"]),
            pid=data["pid"],
            start_ticks=data["startTicks"],
            started=started,
        )


def worker_command(request: WorkerRequest) -> list[str]:
    """The command line of a worker (the `compactor worker` of the same installation)."""
    command = [sys.executable, "-m", "compaction.cli.main", "worker"]
    command += ["--namespace", request.policy.namespace, "--policy", request.policy.name, "--name", request.name]
    command += ["--slots", str(request.slots), "--idle-seconds", f"{request.idle_seconds:g}"]
    command += ["--lease-seconds", str(request.lease_seconds), "--master", request.master]
    for key, value in sorted(request.conf.items()):
        command += ["--conf", f"{key}={value}"]
    return command


class ProcessLauncher:
    """Implements `launchers.base.Launcher`. Files are tiny and local; reading them on the loop costs microseconds."""

    def __init__(
        self,
        state_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        command: Callable[[WorkerRequest], list[str]] = worker_command,
        secrets_of: Callable[[PolicyKey], Secrets] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secrets_of`: the Secrets that a policy may have; called on the loop, read in another thread."""
        self._directory = state_dir / "workers"
        self._environment = dict(environment or {})
        self._command = command
        self._secrets_of = secrets_of
        self._monotonic = monotonic
        self._refreshed_at = float("-inf")
        # Children of this process, kept so that they are reaped; workers of a predecessor are reaped by init.
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        """Start it. Raises LaunchError when the name was used before or the process cannot be started."""
        secrets = self._secrets_of(request.policy) if self._secrets_of is not None else None
        return await asyncio.to_thread(self._launch, request, secrets)

    async def observe(self) -> list[WorkerObservation]:
        """Every worker with a file, running or ended."""
        await self._refresh_secrets()
        return await asyncio.to_thread(self._observe)

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        """SIGTERM to the worker (which ends its Spark session itself), SIGKILL to its session after `grace` seconds."""
        record = self._read(ref.name)
        if record is None or not _terminate(record):
            return
        _log.info("worker asked to stop", worker=ref.name, pid=record.pid)
        ending = asyncio.get_running_loop().time() + grace
        while self._alive(record):
            if asyncio.get_running_loop().time() >= ending:
                _log.warning("worker killed after the grace", worker=ref.name, pid=record.pid, grace=grace)
                _kill_session(record)
                return
            await asyncio.sleep(0.1)

    async def forget(self, ref: WorkerRef) -> None:
        """Drop the record of an ended worker (its log stays a while); a running one is left as it is."""
        record = self._read(ref.name)
        if record is None or self._alive(record):
            return
        self._children.pop(ref.name, None)
        self._path(ref.name, "json").unlink(missing_ok=True)
        logs = sorted(self._directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for log in logs[:-_KEPT_LOGS]:
            if not log.with_suffix(".json").exists():
                log.unlink(missing_ok=True)

    async def _refresh_secrets(self) -> None:
        if self._secrets_of is None or self._monotonic() - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = self._monotonic()
        for path in self._directory.glob(f"*.{SUFFIX}"):
            if (record := self._read(path.stem)) is not None and self._alive(record):
                secrets = self._secrets_of(record.policy)
                await asyncio.to_thread(refresh, self._directory, record.name, secrets)

    def _launch(self, request: WorkerRequest, secrets: Secrets | None) -> WorkerRef:
        values = read_all(secrets, request.secrets.driver)
        self._directory.mkdir(parents=True, exist_ok=True)
        record_path, command = self._path(request.name, "json"), self._command(request)
        try:
            # Exclusive creation reserves the name: two coordinators in a handover cannot both start it.
            record_path.touch(exist_ok=False)
            with (
                handed_over(self._directory, request.name, values) as handed,
                self._path(request.name, "log").open("ab") as log,
            ):
                command += ["--secrets-dir", str(handed.directory)] if handed.directory is not None else []
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=self._full_environment(),
                    cwd=self._directory,
                    pass_fds=handed.descriptors,
                )
        except FileExistsError as error:
            raise LaunchError(f"worker {request.name} was launched before; names are used once") from error
        except OSError as error:
            # No process has the name, so it is released.
            record_path.unlink(missing_ok=True)
            raise LaunchError(f"worker {request.name} cannot be started: {error}") from error
        self._children[request.name] = child
        record = _Record(request.name, request.policy, child.pid, _start_ticks(child.pid) or 0, datetime.now(UTC))
        _write_atomically(record_path, record.to_json(command))
        _log.info("worker launched", worker=request.name, pid=child.pid, log=str(self._path(request.name, "log")))
        return WorkerRef(request.name, request.policy, f"pid {child.pid}")

    def _observe(self) -> list[WorkerObservation]:
        names = sorted(path.stem for path in self._directory.glob("*.json"))
        records = [record for name in names if (record := self._read(name)) is not None]
        observations = [self._observation(record) for record in records]
        remove_unheld(self._directory)  # after the look: who is seen to have ended has no Secrets left
        return observations

    def _observation(self, record: _Record) -> WorkerObservation:
        if self._alive(record):
            return WorkerObservation(record.name, record.policy, WorkerPhase.RUNNING, record.started)
        child = self._children.get(record.name)
        code = child.returncode if child is not None else None
        if code is None:
            phase, reason = WorkerPhase.LOST, "Vanished"
        elif code == 0:
            phase, reason = WorkerPhase.SUCCEEDED, "Completed"
        else:
            phase, reason = WorkerPhase.FAILED, f"Killed{signal.Signals(-code).name}" if code < 0 else "Failed"
        message = "" if code == 0 else ending_of(code, self._tail(record.name))
        return WorkerObservation(record.name, record.policy, phase, record.started, code, reason, message)

    def _alive(self, record: _Record) -> bool:
        child = self._children.get(record.name)
        if child is not None:
            return child.poll() is None
        return _is_ours(record)

    def _read(self, name: str) -> _Record | None:
        try:
            return _Record.parse(self._path(name, "json").read_text(), name=name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            # Empty between reserving the name and writing the record: a coordinator died in between, or is just there.
            _log.debug("worker record cannot be read", worker=name, error=str(error))
            return None

    def _tail(self, name: str) -> str:
        try:
            with self._path(name, "log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError:
            # The log only explains an end that the exit code tells: without it the message is shorter.
            return ""

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}.{suffix}"

    def _full_environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        return {**inherited, "PYTHONUNBUFFERED": "1", **self._environment}


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/pid/stat); None for none, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command name may hold spaces and parentheses
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _is_ours(record: _Record) -> bool:
    return record.start_ticks != 0 and _start_ticks(record.pid) == record.start_ticks


def _terminate(record: _Record) -> bool:
    """SIGTERM to exactly the recorded process; False when it is gone."""
    try:
        handle = os.pidfd_open(record.pid)
    except OSError:
        return False
    try:
        # Checked with the handle open: what has this start time now is what the handle means, so no reuse in between.
        if not _is_ours(record):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _kill_session(record: _Record) -> None:
    if _is_ours(record):
        with suppress(ProcessLookupError):
            os.killpg(record.pid, signal.SIGKILL)  # a session leader's pid is its group's id


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".json.new")
    temporary.write_text(text)
    temporary.replace(path)


_log = structlog.get_logger(__name__)
