"""`compactor operator` that starts light workers (`light_worker.py`): the operator itself is what users run.

python light_operator.py [--task-seconds S] [--clock FILE] [--worker-clock FILE] [--kind MODULE:ATTRIBUTE] operator ...
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from compaction.cli.lazy import pause_collector
from support import clocks
from support.processes.light_worker import register_kind

WORKER = Path(__file__).with_name("light_worker.py")


def main() -> int:
    pause_collector()
    parser = argparse.ArgumentParser()
    parser.add_argument("--task-seconds", type=float, default=0.0)
    parser.add_argument("--clock", type=Path)
    parser.add_argument("--worker-clock", type=Path)
    parser.add_argument("--kind")
    options, command = parser.parse_known_args()
    if options.clock is not None:
        clocks.install(options.clock)
    if options.kind is not None:
        register_kind(options.kind)

    from compaction.cli import main as cli
    from compaction.kube.launchers import process
    from compaction.kube.launchers.base import WorkerRequest
    from compaction.kube.launchers.process import ProcessLauncher, worker_command

    light = [sys.executable, str(WORKER), "--task-seconds", str(options.task_seconds)]
    if options.worker_clock is not None:
        light += ["--clock", str(options.worker_clock)]
    if options.kind is not None:
        light += ["--kind", options.kind]

    def light_command(request: WorkerRequest) -> list[str]:
        full = worker_command(request)
        return [*light, *full[full.index("worker") :]]

    process.ProcessLauncher = partial(ProcessLauncher, command=light_command)  # type: ignore[misc,assignment]
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main())
