"""What an executor's container does before it is stopped: the JVM is told by the signal Spark listens for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[3] / "spark-images"
SCRIPT = IMAGES / "decommission.sh"
ENTRYPOINT = IMAGES / "entrypoint.sh"
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
LISTENS = """
import signal, sys, time
signal.signal(signal.SIGPWR, lambda *_: (time.sleep(0.5), sys.exit(42)))
print("up", flush=True)
time.sleep(600)
"""


def test_the_executor_is_told_and_waited_for_and_nobody_else(tmp_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", LISTENS, EXECUTOR], stdout=subprocess.PIPE, text=True) as executor,
        subprocess.Popen([sys.executable, "-c", LISTENS, "another"], stdout=subprocess.PIPE, text=True) as other,
    ):
        try:
            for process in (executor, other):
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                # The container sees its own processes only; here that is played, or others' would be told as well.
                (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            subprocess.run(["sh", str(SCRIPT), str(tmp_path)], check=True, timeout=60)
            assert executor.poll() == 42, "it has ended when the script ends"
            assert other.poll() is None
        finally:
            executor.kill()
            other.send_signal(signal.SIGKILL)


def test_without_an_executor_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert subprocess.run(["sh", str(SCRIPT), str(tmp_path)], check=False, timeout=60).returncode == 0


JAVA = f"""#!{sys.executable}
import os, signal, sys, time
signal.signal(signal.SIGPWR, lambda *_: (time.sleep(0.5), sys.exit(42)))
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(7)))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@contextmanager
def container(place: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """What an executor's container runs, and the process of its JVM."""
    java = place / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP RESOURCE_PROFILE_ID EXECUTOR_POD_NAME"
    variables = {f"SPARK_{name}": "x" for name in names.split()} | {"SPARK_HOME": "/x", "SPARK_EXECUTOR_MEMORY": "512m"}
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(place)} | variables
    command = ["sh", str(ENTRYPOINT), "executor"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as first:
        try:
            assert first.stdout is not None
            yield first, int(first.stdout.readline())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)


def test_the_hook_outlives_the_jvm_and_the_container_outlives_the_hook(tmp_path: Path) -> None:
    """A hook that is still there when its container's first process ends is killed: a warning at each normal end."""
    with container(tmp_path) as (first, jvm):
        processes = tmp_path / "proc"
        processes.mkdir()
        (processes / str(jvm)).symlink_to(f"/proc/{jvm}")
        hook = subprocess.run(["sh", str(SCRIPT), str(processes)], check=False, timeout=60)
        assert first.poll() is None, "the container goes on until the hook has ended"
        assert hook.returncode == 0
        assert first.wait(timeout=60) == 42, "the JVM's exit code is the container's"


def test_a_container_that_is_stopped_hands_the_signal_on_and_waits(tmp_path: Path) -> None:
    with container(tmp_path) as (first, _):
        first.terminate()
        assert first.wait(timeout=60) == 7
