"""`compactor worker` with threads in the place of Spark: everything else is the worker's own. Up in half a second.

    python light_worker.py [--task-seconds S] [--clock FILE] [--kind MODULE:ATTRIBUTE] worker ...

`--task-seconds`: how long every group takes at least, so that a job can be met half-way. `--clock`: see `skewed_clock`.
`--kind`: a kind of store that is registered first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from compaction.cli.lazy import pause_collector
from support import clocks


def register_kind(name: str) -> None:
    """The kind in a module becomes known to this process."""
    from compaction.core.doors import Door
    from compaction.registry import register

    register(Door(name).open())


def main() -> int:
    pause_collector()
    parser = argparse.ArgumentParser()
    parser.add_argument("--task-seconds", type=float, default=0.0)
    parser.add_argument("--clock", type=Path)
    parser.add_argument("--kind")
    options, command = parser.parse_known_args()
    if options.clock is not None:
        clocks.install(options.clock)
    if options.kind is not None:
        register_kind(options.kind)

    from compaction.cli import main as cli
    from compaction.cli.cluster import worker
    from support.processes.worker_ports import ThreadEngine

    class LightEngine(ThreadEngine):
        """As a context manager, like Spark's."""

        def __init__(self, settings: object) -> None:
            super().__init__(parallelism=1)

        def __enter__(self) -> LightEngine:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

        def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
            def slowly(task: Any) -> Any:
                time.sleep(options.task_seconds)
                return work(task)

            return super().submit(slowly, task, tag=tag)

        def usage(self, tag: str) -> None:
            """Threads of one process cannot be told apart."""

        driver_peak_bytes = None

    worker.SparkEngine = LightEngine  # type: ignore[attr-defined,assignment]
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main())
