"""All defects, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from mutation.block_defects import BLOCK_DEFECTS
from mutation.catalogs.restrictions import RESTRICTION_DEFECTS
from mutation.catalogs.rounds import ROUND_DEFECTS
from mutation.control_defects import CONTROL_DEFECTS
from mutation.segment_defects import SEGMENT_DEFECTS
from mutation.staging.compactions import COMMIT_DEFECTS, COMPACTION_DEFECTS
from mutation.staging.live import LIVE_DEFECTS, POLICY_DEFECTS
from mutation.staging.reads import FORMAT_DEFECTS, READ_DEFECTS, WRITE_DEFECTS
from mutation.staging.sweeps import SWEEP_DEFECTS

DEFECTS: Final = (
    *SEGMENT_DEFECTS,
    *BLOCK_DEFECTS,
    *READ_DEFECTS,
    *WRITE_DEFECTS,
    *COMMIT_DEFECTS,
    *FORMAT_DEFECTS,
    *COMPACTION_DEFECTS,
    *SWEEP_DEFECTS,
    *LIVE_DEFECTS,
    *POLICY_DEFECTS,
    *RESTRICTION_DEFECTS,
    *ROUND_DEFECTS,
    *CONTROL_DEFECTS,
)
