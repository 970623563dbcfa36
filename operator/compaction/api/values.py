"""Durations, quantities and times as they are written in the resources.

Each value is a number that remembers its text: `Duration("1m30s") == 90.0` seconds, `Quantity("1Gi") == 1 << 30`, and
both serialise as they were written, so an object that is read and written back does not change. What a policy may say
is a subset of what Go and Kubernetes parse, small enough that the API server's CEL and this module agree on every
string.
"""

import math
import re
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_DURATION_TEXT: Final = 20
DURATION_PATTERN: Final = r"^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$"
"""With at most 20 characters nothing that matches can overflow Go's 64-bit nanoseconds (292 years)."""

_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
DURATION_HELP: Final = "write a duration such as 30s, 10m or 1h30m (units: h, m, s, ms)"

MAX_QUANTITY_TEXT: Final = 32
QUANTITY_PATTERN: Final = r"^[0-9]{1,15}([.][0-9]{1,6})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_FACTORS: Final = {
    suffix: base**power
    for base, suffixes in ((1000, ("k", "M", "G", "T")), (1024, ("Ki", "Mi", "Gi", "Ti")))
    for power, suffix in enumerate(suffixes, start=1)
}
MAX_QUANTITY: Final = 2**63 - 1
QUANTITY_HELP: Final = (
    "write bytes as a whole number or with a suffix, such as 500M, 64Mi or 1Gi (k, M, G, T, Ki, Mi, Gi, Ti)"
)


class Duration(float):
    """Seconds, written like Go durations: `Duration("1m30s") == 90.0`; `.text` is what was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        if len(text) > MAX_DURATION_TEXT or not re.fullmatch(DURATION_PATTERN[1:-1], text):
            raise ValueError(DURATION_HELP)
        seconds = sum(Decimal(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
        value = super().__new__(cls, float(seconds))
        value.text = text
        return value

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]  # built from its text, not from a number
        return (self.text,)

    def __repr__(self) -> str:
        return f"Duration({self.text!r})"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def from_seconds(cls, seconds: float) -> Self:
        """The duration of that many seconds, to the millisecond, in its shortest form: 5400 -> `1h30m`."""
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"a duration is a finite number of seconds from 0 on, not {seconds}")
        total, parts = round(seconds * 1000), []
        for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            count, total = divmod(total, size)
            if count:
                parts.append(f"{count}{unit}")
        return cls("".join(parts) or "0s")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.text)
        )

    @classmethod
    def _validate(cls, value: object) -> "Duration":
        if isinstance(value, Duration):
            return value
        if isinstance(value, str):
            try:
                return cls(value)
            except ValueError as error:
                raise PydanticCustomError("duration", "{help}", {"help": str(error)}) from None
        raise PydanticCustomError("duration", "{help}", {"help": DURATION_HELP})

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "type": "string",
            "maxLength": MAX_DURATION_TEXT,
            "x-kubernetes-validations": [{"rule": f"self.matches('{DURATION_PATTERN}')", "message": DURATION_HELP}],
        }


class Quantity(int):
    """Bytes, written like Kubernetes quantities: `Quantity("1Gi") == 1073741824`; `.text` is what was written.

    Fractions of a byte round up, as in Kubernetes.
    """

    text: str

    def __new__(cls, text: str | int) -> Self:
        written = str(text)
        match = _QUANTITY.fullmatch(written)
        if match is None or not re.fullmatch(QUANTITY_PATTERN[1:-1], written):
            raise ValueError(QUANTITY_HELP)
        exact = Decimal(match[1]) * _FACTORS.get(match[2], 1)
        count = int(exact.to_integral_value(rounding=ROUND_CEILING))
        if count > MAX_QUANTITY:
            raise ValueError(f"{written} is more than 64 bits hold: {QUANTITY_HELP}")
        value = super().__new__(cls, count)
        value.text = written
        return value

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]  # built from its text, not from a number
        return (self.text,)

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str | int:
        """What stands in YAML: a plain number stays a number."""
        return int(self) if self.text.isdecimal() else self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.to_json())
        )

    @classmethod
    def _validate(cls, value: object) -> "Quantity":
        if isinstance(value, Quantity):
            return value
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            try:
                return cls(value)
            except ValueError as error:
                raise PydanticCustomError("quantity", "{help}", {"help": str(error)}) from None
        raise PydanticCustomError("quantity", "{help}", {"help": QUANTITY_HELP})

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        rule = f"string(self).matches('{QUANTITY_PATTERN}')"
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": MAX_QUANTITY_TEXT,
            "x-kubernetes-validations": [{"rule": rule, "message": QUANTITY_HELP}],
        }


def to_timestamp(moment: datetime) -> datetime:
    """The moment as metav1.Time keeps it: UTC, whole seconds (the rest is cut off). ValueError out of range."""
    try:
        return moment.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError("a time must lie between the years 1 and 9999 in UTC") from error


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds: `2026-11-21T03:36:00Z`."""
    # Not strftime: it writes years before 1000 with fewer than four digits.
    return to_timestamp(moment).replace(tzinfo=None).isoformat() + "Z"


def timestamp_from_epoch(seconds: float) -> datetime:
    """The time of that many seconds since 1970 UTC."""
    return to_timestamp(datetime.fromtimestamp(seconds, tz=UTC))


Timestamp = Annotated[
    AwareDatetime,
    AfterValidator(to_timestamp),
    PlainSerializer(format_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in status: an aware datetime in UTC, to the second."""
