"""Points in time as policies write them: cron expressions, time zones, windows.

Cron is what CronJob users know (five fields, names of months and days, lists, ranges, steps), checked field by field by
the API server and here alike. What only a calendar can tell is checked here as well: an expression that passes CEL and
still never comes is refused when the policy is read.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.rules import Checked, Rule
from compaction.api.text.values import DURATION_PATTERN, Duration

MAX_CRON_TEXT: Final = 128
MAX_WINDOWS: Final = 16
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def _field(number: str, names: tuple[str, ...] = ()) -> str:
    """The pattern of one field: a list of values, ranges and steps. Backslashes would be escapes in CEL."""
    words = f"|(?i:{'|'.join(names)})(-(?i:{'|'.join(names)}))?" if names else ""
    item = f"([*]|({number})(-({number}))?{words})(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


CRON_PATTERN: Final = "^{} +{} +{} +{} +{}$".format(
    _field("[0-5]?[0-9]"),
    _field("[01]?[0-9]|2[0-3]"),
    _field("0?[1-9]|[12][0-9]|3[01]"),
    _field("0?[1-9]|1[0-2]", _MONTHS),
    _field("0?[0-7]", _DAYS),
)
_NEVER: Final = (
    "^[^ ]+ +[^ ]+ +(((30|31)(-31)?(,(30|31)(-31)?)*) +(?i:0?2|FEB)"
    "|31(,31)* +(?i:0?[2469]|11|FEB|APR|JUN|SEP|NOV)(,(?i:0?[2469]|11|FEB|APR|JUN|SEP|NOV))*) +[*]"
)
"""Days that the months named do not have, on whatever day of the week."""


def _descending(names: tuple[str, ...]) -> list[str]:
    """Patterns of the ranges of names that end before they begin."""
    return [f"{start}-({'|'.join(names[:place])})" for place, start in enumerate(names) if place]


_DESCENDING_NUMBERS: Final = "|".join(
    [
        "[1-9][0-9]-[0-9]",
        *(f"[{tens}][0-9]-[0-{tens - 1}][0-9]" for tens in range(1, 6)),
        *(f"{tens or '0?'}{ones}-{tens or '0?'}[0-{ones - 1}]" for tens in range(6) for ones in range(1, 10)),
    ]
)
_DESCENDING: Final = (
    f"(^|[ ,])({_DESCENDING_NUMBERS}|(?i:{'|'.join(_descending(_MONTHS) + _descending(_DAYS))}))([ ,/]|$)"
)
"""A range that ends before it begins. A pattern, because the cost of anything that takes the text apart in CEL is
estimated beyond the API server's limit.
"""


def _comes(expression: str) -> bool:
    if re.search(_NEVER, expression):
        return False
    if not re.fullmatch(CRON_PATTERN[1:-1], expression) or re.search(_DESCENDING, expression):
        return True  # the other rules say so
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def _is_zone(name: str) -> bool:
    if not re.fullmatch(_ZONE[1:-1], name) or name == "Local":
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; odd; a directory of the database
        return False
    return True


Cron = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_CRON_TEXT),
    Checked(
        Rule(
            cel=f"self.matches('{CRON_PATTERN}')",
            message="write five cron fields (minute, hour, day of month, month, day of week), such as 30 2 * * MON-FRI",
            holds=lambda text: re.fullmatch(CRON_PATTERN[1:-1], text) is not None,
        ),
        Rule(
            cel=f"!self.matches('{_DESCENDING}')",
            message="ranges must ascend: write MON-FRI, and 22-23,0-5 instead of 22-5",
            holds=lambda text: re.search(_DESCENDING, text) is None,
        ),
        Rule(
            cel=f"!self.matches('{_NEVER}')",
            message="names a day that its months do not have, so it never comes: choose another day or month",
            holds=_comes,
        ),
    ),
]
"""A cron expression of five fields."""

_ZONE: Final = "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$"

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

_LASTS: Final = Rule(
    cel=f"!self.matches('{DURATION_PATTERN}')"
    " || (duration(self) >= duration('1m') && duration(self) <= duration('744h'))",
    message="must be from 1m to 744h (31 days), such as 4h",
    holds=lambda duration: 60 <= duration <= 744 * 3600,
)


class Window(ApiModel):
    """A time in which jobs may be started, again and again."""

    schedule: Cron
    """When the window opens, as a cron expression in the time zone of the trigger, such as 0 22 * * MON-FRI."""
    duration: Annotated[Duration, Checked(_LASTS)]
    """How long it stays open, such as 6h: from 1m to 744h, in elapsed time whatever the clocks do."""


Windows = Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)]
