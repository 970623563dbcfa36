"""Cron expressions as policies write them.

They are what CronJob users know (five fields, names of months and days, lists, ranges, steps), checked field by field
by the API server and here alike. What only a calendar can tell is checked here as well: an expression that passes CEL
and still never comes is refused when the policy is read.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from cronsim import CronSim, CronSimError
from pydantic import StringConstraints

from compaction.api.base import Checked, Rule

MAX_CRON_TEXT: Final = 128
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
_FORM: Final = "^{0} +{0} +{0} +{1} +{2}$".format(_field("[0-9]+"), _field("[0-9]+", _MONTHS), _field("[0-9]+", _DAYS))
"""Five fields with any numbers: whether those are possible is a question with an answer of its own."""
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NO_MACROS: Final = "macros are not supported; write "
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


def _in_range(place: int, name: str, outside: str, limits: str) -> Rule:
    """The rule that no number of a field is outside its limits; `place`: how many fields stand before it. What a step
    is (`*/99`) has no such limit.
    """
    found = f"^([^ ]+ +){{{place}}}([^ ]*[,-])?({outside}|[0-9]{{3,}})([,/ -]|$)"

    def number(expression: str) -> str:
        match = re.search(found, expression)
        return match[3] if match else ""

    return Rule(
        cel=f"!self.matches('{found}')",
        message=f"{name} is out of range {limits}",
        holds=lambda expression: not number(expression),
        explain=lambda expression: f"{name} {number(expression)} is out of range {limits}",
        message_cel=f"'{name} ' + self.find('{found}').find('[0-9]+[^0-9]?$').find('[0-9]+')"
        f" + ' is out of range {limits}'",
    )


Cron = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_CRON_TEXT),
    Checked(
        Rule(
            cel="!self.startsWith('@')",
            message=f"{_NO_MACROS}five cron fields",
            holds=lambda text: not text.startswith("@"),
            explain=lambda text: _NO_MACROS + _MACROS.get(text, "five cron fields"),
            message_cel=f"'{_NO_MACROS}' + {_MACROS}[self]",  # of an unknown one there is only `message`
        ),
        Rule(
            cel=f"self.startsWith('@') || self.matches('{_FORM}')",
            message="write five cron fields (minute, hour, day of month, month, day of week), such as 30 2 * * MON-FRI",
            holds=lambda text: re.fullmatch(_FORM[1:-1], text) is not None,
        ),
        _in_range(0, "minute", "[6-9][0-9]", "0-59"),
        _in_range(1, "hour", "2[4-9]|[3-9][0-9]", "0-23"),
        _in_range(2, "day of month", "00?|3[2-9]|[4-9][0-9]", "1-31"),
        _in_range(3, "month", "00?|1[3-9]|[2-9][0-9]", "1-12"),
        _in_range(4, "day of week", "0?[89]|[1-9][0-9]", "0-7"),
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
