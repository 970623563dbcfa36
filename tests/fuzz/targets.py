"""All fuzz targets, by name."""

from __future__ import annotations

from typing import Final

from fuzz.block_targets import BLOCK_TARGETS
from fuzz.catalog_targets import CATALOG_TARGETS
from fuzz.install_targets import INSTALL_TARGETS
from fuzz.log_targets import LOG_TARGETS, WAL_TARGETS
from fuzz.object_targets import OBJECT_TARGETS
from fuzz.segment_targets import SEGMENT_TARGETS
from fuzz.staging_inputs import INPUT_TARGETS
from fuzz.staging_targets import ROW_TARGETS, STAGING_TARGETS
from fuzz.target import Target

TARGETS: Final[tuple[Target, ...]] = (
    *SEGMENT_TARGETS,
    *WAL_TARGETS,
    *INSTALL_TARGETS,
    *LOG_TARGETS,
    *OBJECT_TARGETS,
    *BLOCK_TARGETS,
    *STAGING_TARGETS,
    *ROW_TARGETS,
    *INPUT_TARGETS,
    *CATALOG_TARGETS,
)
