"""Main file of SparkApplications (`local:///opt/compaction/worker.py`): `compactor worker` with the driver's settings.

worker.py ARGUMENTS                                        the arguments of `compactor worker`
worker.py driver --properties-file FILE ... MAIN ARGUMENTS what a driver's container is told (entrypoint.sh)
"""

from __future__ import annotations

import os
import sys

from compaction.cli.main import main
from compaction.worker.errors import EngineStartError
from compaction.worker.spark.properties import DriverCall, worker_options


def arguments(words: list[str]) -> list[str]:
    """The words after `compactor worker`."""
    if words[:1] != ["driver"]:
        return words
    try:
        return worker_options(DriverCall.parse(words[1:]), os.environ)
    except EngineStartError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    sys.exit(main(["worker", *arguments(sys.argv[1:])]))
