"""The Secrets of a worker that is a process: in files of its own, in nothing that others see, and gone with it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from compaction.core.kind import StoreSecrets
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.base import PolicyKey, WorkerRef, WorkerRequest
from compaction.kube.launchers.process import REFRESH_SECONDS, ProcessLauncher
from compaction.storage.secrets import DirectorySecrets, GivenSecrets
from support.clocks import eventually

VALUE = "s3cr3t-value-that-nobody-may-see"
POLICY = PolicyKey("ns", "p")
VALUES = {"store": {"secret_access_key": VALUE}, "index": {"url": f"postgresql://me:{VALUE}@db/index"}, "x": {"y": "z"}}
READS = """
import sys, time
from compaction.storage.secrets import DirectorySecrets
secrets = DirectorySecrets(sys.argv[sys.argv.index("--secrets-dir") + 1])
assert "s3cr3t" in secrets.read("store")["secret_access_key"] and "s3cr3t" in secrets.read("index")["url"]
print("read", flush=True)
time.sleep(600)
"""


def request(name: str = "p-w-1") -> WorkerRequest:
    return WorkerRequest(name, POLICY, 2, 30, 15, secrets=StoreSecrets(driver=("store", "index"), tasks=("store",)))


def launcher_of(
    state: Path, code: str = READS, values: Mapping[str, Mapping[str, str]] | None = VALUES
) -> ProcessLauncher:
    secrets = GivenSecrets(values, "the test") if values is not None else None
    return ProcessLauncher(
        state,
        command=lambda _request: [sys.executable, "-c", code],
        secrets_of=(lambda key: {"ns": secrets}[key.namespace]) if secrets is not None else None,
    )


def log_of(state: Path, name: str = "p-w-1") -> str:
    return (state / "workers" / f"{name}.log").read_text()


def left(state: Path) -> list[Path]:
    return sorted(path for path in (state / "workers").glob("*.secrets*"))


def worker_of(state: Path, name: str = "p-w-1") -> psutil.Process:
    return psutil.Process(int(json.loads((state / "workers" / f"{name}.json").read_text())["pid"]))


def end(launcher: ProcessLauncher, name: str = "p-w-1") -> None:
    asyncio.run(launcher.stop(WorkerRef(name, POLICY), grace=5))
    eventually(lambda: all(item.ended for item in asyncio.run(launcher.observe()) if item.name == name), "its end")


def test_the_worker_reads_them_and_nobody_else_sees_them(state: Path) -> None:
    launcher = launcher_of(state)
    asyncio.run(launcher.launch(request()))
    eventually(lambda: "read" in log_of(state), "the worker reads its Secrets")
    pid = worker_of(state).pid
    seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    seen += b"".join(path.read_bytes() for path in (state / "workers").iterdir() if path.is_file())
    assert VALUE.encode() not in seen
    (directory,) = left(state)
    assert {path.name for path in directory.iterdir() if path.is_dir()} == {"store", "index"}, "exactly what it needs"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in directory.rglob("*")} == {0}
    end(launcher)
    assert left(state) == []


def test_they_go_with_a_worker_that_crashes(state: Path) -> None:
    launcher = launcher_of(state)
    asyncio.run(launcher.launch(request()))
    eventually(lambda: "read" in log_of(state), "the worker reads its Secrets")
    worker_of(state).kill()
    eventually(lambda: asyncio.run(launcher.observe())[0].ended, "its end")
    assert left(state) == []


def test_they_stay_while_the_worker_lives_and_go_with_it_though_its_coordinator_was_killed(state: Path) -> None:
    """The coordinator is a real process that is killed; the one after it knows of the worker only what is in files."""
    code = f"""
