"""Text from outside, cut to fit and made safe to print. Imports no models: every command needs it."""

import hashlib
import re
from typing import Final

MESSAGE_LIMIT: Final = 2048
PATH_LIMIT: Final = 4096
MARK_LIMIT: Final = 1024
INT64_MAX: Final = 2**63 - 1
ELLIPSIS: Final = "…"
# What a terminal obeys or what changes the order of a line (control characters, separators, bidirectional marks), and
# what UTF-8 cannot hold: file names of any bytes arrive with their stray ones as surrogates.
UNPRINTABLE: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""What no name may hold, as the inside of a set of characters: the same text for Python's expressions and CEL's."""
_UNSAFE: Final = re.compile(rf"[{UNPRINTABLE}\ud800-\udfff]")


def cut(text: str, limit: int) -> str:
    """The text if it fits in that many characters, else its beginning and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def printable(text: str) -> str:
    """The text with what no line of output should hold written out: `\\x1b`, `\\u202e`; a stray byte: `\\xff`."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return ascii(match[0])[1:-1]


def mark_of(value: str) -> str:
    """What status remembers of an annotation's value that was acted upon: the value, or its SHA-256 when it is long."""
    return value if len(value) <= MARK_LIMIT else f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def number_in(text: str | None, *, limit: int) -> int | None:
    """A number read from an annotation; None for anything else, or more than `limit`."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(limit)):
        return None
    return number if (number := int(text)) <= limit else None
