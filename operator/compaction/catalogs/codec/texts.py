"""Modified UTF-8: zero takes two bytes, characters above U+FFFF are two surrogates of three bytes each; a surrogate may
stand alone (docs/design/catalogs.md#primitives).
"""

from __future__ import annotations

import re
from typing import Final

_FOUR_BYTES: Final = re.compile(rb"[\xf0-\xff\x00]")
_ABOVE: Final = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def decode_text(data: bytes) -> str:
    """The characters; pairs of surrogates become one character. ValueError when `data` is not modified UTF-8."""
    if _FOUR_BYTES.search(data) is not None:
        raise ValueError("a byte that modified UTF-8 has not")
    text = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    if _SURROGATE.search(text) is not None:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def encode_text(text: str) -> bytes:
    """`decode_text` in reverse, byte for byte."""
    if not text.isascii():
        text = _ABOVE.sub(_pair, text)
    return text.encode("utf-8", "surrogatepass").replace(b"\x00", b"\xc0\x80")


def _pair(found: re.Match[str]) -> str:
    number = ord(found[0]) - 0x10000
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 0x3FF))


def text_order(text: str) -> bytes:
    """Key that sorts as UTF-16 code units do, the order of the reference implementation."""
    return text.encode("utf-16-be", "surrogatepass")
