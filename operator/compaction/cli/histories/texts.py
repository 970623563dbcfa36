"""Bytes in lines of JSON: as text, or in base64 where they are none; and names in messages."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from compaction.api.text.safe import cut, printable
from compaction.errors import RecordTextError

_SHOWN: Final = 80
"""Characters of a name in messages."""


def text_fields(name: str, data: bytes, suffix: str = "Base64") -> dict[str, str]:
    """Bytes under their name as text, or under `<name>Base64` when they are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + suffix: base64.b64encode(data).decode()}


def quoted(name: str) -> str:
    """A name as it was written, for messages: in quotes, only the beginning of a long one, and safe to print."""
    return f'"{printable(cut(name, _SHOWN))}"'


def bytes_of_base64(text: object, name: str) -> bytes:
    """RecordTextError: it is not base64."""
    if not isinstance(text, str):
        raise RecordTextError(f"{quoted(name)} is not a text: write base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordTextError(f"{quoted(name)} is not base64") from None
