"""promtool, which tries the alerts (about three CPU-minutes to build). `extra` says where it comes from."""

from __future__ import annotations

from typing import Final

from compaction.local.programs.extra import ExtraProgram
from compaction.local.programs.versions import PROMETHEUS_VERSION

PROMTOOL: Final = ExtraProgram("promtool", f"prometheus-{PROMETHEUS_VERSION}")
find_promtool = PROMTOOL.find
ensure_promtool = PROMTOOL.ensure
