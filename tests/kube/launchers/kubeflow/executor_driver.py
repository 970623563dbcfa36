"""Spark's driver with executors, as a worker starts it: `executor_driver.py MASTER CONF BUSY`, settings as JSON.

Says `up` once an executor has run a task, puts the file BUSY there while another task runs, and says how that ended.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from compaction.worker.errors import TaskFailedError
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings


def work_for_ever(busy: str) -> None:
    """A task that its executor does not outlive."""
    Path(busy).touch()
    time.sleep(3600)


def main(master: str, conf: str, busy: str) -> None:
    """See the module."""
    with SparkEngine(SparkSettings(master=master, conf=json.loads(conf), stop_seconds=1)) as engine:
        print("up", flush=True)
        try:
            engine.submit(work_for_ever, busy, tag="job").result()
        except TaskFailedError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
