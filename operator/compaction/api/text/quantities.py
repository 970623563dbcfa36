"""Durations and quantities as they are written in the resources."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema


# Durations and quantities as they are written in the resources.
#
# Each value is a number that remembers its text: `Duration("1m30s") == 90.0` seconds, `Quantity("1Gi") == 1 << 30`,
# and both serialise as they were written, so an object that is read and written back does not change. What a policy
# may say is a subset of what Go and Kubernetes parse, small enough that the API server's CEL and this module agree on
# every string.
#
# Commands are given such values too, without any model: pydantic is imported where a model asks for it, and not
# before.

MAX_DURATION_TEXT: Final = 20
_PART: Final = "([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))"
DURATION_PATTERN: Final = f"^([0-9]{{1,4}}d{_PART}*|{_PART}+)$"
"""Whole days first, because Go knows none. With at most 20 characters nothing that matches can overflow Go's 64-bit
nanoseconds (292 years).
"""

_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS: Final = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(24 * 3600),
}
DURATION_HELP: Final = "write a duration such as 30s, 10m, 1h30m or 90d (units: d, h, m, s, ms; whole days first)"

MAX_QUANTITY_TEXT: Final = 32
QUANTITY_PATTERN: Final = r"^[0-9]{1,15}([.][0-9]{1,6})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
CPU_PATTERN: Final = r"^([0-9]{1,6}m|[0-9]{1,4}([.][0-9]{1,3})?)$"
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


def milliseconds_in_cel(text: str) -> str:
    """The expression of CEL for the milliseconds that an expression of a text, which matches the pattern, stands for.
    CEL parses as Go does, which knows no days; of what is taken apart the API server must know how long it may be.
    """
    days, rest = f"int('0' + {text}.find('^[0-9]+d').find('[0-9]+'))", f"duration('0s' + {text}.find('[^d]*$'))"
    return f"({days} * 86400000 + {rest}.getMilliseconds())"


class Duration(float):
    """Seconds, written like Go durations, and with days: `Duration("1m30s") == 90.0`, `Duration("1d12h") == 129600.0`;
    `.text` is what was written.
    """

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
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.text)
        )

    @classmethod
    def _validate(cls, value: object) -> Duration:
        if isinstance(value, Duration):
            return value
        from pydantic_core import PydanticCustomError

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


class _Written(int):
    """A whole number that remembers how it was written; a subclass says what may be written and what it means."""

    text: str
    PATTERN: ClassVar[str]
    HELP: ClassVar[str]
    KIND: ClassVar[str]

    def __new__(cls, text: str | int) -> Self:
        written = str(text)
        if not re.fullmatch(cls.PATTERN[1:-1], written):
            raise ValueError(cls.HELP)
        value = super().__new__(cls, cls.count(written))
        value.text = written
        return value

    @classmethod
    def count(cls, written: str) -> int:
        """The number that a text of the right form means. Raises ValueError when it is too large."""
        raise ValueError(cls.HELP)

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]  # built from its text, not from a number
        return (self.text,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str | int:
        """What stands in YAML: a plain number stays a number."""
        return int(self.text) if self.text.isdecimal() else self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.to_json())
        )

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        from pydantic_core import PydanticCustomError

        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            try:
                return cls(value)
            except ValueError as error:
                raise PydanticCustomError(cls.KIND, "{help}", {"help": str(error)}) from None
        raise PydanticCustomError(cls.KIND, "{help}", {"help": cls.HELP})

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        rule = f"string(self).matches('{cls.PATTERN}')"
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": MAX_QUANTITY_TEXT,
            "x-kubernetes-validations": [{"rule": rule, "message": cls.HELP}],
        }


class Quantity(_Written):
    """Bytes, written like Kubernetes quantities: `Quantity("1Gi") == 1073741824`; `.text` is what was written.

    Fractions of a byte round up, as in Kubernetes.
    """

    PATTERN = QUANTITY_PATTERN
    HELP = QUANTITY_HELP
    KIND = "quantity"

    @classmethod
    def count(cls, written: str) -> int:
        """Bytes. Raises ValueError for more than 64 bits hold."""
        match = _QUANTITY.fullmatch(written)
        assert match is not None, "the pattern was checked"
        exact = Decimal(match[1]) * _FACTORS.get(match[2], 1)
        found = int(exact.to_integral_value(rounding=ROUND_CEILING))
        if found > MAX_QUANTITY:
            raise ValueError(f"{written} is more than 64 bits hold: {QUANTITY_HELP}")
        return found


class Cpu(_Written):
    """Processors in thousandths, written like Kubernetes quantities: `Cpu("500m") == 500`, `Cpu("1.5") == 1500`."""

    PATTERN = CPU_PATTERN
    HELP = "write processors as a number or in thousandths, such as 2, 0.5 or 500m"
    KIND = "cpu"

    @classmethod
    def count(cls, written: str) -> int:
        """Thousandths of a processor."""
        return int(written[:-1]) if written.endswith("m") else int(Decimal(written) * 1000)
