""""""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from compaction.local.processes.process import class_archives
from compaction.worker.spark.session import SparkEngine
from compaction.worker.spark.settings import SparkSettings


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkEngine]:
    """A real Spark application on two cores, for all tests of this folder. No longer: a process has one at a time, and
    tests elsewhere start their own.
    """
    settings = SparkSettings(
        master="local[2]", jobs=4, scratch_parent=tmp_path_factory.mktemp("spark"), archives=class_archives()
    )
    with SparkEngine(settings) as engine:
        yield engine


@pytest.fixture
def session(spark: SparkEngine) -> SparkSession:
    """With settings of SQL that no other test sees. Its rows need no two hundred partitions to be compared."""
    session = SparkSession(spark.context).newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session
