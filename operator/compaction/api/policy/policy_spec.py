"""`spec` of a CompactionPolicy: what to compact, when, how much at once, by whom.

Defaults stand in the schema, except those of fields that an installation may fill in (`api.policy.configuration`):
`kubectl get -o yaml` shows the policy that is in force in its spec, and in `status.defaults`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, Rule, list_atomic
from compaction.api.enums import Approval
from compaction.api.policy.store import StoreSpec
from compaction.api.policy.workers import WorkersSpec
from compaction.api.text.quantities import DURATION_PATTERN, Duration, Quantity, milliseconds_in_cel

# Cron expressions as policies write them.
#
# They are what CronJob users know (five fields, names of months and days, lists, ranges, steps), checked field by field
# by the API server and here alike. What only a calendar can tell is checked here as well: an expression that passes CEL
# and still never comes is refused when the policy is read.

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


# Points in time as policies write them: time zones, and windows that open at times of a cron expression.
#
# Facts that only a calendar has are checked here as well: a zone that passes CEL and is in no database is refused when
# the policy is read.

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


POSITIVE: Final = Rule(
    cel=f"!self.matches('{DURATION_PATTERN}') || self.matches('[1-9]')",
    message="must be longer than 0s, such as 1m",
    holds=lambda duration: duration > 0,
)


class TriggerSpec(ApiModel):
    """When the store is scanned, when plans are made, and when jobs are started."""

    interval: Annotated[Duration, Checked(POSITIVE)] = Duration("1m")
    """Time between two scans of the store, such as 30s, 10m or 1h."""
    schedule: Cron | None = None
    """Times at which plans are created, as a cron expression such as 0 2 * * *. Without it, each scan creates a plan. A
    time that passed while the operator was away is made up for once, at once."""
    time_zone: TimeZone = "Etc/UTC"
    """Time zone of schedule and windows, a name of the IANA database such as Europe/Berlin."""
    windows: Annotated[Windows, list_atomic()] = ()
    """Times in which jobs may be started. Jobs that run finish, also after a window has closed. Without any, jobs
    may be started at any time."""
    cooldown: Duration = Duration("0s")
    """Time that a target is left alone after a job of it finished, such as 10m. 0s means no pause."""


class LimitsSpec(ApiModel):
    """How much a policy may do at once."""

    max_concurrent_jobs: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of jobs that run at the same time at most."""
    bytes_per_second: (
        Annotated[
            Quantity,
            Checked(
                Rule(
                    cel="type(self) == int ? self > 0 : !self.matches('^[0.]+[a-zA-Z]*$')",
                    message="must be more than 0, such as 50M",
                    holds=lambda quantity: quantity > 0,
                )
            ),
        ]
        | None
    ) = None
    """Bytes per second that all rewrites of the policy together read and write at most, as a quantity such as 50M.
    Each job gets a share when it is assigned; it may grow when others end. Without it, there is no limit."""
    max_bytes_per_job: Annotated[
        Quantity,
        Checked(
            Rule(
                cel="type(self) == int ? self > 0 : !self.matches('^[0.]+[a-zA-Z]*$')",
                message="must be more than 0, such as 1Gi",
                holds=lambda quantity: quantity > 0,
            )
        ),
    ] = Quantity("1Gi")
    """Bytes that one job rewrites at most, as a quantity such as 1Gi. A single group of sources that is larger becomes
    a job of its own."""
    max_jobs_queued: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Number of unfinished jobs that the policy keeps at most. What does not fit is planned again later."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of failed attempts after which a job is parked as Faulty. Raising it makes such jobs eligible again."""


class LeaseSpec(ApiModel):
    """How silence of a worker is judged."""

    duration_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    """Seconds without a sign of life after which a worker's job goes to another worker. Workers renew three times in
    this time."""


class CleanupSpec(ApiModel):
    """What happens to replaced data."""

    delay: Duration = Duration("10m")
    """Grace, such as 10m: time that replaced blocks, segments without live entries and the names of rewritten segments
    stay before they are deleted. It is no undo: the dead entries of rewritten segments are gone at the commit. 0s
    deletes at the next scan of the store."""


HistoryLimit = Annotated[int, Field(ge=0, le=1000)]


class CompactionPolicySpec(ApiModel):
    """What to compact, when, how much at once, and by whom."""

    suspend: bool = False
    """Suspend the policy: while true, no job is created or assigned. Running jobs finish."""
    store: StoreSpec
    """The store to compact: exactly one member must be set."""
    trigger: TriggerSpec = Field(default_factory=TriggerSpec)
    """When the store is scanned, when plans are made, and when jobs are started."""
    approval: Approval = Approval.AUTO
    """Whether plans are carried out by themselves (Auto), or only when the annotation compaction.dev/approve of this
    policy names the plan's hash (Manual)."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """How much the policy may do at once."""
    lease: LeaseSpec = Field(default_factory=LeaseSpec)
    """How long a worker may be silent before its job goes to another."""
    workers: WorkersSpec = Field(default_factory=WorkersSpec)
    """The Spark applications that run the jobs."""
    cleanup: CleanupSpec = Field(default_factory=CleanupSpec)
    """What happens to replaced data."""
    successful_jobs_history_limit: HistoryLimit = 10
    """Number of finished jobs that are kept for their receipts. Older ones are deleted."""
    failed_jobs_history_limit: HistoryLimit = 10
    """Number of parked (Faulty) jobs that are kept. Older ones are deleted and their work is planned again, except
    those whose work was planned again in halves: they stay until it is done."""
