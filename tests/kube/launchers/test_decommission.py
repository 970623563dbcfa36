"""What an executor's container does before it is stopped: the JVM is told by the signal Spark listens for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "spark-images" / "decommission.sh"
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
