"""Points in time as policies write them: time zones, windows, and the cron expressions of `cron`.

What only a calendar can tell is checked here as well: a zone that passes CEL and is in no database is refused when the
policy is read.
"""

import re
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.policy.cron import Cron
from compaction.api.rules import Checked, Rule
from compaction.api.text.values import DURATION_PATTERN, Duration, milliseconds_in_cel

MAX_WINDOWS: Final = 16
_ZONE: Final = "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$"


def _is_zone(name: str) -> bool:
    if not re.fullmatch(_ZONE[1:-1], name) or name == "Local":
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; odd; a directory of the database
        return False
    return True


TimeZone = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64),
    Checked(
        Rule(
            cel=f"self != 'Local' && self.matches('{_ZONE}') && timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",
            message="write the name of a time zone of the IANA database, such as Europe/Berlin or Etc/UTC",
            holds=_is_zone,
        )
    ),
]
"""The name of a time zone of the IANA database."""

_MINUTE: Final = 60
_MONTH: Final = 31 * 24 * 3600
_LASTS: Final = Rule(
    cel=f"!self.matches('{DURATION_PATTERN}') || ({milliseconds_in_cel('self')} >= {_MINUTE * 1000}"
    f" && {milliseconds_in_cel('self')} <= {_MONTH * 1000})",
    message="must be from 1m to 31d, such as 4h",
    holds=lambda duration: _MINUTE <= duration <= _MONTH,
)


class Window(ApiModel):
    """A time in which jobs may be started, again and again."""

    schedule: Cron
    """When the window opens, as a cron expression in the time zone of the trigger, such as 0 22 * * MON-FRI."""
    duration: Annotated[Duration, Checked(_LASTS)]
    """How long it stays open, such as 6h: from 1m to 31d, in elapsed time whatever the clocks do."""


Windows = Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)]
