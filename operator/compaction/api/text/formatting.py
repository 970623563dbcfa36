"""Numbers for people: the way kubectl would write them."""

from typing import Final

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


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
