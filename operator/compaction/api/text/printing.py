"""Text for people: numbers as kubectl writes them, and text from outside, cut to fit and made safe to print."""

from __future__ import annotations

import hashlib
import re
from typing import Final

# Numbers for people: the way kubectl would write them.

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def format_bytes(count: int) -> str:
    """Bytes with a binary suffix and at most three digits: `0`, `512`, `1.5Gi`, `163Mi`."""
    if count < 0:
        return "-" + format_bytes(-count)
    value, power = float(count), 0
    while round(value, 1 if value < 9.95 and power else 0) >= 1024 and power < len(_BINARY) - 1:
        value /= 1024
        power += 1
    digits = f"{value:.1f}".removesuffix(".0") if power and value < 9.95 else f"{value:.0f}"
    return digits + _BINARY[power]


def format_age(seconds: float) -> str:
    """A length of time in at most two units, rounded down: `0s`, `45s`, `2m10s`, `3h5m`, `2d4h`, `40d`."""
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 60:
        return f"{total}s"
    if hours < 1:
        return _two(minutes, "m", total % 60, "s") if minutes < 10 else f"{minutes}m"
    if days < 2:
        return _two(hours, "h", minutes % 60, "m")
    return _two(days, "d", hours % 24, "h") if days < 10 else f"{days}d"


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 group`, `2 groups`; `many` where an s is not enough: `2 batches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def format_work(cost_bytes: int, gain_bytes: int) -> str:
    """What jobs would do: `copy 48Mi, reclaim 149Mi`; what a merge reclaims is known only afterwards."""
    gain = f", reclaim {format_bytes(gain_bytes)}" if gain_bytes else ""
    return f"copy {format_bytes(cost_bytes)}{gain}"


def format_cpu(seconds: float) -> str:
    """CPU time: `0.42s`, `12.3s`, and from a minute on as a length of time, `2m10s`."""
    return format_age(seconds) if seconds >= 60 else f"{seconds:.3g}s"


def format_cost(cpu_seconds: float, gain: int | None) -> str:
    """The cost of work: `12.3s of CPU, 34Mi reclaimed per CPU second`; `gain` in bytes, None while not known."""
    reclaimed = f", {format_bytes(gain)} reclaimed per CPU second" if gain is not None else ""
    return f"{format_cpu(cpu_seconds)} of CPU{reclaimed}"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


# Text from outside, cut to fit and made safe to print. Imports no models: every command needs it.

MESSAGE_LIMIT: Final = 2048
PATH_LIMIT: Final = 4096
MARK_LIMIT: Final = 1024
INT64_MAX: Final = 2**63 - 1
ELLIPSIS: Final = "…"
# Characters that a terminal obeys or that change the order of a line (control characters, separators, bidirectional
# marks), and those that UTF-8 cannot hold: file names of any bytes arrive with their stray ones as surrogates.
UNPRINTABLE: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""What no name may hold, as the inside of a set of characters: the same text for Python's expressions and CEL's."""
_UNSAFE: Final = re.compile(rf"[{UNPRINTABLE}\ud800-\udfff]")
REDACTED: Final = "***"
_WORD: Final = re.compile(r"[^\s\"']+")
_USER: Final = re.compile(r"(://)(?:[^/?#@:]*:.*|[^/?#]*)@")
_NAMES: Final = (
    r"(?:password|passwd|passphrase|secret|token|credential|signature|\bsig\b|(?:api|access|account|private)[._-]?key)"
)
_VALUE: Final = r"""(?:"[^"]*"?|'[^']*'?|[^\s"']+)"""
# Counted repetitions where a search from each place would take the square of the text's length.
_CREDENTIALS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # A block, also one whose beginning or end was cut off with the rest of a log, and a line from the inside of one.
    (re.compile(r"-----BEGIN [^-]*-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"\A(?:(?!-----BEGIN ).)*?-----END [^-]*-----", re.DOTALL), REDACTED),
    (re.compile(r"^[A-Za-z0-9+/]{60,}={0,2}$", re.MULTILINE), REDACTED),
    (re.compile(rf"""({_NAMES}[\w.-]{{0,99}}["']?\s*=\s*){_VALUE}""", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"""({_NAMES}[\w.-]{{0,99}}["']\s*:\s*){_VALUE}""", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(rf"^(\s*[\w.-]{{0,99}}(?:password|passwd|passphrase):\s*){_VALUE}", re.IGNORECASE | re.MULTILINE),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(authorization:\s*)\S+(?:\s+\S+)?", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"\beyJ[\w-]{8,}(?:\.[\w-]*){1,2}"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), REDACTED),
)


def redacted(text: str) -> str:
    """The text without what looks like a credential: user and password of a URL, values of names such as `password`,
    keys of AWS, bearer tokens, PEM. For logs, of which a line ends in a status that more people may read.
    """
    text = _WORD.sub(_without_user, text)
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    return text


def _without_user(word: re.Match[str]) -> str:
    # Up to the last @: a password may have one. Without any nothing is searched: that takes the square of the time.
    before, at, after = word[0].rpartition("@")
    return _USER.sub(rf"\1{REDACTED}@", before + at) + after


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