import asyncio, os, signal, sys
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
from pathlib import Path
from test_process_secrets import launcher_of, request
asyncio.run(launcher_of(Path({str(state)!r})).launch(request()))
os.kill(os.getpid(), signal.SIGKILL)
"""
    coordinator = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert coordinator.returncode == -signal.SIGKILL, coordinator.stderr
    eventually(lambda: "read" in log_of(state), "the worker reads its Secrets")
    successor = launcher_of(state, values=None)
    assert not asyncio.run(successor.observe())[0].ended
    assert len(left(state)) == 1
    worker_of(state).kill()
    eventually(lambda: asyncio.run(successor.observe())[0].ended, "its end")
    assert left(state) == []


def test_they_go_when_the_coordinator_dies_before_there_is_a_worker(state: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from compaction.kube.launchers.process import handed_over
Path({str(state / "workers")!r}).mkdir()
with handed_over(Path({str(state / "workers")!r}), "p-w-1", {VALUES!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    coordinator = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert coordinator.returncode == -signal.SIGKILL, coordinator.stderr
    assert len(left(state)) == 1
    asyncio.run(launcher_of(state).observe())
    assert left(state) == []


def test_a_worker_that_cannot_be_started_leaves_nothing(state: Path) -> None:
    launcher = ProcessLauncher(
        state, command=lambda _request: ["/nowhere/python"], secrets_of=lambda _namespace: GivenSecrets(VALUES, "test")
    )
    with pytest.raises(LaunchError, match="cannot be started"):
        asyncio.run(launcher.launch(request()))
    assert left(state) == []


@pytest.mark.parametrize(
    ("values", "message"), [({"store": {}}, 'Secret "index" not found'), (None, "Secret store is needed")]
)
def test_a_secret_that_is_missing_is_named_and_the_name_stays_free(
    state: Path, values: Mapping[str, Mapping[str, str]] | None, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        asyncio.run(launcher_of(state, values=values).launch(request()))
    assert not (state / "workers").exists()
    launcher = launcher_of(state)
    asyncio.run(launcher.launch(request()))
    end(launcher)


def test_a_worker_without_secrets_is_told_nothing_of_them(state: Path) -> None:
    launcher = launcher_of(state, "import sys; print(sys.argv)")
    asyncio.run(launcher.launch(WorkerRequest("p-w-1", POLICY, 2, 30, 15)))
    eventually(lambda: asyncio.run(launcher.observe())[0].ended, "its end")
    assert "secrets" not in log_of(state)
    assert left(state) == []


class Changing:
    """Secrets that somebody changes."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, str]] = {name: dict(keys) for name, keys in VALUES.items()}

    def read(self, name: str) -> Mapping[str, str]:
        return GivenSecrets(self.values, "the test").read(name)


def test_a_changed_secret_reaches_a_running_worker_also_from_another_coordinator(state: Path) -> None:
    secrets, now = Changing(), 0.0

    def launcher() -> ProcessLauncher:
        return ProcessLauncher(
            state,
            command=lambda _request: [sys.executable, "-c", READS],
            secrets_of=lambda key: {"ns": secrets}[key.namespace],
            monotonic=lambda: now,
        )

    def has(name: str) -> Mapping[str, str]:
        return DirectorySecrets(str(state / "workers" / "p-w-1.secrets")).read(name)

    first = launcher()
    asyncio.run(first.launch(request()))
    asyncio.run(first.observe())
    secrets.values["store"] = {"secret_access_key": "changed"}
    asyncio.run(first.observe())
    assert has("store") == VALUES["store"], "not at every look"
    now += REFRESH_SECONDS
    asyncio.run(first.observe())
    assert (has("store"), has("index")) == ({"secret_access_key": "changed"}, VALUES["index"])

    del secrets.values["store"]
    secrets.values["index"] = {"url": "changed as well"}
    asyncio.run(launcher().observe())
    assert has("store") == {"secret_access_key": "changed"}, "what cannot be read now stays"
    assert has("index") == {"url": "changed as well"}
    end(first)
    assert left(state) == []


def test_two_launchers_look_at_the_same_time_and_no_live_worker_loses_its_secrets(state: Path) -> None:
    """A handover: the old coordinator starts workers while the new one looks."""
    old, new = launcher_of(state), launcher_of(state, values=None)

    async def both() -> None:
        async def look() -> None:
            while len(list((state / "workers").glob("*.json"))) < 4:
                await new.observe()

        looking = asyncio.create_task(look())
        for number in range(4):
            await old.launch(request(f"p-w-{number}"))
        await looking

    (state / "workers").mkdir()
    asyncio.run(both())
    for number in range(4):
        eventually(lambda n=number: "read" in log_of(state, f"p-w-{n}"), "each worker reads its Secrets")  # type: ignore[misc]
    assert len(left(state)) == 4
    for number in range(4):
        end(old, f"p-w-{number}")
    assert left(state) == []
