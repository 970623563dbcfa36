"""All defects, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from mutation.block_defects import BLOCK_DEFECTS
from mutation.control_defects import CONTROL_DEFECTS
from mutation.segment_defects import SEGMENT_DEFECTS

DEFECTS: Final = (*SEGMENT_DEFECTS, *BLOCK_DEFECTS, *CONTROL_DEFECTS)
