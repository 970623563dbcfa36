"""The fields of an operation: what they may be, and clear words for what they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from compaction.cli.histories.texts import bytes_of_base64, quoted
from compaction.errors import RecordTextError

BASE64: Final = "_base64"
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one operation, or of one item of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar[frozenset[str]] = frozenset()
    """Names of fields that may also be given as `<name>_base64`."""

    given: Mapping[str, Any]
    what: str

    def check(self, known: Iterable[str]) -> None:
        """No other fields than these; each of bytes also as `<name>_base64`."""
        names = set(known)
        for name in self.given:
            if name not in names and name.removesuffix(BASE64) not in names & self.of_bytes:
                raise RecordTextError(
                    f"{self.what} has no field {quoted(name)}: it has {', '.join(sorted(names)) or 'none'}"
                )

    def has(self, name: str) -> bool:
        """Whether there is such a field that is not null."""
        return self.given.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it must be there."""
        found = self.given.get(name, default)
        if not isinstance(found, str):
            raise RecordTextError(f'{self.what} needs "{name}", a text')
        try:
            found.encode()
        except UnicodeEncodeError:
            raise RecordTextError(f'"{name}" of {self.what} is not Unicode text') from None
        return found

    def flag(self, name: str) -> bool:
        """true or false; false when it is not there."""
        found = self.given.get(name, False)
        if not isinstance(found, bool):
            raise RecordTextError(f'"{name}" of {self.what} is true or false')
        return found

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number; without a default it must be there."""
        found = self.given.get(name, default)
        if type(found) is not int or not least <= found <= most:
            raise RecordTextError(f'"{name}" of {self.what} is a whole number of at least {least}')
        return found

    def seconds(self, name: str, default: float) -> float:
        """A length of time."""
        found = self.given.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e15:
            raise RecordTextError(f'"{name}" of {self.what} is a number of seconds')
        return float(found)

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts; empty when it is not there."""
        found = self.given.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise RecordTextError(f'"{name}" of {self.what} is an object of texts')
        return found

    def data(self, name: str, default: bytes | None = None) -> bytes:
        """Bytes as text, or under `<name>_base64` in base64; without a default they must be there."""
        if name + BASE64 in self.given:
            if name in self.given:
                raise RecordTextError(f'{self.what} has "{name}" twice: as text and in base64')
            return bytes_of_base64(self.given[name + BASE64], name + BASE64)
        if default is not None and name not in self.given:
            return default
        return self.text(name).encode()

    def many(self, name: str) -> list[bytes]:
        """A list of bytes, each as in `data`; empty when it is not there."""
        if name + BASE64 in self.given:
            return [bytes_of_base64(one, name + BASE64) for one in self.items(name + BASE64)]
        return [Fields({name: one}, self.what).data(name) for one in self.items(name)]

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """A list of objects; empty when it is not there."""
        found = self.items(name)
        if not all(isinstance(one, dict) for one in found):
            raise RecordTextError(f'"{name}" of {self.what} is a list of objects')
        return found

    def items(self, name: str) -> list[Any]:
        """A list; empty when it is not there."""
        found = self.given.get(name, _NOTHING)
        if found is _NOTHING:
            return []
        if not isinstance(found, list):
            raise RecordTextError(f'"{name}" of {self.what} is a list')
        return found
